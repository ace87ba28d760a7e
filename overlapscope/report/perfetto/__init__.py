"""A run as one trace for ui.perfetto.dev."""
