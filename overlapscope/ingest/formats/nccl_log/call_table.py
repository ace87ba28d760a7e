"""Collect the calls of all ranks of a log as columns, with the communicator, algorithm and protocol of each.

Millions of lines differ only in their numbers, so the text around these is parsed once. Calls whose TUNING line may
still follow wait, a bounded number per process.
"""

from array import array
from typing import Final, TypeVar

import numpy as np

from overlapscope.ingest.formats.nccl_log.calls import CALL, CallColumns, CallKind, CallTail, tail_of, times
from overlapscope.ingest.formats.nccl_log.communicators import NO_NUMBER, LoggedCommunicators, LoggedProcess
from overlapscope.ingest.formats.nccl_log.line_prefix import INFO, Writer, own_time, rank_of_wrapper, writer_at_end
from overlapscope.ingest.formats.nccl_log.tuning import (
    CHOICE,
    CallsAndChoices,
    TuningChoices,
    choice_of,
    match,
    operation,
)
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import SEND_OPS

MAX_WAITING_CALLS: Final = 256
"""Largest number of calls of one process that wait for their TUNING line."""
_REMEMBERED: Final = 1 << 16
"""Largest number of distinct texts around the numbers of a line that are cached."""
_CALL_COLUMNS: Final = 6
"""Of a call that is not stored yet: line, process, kind, count, seq, time in ns."""
_CHOICE_COLUMNS: Final = 5
"""Of a tuning choice: line, process, choice, operation, bytes."""
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
Worker = tuple[LoggedProcess, int]
"""A rank as its lines describe it: a process and one of its devices."""


_Texts = tuple[bytes, bytes, bytes]
"""Writer, operation and tail as written: what is the same on millions of lines."""
_T = TypeVar("_T")


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
        self._known_calls: dict[_Texts, tuple[int, int]] = {}
        """Process and kind."""
        self._known_choices: dict[_Texts, tuple[int, int, int]] = {}
        """Process, choice and operation."""
        self._calls, self._choices = array("q"), array("q")
        """Rows that are not stored yet, in the log's order."""

    def take(self, line: bytes, number: int) -> bool:
        """Read line `number` (from 1) of the log if it is a whole call or a whole TUNING line; return whether it is."""
        place = line.find(INFO)
        if place < 0:
            return False
        start = line.rfind(b" ", 0, line.rfind(b" [", 0, place)) + 1
        if start and line.find(b" NCCL ", 0, start) >= 0:  # a piece of another line
            return False
        if found := CALL.fullmatch(line, place):
            op, seq, count, tail = found.groups()
            key = (line[start:place], op, tail)
            call = self._known_calls.get(key) or self._call(line, key)
            if call:
                time_ns = own_time(line[:start]) if start else NONE
                self._calls.extend((number, *call, int(count), int(seq, 16), time_ns))
            return call is not None
        if found := CHOICE.fullmatch(line, place):
            op, size, tail = found.groups()
            key = (line[start:place], op or b"", tail)
            choice = self._known_choices.get(key) or self._choice(line, key)
            if choice:
                self._choices.extend((number, *choice, int(size)))
                self.num_choices += 1
            return choice is not None
        return False

    def _call(self, line: bytes, key: _Texts) -> tuple[int, int] | None:
        """Return process and kind of a call, and remember them; None where a text is damaged."""
        writer, tail = _writer(line, key[0]), tail_of(key[2])
        if writer is None or tail is None:
            return None
        known = (self._process(writer, line), self._kind(writer, operation(key[1].decode("ascii")), tail))
        _remember(self._known_calls, key, known)
        return known

    def _choice(self, line: bytes, key: _Texts) -> tuple[int, int, int] | None:
        """Return process, choice and operation of a TUNING line, and remember them; None where a text is damaged."""
        writer, choice = _writer(line, key[0]), choice_of(key[2])
        if writer is None or choice is None:
            return None
        op = self._ops.code(operation(key[1].decode("ascii"))) if key[1] else NO_NUMBER
        known = (self._process(writer, line), self.choices.code(choice), op)
        _remember(self._known_choices, key, known)
        return known

    def forget(self) -> None:
        """Discard the meaning of all pointers."""
        self._known_calls.clear()

    def _kind(self, writer: Writer, op: str, tail: CallTail) -> int:
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
        calls = np.array(self._calls, np.int64).reshape(-1, _CALL_COLUMNS)
        choices = np.array(self._choices, np.int64).reshape(-1, _CHOICE_COLUMNS)
        self._choices = array("q")
        line, process, kind, count, seq, time_ns = calls.T
        self._describe_kinds()
        leads = self._table["leader"][kind] & (count > 0)
        last = np.full(len(self._processes), -1)
        last[choices[:, 1]] = choices[:, 0]
        choice = np.full(line.size, NO_NUMBER, np.int32)
        rows = np.flatnonzero(leads & (last[process] >= 0))
        choice[rows] = self._match(calls[rows], choices)
        worker = self._table["worker"][kind]
        held = np.zeros(line.size, np.bool_) if final else _waiting_calls(process, leads & (line > last[process]))
        worker[held] = len(self._workers)  # sorts behind all others
        self._calls = array("q", calls[held].tobytes())
        order = np.argsort(worker, kind="stable")
        ends = np.searchsorted(worker[order], np.arange(len(self._workers)), side="right")
        for own, rows in zip(self._workers, np.split(order, ends)[:-1], strict=True):
            if rows.size:
                columns = self.calls.setdefault(own, CallColumns())
                columns.add(kind[rows], choice[rows], seq[rows], count[rows], time_ns[rows])

    def _match(self, calls: Ints, choices: Ints) -> Codes:
        """Return the number of each call's choice."""
        line, process, kind = np.concatenate((calls[:, :3], choices[:, :3])).T
        order = np.lexsort((line, process))
        process, kind, call = process[order], kind[order], order < len(calls)
        count = np.concatenate((calls[:, 3], choices[:, 4]))[order]
        op = np.concatenate((calls[:, 3], choices[:, 3]))[order]
        of_call = self._table[np.where(call, kind, NO_NUMBER)]
        chosen = match(
            CallsAndChoices(
                process=process,
                call=call,
                communicator=of_call["communicator"],
                op=np.where(call, of_call["op"], op),
                batch=of_call["batch"],
                whole=np.where(call, times(count, of_call["item"] * of_call["parts"]), count),
                part=np.where(call, times(count, of_call["item"]), count),
                choice=np.where(call, NO_NUMBER, kind),
            ),
            self.choices,
        )
        result = np.zeros(chosen.size, np.int32)
        result[order] = chosen
        return result[: len(calls)]

    def _process(self, writer: Writer, line: bytes) -> int:
        process = self._log.process(writer.host, writer.process)
        if not process.labels:
            label = rank_of_wrapper(line)
            if label is not None:
                process.labels[label] += 1
        return self._processes.setdefault(process, len(self._processes))

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


def _waiting_calls(process: Ints, open_: Flags) -> Flags:
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


def _writer(line: bytes, text: bytes) -> Writer | None:
    return None if b"\x1b" in line else writer_at_end(text)  # lines with colours come again without them


def _remember(known: dict[_Texts, _T], texts: _Texts, meaning: _T) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[texts] = meaning
