"""Prices of a dry run: how long its operations and collectives would take on a device that is not here."""
