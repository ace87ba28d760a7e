"""What the recorded ranks of one stage saw, in true time, gathered as the model runs and joined at the end."""

import msgspec
import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Ranks

Reals = npt.NDArray[np.float64]
COMPUTE, COMM, COPY = range(3)
MAIN, BACKWARD = range(2)
"""Host threads."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a collective, on all recorded ranks of a stage: rows of the arrays are those ranks."""

    op: str
    dtype: str
    dimension: str
    group_size: int
    number: int
    """Sequence number within its dimension."""
    sent: Reals
    """Bytes that each rank hands in, as its arguments tell."""
    got: Reals
    """Bytes that it gets."""
    peer: Ranks | None = None
    """The other rank of a send or receive."""
    kernel: str = ""
    """Name of its kernel where it is not NCCL's: such a call tells neither its group nor its size."""


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """A few spans in a row on one lane: arrays are [rank, span]."""

    kind: int
    lane: str
    thread: int
    names: tuple[str, ...]
    ops: tuple[str, ...]
    launch: Reals
    returned: Reals
    """When the call that launched it was over."""
    start: Reals
    end: Reals
    blocks: Reals
    """Thread blocks of each kernel."""
    graph: bool = False
    """Launched by one call."""
    present: npt.NDArray[np.bool_] | None = None
    call: Call | None = None
    transfer: Reals | None = None
    """What the call takes once all have come: true, of each rank's group."""


class Record(msgspec.Struct):
    """All of one stage. `rows` are the recorded ranks' places in it."""

    rows: Ranks
    ranks: Ranks
    pieces: list[Pieces] = []
    marks: list[tuple[str, int, Reals, Reals]] = []
    """Annotations: name, thread, start, end."""
    waits: list[tuple[str, Reals, Reals]] = []
    """Calls of the host that return when the device has done something: name, start, end."""
    calls: list[tuple[str, Reals, Reals]] = []
    """Other calls of the host without a span: name, start, end."""
    steps: list[tuple[int, Reals, Reals]] = []
    pauses: list[tuple[Reals, Reals]] = []
    """Pauses of the collector that telemetry notes: end and length, 0 on ranks without."""
