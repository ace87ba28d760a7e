"""Write a recording while it goes on: finished steps become columns from time to time, and columns parts of the rank.

So memory does not grow with the number of steps, and a process that is killed leaves all but the last moments. The
part that is growing is written again, whole, until it has PART_BYTES; then the next one begins. Columns are made on
the training thread, between two steps; files are written on a thread of their own.

A recording that ends before the first part is full is written as it was without parts.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import StepRecord
from overlapscope.capture.settings import Settings
from overlapscope.capture.timeline import Carried
from overlapscope.timeline.columns import column_kinds
from overlapscope.timeline.run import TABLES, RankTimeline, join_parts
from overlapscope.timeline.store.rank_writer import close_parts, remove_parts, save_part

PART_BYTES: Final = 2 << 20
"""Columns of a part in memory; its files are smaller."""
MOST_PARTS_BYTES: Final = 8
"""So many times as large a part becomes where it cannot be written; then it is given up."""
PARTS_KEPT: Final = 10
"""Of a recording whose last minutes are kept, a part is at most a tenth."""
OVERDUE: Final = 1.5
"""A step that lasts longer than so many flushes does not delay the writing of those before it."""
SOON: Final = 0.1
"""Where columns could not be written, it is tried again after this part of the time between two flushes."""
END_SECONDS: Final = 5.0
"""How long the end of the recording waits for the thread that writes."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Finished steps that are not columns yet, and what was read beside them."""

    records: Sequence[StepRecord] = ()
    following: StepRecord | None = None
    """The recorded step after these, if it has ended."""
    step_times: Sequence[tuple[int, int, int]] = ()
    """(number, begin in monotonic ns, duration in ns) of all steps."""
    readings: Sequence[tuple[str, int, float]] = ()


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is replaced as a whole: a signal's handler may write the run in the middle of a flush."""

    number: int = 0
    """Of the part that is growing."""
    revision: int = 0
    current: RankTimeline | None = None
    carried: Carried = msgspec.field(default_factory=Carried)
    last_step: int = -1
    """The last step that became columns."""
    last_time: int = -1
    """The last step whose time did."""
    columns_ns: int = 0
    """Time that making columns took ..."""
    columns_steps: int = 0
    """... and of how many steps."""


class PartWriter:
    """Writes the parts of one rank; `convert(batch, carried)` makes columns, `begin` prepares the run directory."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        guard: Guard,
        convert: Callable[[Batch, Carried], RankTimeline],
        begin: Callable[[], Any],
    ) -> None:
        self._path, self._settings, self._guard = path, settings, guard
        self._convert, self._begin = convert, begin
        self._state = _State()
        self._written: tuple[int, int] = (-1, -1)
        """Number and revision of the part that was written last."""
        self._flushed = time.monotonic()
        self._busy = threading.Lock()
        self._owner = 0
        self._writing: threading.Thread | None = None
        self._closed = False

    @property
    def several(self) -> bool:
        """Whether the rank consists of several parts."""
        return self._state.number > 0

    @property
    def last_step(self) -> int:
        """The last step that became columns; -1 at first."""
        return self._state.last_step

    @property
    def columns_ns(self) -> float:
        """Mean time that making columns of a recorded step took."""
        return self._state.columns_ns / max(1, self._state.columns_steps)

    def due(self, factor: float = 1.0) -> bool:
        """Return whether it is time to flush."""
        return not self._closed and time.monotonic() - self._flushed >= factor * self._settings.flush_seconds

    def flush(self, take: Callable[[], Batch]) -> Batch | None:
        """Make columns of what `take` returns, and return it; None where there is nothing, or another thread does it.

        They are written unless the last ones are being written, on a slow disk: then soon, with those that follow.
        """
        if self._closed or not self._busy.acquire(blocking=False):
            return None
        try:
            self._owner = threading.get_ident()
            writing = self._writing is not None and self._writing.is_alive()
            self._flushed = time.monotonic() - (1 - SOON) * self._settings.flush_seconds * writing
            batch = take()
            state = self._advanced(batch)
            if state is self._state:
                return None
            self._state = state
            if state.current is not None and not writing:
                self._writing = threading.Thread(
                    target=self._guard, args=("writing a part", self._write, state), daemon=True,
                    name="overlapscope-writer",
                )  # fmt: skip
                self._writing.start()
            return batch
        finally:
            self._owner = 0
            self._busy.release()

    def close(self, take: Callable[[], Batch]) -> RankTimeline | None:
        """Make columns of the steps that are left; return those of the last part, None where nothing was recorded."""
        self._closed = True
        if self._owner != threading.get_ident():  # else a signal has interrupted a flush of this thread
            self._busy.acquire(timeout=END_SECONDS)
        if self._writing is not None:
            self._writing.join(END_SECONDS)
        self._state = self._advanced(take())
        return self._state.current

    def save(self, timeline: RankTimeline) -> None:
        """Write the last part of several, and state that the recording was closed. Raises OSError."""
        state = self._state
        save_part(timeline, self._path, state.number, state.revision, first=self._written[0] < 0)
        self._limit(timeline)
        close_parts(self._path, timeline.rank, timeline.recorded)

    def _advanced(self, batch: Batch) -> _State:
        """Return the state with the batch's columns in it."""
        state = self._state
        begun = time.monotonic_ns()
        records = [each for each in batch.records if each.number > state.last_step]
        if not records and state.current is None:
            return state  # a part begins with a step
        carried = replace(state.carried)
        times = [each for each in batch.step_times if each[0] > state.last_time]
        made = self._convert(replace(batch, records=records, step_times=times), carried)
        if records and self._is_full(state):
            state = replace(state, number=state.number + 1, revision=0, current=None)
        whole = made if state.current is None else join_parts([state.current, made])[0]
        return replace(
            state,
            revision=state.revision + 1,
            current=whole,
            carried=carried,
            last_step=records[-1].number if records else state.last_step,
            last_time=times[-1][0] if times else state.last_time,
            columns_ns=state.columns_ns + time.monotonic_ns() - begun,
            columns_steps=state.columns_steps + len(records),
        )

    def _is_full(self, state: _State) -> bool:
        current = state.current
        if current is None:
            return False
        size_bytes = _size_bytes(current)
        if self._written != (state.number, state.revision):
            if size_bytes < MOST_PARTS_BYTES * PART_BYTES:
                return False  # it could not be written, and will be with what follows
            self._guard.note(f"parts could not be written: {len(current.steps.step)} recorded steps were given up")
            return True
        starts = current.recordings
        keep_ns = self._settings.keep_ns
        lasted_ns = int(starts.end_ns[-1]) - int(starts.start_ns[0])
        return size_bytes >= PART_BYTES or (keep_ns is not None and lasted_ns >= keep_ns / PARTS_KEPT)

    def _write(self, state: _State) -> None:
        timeline = state.current
        if timeline is None or self._closed:
            return
        first = self._written[0] < 0
        if first:
            self._begin()
        save_part(timeline, self._path, state.number, state.revision, first=first)
        self._written = (state.number, state.revision)
        self._limit(timeline)

    def _limit(self, timeline: RankTimeline) -> None:
        """Remove parts that are older than what is kept."""
        if self._settings.keep_ns is not None:
            before_ns = int(timeline.recordings.end_ns[-1]) - self._settings.keep_ns
            remove_parts(self._path, timeline.rank, before_ns)


def _size_bytes(timeline: RankTimeline) -> int:
    tables = (getattr(timeline, name) for name in TABLES)
    return sum(getattr(table, column).nbytes for table in tables for column in column_kinds(table))
