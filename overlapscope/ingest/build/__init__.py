"""Parsed columns to the timeline of a rank; shared by all device profilers."""
