"""One file a source format, each turning files into timeline columns; detection; repair."""
