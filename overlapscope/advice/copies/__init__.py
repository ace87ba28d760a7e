"""Rules on copies between host and device: on the compute stream, awaited, or the largest loss."""
