"""The structure of a dry run's step: what it communicates, in which order, and how two steps differ in it."""
