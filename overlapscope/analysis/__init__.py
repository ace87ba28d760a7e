"""Timeline in, figures out. Pure: no files, no plotting, no printing."""
