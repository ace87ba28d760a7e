"""Jobs that end in an unusual way: a rank is killed, a second profiler starts."""
