"""Compute figures and findings from a run's timelines. Pure functions: no files, no plotting, no printing."""
