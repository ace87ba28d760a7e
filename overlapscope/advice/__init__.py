"""Ranked recommendations from the analysis of a run and from replays."""
