"""One folder a room of the package."""
