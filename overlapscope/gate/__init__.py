"""Policy, statistics and verdict on the difference between runs."""
