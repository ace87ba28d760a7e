"""The chain of work that decides how long a step takes."""
