"""Which rank was late, and what held it."""
