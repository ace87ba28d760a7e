"""Combine the readings of one job into a run: join traces, logs and dumps of the same ranks."""
