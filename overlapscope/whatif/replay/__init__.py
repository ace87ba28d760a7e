"""The replay of a step, event by event."""
