"""What kinds of operation there are, by the names in `Collectives.op`, and calls by which a host waits."""

import re
from typing import Final

SENDS: Final = ("send", "recv")
"""One message between two ranks, as its sender and its receiver call it."""
POINT_TO_POINT: Final = frozenset({*SENDS, "send_recv"})
"""These, and several of them that were given at once."""
WAITS_FOR_DEVICE: Final = re.compile(
    r"[a-z]+(?:Device|Ctx|Context|Stream|Event|Queue)(?:Host)?Synchronize(?:_\w+)?"
    r"|(?:cuda|hip|cu)Memcpy(?:2D|3D|Peer|ToSymbol|FromSymbol|WithStream|DtoH|HtoD|DtoD)?(?:_\w+)?"
)
"""Calls of a device's programming interface (as a whole) that return when the device has done what they wait for; the
timeline holds them as annotations of this name."""
COMPILED_REGION: Final = "Torch-Compiled Region"
"""What the operation that stands for a frame compiled by torch.compile is named, followed by a number."""
COMPILED_GRAPH: Final = "CompiledFunction"
"""One compiled graph in forward; AOTAutograd names its function so."""
COMPILED: Final = re.compile(rf"{COMPILED_REGION}\b|{COMPILED_GRAPH}$")
"""Both; the timeline holds them as annotations of this name."""
