"""Rules about the collectives of a step: how many, of what, how large and when."""
