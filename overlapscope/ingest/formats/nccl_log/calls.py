"""Parse a call's line of NCCL's subsystem COLL, and keep the calls of a rank as columns.

The line is parsed in the two pieces around its numbers:

    HOST:PID:TID [DEV] NCCL INFO AllReduce: opCount |1f sendbuff P recvbuff P count 64| datatype 7 op 0 root 0 comm P
    [nranks=8] stream P[ task 0 globalrank 3]

RCCL since ROCm 7 writes `acc P` behind `recvbuff P`, and its `globalrank` is the rank in the communicator. `opCount` is
hexadecimal. `count` is what one rank contributes to all-gather, receives from reduce-scatter, exchanges with
each for all-to-all.
`root` is the peer of a send.
"""

import re
from array import array
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.formats.nccl_log.communicators import NO_NUMBER, LoggedCommunicator
from overlapscope.ingest.formats.nccl_log.line_prefix import Writer, writer_at_end
from overlapscope.ingest.formats.nccl_log.tuning import operation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.operations import ITEM_BYTES, MAX_COUNT
from overlapscope.timeline.run import MAX_RANKS

DTYPES: Final = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""By the number of ncclDataType_t."""
PER_RANK: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose `count` is one rank's part of the elements defined in docs/definitions.md."""
_UNCOUNTED: Final = frozenset({"all_to_allv"})
_HEAD: Final = re.compile(rb" NCCL INFO ([A-Za-z][A-Za-z0-9]{0,40}): opCount $")
_TAIL: Final = re.compile(
    rb" datatype ([0-9]{1,3}) op (-?[0-9]{1,11}) root (-?[0-9]{1,10}) comm (0x[0-9a-f]{1,16}) \[nranks=([0-9]{1,7})\]"
    rb" stream (?:0x[0-9a-f]{1,16}|\(nil\))(?: task [0-9]{1,10} globalrank (-?[0-9]{1,7}))?\s*"
)
CALL: Final = re.compile(
    rb"(?P<op>[A-Za-z][A-Za-z0-9]{0,40}): opCount (?P<seq>[0-9a-f]{1,15}) sendbuff (?:0x[0-9a-f]{1,16}|\(nil\))"
    rb" recvbuff (?:0x[0-9a-f]{1,16}|\(nil\))(?: acc (?:0x[0-9a-f]{1,16}|\(nil\)))? count (?P<count>[0-9]{1,18})"
    rb"(?P<tail> datatype .*)"
)
"""A whole call, without its prefix."""


class CallHead(msgspec.Struct, frozen=True):
    """Parsed text before a call's numbers."""

    writer: Writer
    op: str


class CallTail(msgspec.Struct, frozen=True):
    """Parsed text behind a call's numbers."""

    dtype: str | None
    reduction: int
    pointer: int
    size: int
    member: int
    """NO_NUMBER where the line does not state it."""


class CallKind(msgspec.Struct, frozen=True):
    """Properties that calls have in common."""

    communicator: LoggedCommunicator
    op: str
    dtype: str | None
    reduction: int

    @property
    def item_bytes(self) -> int:
        """Bytes of an element; 0 where the type is unknown."""
        return ITEM_BYTES.get(self.dtype or "", 0)

    @property
    def parts(self) -> int:
        """Factor from `count` to the elements an operation moves; 0 where the line does not determine them."""
        if self.op in _UNCOUNTED:
            return 0
        return self.communicator.size if self.op in PER_RANK else 1


def head_of(text: bytes) -> CallHead | None:
    """Parse the piece before a call's numbers; None where it is anything else."""
    found = _HEAD.search(text) if text.count(b" NCCL ") == 1 else None
    writer = writer_at_end(text[: found.start()]) if found else None
    return CallHead(writer, operation(found[1].decode("ascii"))) if found and writer else None


def tail_of(text: bytes) -> CallTail | None:
    """Parse the piece behind a call's numbers; None where it is anything else."""
    found = _TAIL.fullmatch(text)
    if found is None or not 0 < int(found[5]) <= MAX_RANKS:
        return None
    size, kind = int(found[5]), int(found[1])
    member = int(found[6]) if found[6] is not None else NO_NUMBER
    return CallTail(
        dtype=DTYPES[kind] if kind < len(DTYPES) else None,
        reduction=int(found[2]),
        pointer=int(found[4], 16),
        size=size,
        member=member if 0 <= member < size else NO_NUMBER,
    )


class CallColumns(msgspec.Struct):
    """The calls of one rank in order, as columns of 24 bytes per call."""

    kind: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Number of the call's kind."""
    choice: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Number of the choice that NCCL logged for it; NO_NUMBER without one."""
    seq: "array[int]" = msgspec.field(default_factory=lambda: array("q"))
    count: "array[int]" = msgspec.field(default_factory=lambda: array("q"))
    launch_ns: "array[int]" = msgspec.field(default_factory=lambda: array("q"))
    """Empty where no line has a time; otherwise NONE for calls before the first one with a time."""

    def add(self, kind: Ints, choice: Ints, seq: Ints, count: Ints, launch_ns: Ints) -> None:
        """Append calls; `launch_ns` may be empty."""
        if self.launch_ns or launch_ns.size:
            missing = len(self.kind) - len(self.launch_ns) + (0 if launch_ns.size else kind.size)
            self.launch_ns.frombytes(np.full(missing, NONE, np.int64).tobytes())
            self.launch_ns.frombytes(launch_ns.astype(np.int64).tobytes())
        self.kind.frombytes(kind.astype(np.int32).tobytes())
        self.choice.frombytes(choice.astype(np.int32).tobytes())
        self.seq.frombytes(seq.astype(np.int64).tobytes())
        self.count.frombytes(count.astype(np.int64).tobytes())


def times(count: Ints, factor: Ints) -> Ints:
    """Multiply element by element; NONE where the factor is 0 or the product is not a possible count."""
    most = MAX_COUNT // np.maximum(factor, 1)
    return np.where((factor > 0) & (count < most) & (count >= 0), count * factor, NONE)
