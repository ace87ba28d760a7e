"""What the timeline page shows, as values: windows of time, heat maps, lanes, links between ranks, names."""
