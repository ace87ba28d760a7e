"""A run: what every rank of a job recorded, as columns."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.timeline.columns import (
    Annotations,
    Codes,
    Collectives,
    Columns,
    Gradients,
    HostSpans,
    Lanes,
    Recordings,
    Spans,
    Steps,
    Syncs,
    Telemetry,
    concat,
    make,
    move_rows,
    recode,
    size,
    table_fields,
)
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.names import NameTable


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group; `ranks` is None if the recording does not list all of them."""

    name: str
    description: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input file, with counts and warnings from reading it."""

    path: str
    format: str = ""
    """Name of the format; `read_file` fills in the reader's where the reader left it empty."""
    ranks: tuple[int, ...] = ()
    events: int = 0
    repaired: int = 0
    """Damaged events that could be repaired."""
    dropped: int = 0
    """Damaged events that could not be repaired."""
    truncated: bool = False
    unlinked: int = 0
    """Device spans without a launch."""
    warnings: tuple[str, ...] = ()
    unread_ranks: tuple[int, ...] = ()
    """Ranks named by files that could not be read."""


class RankTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Everything recorded on one rank; times are on the rank's own clock."""

    rank: int
    basis: str
    """Kind of source: `trace`, `events` or `log`. A log contains calls, in order, but no times of device work."""
    has_device: bool
    """False for a CPU run, whose host spans take the place of device spans."""
    names: tuple[str, ...]
    recordings: Recordings
    spans: Spans
    collectives: Collectives
    steps: Steps
    lanes: Lanes
    annotations: Annotations
    gradients: Gradients = msgspec.field(default_factory=lambda: make(Gradients, 0))
    telemetry: Telemetry = msgspec.field(default_factory=lambda: make(Telemetry, 0))
    host: HostSpans = msgspec.field(default_factory=lambda: make(HostSpans, 0))
    syncs: Syncs = msgspec.field(default_factory=lambda: make(Syncs, 0))
    recorded: Mapping[str, Any] = {}
    """How our own capture recorded it, and its readings of the machine; of other sources at most `host`, the name of
    the machine. Plain JSON values."""

    @property
    def num_spans(self) -> int:
        """The number of spans."""
        return size(self.spans)

    def name(self, code: int) -> str | None:
        """Return the name that a code of its tables stands for; None where it is missing."""
        return self.names[code] if code >= 0 else None

    @property
    def has_host_events(self) -> bool:
        """Return whether every recording window records what its host threads did."""
        return bool(self.recordings.host_events.all())

    def at_hand(self) -> "RankTimeline":
        """Return the timeline with all its tables in memory."""
        return self

    def with_dimension(self, names: tuple[str, ...], dimension: Codes) -> "RankTimeline":
        """Return the timeline with the dimensions of its collectives; `names` may hold more than before."""
        return replace(self, names=names, collectives=replace(self.collectives, dimension=dimension))


TABLES: Final = table_fields(RankTimeline)
"""The tables of a rank."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of one job, and what is known about the job itself."""

    world_size: int | None
    ranks: Mapping[int, RankTimeline]
    groups: tuple[Group, ...] = ()
    sources: tuple[Source, ...] = ()
    fingerprint: Mapping[str, str | int | None] = {}
    """Software, device and backend, as far as the sources state them."""
    facts: Facts = msgspec.field(default_factory=Facts)
    """What the sources state about the job besides its timelines."""
    version: str = ""
    """Version of OverlapScope that wrote the run directory; empty for other sources."""

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world without data; empty if the world size is unknown."""
        return tuple(rank for rank in range(self.world_size or 0) if rank not in self.ranks)

    @property
    def unread_ranks(self) -> tuple[int, ...]:
        """Ranks without data whose file exists but could not be read."""
        there = {rank for source in self.sources for rank in source.unread_ranks}
        return tuple(sorted(rank for rank in there - self.ranks.keys() if rank < (self.world_size or MAX_RANKS)))


UNKNOWN_RANK = -1
"""Rank of a timeline whose source does not state it."""
MAX_RANKS = 1 << 20
"""No job has more; a larger number in a file is damage."""
EARLIEST_NS: Final = 946_684_800 * 10**9
"""The year 2000: a clock that shows less counts from when its machine started."""


def join_recordings(parts: Sequence[RankTimeline]) -> RankTimeline:
    """Join several recording windows of one rank into one timeline, sorted by time.

    Raises InputError, naming both sources, if two windows overlap: the same time would be counted twice.
    """
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: int(part.recordings.start_ns[0]))
    for before, after in pairwise(ordered):
        if after.recordings.start_ns[0] < before.recordings.end_ns[-1]:
            raise InputError(
                f"rank {before.rank} is recorded twice at the same time, in {_source(before)} and {_source(after)}: "
                "leave one of them out; if they are different jobs, analyze them separately"
            )
    names = NameTable()
    joined: dict[str, list[Columns]] = {name: [] for name in TABLES}
    for part in ordered:
        window, lane, call = (sum(map(size, joined[name])) for name in ("recordings", "lanes", "collectives"))
        for name, tables in joined.items():
            table = recode(getattr(part, name), part.names, names)
            tables.append(move_rows(table, recording=window, lane=lane, call=call))
    return replace(
        ordered[0],
        has_device=any(part.has_device for part in ordered),
        names=tuple(names.to_list()),
        **{name: concat(tables) for name, tables in joined.items()},
    )


def _source(part: RankTimeline) -> str:
    code = int(part.recordings.source[0])
    return part.names[code] if code >= 0 else "an unnamed source"


def began(starts_ns: Iterable[int | None]) -> int | None:
    """Return when a run began, in ns, from the starts of its ranks; None where no clock says."""
    known = [each for each in starts_ns if each is not None]
    return min(known) if known and min(known) >= EARLIEST_NS else None
