"""A run: what every rank of a job recorded, as columns."""

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.errors import HostEventsError, InputError
from overlapscope.timeline.columns import (
    Annotations,
    Collectives,
    Columns,
    Gradients,
    HostSpans,
    Ints,
    Lanes,
    Operations,
    Recordings,
    Schedule,
    Spans,
    Steps,
    Syncs,
    Telemetry,
    concat,
    make,
    move_rows,
    place_rows,
    recode,
    size,
    table_fields,
    take,
)
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.lazy_host_spans import LazyHostSpans
from overlapscope.timeline.names import NameTable


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group; `ranks` is None if the recording does not list all of them."""

    name: str
    description: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] | None = None
    found: bool = False
    """Whether calls that name no group were recognised as its own by when they begin and end."""


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
    """Kind of source: `trace`, `events`, `log` or `dryrun`. A log contains calls, in order, but no times of device
    work; a dry run contains a step's operations and calls, in order, and no times at all."""
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
    operations: Operations = msgspec.field(default_factory=lambda: make(Operations, 0))
    schedule: Schedule = msgspec.field(default_factory=lambda: make(Schedule, 0))
    host_damaged: bool = False
    """Whether it was seen when the run was opened that what its host did was recorded and cannot be read any more; then
    `Recordings.host_events` is False."""
    recorded: Mapping[str, Any] = {}
    """How our own capture recorded it, and its readings of the machine; of other sources at most `host`, the name of
    the machine, `clock`, that of the clock its times are of, and `SHAPES`. Plain JSON values."""

    @property
    def num_spans(self) -> int:
        """The number of spans."""
        return size(self.spans)

    def name(self, code: int) -> str | None:
        """Return the name that a code of its tables stands for; None where it is missing."""
        return self.names[code] if code >= 0 else None

    @property
    def ends_early(self) -> bool:
        """Return whether a trace's file is cut: its events are in no order of time, so that any may be missing."""
        return self.basis == "trace" and bool(self.recordings.truncated.any())

    @property
    def has_host_events(self) -> bool:
        """Return whether every recording window records what its host threads did, as far as it was read."""
        return self.host_error is None and bool(self.recordings.host_events.all())

    @property
    def host_error(self) -> HostEventsError | None:
        """Return why its host events could not be read when they were first used; None where they could, or were not
        used."""
        return self.host.error if isinstance(self.host, LazyHostSpans) else None

    @property
    def host_is_lost(self) -> bool:
        """Return whether its host events were recorded and cannot be read, as far as it is known."""
        return self.host_damaged or self.host_error is not None

    def at_hand(self) -> "RankTimeline":
        """Return the timeline with all its tables in memory."""
        return self

    def with_calls(self, names: tuple[str, ...], calls: Collectives) -> "RankTimeline":
        """Return the timeline with other columns of its collectives; `names` may hold more than before."""
        return replace(self, names=names, collectives=calls)


SHAPES: Final = "record_shapes"
"""Key of what was recorded: true where the source states that operations have the shapes of their inputs."""
DRY_RUN: Final = "dryrun"
"""Basis of a dry run."""
TABLES: Final = table_fields(RankTimeline)
"""The tables of a rank."""
DRY_RUN_TABLES: Final = ("operations", "schedule")
"""Those that only dry runs have."""


def tables_of(basis: str) -> dict[str, type[Columns]]:
    """Return the tables that a run directory holds of a rank of this basis."""
    return {name: kind for name, kind in TABLES.items() if basis == DRY_RUN or name not in DRY_RUN_TABLES}


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

    @property
    def unreadable_hosts(self) -> tuple[Source, ...]:
        """Files of host events that could not be read when they were first used, each with a warning."""
        errors = [(rank, error) for rank, each in self.ranks.items() if (error := each.host_error) is not None]
        return tuple(
            Source(path=error.path, format="overlapscope", warnings=(f"host events of rank {rank} {error.what}",))
            for rank, error in errors
        )


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


class PartRows(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows of a part that others refer to are in the joined timeline."""

    recording: Ints
    lane: Ints
    call: int
    """Rows of `Collectives` before its own."""


def join_parts(parts: Sequence[RankTimeline]) -> tuple[RankTimeline, list[PartRows]]:
    """Join consecutive parts of one recording, in order; return the timeline and where each part's rows are.

    Lanes of the same name are one, and a recording window whose next step begins the next part goes on in it.
    """
    names = NameTable()
    joined: dict[str, list[Columns]] = {name: [] for name in TABLES}
    rows: list[PartRows] = []
    lanes: dict[tuple[int, ...], int] = {}
    windows = calls = 0
    last_step: int | None = None
    for part in parts:
        own = {name: recode(getattr(part, name), part.names, names) for name in TABLES}
        keys = zip(own["lanes"].kind.tolist(), own["lanes"].process.tolist(), own["lanes"].label.tolist(), strict=True)
        lane = np.array([lanes.setdefault(key, len(lanes)) for key in keys], np.int64)
        follows = last_step is not None and size(part.steps) > 0 and int(part.steps.step[0]) == last_step + 1
        recording = np.arange(size(part.recordings), dtype=np.int64) + windows - follows
        rows.append(PartRows(recording=recording, lane=lane, call=calls))
        for name, table in own.items():
            joined[name].append(place_rows(table, recording=recording, lane=lane, call=calls))
        windows, calls = windows + size(part.recordings) - follows, calls + size(part.collectives)
        last_step = int(part.steps.step[-1]) if size(part.steps) else last_step
    tables: dict[str, Any] = {name: concat(each) for name, each in joined.items()}
    first = np.unique(np.concatenate([each.lane for each in rows]), return_index=True)[1]
    tables["lanes"] = take(tables["lanes"], first)
    tables["recordings"] = _merged(tables["recordings"], np.concatenate([each.recording for each in rows]))
    whole = replace(
        parts[-1],
        has_device=any(part.has_device for part in parts),
        host_damaged=any(part.host_damaged for part in parts),
        names=tuple(names.to_list()),
        recorded=join_recorded([part.recorded for part in parts]),
        **tables,
    )
    return whole, rows


def _merged(recordings: Recordings, window: Ints) -> Recordings:
    """Return one row for each run of rows with the same number of a window, until the latest end."""
    first = np.flatnonzero(np.diff(window, prepend=-1))
    if not first.size:
        return recordings
    return replace(take(recordings, first), end_ns=np.maximum.reduceat(recordings.end_ns, first))


def is_untimed_dry_run(run: Run) -> bool:
    """Return whether all that a run has are dry runs without times."""
    return bool(run.ranks) and all(each.basis == DRY_RUN and not each.num_spans for each in run.ranks.values())


def join_recorded(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how consecutive parts were recorded: as the last one states it, with what each states of its own steps."""
    joined = dict(parts[-1])
    if any("unfinished_collectives" in each for each in parts):
        joined["unfinished_collectives"] = sum(each.get("unfinished_collectives", 0) for each in parts)
        joined["cut_steps"] = dict(sum((Counter(each.get("cut_steps", {})) for each in parts), Counter()))
        joined["exposed_between_ns"] = dict(ChainMap(*(dict(each.get("exposed_between_ns", {})) for each in parts)))
    return joined


def _source(part: RankTimeline) -> str:
    code = int(part.recordings.source[0])
    return part.names[code] if code >= 0 else "an unnamed source"


def began(starts_ns: Iterable[int | None]) -> int | None:
    """Return when a run began, in ns, from the starts of its ranks; None where no clock says."""
    known = [each for each in starts_ns if each is not None]
    return min(known) if known and min(known) >= EARLIEST_NS else None
