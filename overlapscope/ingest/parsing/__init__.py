"""Bytes and text to plain columns; knows no profiler."""
