"""Files on disk: atomic writes, safe opening, temporary folders. Knows nothing about timelines."""
