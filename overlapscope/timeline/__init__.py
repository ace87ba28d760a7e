"""The data that all packages share: intervals, columns, runs and the run directory."""
