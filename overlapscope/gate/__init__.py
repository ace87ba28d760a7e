"""Judge the difference between runs: policy, statistics and verdict."""
