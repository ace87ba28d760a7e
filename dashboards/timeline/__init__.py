"""The timeline page: time windows, heat maps, lanes (streams and threads), calls linked across ranks, search."""
