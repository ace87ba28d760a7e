"""Follow the states of each tensor through the begin and end events of a Horovod timeline.

Written by horovod/common/timeline.cc: every tensor goes through `NEGOTIATE_<OP>`, then `<OP>`, inside which one
activity follows the other; activities are not nested. An end event has no name: it closes the event that was opened
last on the same tensor.

Batches: rank 0 stamps the tensors of a fused batch one after the other, a few microseconds apart, both when their
transfer begins and when it ends; the file does not name batches. Tensors whose transfers begin together and end
together are one batch.

Late ranks: rank 0 writes a tick when a rank reports a tensor ready. It takes the reports cycle by cycle, and within a
cycle rank by rank: the order of ticks in one cycle is the order of rank numbers, not of time. So a rank was last only
where it came alone in a later cycle than all others. Negotiations that are answered from the response cache have no
ticks (horovod#2370).
"""

import re
from collections import Counter
from typing import Final

import msgspec

from overlapscope.timeline.operations import ITEM_BYTES, volume_bytes

PARTS: Final = ("negotiation", "waiting", "fusion_copy", "transfer", "other", "unaccounted")
NEGOTIATION, WAITING, FUSION_COPY, TRANSFER, OTHER, UNACCOUNTED = range(6)
_PART_OF: Final = {
    "WAIT_FOR_DATA": WAITING,
    "WAIT_FOR_OTHER_TENSOR_DATA": WAITING,
    "QUEUE": WAITING,
    "INIT_FUSION_BUFFER": FUSION_COPY,
    "MEMCPY_IN_FUSION_BUFFER": FUSION_COPY,
    "MEMCPY_OUT_FUSION_BUFFER": FUSION_COPY,
}
_TRANSFER: Final = re.compile(r"(?:NCCL|MPI|GLOO|CCL|DDL|MLSL)_[A-Z_]{1,60}")
_SHAPE: Final = re.compile(r"\[(?:[0-9]{1,18}(?:, [0-9]{1,18}){0,63})?\]")
TOGETHER_US: Final = 100
"""Largest gap between the stamps of one batch."""
TINY_BYTES: Final = 1 << 20
FUSABLE: Final = frozenset({"ALLREDUCE", "ADASUM", "ALLGATHER", "REDUCESCATTER"})
"""Operations of which Horovod fuses several tensors into one transfer."""
CYCLE_GAP_US: Final = 500
"""Reports of one cycle are taken in a loop, microseconds apart; between cycles rank 0 sleeps about a millisecond."""
LATE_US: Final = 1000
"""A smaller lead is not significant: reports wait for the next cycle."""


def part_of(activity: str) -> int:
    """Return the part of the operation's time that an activity belongs to."""
    part = _PART_OF.get(activity)
    return part if part is not None else TRANSFER if _TRANSFER.fullmatch(activity) else OTHER


def no_time() -> list[int]:
    """Return a zero sum for each part."""
    return [0] * len(PARTS)


class Batch(msgspec.Struct):
    """Tensors whose transfer began together."""

    activity: str
    start_us: int
    last_start_us: int
    bytes: int | None
    tensors: int = 1
    open: int = 1
    """Tensors whose transfer has not ended."""
    end_us: int | None = None
    unclear: bool = False


class Ticks(msgspec.Struct):
    """The ticks of one negotiation."""

    count: int = 0
    rank: int = -1
    at_us: int = 0
    cycle: int = -1
    in_cycle: int = 0
    """Ticks in the cycle of the last tick."""
    before_us: int = 0
    """Time of the last tick of an earlier cycle."""

    def add(self, rank: int, at_us: int, cycle: int) -> None:
        """Add the next tick."""
        if cycle != self.cycle:
            self.before_us, self.in_cycle = self.at_us, 0
        self.count += 1
        self.in_cycle += 1
        self.rank, self.at_us, self.cycle = rank, at_us, cycle


class Tensor(msgspec.Struct):
    """One tensor: its open states, and the sums over its completed operations."""

    negotiating_us: int | None = None
    """Start of the open negotiation."""
    negotiated: tuple[int, int] | None = None
    """Start and end of a negotiation whose operation has not begun."""
    ticks: Ticks | None = None
    operation: str | None = None
    start_us: int = 0
    spent_us: list[int] = msgspec.field(default_factory=no_time)
    sound: bool = True
    activity: tuple[int, int, Batch | None] | None = None
    """Part, start and batch of the open activity."""
    nested: int = 0
    stray: int = 0
    """Activities that are open outside any operation, because the file begins inside one."""
    bytes: int | None = None
    calls: int = 0
    total_us: int = 0
    parts_us: list[int] = msgspec.field(default_factory=no_time)
    alone: int = 0
    """Negotiations without an operation after them."""
    alone_us: int = 0


class Batches(msgspec.Struct):
    """Groups transfers into batches, in the order of the file; its fields hold the sums."""

    transfers: int = 0
    tensors: int = 0
    single: int = 0
    """Transfers of one tensor."""
    duration_us: int = 0
    unclear: int = 0
    """Batches that began together but did not end together; not in the other sums."""
    sized: int = 0
    """Transfers of known size; the next field counts those below TINY_BYTES."""
    tiny: int = 0
    _latest: Batch | None = None

    def begin(self, activity: str, at_us: int, size: int | None) -> Batch:
        """Return the batch of a transfer that begins now; `size` is the tensor's bytes, if known."""
        batch = self._latest
        if (
            batch is None
            or batch.end_us is not None
            or batch.activity != activity
            or not 0 <= at_us - batch.last_start_us <= TOGETHER_US
        ):
            self._latest = Batch(activity, at_us, at_us, size)
            return self._latest
        batch.last_start_us = at_us
        batch.tensors += 1
        batch.open += 1
        batch.bytes = None if batch.bytes is None or size is None else batch.bytes + size
        return batch

    def end(self, batch: Batch, at_us: int | None) -> None:
        """Note the end of one tensor's transfer; None where it is not recorded."""
        before = batch.end_us
        if at_us is None or at_us < batch.start_us or (before is not None and not 0 <= at_us - before <= TOGETHER_US):
            batch.unclear = True
        batch.end_us = at_us if at_us is not None else batch.last_start_us
        batch.open -= 1
        if batch.open:
            return
        if batch.unclear:
            self.unclear += 1
            return
        self.transfers += 1
        self.tensors += batch.tensors
        self.single += batch.tensors == 1
        self.duration_us += batch.end_us - batch.start_us
        if batch.bytes is not None:
            self.sized += 1
            self.tiny += batch.bytes < TINY_BYTES


class Readiness(msgspec.Struct):
    """Determines the last rank of each negotiation from the ticks of all tensors, in the order of the file."""

    ranks: set[int] = set()
    _judged: Counter[int] = msgspec.field(default_factory=Counter)
    _late: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)
    _late_us: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)
    _cycle: int = 0
    _rank: int = -1
    _at_us: int = 0

    def cycle_start(self) -> None:
        """Note a mark that Horovod's next cycle begins."""
        self._cycle += 1

    def cycle_of(self, rank: int, at_us: int) -> int:
        """Return the number of the cycle of a tick, which is the next tick of the file."""
        if rank < self._rank or at_us - self._at_us > CYCLE_GAP_US:
            self._cycle += 1
        self._rank, self._at_us = rank, at_us
        self.ranks.add(rank)
        return self._cycle

    def judge(self, ticks: Ticks) -> None:
        """Evaluate the ticks of a completed negotiation."""
        self._judged[ticks.count] += 1
        lead = ticks.at_us - ticks.before_us
        if ticks.count > 1 and ticks.in_cycle == 1 and lead >= LATE_US:
            self._late[ticks.count, ticks.rank] += 1
            self._late_us[ticks.count, ticks.rank] += lead

    @property
    def judged(self) -> int:
        """Number of negotiations with a tick of every rank; the others have lost some."""
        return self._judged[len(self.ranks)] if self.ranks else 0

    def late(self) -> list[tuple[int, int, int]]:
        """Return (rank, times it was last, its total lead in us) for negotiations with all ticks, the most frequent
        first.
        """
        ranks = len(self.ranks)
        most = sorted((-times, rank) for (count, rank), times in self._late.items() if count == ranks)
        return [(rank, -times, self._late_us[ranks, rank]) for times, rank in most]


class Tensors(msgspec.Struct):
    """Follows the events of a timeline in the order of the file; its fields hold the sums."""

    tensors: dict[int, Tensor] = {}
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    batches: Batches = msgspec.field(default_factory=Batches)
    contradictory: int = 0
    """Operations and negotiations whose times contradict each other, such as an end before the beginning."""
    unfinished: int = 0
    """Negotiations and operations without an end."""
    unmatched: int = 0
    """Ends without a beginning."""
    stray_ticks: int = 0
    """Ready ticks outside any negotiation."""
    bare: int = 0
    """Operations without a negotiation before them."""

    def ready(self, pid: int, rank: int, at_us: int) -> None:
        """Add the tick of a rank that reports the tensor ready."""
        cycle = self.readiness.cycle_of(rank, at_us)
        tensor = self._tensor(pid)
        belated = tensor.negotiated is not None and at_us <= tensor.negotiated[1]
        if tensor.ticks is None or (tensor.negotiating_us is None and not belated):
            self.stray_ticks += 1
            return
        tensor.ticks.add(rank, at_us, cycle)

    def begin(self, pid: int, name: str, at_us: int) -> None:
        """Add a begin event."""
        tensor = self._tensor(pid)
        if name.startswith("NEGOTIATE_"):
            self._close(tensor)
            tensor.negotiating_us, tensor.ticks = at_us, Ticks()
        elif tensor.operation is not None:
            self._begin_activity(tensor, name, at_us)
        elif part_of(name) != OTHER:
            tensor.stray += 1
        else:
            if tensor.negotiating_us is not None:
                self._close(tensor)
            self._judge(tensor)
            tensor.operation, tensor.start_us = name, at_us
            tensor.spent_us, tensor.sound, tensor.nested = no_time(), True, 0

    def end(self, pid: int, at_us: int, args: object) -> None:
        """Add an end event; only an operation's end states the type and shape of its output."""
        tensor = self._tensor(pid)
        of_operation = isinstance(args, dict) and "shape" in args
        if tensor.negotiating_us is not None:
            self._end_negotiation(tensor, at_us)
        elif tensor.operation is None:
            self.unmatched += not tensor.stray
            tensor.stray -= bool(tensor.stray)
        elif tensor.activity is None or of_operation:
            if isinstance(args, dict):
                tensor.bytes = _output_bytes(args.get("dtype"), args.get("shape"), tensor.operation)
            self._end_operation(tensor, at_us)
        elif tensor.nested:
            tensor.nested -= 1
        else:
            self._end_activity(tensor, at_us)

    def finish(self) -> None:
        """Close all open states at the end of the file."""
        for tensor in self.tensors.values():
            self._close(tensor)

    def _tensor(self, pid: int) -> Tensor:
        tensor = self.tensors.get(pid)
        if tensor is None:
            tensor = self.tensors[pid] = Tensor()
        return tensor

    def _close(self, tensor: Tensor) -> None:
        """Discard what is open; a negotiation without an operation keeps its time in a separate sum."""
        self._end_activity(tensor, None)
        self.unfinished += tensor.operation is not None or tensor.negotiating_us is not None
        tensor.operation = tensor.negotiating_us = None
        if tensor.negotiated is not None:
            self._judge(tensor)
            start, end = tensor.negotiated
            tensor.alone += 1
            tensor.alone_us += end - start
        tensor.negotiated = tensor.ticks = None

    def _judge(self, tensor: Tensor) -> None:
        ticks, tensor.ticks = tensor.ticks, None
        if ticks is not None and tensor.negotiated is not None and ticks.count:
            self.readiness.judge(ticks)

    def _end_negotiation(self, tensor: Tensor, at_us: int) -> None:
        start, tensor.negotiating_us = tensor.negotiating_us, None
        assert start is not None
        if at_us < start:
            self.contradictory += 1
            tensor.ticks = None
        else:
            tensor.negotiated = (start, at_us)

    def _begin_activity(self, tensor: Tensor, name: str, at_us: int) -> None:
        if tensor.activity is not None:
            tensor.nested += 1
            return
        part = part_of(name)
        fused = part == TRANSFER and tensor.operation in FUSABLE
        tensor.activity = (part, at_us, self.batches.begin(name, at_us, tensor.bytes) if fused else None)

    def _end_activity(self, tensor: Tensor, at_us: int | None) -> None:
        """Close the open activity, if any; `at_us` is None where its end is not recorded."""
        if tensor.activity is None:
            return
        (part, start, batch), tensor.activity, tensor.nested = tensor.activity, None, 0
        if at_us is None or at_us < start:
            tensor.sound = False
        else:
            tensor.spent_us[part] += at_us - start
        if batch is not None:
            self.batches.end(batch, at_us)

    def _end_operation(self, tensor: Tensor, at_us: int) -> None:
        self._end_activity(tensor, None)
        negotiated = tensor.negotiated
        tensor.operation = tensor.negotiated = None
        start = negotiated[0] if negotiated else tensor.start_us
        spent = tensor.spent_us
        spent[NEGOTIATION] = negotiated[1] - negotiated[0] if negotiated else 0
        spent[UNACCOUNTED] = at_us - start - sum(spent)
        if not tensor.sound or spent[UNACCOUNTED] < 0:
            self.contradictory += 1
            return
        self.bare += negotiated is None
        tensor.calls += 1
        tensor.total_us += at_us - start
        tensor.parts_us = [before + part for before, part in zip(tensor.parts_us, spent, strict=True)]


def _output_bytes(dtype: object, shape: object, operation: str) -> int | None:
    """Return the bytes of an operation's output; None where they are unknown, or only a part of the whole."""
    if operation == "REDUCESCATTER" or not isinstance(dtype, str) or not isinstance(shape, str):
        return None
    if dtype not in ITEM_BYTES or not _SHAPE.fullmatch(shape):
        return None
    elements = 1
    for size in re.findall("[0-9]+", shape):
        elements *= int(size)
    return volume_bytes(elements, dtype)
