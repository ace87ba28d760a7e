"""One verb of the command line a file, each with `add_arguments` and `run`."""
