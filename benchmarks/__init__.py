"""Benchmarks: ratios measured in one run, interleaved. `make bench` prints them and writes RESULTS.md."""
