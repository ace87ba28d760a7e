"""Render documents and sheets: one module per output format."""
