"""One file per verb of the command line, each with `add_arguments` and `run`."""
