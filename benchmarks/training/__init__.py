"""Training jobs that benchmarks of capture measure, one rank a process."""
