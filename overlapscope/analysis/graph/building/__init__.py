"""Build the dependency graph of a rank and of a run from their spans and host calls."""
