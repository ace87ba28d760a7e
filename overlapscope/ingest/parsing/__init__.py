"""Decode bytes and text into plain columns; nothing here depends on a profiler."""
