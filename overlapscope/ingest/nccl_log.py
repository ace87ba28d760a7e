"""Read an NCCL or RCCL log (`NCCL_DEBUG=INFO`): who communicated with whom, over what, and every call in order.

Calls and choices are taken a block at a time (`nccl_scan`, `nccl_book`), all other lines one by one (`nccl_lines`). A
log has no times of device work; its timelines have calls in order and no spans.
"""

import re
from pathlib import Path
from typing import Final

import numpy as np

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest import nccl_tables
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.nccl_book import Book
from overlapscope.ingest.nccl_communicators import Communicators, Process
from overlapscope.ingest.nccl_lines import MAX_MESSAGES, Lines
from overlapscope.ingest.nccl_scan import Block, scan
from overlapscope.ingest.nccl_shared import share_choices
from overlapscope.ingest.nccl_timelines import timelines
from overlapscope.ingest.nccl_world import World, find_world, name_communicators
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.columns import Codes, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source

_PLAIN_VERSION: Final = re.compile(r"\d+\.\d+(?:\.\d+)?")


def read_nccl_log(path: Path, context: ReadContext) -> Reading:
    """Read one log, of one process or of several that wrote into it. Raises InputError when nothing in it is NCCL's."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    log = _Log()
    for block in scan(stream):
        log.take(block)
    log.book.settle(final=True)
    if not log.lines.read and not log.book.calls:
        raise InputError(f"{shown(path)}: holds no line of NCCL or RCCL; was it written with NCCL_DEBUG=INFO?")
    return log.reading(shown(path), stream)


class _Log:
    """All of one file."""

    def __init__(self) -> None:
        self.known = Communicators()
        self.book = Book(self.known)
        self.lines = Lines(log=self.known, book=self.book, before_change=self._before_change)
        self._block: Block | None = None
        self._base = 1
        self._line = 0
        self._added = 0

    def take(self, block: Block) -> None:
        """Take one block."""
        self._block, self._added = block, 0
        for line in self.book.add_choices(block, self._base).tolist():
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
        self.book.settle()
        self._base += block.ends.size

    def _take_repeated(self, lines: Ints, codes: Codes) -> None:
        """Take lines of which each says the same however often it stands there."""
        if codes.size:
            _, first, times = np.unique(codes, return_index=True, return_counts=True)
            for line, number in sorted(zip(lines[first].tolist(), times.tolist(), strict=True)):
                self._take_line(line, number)

    def _before_change(self) -> None:
        """Add the calls before the current line, while their pointers still mean what they meant."""
        self._add_calls()
        self.book.forget()

    def _add_calls(self) -> None:
        assert self._block is not None
        odd = self.book.add_calls(self._block, self._base, self._added, self._line)
        self._added = self._line
        for line in odd.tolist():
            self._take_line(line)

    def _take_line(self, line: int, times: int = 1) -> None:
        assert self._block is not None
        self.lines.take(self._block.line(line), self._base + line, times)

    def reading(self, source: str, stream: ByteStream) -> Reading:
        """Put together what was read."""
        begun = self._take_unended()
        communicators = self.known.all
        notes = name_communicators(communicators)
        if begun:
            notes.append(
                f"{begun} initialisation{'s' if begun > 1 else ''} of a communicator without its end "
                "(`Init COMPLETE`): what is told there of rings, trees and connections is left out; is the log cut?"
            )
        world = find_world(communicators)
        libraries = self._libraries()
        facts, unsure, odd = self._facts(world, libraries, source)
        calls = sum(len(each.kind) for each in self.book.calls.values())
        notes += [*world.notes, *self._doubts(unsure)]
        ranks = share_choices(timelines(self.book, world, source, truncated=stream.truncated))
        return Reading(
            source=Source(
                path=source,
                ranks=tuple(sorted(world.ranks.values())),
                events=self.lines.read + calls + self.book.told,
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
        """Keep what was told in an initialisation that had begun; count those of which nothing can be kept."""
        begun = 0
        of = {communicator.process for communicator in self.known.all}
        for thread in self.known.threads.values():
            if thread.open is not None:
                thread.open.told.add(thread.told)
            elif thread.told.paths or thread.told.rings or (thread.told.connections and thread.process not in of):
                begun += 1
            elif thread.told.connections:
                thread.process.late.append((thread.device, thread.told.connections))
        return begun

    def _facts(self, world: World, libraries: dict[Process, str], source: str) -> tuple[Facts, int, int]:
        """Give what was told besides calls, how many connections name no communicator, and how many paths are odd."""
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
            notes.append(f"{unsure} connections do not say of which communicator they are")
        if self.lines.warnings > MAX_MESSAGES:
            notes.append(f"{self.lines.warnings - MAX_MESSAGES} more warnings are not kept")
        if any(each.launch_ns for each in self.book.calls.values()):
            notes.append("its times are the hosts' local times without a zone; they are read as UTC")
        return notes

    def _libraries(self) -> dict[Process, str]:
        """Give the library of each process that told it; a line without a prefix tells by its launcher's label."""
        processes = list(self.known.processes.values())
        found = {process: process.library for process in processes if process.library is not None}
        for label, version in self.lines.versions.items():
            those = [process for process in processes if label in process.labels] if label is not None else processes
            if len(those) == 1:
                found.setdefault(those[0], version)
        return found

    def _fingerprint(self, libraries: dict[Process, str]) -> dict[str, str | int | None]:
        """Give the version and the settings; a version as the profiler writes it, without the CUDA it was built for."""
        told = [*libraries.values(), *self.lines.versions.values()]
        versions = {found[0] for found in map(_PLAIN_VERSION.search, told) if found}
        version: dict[str, str | int | None] = {
            "nccl_version": "mixed" if len(versions) > 1 else next(iter(versions), None)
        }
        return {**self.lines.settings, **(version if versions else {})}
