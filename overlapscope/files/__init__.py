"""Files on disk: written whole, opened safely, spilled and removed. Knows nothing of timelines."""
