"""The step of the whole job: its table, its parts, the headline."""
