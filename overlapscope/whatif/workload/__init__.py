"""A step of training described without a recording."""
