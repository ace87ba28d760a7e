"""Export a run as one trace for ui.perfetto.dev."""
