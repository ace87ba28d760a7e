"""Real training, real commands, real documents."""
