"""Read a Horovod timeline (HOROVOD_TIMELINE): each tensor's time in negotiation, waiting, copying and transfer.

The file is an array of Chrome events that rank 0 writes; its processes are tensors. Before Horovod 0.20.1 it is never
closed and ends in a comma, as it does after a crash; later versions write all events on one line. Names are not
escaped. It shows the coordinator's view from the host: no computation, and device work only as its end was seen by the
host. Overlap cannot be computed from it, so the result is figures and no timeline.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.formats.horovod.tensors import PARTS, Tensor, Tensors
from overlapscope.ingest.parsing.event_array import EventArray
from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import MAX_RANKS, Source

MAX_TENSORS = 1_000_000
_MAX_US = 1 << 52
_RANK = re.compile(r"[0-9]{1,7}")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: Any = None
    ts: Any = None
    pid: Any = None
    dur: Any = None
    args: Any = None


ALL_TENSORS = "all tensors"
NEGOTIATIONS = "negotiations"
TRANSFERS = "transfers"


def read_horovod(path: Path, context: ReadContext) -> Reading:
    """Read one timeline, plain or gzip, complete or cut short, in pieces.

    Raises InputError when it cannot be read, or holds no event of a tensor.
    """
    stream = ByteStream(path, context.max_bytes, context.progress)
    array = EventArray(stream, msgspec.json.Decoder(list[_Event]))
    events = _EventCollector()
    array.read(events.add)
    events.tensors.finish()
    if not events.tensors.tensors:
        raise InputError(f"{display_path(path)}: holds no tensor; was the timeline on while the job trained?")
    warnings = [*stream.warnings, *_warnings(events)]
    if not array.closed and not array.cut and not stream.truncated:
        warnings.append("the list of events is not closed: written by Horovod before 0.20.1, or the job crashed")
    facts, notes = horovod_figures(events.tensors, events.names, display_path(path))
    return Reading(
        facts=facts,
        source=Source(
            path=display_path(path),
            events=array.events,
            repaired=array.repaired,
            dropped=array.dropped + events.dropped,
            truncated=stream.truncated or array.cut,
            warnings=(*warnings, *notes),
        ),
    )


class _EventCollector:
    """Collects the tensors of the event array, piece by piece."""

    def __init__(self) -> None:
        self.tensors = Tensors()
        self.names: dict[int, str] = {}
        self.dropped = self.long_ticks = self.longest_us = self.foreign = 0

    def add(self, events: list[_Event]) -> None:
        """Add the events of one piece."""
        for event in events:
            self._take_event(event)

    def _take_event(self, event: _Event) -> None:
        phase = event.ph
        if phase == "M":
            self._take_name(event)
            return
        if phase == "i" and event.name == "CYCLE_START":
            self.tensors.readiness.cycle_start()
            return
        if phase not in ("B", "E", "X"):
            self.dropped += not phase
            self.foreign += phase != ""
            return
        pid, at_us = self._pid(event.pid), _microseconds(event.ts)
        if pid is None or at_us is None:
            self.dropped += 1
        elif phase == "E":
            self.tensors.end(pid, at_us, event.args)
        elif phase == "B" and isinstance(event.name, str):
            self.tensors.begin(pid, event.name, at_us)
        elif phase == "X" and isinstance(event.name, str) and _is_rank(event.name):
            if event.dur != 0:
                self.long_ticks += 1
                self.longest_us = max(self.longest_us, _microseconds(event.dur) or 0)
            self.tensors.ready(pid, int(event.name), at_us)
        else:
            self.foreign += 1

    def _take_name(self, event: _Event) -> None:
        pid = self._pid(event.pid)
        name = event.args.get("name") if isinstance(event.args, dict) else None
        if pid is not None and isinstance(name, str) and event.name == "process_name":
            self.names.setdefault(pid, name)

    def _pid(self, pid: object) -> int | None:
        """Return a tensor's number; None for an invalid one, or for more tensors than any model has."""
        if type(pid) is not int or not 0 <= pid < _MAX_US:
            return None
        known = self.tensors.tensors
        return pid if pid in known or max(len(known), len(self.names)) < MAX_TENSORS else None


def _microseconds(value: object) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value) if abs(value) < _MAX_US else None
    return value if type(value) is int and 0 <= value < _MAX_US else None


def _is_rank(name: str) -> bool:
    return _RANK.fullmatch(name) is not None and int(name) <= MAX_RANKS


def _warnings(events: _EventCollector) -> list[str]:
    tensors = events.tensors
    counted = (
        (
            events.long_ticks,
            f"ready ticks have a duration (up to {events.longest_us} us), which ticks never have: left out",
        ),
        (events.foreign, "events that Horovod does not write were left out"),
        (tensors.contradictory, "operations or negotiations whose times contradict each other were left out"),
        (tensors.unfinished, "negotiations or operations without an end were left out"),
        (tensors.unmatched, "ends without a beginning"),
        (tensors.stray_ticks, "ready ticks outside any negotiation were left out"),
        (tensors.bare, "operations without a negotiation before them"),
    )
    return [f"{count} {what}" for count, what in counted if count]


def horovod_figures(timeline: Tensors, names: Mapping[int, str], source: str) -> tuple[Facts, list[str]]:
    """Return the figures in total, per late rank and per tensor, and notes about them.

    `<part>_us` are sums over a tensor's operations, each from the start of its negotiation to its end; `<part>_share`
    is their share of `total_us`. The parts add up to the whole.
    """
    rows = FigureRows()
    tensors = sorted(timeline.tensors.items(), key=lambda item: (-item[1].total_us - item[1].alone_us, item[0]))
    whole = Tensor()
    for _, tensor in tensors:
        whole.calls += tensor.calls
        whole.total_us += tensor.total_us
        whole.parts_us = [a + b for a, b in zip(whole.parts_us, tensor.parts_us, strict=True)]
        whole.alone += tensor.alone
        whole.alone_us += tensor.alone_us
    _add_tensor(rows, ALL_TENSORS, whole)
    _add_readiness(rows, timeline)
    _add_transfers(rows, timeline)
    for pid, tensor in tensors:
        _add_tensor(rows, names.get(pid, f"tensor {pid}"), tensor)
    notes = []
    if whole.alone:
        notes.append(
            f"{whole.alone} negotiations have no operation after them: their time is listed separately, without shares"
        )
    if whole.calls and not timeline.readiness.judged:
        notes.append(
            "no negotiation has ready ticks of all ranks, as with a response cache (HOROVOD_CACHE_CAPACITY=0 turns it "
            "off): which rank is late is unknown"
        )
    if rows.left_out:
        notes.append(f"{rows.left_out} figures of further tensors were left out")
    return rows.facts(source), notes


def _add_tensor(rows: FigureRows, subject: str, tensor: Tensor) -> None:
    if tensor.calls:
        rows.add(subject, "calls", tensor.calls)
        rows.add(subject, "total_us", tensor.total_us)
        for part, spent in zip(PARTS, tensor.parts_us, strict=True):
            rows.add(subject, f"{part}_us", spent)
        if tensor.total_us:
            for part, spent in zip(PARTS, tensor.parts_us, strict=True):
                rows.add(subject, f"{part}_share", spent / tensor.total_us)
    if tensor.alone:
        rows.add(subject, "negotiations_alone", tensor.alone)
        rows.add(subject, "negotiation_alone_us", tensor.alone_us)
    if tensor.bytes is not None:
        rows.add(subject, "output_bytes", tensor.bytes)


def _add_readiness(rows: FigureRows, timeline: Tensors) -> None:
    readiness = timeline.readiness
    if readiness.judged:
        rows.add(NEGOTIATIONS, "with_all_ticks", readiness.judged)
        for rank, times, lead_us in readiness.late():
            rows.add(NEGOTIATIONS, "times_last", times, rank=rank)
            rows.add(NEGOTIATIONS, "lead_us", lead_us, rank=rank)


def _add_transfers(rows: FigureRows, timeline: Tensors) -> None:
    batches = timeline.batches
    if batches.transfers:
        rows.add(TRANSFERS, "transfers", batches.transfers)
        rows.add(TRANSFERS, "of_one_tensor", batches.single)
        rows.add(TRANSFERS, "tensors_mean", batches.tensors / batches.transfers)
        rows.add(TRANSFERS, "duration_us", batches.duration_us)
    if batches.sized:
        rows.add(TRANSFERS, "of_known_size", batches.sized)
        rows.add(TRANSFERS, "below_1_mib", batches.tiny)
    if batches.unclear:
        rows.add(TRANSFERS, "unclear", batches.unclear)
