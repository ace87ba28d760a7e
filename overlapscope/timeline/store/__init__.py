"""The run directory: a run as JSON and Parquet on disk."""
