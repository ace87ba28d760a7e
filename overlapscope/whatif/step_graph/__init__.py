"""The step of any parallelism as a graph of programs, one a rank."""
