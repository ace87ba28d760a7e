"""Readings of one job to one run: traces, logs and dumps of the same ranks joined."""
