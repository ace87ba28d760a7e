"""The web server: routing, security, and work done beside requests."""
