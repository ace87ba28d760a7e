"""Read an NCCL or RCCL log (`NCCL_DEBUG=INFO`): which ranks communicated, over which links, and every call in order.

Calls and tuning choices are read a block at a time (`scan`, `call_table`), all other lines one by one (`lines`). A log
has no times of device work; its timelines have calls in order and no spans.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.call_timeline import timeline_from_calls
from overlapscope.ingest.formats.nccl_log import tables as nccl_tables
from overlapscope.ingest.formats.nccl_log.call_table import CallTable
from overlapscope.ingest.formats.nccl_log.calls import CallColumns, times
from overlapscope.ingest.formats.nccl_log.communicators import (
    LoggedCommunicators,
    LoggedProcess,
    WorldRanks,
    find_world,
    name_communicators,
)
from overlapscope.ingest.formats.nccl_log.lines import MAX_MESSAGES, LineReader
from overlapscope.ingest.formats.nccl_log.scan import Block, scan
from overlapscope.ingest.formats.nccl_log.tables import none_if_missing
from overlapscope.ingest.formats.nccl_log.tuning import share_choices
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import (
    DTYPES,
    MISSING,
    NONE,
    Codes,
    Collectives,
    Ints,
    column_kinds,
)
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline, Source

_PLAIN_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)?")


def read_nccl_log(path: Path, context: ReadContext) -> Reading:
    """Read one log, written by one process or by several. Raises InputError when it has no line of NCCL."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    log = _Log()
    for block in scan(stream):
        log.take(block)
    log.call_table.settle(final=True)
    if not log.lines.read and not log.call_table.calls:
        raise InputError(f"{display_path(path)}: holds no line of NCCL or RCCL; was it written with NCCL_DEBUG=INFO?")
    return log.reading(display_path(path), stream)


class _Log:
    """The contents of one file."""

    def __init__(self) -> None:
        self.known = LoggedCommunicators()
        self.call_table = CallTable(self.known)
        self.lines = LineReader(log=self.known, call_table=self.call_table, before_change=self._before_change)
        self._block: Block | None = None
        self._base = 1
        self._line = 0
        self._added = 0

    def take(self, block: Block) -> None:
        """Read one block."""
        self._block, self._added = block, 0
        for line in self.call_table.add_choices(block, self._base).tolist():
            self._take_line(line)
        codes, lines = block.texts.codes, block.others
        repeats = np.array([self.lines.repeats(text) for text in block.texts.distinct], np.bool_)
        first = 0
        for single in [*np.flatnonzero(~repeats[codes]).tolist(), codes.size]:
            self._take_repeated(lines[first:single], codes[first:single])
            if single < codes.size:
                self._line = int(lines[single])
                self._take_line(self._line)
            first = single + 1
        self._line = block.ends.size
        self._add_calls()
        self.call_table.settle()
        self._base += block.ends.size

    def _take_repeated(self, lines: Ints, codes: Codes) -> None:
        """Read lines whose meaning does not depend on how often they occur."""
        if codes.size:
            _, first, times = np.unique(codes, return_index=True, return_counts=True)
            for line, number in sorted(zip(lines[first].tolist(), times.tolist(), strict=True)):
                self._take_line(line, number)

    def _before_change(self) -> None:
        """Add the calls before the current line while their pointers still have their meaning."""
        self._add_calls()
        self.call_table.forget()

    def _add_calls(self) -> None:
        assert self._block is not None
        odd = self.call_table.add_calls(self._block, self._base, self._added, self._line)
        self._added = self._line
        for line in odd.tolist():
            self._take_line(line)

    def _take_line(self, line: int, times: int = 1) -> None:
        assert self._block is not None
        self.lines.take(self._block.line(line), self._base + line, times)

    def reading(self, source: str, stream: ByteStream) -> Reading:
        """Return the result of all blocks."""
        begun = self._take_unended()
        communicators = self.known.all
        notes = name_communicators(communicators)
        if begun:
            notes.append(
                f"{begun} initialisation{'s' if begun > 1 else ''} of a communicator without its end "
                "(`Init COMPLETE`): the rings, trees and connections listed there are left out; is the log cut?"
            )
        world = find_world(communicators)
        libraries = self._libraries()
        facts, unsure, odd = self._facts(world, libraries, source)
        calls = sum(len(each.kind) for each in self.call_table.calls.values())
        notes += [*world.notes, *self._doubts(unsure)]
        ranks = share_choices(timelines(self.call_table, world, source, truncated=stream.truncated))
        return Reading(
            source=Source(
                path=source,
                ranks=tuple(sorted(world.ranks.values())),
                events=self.lines.read + calls + self.call_table.num_choices,
                repaired=self.lines.repaired,
                dropped=self.lines.dropped + odd,
                truncated=stream.truncated,
                warnings=(*stream.warnings, *notes),
            ),
            timelines=ranks,
            world_size=world.size,
            groups=nccl_tables.groups(communicators, world),
            fingerprint=self._fingerprint(libraries),
            facts=facts,
        )

    def _take_unended(self) -> int:
        """Keep the details of initialisations that have not ended; return how many cannot be kept."""
        begun = 0
        of = {communicator.process for communicator in self.known.all}
        for thread in self.known.threads.values():
            if thread.open is not None:
                thread.open.details.add(thread.details)
            elif (
                thread.details.paths
                or thread.details.rings
                or (thread.details.connections and thread.process not in of)
            ):
                begun += 1
            elif thread.details.connections:
                thread.process.late.append((thread.device, thread.details.connections))
        return begun

    def _facts(self, world: WorldRanks, libraries: dict[LoggedProcess, str], source: str) -> tuple[Facts, int, int]:
        """Return the facts besides calls, the number of connections without a communicator, and the number of odd
        paths.
        """
        communicators, names = self.known.all, NameTable()
        joined, unsure = nccl_tables.connections(communicators, self.lines.connections.all(), names)
        paths, odd = nccl_tables.paths(communicators, names)
        members = nccl_tables.members(communicators, world, libraries, names)
        cost_models = nccl_tables.costs(communicators, names)
        messages = nccl_tables.messages(self.lines.messages, world, source, names)
        facts = Facts(
            names=tuple(names.to_list()),
            members=members,
            connections=joined,
            paths=paths,
            cost_models=cost_models,
            messages=messages,
        )
        return facts, unsure, odd

    def _doubts(self, unsure: int) -> list[str]:
        notes = []
        if unsure:
            notes.append(f"{unsure} connections do not state their communicator")
        if self.lines.warnings > MAX_MESSAGES:
            notes.append(f"{self.lines.warnings - MAX_MESSAGES} more warnings are not kept")
        if any(each.launch_ns for each in self.call_table.calls.values()):
            notes.append("its times are the hosts' local times without a zone; they are read as UTC")
        return notes

    def _libraries(self) -> dict[LoggedProcess, str]:
        """Return each process's library; a version line without a prefix is assigned by its launcher label."""
        processes = list(self.known.processes.values())
        found = {process: process.library for process in processes if process.library is not None}
        for label, version in self.lines.versions.items():
            those = [process for process in processes if label in process.labels] if label is not None else processes
            if len(those) == 1:
                found.setdefault(those[0], version)
        return found

    def _fingerprint(self, libraries: dict[LoggedProcess, str]) -> dict[str, str | int | None]:
        """Return the version and the settings; the version as the profiler writes it, without the CUDA version."""
        libraries_and_versions = [*libraries.values(), *self.lines.versions.values()]
        versions = {found[0] for found in map(_PLAIN_VERSION.search, libraries_and_versions) if found}
        version: dict[str, str | int | None] = {
            "nccl_version": "mixed" if len(versions) > 1 else next(iter(versions), None)
        }
        return {**self.lines.settings, **(version if versions else {})}


def timelines(call_table: CallTable, world: WorldRanks, source: str, *, truncated: bool) -> tuple[RankTimeline, ...]:
    """Return the calls of each rank as a timeline without times of device work; empties the call table's columns.

    A rank that the log mentions without any calls has a timeline too.
    """
    found = []
    for worker in world.ranks:
        call_table.calls.setdefault(worker, CallColumns())
    for worker in sorted(
        call_table.calls, key=lambda each: (world.ranks.get(each, NONE), each[0].host, each[0].number)
    ):
        names = NameTable()
        code = names.code(source)
        own = _collectives(call_table, call_table.calls.pop(worker), names)
        rank = world.ranks.get(worker, UNKNOWN_RANK)
        found.append(timeline_from_calls(own, names, rank=rank, source=code, has_device=True, truncated=truncated))
    return tuple(found)


def _collectives(call_table: CallTable, calls: CallColumns, names: NameTable) -> Collectives:
    """Return one rank's calls as a table; columns with one value for all rows take no memory."""
    rows = len(calls.kind)
    kind, choice = np.frombuffer(calls.kind, np.int32), np.frombuffer(calls.choice, np.int32)
    count = np.frombuffer(calls.count, np.int64)
    kinds, chosen = call_table.kinds, call_table.choices.all
    used = np.flatnonzero(np.bincount(kind, minlength=1)).tolist()
    place = np.zeros(len(kinds) + 1, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    kind = place[kind] if used != list(range(len(used))) else kind
    parts = np.array([kinds[each].parts for each in used], np.int64)
    items = np.array([kinds[each].item_bytes for each in used], np.int64)
    columns: dict[str, npt.NDArray[Any]] = {
        "group": _by(kind, [names.code(kinds[each].communicator.name) for each in used], np.int32),
        "op": _by(kind, [names.code(kinds[each].op) for each in used], np.int32),
        "dtype": _by(kind, names.codes(kinds[each].dtype for each in used), np.int32),
        "group_size": _by(kind, [kinds[each].communicator.size for each in used], np.int64),
        "algorithm": _by(choice, [*names.codes(each.algorithm for each in chosen), -1], np.int32),
        "protocol": _by(choice, [*names.codes(each.protocol for each in chosen), -1], np.int32),
        "channels": _by(choice, [none_if_missing(each.channels) for each in chosen] + [NONE], np.int64),
        "seq": np.frombuffer(calls.seq, np.int64),
        "bytes": times(count, (parts * items)[kind]),
    }
    columns["elements"] = count if (parts == 1).all() else times(count, parts[kind])
    if calls.launch_ns:
        columns["launch_ns"] = np.frombuffer(calls.launch_ns, np.int64)
    columns["recording"] = np.broadcast_to(np.int64(0), rows)
    for name, stored in column_kinds(Collectives).items():
        columns.setdefault(name, np.broadcast_to(np.array(MISSING[stored], DTYPES[stored]), rows))
    return Collectives(**columns)


def _by(codes: npt.NDArray[np.int32], values: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    """Return the value of each code, the last value for -1; where all are equal, a view of one value."""
    table = np.array(values, dtype)
    if not table.size:
        return np.zeros(0, dtype)
    if (table == table[0]).all():
        return np.broadcast_to(table[0], codes.size)
    return table[codes]
