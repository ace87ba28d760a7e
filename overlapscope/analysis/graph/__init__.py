"""The dependency graph of a run: what every moment of it waited for."""
