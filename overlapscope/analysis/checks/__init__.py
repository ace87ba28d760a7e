"""One file a family of findings."""
