"""Rule: in a CPU run, the host waits in collectives in the middle of a step for numbers that only it reads, at once."""

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.advice.training_thread import BACKWARD, LOADER, NO_WORK, OPTIMIZER, OUTSIDE, Outline, outline
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.ingest.build.kernel_names import ENTERS_COLLECTIVE
from overlapscope.timeline.columns import NONE, Flags, Ints, take
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import smallest_by
from overlapscope.timeline.run import RankTimeline

MOST_STEPS: Final = 0.5
"""The host reads such numbers in more than this share of a rank's steps: what is read every few steps is read as it
should be."""
WHOLE: Final = re.compile(f"{OPTIMIZER.pattern}|{LOADER.pattern}")
REDUCTION: Final = re.compile(
    r"^(?:c10d::(?:allreduce|reduce|broadcast)_|_c10d_functional::(?:all_reduce|broadcast)_?)$"
)
WAIT: Final = "_c10d_functional::wait_tensor"
NEVER: Final = int(np.iinfo(np.int64).max)
NOT_OF_MODEL: Final = re.compile(r"^(?:c10d|_c10d_functional)::(?:broadcast|barrier|monitored_barrier)")
"""Calls that training in data parallel makes before its forward: buffers, flags."""
SHRINKS: Final = re.compile(
    r"^aten::(?:all|amax|amin|any|argmax|argmin|count_nonzero|dot|linalg_vector_norm|logsumexp|max|mean|min|norm|prod"
    r"|select|std|sum|unbind|var)$"
)
"""Operations that make few elements of many: a number is read of a tensor with more than one by these alone."""
LIGHT: Final = re.compile(
    r"^aten::(?:abs|add|ceil|clamp(?:_min|_max)?|clone|div|eq|exp|floor|floor_divide|ge|gt|isfinite|isinf|isnan|le|log"
    r"|logical_(?:and|not|or)|lt|maximum|minimum|mul|ne|neg|pow|reciprocal|round|rsqrt|rsub|sqrt|square|sub|to"
    r"|true_divide|_to_copy)_?$"
)
"""What a number passes through before it is read."""
SCALES: Final = re.compile(r"^aten::(?:div|mul)_$")
"""What makes a mean over ranks of a sum, in place."""
IN_PLACE: Final = re.compile(r"^aten::\w*[a-z]_$")
FEW: Final = 16
"""Elements of a tensor of numbers for the log, at most: seldom has a parameter or a gradient so few. A larger one, and
one whose size is not known, may be either, and nothing shows which tensor an operation works on."""
READS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
"""Operations that hand one number to Python."""
ONE_NUMBER: Final = 8
"""Bytes of the largest number."""
LATER: Final = (
    "total += value.detach()  # in each step, on this rank; once in many steps, all numbers at once:",
    "numbers = torch.stack(totals); torch.distributed.all_reduce(numbers); numbers.tolist()",
    "work = torch.distributed.all_reduce(value, async_op=True)  # or: work.wait() and value.item() a step later",
)
SMALLER: Final = "# reduce the number that is read, not the tensor that it is a mean or a sum of"
PASSED, READ, REDUCED, CALLED, OTHER = range(5)
"""Kinds of rows: passed over; a number is read; a reduction that may be read; another collective; other work."""


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """Reductions of one rank that only its host reads."""

    rank: int
    calls: Ints
    """Rows of its collectives."""
    window: Ints
    exposed_ns: Ints
    waited_ns: Ints
    """Of the exposed time, what is waiting for other ranks; 0 where it is not known."""


def blocking_reductions(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where such calls are exposed for long enough; None for runs with a device.

    They must stand in most steps of all ranks. Not where a model may be divided over ranks: its layers compute on what
    collectives deliver, and so may what looks like a number for the log.
    """
    rows = given.analysis.collectives
    if given.run_has_device or any(row.dimension not in (None, DATA) or row.op in POINT_TO_POINT for row in rows):
        return None
    found = []
    for timeline, own in given.some_at_hand():
        read = _read(given, timeline, own)
        if read is None or np.mean(np.bincount(read.window, minlength=len(own)) > 0) <= MOST_STEPS:
            return None
        found.append(read)
    exposed, waited = (_mean(given, found, column) for column in ("exposed_ns", "waited_ns"))
    # While a rank is late, the others wait for it here or in the next call.
    lost = exposed - waited if given.analysis.skew.stragglers else exposed
    return _recommended(given, found, exposed, waited, lost) if found and given.is_worth(lost) else None


def _recommended(
    given: RuleInput, found: Sequence[_Read], exposed: float, waited: float, lost: float
) -> Recommendation:
    most = max(found, key=lambda each: int(each.exposed_ns.max()))
    at = int(most.calls[most.exposed_ns.argmax()])
    timeline = given.run.ranks[most.rank]
    calls = timeline.collectives
    ops = sorted({timeline.names[code] for code in calls.op[most.calls].tolist()})
    number = most.calls.size / len(given.windows[most.rank])
    largest = int(calls.bytes[most.calls].max())
    waiting = f", {ms(waited)} of it waiting for other ranks" if given.is_worth(waited) else ""
    return recommended(
        given,
        id="blocking_reductions",
        title=f"Read reduced numbers less often: {ms(exposed)} of a {ms(given.step_ns)} {given.per} are exposed in "
        f"calls ({', '.join(ops)}, {number:.0f} a {given.per}) whose result only the host reads, at once{waiting}",
        verdict="look",
        at_most_ns=exposed,
        loss_ns=round(lost),
        apply={"torch": "\n".join(LATER if largest <= ONE_NUMBER else (*LATER, SMALLER))},
        evidence={
            "calls": round(number, 1),
            "exposed_ns": round(exposed),
            "waited_ns": round(waited),
            "most_bytes": None if largest == NONE else largest,
            "op": ops,
        },
        shown_by=ShownBy(
            rank=most.rank,
            start_ns=int(calls.start_ns[at]),
            end_ns=int(calls.end_ns[at]),
            op=timeline.name(calls.op[at]),
        ),
        measured=[
            "calls that block, after which the host reads a number; time of them beside which nothing is computed"
        ],
        assumed=[
            "that what is read is what was reduced, and decides nothing in its step: the gain is an upper bound",
            "that other ranks are not waited for in the next call instead",
        ],
    )


def _mean(given: RuleInput, found: Sequence[_Read], column: str) -> float:
    """Return the sum of a column of times for each step, mean over steps and ranks."""
    each = [getattr(read, column).sum() / len(given.windows[read.rank]) for read in found]
    return float(np.mean(each)) if each else 0.0


def _read(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Read | None:
    """Return the reductions of a rank that only its host reads; None without any, and for layers over ranks."""
    names = timeline.names
    reads = not set(READS).isdisjoint(names) and any(map(REDUCTION.match, names))
    line = outline(timeline, windows, WHOLE) if reads else None
    if line is None:
        return None
    line = take(line, ~rows_named(line.name, names, WAIT.__eq__))
    kind, call = _kinds(line, timeline, given.run.world_size or len(given.run.ranks))
    rows = _followed_by_reads(line, kind)
    if not rows.size or _layers_call(line, kind, call, rows, timeline):
        return None
    calls = timeline.collectives
    start, end, transfer = (each[call[rows]] for each in
                            (calls.start_ns, calls.end_ns, given.transfers[timeline.rank].transfer_ns))  # fmt: skip
    exposed = end - start - BusyTime(given.coverage[timeline.rank].compute).within(start, end)
    return _Read(
        rank=timeline.rank,
        calls=call[rows],
        window=line.window[rows],
        exposed_ns=exposed,
        waited_ns=np.where(transfer == NONE, 0, np.maximum(exposed - transfer, 0)),
    )


def _kinds(line: Outline, timeline: RankTimeline, world: int) -> tuple[Ints, Ints]:
    """Return the kind of each row, and its row of the collectives, -1 for none.

    A reduction may be read where all ranks take part, the thread does nothing until it ends, and few numbers follow.
    """
    names, calls = timeline.names, timeline.collectives

    def named(fits: Callable[[str], object]) -> Flags:
        return rows_named(line.name, names, fits)

    kind = np.full(line.name.size, OTHER)
    kind[named(SHRINKS.match) | named(LIGHT.match) | named(NO_WORK.match)] = PASSED
    kind[named(READS.__contains__)] = READ
    kind[named(ENTERS_COLLECTIVE.match)] = CALLED
    call = np.where(kind == CALLED, _calls_of(line, timeline), -1)
    rows = np.flatnonzero(named(REDUCTION.match) & (call >= 0) & (line.window != OUTSIDE))
    of = call[rows]
    blocks = np.append(line.start_ns, NEVER)[rows + 1] >= calls.end_ns[of]
    kept = np.append(np.flatnonzero(kind != PASSED), kind.size)
    follows = kept[np.searchsorted(kept, rows, side="right")]
    is_number = _are_numbers(line, names, rows, follows, calls.elements[of])
    kind[rows[blocks & is_number & (calls.group_size[of] == world)]] = REDUCED
    return kind, call


def _are_numbers(line: Outline, names: Sequence[str], rows: Ints, until: Ints, elements: Ints) -> Flags:
    """Return whether what reductions deliver, in `rows`, may be no more than numbers before the rows `until`.

    That is one element, or a few of which one is made. Of many one is made at once, but for views and a division by the
    number of ranks, and nothing is changed in place after that: else they are gradients or parameters, by which a model
    is changed, and the number that is read is another.
    """
    shrinks, scales, in_place, views = (
        rows_named(line.name, names, each.match) for each in (SHRINKS, SCALES, IN_PLACE, NO_WORK)
    )
    works = np.append(np.flatnonzero(shrinks | ~views), [line.name.size] * 2)
    first = np.searchsorted(works, rows, side="right")
    first = works[first + np.append(scales, False)[works[first]]]
    shrunk, changed = (np.append(0, np.cumsum(each)) for each in (shrinks, in_place & ~views))
    at_once = np.append(shrinks, False)[first] & (changed[until] == changed[first])
    few = (elements >= 0) & (elements <= FEW)
    found: Flags = (elements == 1) | np.where(few, shrunk[until] > shrunk[rows], at_once)
    return found


def _calls_of(line: Outline, timeline: RankTimeline) -> Ints:
    """Return the first collective that was launched in each row, -1 for none."""
    launch = timeline.collectives.launch_ns
    order = np.argsort(launch, kind="stable")
    at = np.searchsorted(launch[order], line.start_ns)
    launched = np.append(launch[order], NEVER)[at] <= line.end_ns
    found: Ints = np.where(launched, np.append(order, -1)[at], -1)
    return found


def _followed_by_reads(line: Outline, kind: Ints) -> Ints:
    """Return the rows of reductions that, one or several in a row, as many reads follow.

    Gradients reduced one by one, of which the last has one element, follow on other collectives that nobody reads.
    """
    rows = np.flatnonzero(kind != PASSED)
    kinds, window = kind[rows], line.window[rows]
    opens = np.append(True, (np.diff(kinds) != 0) | (np.diff(window) != 0))[: rows.size]
    first = np.flatnonzero(opens)
    count = np.diff(np.append(first, rows.size))
    of, where = np.append(OTHER, kinds[first]), np.append(OUTSIDE, window[first])
    is_read = np.append((of[2:] == READ) & (where[2:] == where[1:-1]) & (count[1:] >= count[:-1]), False)
    is_alone = (of[:-1] != CALLED) | (where[:-1] != where[1:])
    chosen = (of[1:] == REDUCED) & is_read[: first.size] & is_alone
    found: Ints = rows[np.repeat(chosen, count)]
    return found


def _layers_call(line: Outline, kind: Ints, call: Ints, read: Ints, timeline: RankTimeline) -> bool:
    """Return whether collectives stand in a forward that no host reads, nor data parallel needs: the model computes on
    what they deliver."""
    names = timeline.names
    dimension = np.append(timeline.collectives.dimension, np.int32(-1))[call]
    backward = rows_named(line.name, names, BACKWARD.match) & (line.window != OUTSIDE)
    windows = int(line.window.max(initial=OUTSIDE)) + 1
    begun = smallest_by(line.window[backward], line.start_ns[backward], windows)
    unread = np.isin(kind, (CALLED, REDUCED)) & (line.window != OUTSIDE)
    unread[read] = False
    unread &= ~rows_named(line.name, names, NOT_OF_MODEL.match)
    unread &= ~rows_named(dimension, names, DATA.__eq__)
    return bool((line.start_ns[unread] < begun[line.window[unread]]).any())
