"""Files on disk: atomic writes, safe opening, spilling arrays, temporary folders. Knows nothing about timelines."""
