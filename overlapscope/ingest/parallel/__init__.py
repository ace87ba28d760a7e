"""Many files read by many processes: how many are worth it, the pool, and what workers leave on disk."""
