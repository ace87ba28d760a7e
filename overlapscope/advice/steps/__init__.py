"""Which steps a loss is of, and which rank decides how long a step takes."""
