"""The runs below the served folder: found, listed, opened."""
