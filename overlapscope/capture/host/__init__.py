"""Readings outside torch: device and network counters, host pauses, the software environment."""
