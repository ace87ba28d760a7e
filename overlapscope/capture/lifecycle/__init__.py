"""How a recording begins, ends, survives signals, and never disturbs the training loop."""
