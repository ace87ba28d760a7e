"""Answer from the dependency graph of a recording what changes of its durations are worth."""
