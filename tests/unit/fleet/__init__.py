"""The runs below a folder: found, measured, kept."""
