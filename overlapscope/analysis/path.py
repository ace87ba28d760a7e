"""A path that was followed: its pieces, each with what it was part of, on which rank, in which span."""

from typing import Final

import msgspec

from overlapscope.timeline.columns import Codes, Ints, Small

PARTS: Final = ("compute", "transfer", "communication", "copy", "launch", "host", "host_or_wait", "idle")
"""`transfer`: communication from the arrival of its last member on; `communication`: not told from waiting.
`host_or_wait`: the host launched nothing, and whether it waited for its device was not recorded."""
COMPUTING, TRANSFER, COMMUNICATION, COPYING, LAUNCH, HOST, HOST_OR_WAIT, IDLE = range(len(PARTS))
"""Their places in `PARTS`."""


class Segments(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces of a path, in order of time: each begins where the one before it ends."""

    part: Small
    """Place in `PARTS`."""
    rank: Ints
    row: Ints
    """The span in the rank's `Spans` that ran, or that the host was about to launch; NONE where it is none."""
    name: Codes
    """Its name, as a code of the rank's names; -1 for none."""
    start_ns: Ints
    end_ns: Ints
    """On the clock of the path's rank."""


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """What decided how long a step took."""

    step: int | None
    rank: int
    """The rank on which the step ended last: the window and the clock are its own."""
    start_ns: int
    end_ns: int
    segments: Segments
