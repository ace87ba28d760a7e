"""Replays of a recorded step under other settings. Imports no torch."""
