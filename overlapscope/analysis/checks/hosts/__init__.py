"""Findings about hosts: pauses, slow calls."""
