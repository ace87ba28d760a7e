"""What a run processes and what its losses cost."""
