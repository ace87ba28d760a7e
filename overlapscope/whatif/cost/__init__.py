"""How long a collective takes under settings that were or were not measured."""
