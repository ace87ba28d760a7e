"""What kinds of operation there are, by the names in `Collectives.op`."""

from typing import Final

SENDS: Final = ("send", "recv")
"""One message between two ranks, as its sender and its receiver call it."""
POINT_TO_POINT: Final = frozenset({*SENDS, "send_recv"})
"""These, and several of them that were given at once."""
