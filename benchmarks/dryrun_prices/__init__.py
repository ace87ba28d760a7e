"""Prices of dry runs against steps that were measured."""
