"""Verdicts on real traces, written by hand from their raw events, and what the analysis says of the same traces."""
