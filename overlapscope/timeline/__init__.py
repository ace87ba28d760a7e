"""The data every room shares: intervals, columns, runs and the run directory."""
