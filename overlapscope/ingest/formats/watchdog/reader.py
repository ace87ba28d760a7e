"""Read logs with messages of torch's c10d watchdog: where each rank stood when a collective hung.

The lines of a whole log become two tables: how far each rank had come in each group, and the messages. Such a log has
no usable times (they lack a year), so it gives no timeline.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.formats.watchdog.lines import (
    CAUGHT,
    FAILED,
    NOTIFIED,
    STALLED,
    TIMED_OUT,
    WatchdogLine,
    watchdog_lines,
)
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import integers, make
from overlapscope.timeline.facts import INFO, TIMEOUT, WARNING, Facts, Messages, Progress
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import MAX_RANKS, Group, Source

MAX_KEPT: Final = 10_000
"""Messages listed and collectives remembered; a job of a thousand ranks logs some thousands."""
MAX_TIMEOUT_MS: Final = 2**42
"""139 years."""
NS_PER_MS: Final = 1_000_000
_KINDS: Final = {CAUGHT: TIMEOUT, TIMED_OUT: TIMEOUT, FAILED: TIMEOUT, NOTIFIED: INFO, STALLED: WARNING}


def read_watchdog(path: Path, context: ReadContext) -> Reading:
    """Read a log. Raises InputError when it cannot be read, or holds no watchdog message."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    watchdog = Watchdog()
    for number, line in enumerate(iter_lines(stream), 1):
        watchdog.take(number, line)
    if not watchdog.lines:
        raise InputError(f"{display_path(path)}: holds no message of torch's c10d watchdog")
    warnings = list(stream.warnings)
    if watchdog.not_kept:
        warnings.append(f"{watchdog.not_kept} messages beyond the first {MAX_KEPT} are counted, not listed")
    return Reading(
        source=Source(
            path=display_path(path),
            ranks=watchdog.ranks,
            events=watchdog.lines,
            truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
        groups=watchdog.groups,
        facts=watchdog.facts(display_path(path)),
    )


class RankPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank stood in one group, as the lines report it; None where no line does."""

    rank: int
    group: str | None
    backend: str
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    failed_at: int | None = None
    """Lowest number of the collectives that the watchdog gave up."""
    timed_out: bool = False
    call: WatchdogLine | None = None
    """That collective."""


class Watchdog(msgspec.Struct):
    """Collects the watchdog messages of a log; readers of mixed logs pass their lines to it too."""

    lines: int = 0
    """Lines that held a message."""
    not_kept: int = 0
    """Messages beyond MAX_KEPT."""
    _places: dict[tuple[int, str | None, str], RankPosition] = {}
    _caught: dict[tuple[int | None, int | None], list[WatchdogLine]] = {}
    """Collectives that ran into their timeout, by rank and number: their group is on another line."""
    _descriptions: dict[str, str | None] = {}
    _messages: dict[tuple[int, int | None, int | None], tuple[int, WatchdogLine]] = {}
    """First line of a kind for a rank and a number: the same message is printed several times."""

    def take(self, number: int, line: bytes) -> bool:
        """Read one line, numbered from 1; return whether it held a watchdog message."""
        found = [each for each in watchdog_lines(line) if each.rank is None or each.rank <= MAX_RANKS]
        for each in found:
            self._keep(number, each)
            if each.kind == CAUGHT:
                self._catch(each)
            # The last message of a watchdog names the group, the collective, or both.
            if each.rank is not None and (each.group is not None if each.kind == CAUGHT else each.kind != STALLED):
                self._move(each.rank, each)
        self.lines += bool(found)
        return bool(found)

    def _keep(self, number: int, line: WatchdogLine) -> None:
        key = (_KINDS[line.kind], line.rank, line.seq)
        if key not in self._messages and len(self._messages) >= MAX_KEPT:
            self.not_kept += 1
        else:
            self._messages.setdefault(key, (number, line))

    def _catch(self, line: WatchdogLine) -> None:
        key = (line.rank, line.seq)
        if key in self._caught or len(self._caught) < MAX_KEPT:
            known = self._caught.setdefault(key, [])
            if not any((each.op, each.elements) == (line.op, line.elements) for each in known):
                known.append(line)

    def _move(self, rank: int, line: WatchdogLine) -> None:
        if line.group is not None:
            self._descriptions[line.group] = line.description or self._descriptions.get(line.group)
        key = (rank, line.group, line.backend)
        if key not in self._places and len(self._places) >= MAX_KEPT:
            return
        before = self._places.get(key) or RankPosition(rank=rank, group=line.group, backend=line.backend)
        gave_up = line.seq if line.kind in (TIMED_OUT, FAILED) or (line.kind == CAUGHT and line.counted) else None
        self._places[key] = replace(
            before,
            enqueued=_last(max, before.enqueued, line.enqueued),
            started=_last(max, before.started, line.started),
            completed=_last(max, before.completed, line.completed),
            failed_at=_last(min, before.failed_at, gave_up),
            timed_out=before.timed_out or line.kind in (CAUGHT, TIMED_OUT),
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks that the lines name."""
        timed_out = {rank for rank, _ in self._caught if rank is not None}
        return tuple(sorted(timed_out | {rank for rank, _, _ in self._places}))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups that the lines name; their members are not logged."""
        return tuple(
            Group(name=name, description=description) for name, description in sorted(self._descriptions.items())
        )

    def places(self) -> tuple[RankPosition, ...]:
        """Return where each rank stood, with the collective it waited in: joined by rank and number where clear."""
        rows = []
        for place in self._places.values():
            known = self._caught.get((place.rank, place.failed_at), []) if place.failed_at is not None else []
            if all(call.counted for call in known):
                rows.append(replace(place, timed_out=place.timed_out or bool(known), call=_only(known)))
            else:  # a send or a batch: unknown whether the group's numbers count it
                rows.append(RankPosition(rank=place.rank, group=place.group, backend=place.backend))
        named = {place.rank for place in rows}
        first: dict[int, int] = {}
        for (rank, seq), known in self._caught.items():
            # where the rank's groups are named, this call belongs to one of them
            if rank is not None and rank not in named and seq is not None and all(call.counted for call in known):
                first[rank] = min(seq, first.get(rank, seq))
        for rank, seq in first.items():
            known = self._caught[rank, seq]
            rows.append(
                RankPosition(
                    rank=rank, group=None, backend=known[0].backend, failed_at=seq, timed_out=True, call=_only(known)
                )
            )
        return tuple(rows)

    def facts(self, source: str) -> Facts:
        """Return the tables `progress` and `messages` of the file `source`."""
        names = NameTable()
        file = names.code(source)
        places = self.places()
        calls = [place.call for place in places]
        limits = [call.timeout_ms if call is not None else None for call in calls]
        progress = make(
            Progress,
            len(places),
            source=file,
            rank=[place.rank for place in places],
            group=names.codes([place.group for place in places]),
            backend=names.codes([place.backend for place in places]),
            enqueued=integers([place.enqueued for place in places]),
            started=integers([place.started for place in places]),
            completed=integers([place.completed for place in places]),
            pending=integers([place.failed_at for place in places]),
            op=names.codes([call.op if call else None for call in calls]),
            elements=integers([call.elements if call else None for call in calls]),
            stuck_at=integers([place.failed_at if place.timed_out else None for place in places]),
            timeout_ns=integers([ms * NS_PER_MS if ms is not None and ms <= MAX_TIMEOUT_MS else None for ms in limits]),
        )
        kept = sorted(self._messages.values(), key=lambda each: each[0])
        messages = make(
            Messages,
            len(kept),
            source=file,
            rank=integers([line.rank for _, line in kept]),
            kind=[_KINDS[line.kind] for _, line in kept],
            text=names.codes([line.text for _, line in kept]),
            line=[number for number, _ in kept],
        )
        return Facts(names=tuple(names.to_list()), progress=progress, messages=messages)


def _last(choose: Callable[[int, int], int], before: int | None, now: int | None) -> int | None:
    return now if before is None else before if now is None else choose(before, now)


def _only(known: Sequence[WatchdogLine]) -> WatchdogLine | None:
    return known[0] if len(known) == 1 else None
