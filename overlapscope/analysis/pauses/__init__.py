"""When a host pauses, and what may be behind it."""
