"""Findings about steps: one that is unlike the others, what slows from step to step, recordings without marks."""
