"""Real jobs of three ranks over gloo, one of them disturbed on purpose: who is named, and what held it."""
