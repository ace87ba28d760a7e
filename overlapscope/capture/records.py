"""Records of a running step: small mutable structs, turned into columns later.

Those of which there are many are no matter of the garbage collector: there are no cycles, and the more objects it
counts the more often it stops training.
"""

from typing import Any, Final

import msgspec

COMM_REGION: Final = "comm:"
"""Prefix of the name of a region that communicates."""


class MarkedRange(msgspec.Struct, gc=False):
    """A named range between two marks: a phase, a wait, a region."""

    name: str
    begin: Any
    begin_ns: int
    """Host time on the monotonic clock."""
    end: Any = None


class Transfer(msgspec.Struct, gc=False):
    """What one call, or a batch of calls that is sent as one, hands to the backend, and what is known of its end.

    The end is marked where the host sees it (`done`). On a device's own stream nothing of ours may wait for it: there
    the backend's own measurement says how long it took, and waits of the job say by when it was done.
    """

    lane: str
    """Transfers of one lane run one after the other: those of a group, or of a pair that sends unbatched."""
    ready: Any
    """Mark before the call."""
    done: Any = None
    """Mark at its completion, where one can be taken."""
    on_host: bool = True
    """Whether both are times of the host's clock."""
    on_compute: bool = False
    """Whether it was called from the stream that computes."""
    duration_ns: int | None = None
    """How long it took by the backend's own events."""
    waited: MarkedRange | None = None
    """The job's first wait for it."""


class CollectiveCall(msgspec.Struct, gc=False):
    """One call of a collective, from the time its data are ready to its completion."""

    op: str
    group: str
    group_size: int
    dtype: str | None
    elements: int | None
    entered_ns: int
    """Host time of the call, on the monotonic clock."""
    transfer: Transfer
    """A batch of calls shares one."""
    module: str | None = None
    returned_ns: int | None = None
    """Host time at which the call returned, where the training thread itself made it."""
    left: Any = None
    """Mark of the compute stream after the call, where streams share queues."""
    seq: int | None = None
    """Sequence number of the call in its group, as the backend counts."""
    peer: int | None = None
    """Rank of the world that a send goes to or a receive comes from."""


class StepRecord(msgspec.Struct):
    """What was recorded of one step."""

    number: int
    begin_ns: int
    """Host time on the monotonic clock."""
    thread: int
    """The thread that trains."""
    observed: bool
    """False for a step of which only a trace that is recorded beside needs the calls."""
    end_ns: int = 0
    end: Any = None
    """Mark at its end."""
    cut: str | None = None
    """Why the step is not whole: it raised, or something in it could not be recorded."""
    phases: list[MarkedRange] = []
    waits: list[MarkedRange] = []
    host_waits: list[MarkedRange] = []
    """Waits of the training thread for transfers between hosts, where a device computes."""
    regions: list[MarkedRange] = []
    calls: list[CollectiveCall] = []
    gradients: list[tuple[int, int]] = []
    """(index of the parameter, monotonic time at which its gradient was ready)."""
    amounts: dict[str, float] = {}
    """What this rank processes in the step, by name, so far."""
    readings: list[tuple[str, int, float]] = []
    """(name, monotonic time, value)."""
