"""Builders, writers and oracles that several tests share."""
