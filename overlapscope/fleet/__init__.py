"""The runs below a folder: found, measured in several processes, and their figures kept for the next time."""
