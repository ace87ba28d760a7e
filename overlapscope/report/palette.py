"""The table of colours: dashboard, HTML report, documentation and exported traces take theirs from here.

One colour serves the light and the dark background: each has a contrast of 3 or more against both. What can stand side
by side in a step is 9 or more apart (OKLab, times 100), also for eyes without red, green or blue cones; that was found
by a search within fixed hues.
"""

from typing import Final, NamedTuple


class Colour(NamedTuple):
    """A colour by meaning."""

    rgb: str
    """As `#rrggbb`."""
    viewer: str
    """The like among the names that trace viewers know (`cname` of the Trace Event Format)."""
    pattern: str
    """SVG drawn over it in reports, in a tile of 8 by 8, for readers who cannot distinguish the colours."""


PALETTE: Final[dict[str, Colour]] = {
    "exposed": Colour("#c63908", "thread_state_iowait", ""),
    "hidden": Colour("#277a50", "thread_state_running", '<path d="M-2 2 2 -2M0 8 8 0M6 10 10 6"/>'),
    "compute": Colour("#5b8fce", "thread_state_runnable", '<circle cx="4" cy="4" r="1.3"/>'),
    "copy": Colour("#a6489b", "thread_state_uninterruptible", '<path d="M0 4H8"/>'),
    "idle": Colour("#848e90", "generic_work", '<path d="M4 0V8"/>'),
    "waiting": Colour("#bd841b", "bad", '<path d="M-2 6 2 10M0 0 8 8M6 -2 10 2"/>'),
    "launch": Colour("#7c4be6", "detailed_memory_dump", '<path d="M4 0V8M0 4H8"/>'),
    "host": Colour("#7d6559", "thread_state_unknown", '<path d="M2 2H6V6H2Z"/>'),
    "accent": Colour("#0f7fc0", "rail_response", ""),
}
SEQUENCE: Final = ("accent", "exposed", "hidden", "waiting", "copy", "launch", "compute", "idle")
"""The order of colours for series without a meaning of their own."""
PATH_COLOURS: Final = {
    "compute": "compute", "transfer": "exposed", "communication": "exposed", "copy": "copy", "launch": "launch",
    "host": "host", "idle": "idle", "unknown": "idle", "before_recording": "idle",
    "late_end": "exposed",
}  # fmt: skip
"""Of the parts of a critical path."""
