"""Runs beside each other: two sides, histories, scaling, fleets."""
