"""A device and a training job in virtual time."""
