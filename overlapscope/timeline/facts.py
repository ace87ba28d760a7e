"""Facts that sources state about a job besides timelines: communicators, links, measured bandwidths, reported figures.

These are tables like those of a timeline, but of the whole job: a column `rank` is a rank of the world. Names are codes
into the facts' own `names`; a missing integer is `NONE`, a missing name -1, a missing float NaN.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import (
    NONE,
    Codes,
    Columns,
    Floats,
    Ints,
    Small,
    concat,
    make,
    recode,
    size,
    table_fields,
)
from overlapscope.timeline.names import NameTable

UNSTATED, NO, YES = range(3)
ANSWERS: Final = ("untold", "no", "yes")

BOTH_SIDES, SENDING, RECEIVING = range(3)
SIDES: Final = ("both", "sending", "receiving")

INFO, WARNING, TIMEOUT = range(3)
MESSAGE_KINDS: Final = ("info", "warning", "timeout")


class Members(Columns, frozen=True, kw_only=True):
    """One row for each member of each communicator in a log."""

    communicator: Codes
    """The library's name for it, the same on all members."""
    group: Codes
    """The process group in `Run.groups` that it belongs to; missing if the sources do not state it. A group may have
    several communicators: one for each pair of ranks that exchange messages."""
    member: Ints
    """Rank in the communicator."""
    members: Ints
    """Size of the communicator."""
    rank: Ints
    host: Codes
    process: Ints
    device: Ints
    """Device index as the process numbers it."""
    bus: Codes
    """PCI bus address."""
    nodes: Ints
    """Hosts that the communicator spans."""
    collective_channels: Ints
    point_to_point_channels: Ints
    nvls_channels: Ints
    library: Codes
    """Name and version, e.g. `NCCL 2.21.5+cuda12.4`."""
    network: Codes
    """Network the library chose, e.g. `IB`, `Socket`, `AWS Libfabric`."""
    init_seconds: Floats


class Connections(Columns, frozen=True, kw_only=True):
    """One row for each connection between two members of a communicator."""

    communicator: Codes
    channel: Ints
    sender: Ints
    """Rank in the communicator, as `receiver`."""
    receiver: Ints
    transport: Codes
    """As the library writes it: `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB`, ..."""
    nic: Codes
    """Network device, where the transport is a network."""
    gpu_direct: Annotated[Small, ANSWERS]
    """Whether the network card reads the device's memory itself."""
    side: Annotated[Small, SIDES]
    """Side that `nic` and `gpu_direct` describe: each end of a network connection has its own card and its own row."""


class Paths(Columns, frozen=True, kw_only=True):
    """Rings and trees: one row for each position in them."""

    communicator: Codes
    pattern: Codes
    """`ring` or `tree`."""
    channel: Ints
    member: Ints
    next: Ints
    """The member that follows on a ring, or a child in a tree; NONE for a leaf."""


class CostModels(Columns, frozen=True, kw_only=True):
    """The library's own estimate of each algorithm and protocol: assumed by it, not measured."""

    communicator: Codes
    op: Codes
    algorithm: Codes
    protocol: Codes
    latency_us: Floats
    bandwidth_gbs: Floats


class Links(Columns, frozen=True, kw_only=True):
    """One row for each ordered pair of devices or network cards of a host."""

    host: Codes
    a: Codes
    """As the source names it: `GPU0`, `mlx5_0`, a PCI address."""
    b: Codes
    kind: Codes
    """`NVLink`, `XGMI`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, ..."""
    lanes: Ints
    """Links side by side, e.g. 18 for `NV18`."""
    bandwidth_gbs: Floats


class Measurements(Columns, frozen=True, kw_only=True):
    """Measured collectives of one size each, from a benchmark or a library's own profiler."""

    source: Codes
    rank: Ints
    """NONE if the figure is for all ranks."""
    op: Codes
    dtype: Codes
    bytes: Ints
    """Size of the whole buffer, as docs/definitions.md defines it."""
    ranks: Ints
    in_place: Annotated[Small, ANSWERS]
    algorithm: Codes
    protocol: Codes
    time_ns: Floats
    algbw_gbs: Floats
    busbw_gbs: Floats
    wrong: Ints
    """Elements with a wrong result; NONE when not checked."""
    communicator: Codes
    """Identifies a call of a job together with `seq` and `rank`; missing for a benchmark's mean of many calls. A single
    rank's time includes its wait for the other ranks: the minimum over the ranks of a call is the transfer time."""
    seq: Ints


class Messages(Columns, frozen=True, kw_only=True):
    """Warnings, errors and timeouts of a log, verbatim."""

    source: Codes
    rank: Ints
    host: Codes
    kind: Annotated[Small, MESSAGE_KINDS]
    text: Codes
    line: Ints
    """Line of the source, from 1."""
    time_ns: Ints


class Progress(Columns, frozen=True, kw_only=True):
    """Progress of a rank in a group when it was dumped or timed out."""

    source: Codes
    rank: Ints
    group: Codes
    backend: Codes
    """Library whose collectives are counted (`nccl`, `gloo`): a group may use several, each with its own count."""
    enqueued: Ints
    """Sequence number of the last collective that was enqueued, 0 before the first; likewise the others."""
    started: Ints
    completed: Ints
    pending: Ints
    """Sequence number of the oldest collective that was enqueued and had not completed."""
    op: Codes
    """Operation and elements of the pending call, and the user's code that called it: `file:line (function)`."""
    elements: Ints
    called_at: Codes
    stuck_at: Ints
    """Sequence number of the pending collective if it timed out, and its timeout."""
    timeout_ns: Ints


class Figures(Columns, frozen=True, kw_only=True):
    """Figures that a source itself reports, shown beside ours: a vendor's overlap, a framework's timers."""

    source: Codes
    rank: Ints
    step: Ints
    subject: Codes
    """What the figure is of: a tensor, a timer, an operation."""
    name: Codes
    """Ends in its unit: `overlapped_us`, `negotiation_us`, `max_ms`."""
    value: Floats


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All fact tables of a job; empty where no source states anything."""

    names: tuple[str, ...] = ()
    members: Members = msgspec.field(default_factory=lambda: make(Members, 0))
    connections: Connections = msgspec.field(default_factory=lambda: make(Connections, 0))
    paths: Paths = msgspec.field(default_factory=lambda: make(Paths, 0))
    cost_models: CostModels = msgspec.field(default_factory=lambda: make(CostModels, 0))
    links: Links = msgspec.field(default_factory=lambda: make(Links, 0))
    measurements: Measurements = msgspec.field(default_factory=lambda: make(Measurements, 0))
    messages: Messages = msgspec.field(default_factory=lambda: make(Messages, 0))
    progress: Progress = msgspec.field(default_factory=lambda: make(Progress, 0))
    figures: Figures = msgspec.field(default_factory=lambda: make(Figures, 0))

    def __bool__(self) -> bool:
        return any(size(getattr(self, name)) for name in FACT_TABLES)

    def name(self, code: int) -> str | None:
        """Return the name of a code; None for a missing one."""
        return self.names[code] if code >= 0 else None


FACT_TABLES: Final = table_fields(Facts)


def with_rank(facts: Facts, rank: int) -> Facts:
    """Return the facts with missing ranks set to `rank`: for a source of one rank that does not state which."""
    return replace(
        facts,
        progress=replace(facts.progress, rank=_filled(facts.progress.rank, rank)),
        messages=replace(facts.messages, rank=_filled(facts.messages.rank, rank)),
        figures=replace(facts.figures, rank=_filled(facts.figures.rank, rank)),
    )


def _filled(column: Ints, value: int) -> Ints:
    return np.where(column == NONE, value, column)


def join_facts(parts: Sequence[Facts]) -> Facts:
    """Return the facts of several sources joined into one."""
    stated = [part for part in parts if part]
    if len(stated) < 2:
        return stated[0] if stated else Facts()
    names = NameTable()
    tables = {
        name: concat([recode(getattr(part, name), part.names, names) for part in stated if size(getattr(part, name))])
        for name in FACT_TABLES
        if any(size(getattr(part, name)) for part in stated)
    }
    return Facts(names=tuple(names.to_list()), **tables)
