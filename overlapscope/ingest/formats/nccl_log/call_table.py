"""Collect the calls of all ranks of a log as columns, with the communicator, algorithm and protocol of each.

What a pointer means depends on the place in the log, so calls before a line that begins or ends a communicator are
added before that line is. Calls whose TUNING line may still follow wait, a bounded number per process.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.ingest.formats.nccl_log import calls as nccl_calls
from overlapscope.ingest.formats.nccl_log import tuning as nccl_choices
from overlapscope.ingest.formats.nccl_log.calls import CallColumns, CallKind, CallTail, times
from overlapscope.ingest.formats.nccl_log.communicators import NO_NUMBER, LoggedCommunicators, LoggedProcess
from overlapscope.ingest.formats.nccl_log.line_prefix import Writer, rank_of_wrapper
from overlapscope.ingest.formats.nccl_log.scan import Block, LineColumns
from overlapscope.ingest.formats.nccl_log.tuning import CallsAndChoices, TuningChoices, match
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import SEND_OPS

MAX_WAITING_CALLS: Final = 256
"""Largest number of calls of one process that wait for their TUNING line."""
_REMEMBERED: Final = 1 << 16
"""Largest number of distinct pieces of lines that are cached."""
_SHORT: Final = 1 << 16
_NO_TIMES: Final = np.zeros(0, np.int64)
_KIND: Final = np.dtype(
    [
        ("communicator", np.int32),
        ("worker", np.int32),
        ("op", np.int32),
        ("batch", np.int32),
        ("item", np.int64),
        ("parts", np.int64),
        ("leader", np.bool_),
    ]
)
_T = TypeVar("_T")
Worker = tuple[LoggedProcess, int]
"""A rank as its lines describe it: a process and one of its devices."""


class _PendingColumns(msgspec.Struct, frozen=True):
    """Calls that are not stored yet, or tuning choices, as columns in the log's order."""

    line: Ints
    process: Codes
    kind: Codes
    """Number of a call's kind, or number of the choice."""
    count: Ints
    seq: Ints
    """`opCount` of a call; operation of a choice."""
    time_ns: Ints
    """Empty where no line has a time."""

    def columns(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__]

    def take(self, rows: Ints | Flags) -> "_PendingColumns":
        return _PendingColumns(*(column[rows] if column.size else column for column in self.columns()))


def _joined(parts: list[_PendingColumns]) -> _PendingColumns:
    """Concatenate the parts and sort by line: lines that were read one by one may have been added too early."""
    if len(parts) == 1:
        return parts[0]
    if any(part.time_ns.size for part in parts):
        parts = [part if part.time_ns.size else replace(part, time_ns=np.full(part.line.size, NONE)) for part in parts]
    whole = _PendingColumns(*map(np.concatenate, zip(*(part.columns() for part in parts), strict=True)))
    if (whole.line[1:] < whole.line[:-1]).any():
        return whole.take(np.argsort(whole.line, kind="stable"))
    return whole


class CallTable:
    """All calls of a log; `calls` is complete after the last `settle`."""

    def __init__(self, log: LoggedCommunicators) -> None:
        self.calls: dict[Worker, CallColumns] = {}
        self.choices = TuningChoices()
        self.kinds: list[CallKind] = []
        self.num_choices = 0
        """Number of TUNING lines that were read."""
        self._log = log
        self._kinds: dict[CallKind, int] = {}
        self._table = np.zeros(1, _KIND)
        self._workers: dict[Worker, int] = {}
        self._ops, self._batches = NameTable(), NameTable()
        self._processes: dict[LoggedProcess, int] = {}
        self._heads: dict[bytes, nccl_calls.CallHead | None] = {}
        self._tails: dict[bytes, CallTail | None] = {}
        self._meanings: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        """Process and kind, by the two pieces of a line."""
        self._choice_heads: dict[bytes, nccl_choices.TuningHead | None] = {}
        self._choice_tails: dict[bytes, nccl_choices.TuningChoice | None] = {}
        self._pending_calls: list[_PendingColumns] = []
        self._pending_choices: list[_PendingColumns] = []

    def add_choices(self, block: Block, base: int) -> Ints:
        """Add the TUNING lines of a block.

        `base` is the number of the block's first line. Returns the lines that are not TUNING lines after all.
        """
        rows = block.choices
        codes, place = _distinct(rows.head.codes, len(rows.head.distinct))
        processes, ops = (np.full(codes.size, NO_NUMBER, np.int32) for _ in range(2))
        for nth, code in enumerate(codes.tolist()):
            head = _remembered(self._choice_heads, rows.head.distinct[code], nccl_choices.head_of)
            if head is not None:
                processes[nth] = self._process(head.writer, block, int(rows.line[np.argmax(place == nth)]))
                ops[nth] = self._ops.code(head.op) if head.op else NO_NUMBER
        process, op = processes[place], ops[place]
        codes, place = _distinct(rows.tail.codes, len(rows.tail.distinct))
        choices = np.full(codes.size, NO_NUMBER, np.int32)
        for nth, code in enumerate(codes.tolist()):
            tuning = _remembered(self._choice_tails, rows.tail.distinct[code], nccl_choices.choice_of)
            if tuning is not None:
                choices[nth] = self.choices.code(tuning)
        choice = choices[place]
        good = (process >= 0) & (choice >= 0)
        self.num_choices += int(good.sum())
        waiting = _waiting(rows, good, base, process, choice)
        self._pending_choices.append(replace(waiting, seq=op[good].astype(np.int64), time_ns=_NO_TIMES))
        return rows.line[~good]

    def add_calls(self, block: Block, base: int, first: int, end: int) -> Ints:
        """Add the calls in the lines `first` to `end` (exclusive) of a block; return the lines that are not calls.

        Pointers keep their present meaning until `forget`.
        """
        low, high = np.searchsorted(block.calls.line, (first, end)).tolist()
        rows = block.calls.within(low, high)
        width = len(rows.tail.distinct)
        pairs, place = _distinct(rows.head.codes * np.int64(width) + rows.tail.codes, width * len(rows.head.distinct))
        kinds = np.full(pairs.size, NO_NUMBER, np.int32)
        processes = np.zeros(pairs.size, np.int32)
        for nth, pair in enumerate(pairs.tolist()):
            head_text, tail_text = rows.head.distinct[pair // width], rows.tail.distinct[pair % width]
            known = self._meanings.get((head_text, tail_text))
            if known is None:
                head = _remembered(self._heads, head_text, nccl_calls.head_of)
                tail = _remembered(self._tails, tail_text, nccl_calls.tail_of)
                if head is None or tail is None:
                    continue
                line = int(rows.line[np.argmax(place == nth)])
                known = (self._process(head.writer, block, line), self.kind(head.writer, head.op, tail))
                self._meanings[head_text, tail_text] = known
            processes[nth], kinds[nth] = known
        process, kind = processes[place], kinds[place]
        good = kind >= 0
        self._pending_calls.append(_waiting(rows, good, base, process, kind))
        return rows.line[~good]

    def forget(self) -> None:
        """Discard the meaning of all pointers."""
        self._meanings.clear()

    def add_call(self, line: int, writer: Writer, op: str, tail: CallTail, seq: int, count: int) -> None:
        """Add one call."""
        process = self._processes.setdefault(self._log.process(writer.host, writer.process), len(self._processes))
        kind = self.kind(writer, op, tail)
        columns: list[Any] = [np.array([each]) for each in (line, process, kind, count, seq)]
        columns.append(_NO_TIMES)
        self._pending_calls.append(_PendingColumns(*columns))

    def kind(self, writer: Writer, op: str, tail: CallTail) -> int:
        """Return the number of the kind of a call."""
        communicator = self._log.of_call(
            self._log.process(writer.host, writer.process),
            tail.pointer,
            size=tail.size,
            member=tail.member,
            device=writer.device,
        )
        made = CallKind(communicator, op, tail.dtype, tail.reduction)
        code = self._kinds.setdefault(made, len(self.kinds))
        if code == len(self.kinds):
            self.kinds.append(made)
        return code

    def settle(self, *, final: bool = False) -> None:
        """Find the tuning choices of the calls so far and move the calls to their ranks' columns."""
        if not self._pending_calls:
            self._pending_choices = []
            return
        calls = _joined(self._pending_calls)
        self._describe_kinds()
        leads = self._table["leader"][calls.kind] & (calls.count > 0)
        last = np.full(len(self._processes), -1)
        choice_of_call = np.full(calls.line.size, NO_NUMBER, np.int32)
        choices = _joined(self._pending_choices) if self._pending_choices else None
        if choices is not None and choices.line.size:
            last[choices.process] = choices.line
            rows = np.flatnonzero(leads & (last[calls.process] >= 0))
            choice_of_call[rows] = self._match(calls.take(rows), choices)
        self._pending_choices, self._pending_calls = [], []
        worker = self._table["worker"][calls.kind]
        if not final:
            held = _waiting_calls(calls.process, leads & (calls.line > last[calls.process]))
            if held.any():
                self._pending_calls = [calls.take(held)]
                worker[held] = len(self._workers)  # sorts behind all others
        self._store(calls, choice_of_call, worker)

    def _match(self, calls: _PendingColumns, choices: _PendingColumns) -> Codes:
        """Return the number of each call's choice."""
        joined = _PendingColumns(
            *map(np.concatenate, zip(replace(calls, time_ns=_NO_TIMES).columns(), choices.columns(), strict=True))
        )
        call = np.arange(joined.line.size) < calls.line.size
        order = np.argsort(joined.line, kind="stable")
        if (joined.process != joined.process[0]).any():
            order = order[np.argsort(_short(joined.process[order]), kind="stable")]
        joined, call = joined.take(order), call[order]
        table, kind = self._table, np.where(call, joined.kind, NO_NUMBER)
        item = table["item"][kind]
        chosen = match(
            CallsAndChoices(
                process=joined.process,
                call=call,
                communicator=table["communicator"][kind],
                op=np.where(call, table["op"][kind], joined.seq).astype(np.int32),
                batch=table["batch"][kind],
                whole=np.where(call, times(joined.count, item * table["parts"][kind]), joined.count),
                part=np.where(call, times(joined.count, item), joined.count),
                choice=np.where(call, NO_NUMBER, joined.kind),
            ),
            self.choices,
        )
        result = np.zeros(chosen.size, np.int32)
        result[order] = chosen
        return result[: calls.line.size]

    def _store(self, calls: _PendingColumns, choice: Codes, worker: Codes) -> None:
        """Append the calls of each worker to its columns."""
        columns: list[Any] = [calls.kind, choice, calls.seq, calls.count, calls.time_ns]
        if (worker[1:] < worker[:-1]).any():
            order = np.argsort(_short(worker), kind="stable")
            worker = worker[order]
            columns = [column[order] if column.size else column for column in columns]
        ends = np.searchsorted(worker, np.arange(len(self._workers)), side="right").tolist()
        first = 0
        for own, end in zip(self._workers, ends, strict=True):
            if end > first:
                self.calls.setdefault(own, CallColumns()).add(*(column[first:end] for column in columns))
            first = end

    def _process(self, writer: Writer, block: Block, line: int) -> int:
        process = self._log.process(writer.host, writer.process)
        code = self._processes.get(process)
        if code is None:
            code = self._processes[process] = len(self._processes)
        if not process.labels:
            label = rank_of_wrapper(block.line(line))
            if label is not None:
                process.labels[label] += 1
        return code

    def _describe_kinds(self) -> None:
        """Update the table of kinds; its last row stands for lines that are not calls."""
        rows = []
        for kind in self.kinds[self._table.size - 1 :]:
            communicator = kind.communicator
            worker = (communicator.process, communicator.device)
            leader = communicator.size > 1 and communicator.member in (0, NO_NUMBER) and kind.op not in SEND_OPS
            rows.append(
                (
                    communicator.order,
                    self._workers.setdefault(worker, len(self._workers)),
                    self._ops.code(kind.op),
                    self._batches.code(f"{kind.op} {kind.dtype} {kind.reduction}"),
                    kind.item_bytes,
                    kind.parts,
                    leader,
                )
            )
        if rows:
            self._table = np.concatenate((self._table[:-1], np.array(rows, _KIND), np.zeros(1, _KIND)))


def _waiting(rows: LineColumns, good: Flags, base: int, process: Codes, kind: Codes) -> _PendingColumns:
    waiting = _PendingColumns(base + rows.line, process, kind, rows.count, rows.seq, rows.time_ns)
    return waiting if good.all() else waiting.take(good)


def _waiting_calls(process: Codes, open_: Flags) -> Flags:
    """Return a mask of the calls that wait for their TUNING line.

    They are the calls of each process from the first whose choice may still follow, at most the last MAX_WAITING_CALLS.
    """
    held = np.zeros(process.size, np.bool_)
    rows = np.flatnonzero(open_)
    first = np.full(int(process.max(initial=0)) + 1, -1)
    first[process[rows[::-1]]] = rows[::-1]
    for each in np.flatnonzero(first >= 0).tolist():
        own = np.flatnonzero(process == each)
        held[own[max(np.searchsorted(own, first[each]), own.size - MAX_WAITING_CALLS) :]] = True
    return held


def _remembered(known: dict[bytes, _T], text: bytes, read: Callable[[bytes], _T]) -> _T:
    if text not in known:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[text] = read(text)
    return known[text]


def _short(codes: Codes) -> npt.NDArray[Any]:
    """Return codes as uint16 where they fit, because numpy sorts these by counting."""
    return codes.astype(np.uint16) if codes.max(initial=0) < _SHORT else codes


def _distinct(codes: npt.NDArray[Any], limit: int) -> tuple[Ints, Ints]:
    """Return the distinct codes below `limit`, and the position of each code among them."""
    if limit > 16 * codes.size + _SHORT:
        distinct, place = np.unique(codes, return_inverse=True)
        return distinct, place
    distinct = np.flatnonzero(np.bincount(codes, minlength=limit))
    table = np.zeros(limit, np.int64)
    table[distinct] = np.arange(distinct.size)
    return distinct, table[codes]
