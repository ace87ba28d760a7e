"""The web server: routing, security, sockets and the document around every page."""
