"""The documentation site and what it must name."""
