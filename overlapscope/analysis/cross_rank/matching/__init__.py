"""The same call on every rank: paired by number, by order, by stream, by message; and what was paired with nothing."""
