"""Rule: in a CPU run, the training thread copies tensors between the parts of a step, for long, and nobody else asked
it to."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.advice.training_thread import (
    BACKWARD,
    FORWARD,
    LOADER,
    NO_WORK,
    OPTIMIZER,
    OUTSIDE,
    Outline,
    outline,
)
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.display import list_some
from overlapscope.ingest.build.kernel_names import ENTERS_COLLECTIVE
from overlapscope.timeline.columns import Flags, Ints, take
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, sum_by
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Least share of a step. A choice: to cast a batch, or to put it together, takes a few percent of sound steps, and a
profiler that records each call makes many small ones longer."""
MOST_STEPS: Final = 0.5
"""A rank copies in more than this share of its steps: what one step does in many, as a checkpoint, is no such loss."""
COPIES: Final = {
    **dict.fromkeys(("aten::clone", "aten::contiguous"), "CloneBackward0"),
    **dict.fromkeys(("aten::to", "aten::_to_copy"), "ToCopyBackward0"),
    **dict.fromkeys(("aten::cat", "aten::concat", "aten::concatenate", "aten::hstack", "aten::vstack"), "CatBackward0"),
    "aten::stack": "StackBackward0",
    "aten::copy_": "CopyBackwards",
    "aten::_foreach_copy_": "",
    "aten::flatten_dense_tensors": "",
}
"""Operations that only copy, to another type at most, with the node of autograd that shows one of them in a model."""
OUT_OF_BUFFERS: Final = re.compile(r"^aten::(?!clone$|contiguous$)")
"""Copies that follow on a collective to get at what it delivered: any but a second instance of a tensor."""
SCALES: Final = re.compile(r"^aten::(?:_foreach_)?(?:div|mul)_?$")
"""What a mean takes beside a collective that sums."""
WHOLE: Final = re.compile("|".join(each.pattern for each in (FORWARD, OPTIMIZER, LOADER)))
"""Ranges in which a model, a framework, an optimizer or a loader copies what it must."""
PARTS: Final = {"backward": BACKWARD, "forward": FORWARD, "optimizer": OPTIMIZER, "data loading": LOADER}
"""Parts of a step by the names of what is done in them."""
BEGIN, END = "the step's begin", "the step's end"


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one rank; times in ns, one for each of its steps."""

    rank: int
    calls: Ints
    taken_ns: Ints
    freed_ns: Ints
    """Between copies that follow one another, up to the time of all: memory is freed sooner than written."""
    ops: dict[str, int]
    """Calls a step."""
    places: dict[tuple[str, str], int]
    """The time of all steps by what came before and after, the longest first."""
    shown_by: ShownBy

    @property
    def ns(self) -> float:
        """The time that copies take of a step, mean over steps."""
        return float((self.taken_ns + self.freed_ns).mean())


def host_copies(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where copies take long enough in most steps of a rank; None for runs with a device."""
    if given.run_has_device:
        return None
    has_ddp = "ddp" in given.job.frameworks
    each_rank = [(_copied(timeline, own, has_ddp=has_ddp), own) for timeline, own in given.some_at_hand()]
    found = [copied for copied, own in each_rank if copied is not None and _is_long(copied, own)]
    most = max(found, key=lambda each: each.ns, default=None)
    if most is None or not given.is_worth(most.ns):
        return None
    return recommended(
        given,
        id="host_copies",
        title=_title(given, found, most),
        verdict="look",
        at_most_ns=most.ns,
        bound_from="loss",
        apply={
            "torch": "# who needs these copies? perhaps the tensors themselves, or views of them, will do\n"
            "buffers = [torch.empty_like(each) for each in tensors]  # if they are needed: once, not in each step\n"
            "torch._foreach_copy_(buffers, tensors)"
        },
        evidence={
            "ranks": [each.rank for each in found],
            "copies": round(float(most.calls.mean()), 1),
            "copies_ns": round(most.taken_ns.mean()),
            "between_copies_ns": round(most.freed_ns.mean()),
            "calls": most.ops,
            "places": [
                {"since": before, "until": after, "copies_ns": round(ns / most.calls.size)}
                for (before, after), ns in most.places.items()
            ],
        },
        shown_by=most.shown_by,
        measured=["operations that only copy, which no other operation, optimizer, loader or framework encloses"],
        assumed=["that none of them is needed: the gain is an upper bound"],
    )


def _title(given: RuleInput, found: Sequence[_Copied], most: _Copied) -> str:
    every = len(found) == len(given.run.ranks)
    who = f"{'' if every else 'most '}on {rank_list(each.rank for each in found)}"
    who = "on all ranks" if every and len(found) > 1 else who
    calls, taken, freed = (each.mean() for each in (most.calls, most.taken_ns, most.freed_ns))
    pauses = f", and {ms(freed)} pass between them" if given.is_worth(freed) else ""
    (before, after), *others = most.places
    where = f"{'most of them ' if others else ''}between {before} and {after}"
    return (
        f"Copy less on the training thread: {calls:.0f} copies ({list_some(list(most.ops))}), {where}, take "
        f"{ms(taken)} of a {ms(given.step_ns)} {given.per}{pauses}, {who}"
    )


def _is_long(copied: _Copied, windows: Windows) -> bool:
    step_ns = np.array([end - start for start, end in windows])
    return bool(np.mean(copied.taken_ns + copied.freed_ns >= LEAST * step_ns) > MOST_STEPS)


def _copied(timeline: RankTimeline, windows: Windows, *, has_ddp: bool) -> _Copied | None:
    """Return the copies of a rank that trains; None without any. `has_ddp`: what its backward reduces, DDP copies."""
    names = timeline.names
    trains = any(map(BACKWARD.match, names)) and not COPIES.keys().isdisjoint(names)
    line = outline(timeline, windows, WHOLE) if trains else None
    if line is None:
        return None
    line = take(line, ~rows_named(line.name, names, NO_WORK.match))
    copies = rows_named(line.name, names, COPIES.__contains__) & (line.window != OUTSIDE)
    before, after = _neighbours(line, copies | rows_named(line.name, names, SCALES.match))
    counted = copies & _of_nobody(timeline, line, before, after, has_ddp=has_ddp)
    return _summed(timeline, line, np.flatnonzero(counted), before, after, len(windows)) if counted.any() else None


def _neighbours(line: Outline, passed: Flags) -> tuple[Ints, Ints]:
    """Return for each row the last one before it and the first after it that are not `passed`; -1 where its step has
    none."""
    rows = np.arange(passed.size)
    before = np.maximum.accumulate(np.where(passed, -1, rows))
    after = np.minimum.accumulate(np.where(passed, passed.size, rows)[::-1])[::-1]
    window = np.append(line.window, OUTSIDE)
    before, after = (np.where(window[each] == line.window, each, -1) for each in (before, after))
    return before, after


def _of_nobody(timeline: RankTimeline, line: Outline, before: Ints, after: Ints, *, has_ddp: bool) -> Flags:
    """Return which copies neither a collective nor a model needs.

    A collective sends what is copied right before it, and what it delivered is copied out right after it. A model
    may copy in its forward, in training and validation, where autograd has a node for it, but not right after backward.
    """
    names = timeline.names
    collective = rows_named(line.name, names, ENTERS_COLLECTIVE.match)
    backward = rows_named(line.name, names, BACKWARD.match)
    delivers = collective if has_ddp else collective | (backward & _calls_collective(timeline, line))
    nodes = {name.rpartition(": ")[2] for name in names if BACKWARD.match(name)}
    of_model = rows_named(line.name, names, lambda name: COPIES.get(name) in nodes)
    copies_out = rows_named(line.name, names, OUT_OF_BUFFERS.match)
    at_collective = _at(collective, after) | (copies_out & _at(delivers, before))
    return ~at_collective & (_at(backward, before) | ~of_model)


def _at(flags: Flags, rows: Ints) -> Flags:
    """Return the flags of some rows, False for -1."""
    found: Flags = np.append(flags, False)[rows]
    return found


def _calls_collective(timeline: RankTimeline, line: Outline) -> Flags:
    """Return in which rows a collective was called: in the backward, by hooks of the job's own."""
    called = np.sort(timeline.collectives.launch_ns)
    found: Flags = np.searchsorted(called, line.end_ns) > np.searchsorted(called, line.start_ns)
    return found


def _summed(timeline: RankTimeline, line: Outline, rows: Ints, before: Ints, after: Ints, steps: int) -> _Copied:
    """Return the figures of the copies in these rows."""
    names = timeline.names
    start, end, window = line.start_ns[rows], line.end_ns[rows], line.window[rows]
    breaks = np.append(True, (np.diff(rows) > 1) | (np.diff(window) != 0))
    pause = np.append(0, np.where(breaks[1:], 0, start[1:] - end[:-1]))
    taken = sum_by(window, end - start, steps)
    run = np.cumsum(breaks) - 1
    longest = np.flatnonzero(run == sum_by(run, end - start, int(run[-1]) + 1).argmax())
    codes, calls = np.unique(line.name[rows], return_counts=True)
    ops = {names[code]: round(number / steps) for code, number in zip(codes.tolist(), calls.tolist(), strict=True)}
    return _Copied(
        rank=timeline.rank,
        calls=np.bincount(window, minlength=steps),
        taken_ns=taken,
        freed_ns=np.minimum(sum_by(window, pause, steps), taken),
        ops=dict(sorted(ops.items(), key=lambda each: -each[1])),
        places=_places(line, names, before[rows], after[rows], end - start),
        shown_by=ShownBy(
            rank=timeline.rank,
            start_ns=int(start[longest[0]]),
            end_ns=int(end[longest[-1]]),
            op=names[line.name[rows[longest[(end - start)[longest].argmax()]]]],
        ),
    )


def _places(line: Outline, names: Sequence[str], before: Ints, after: Ints, ns: Ints) -> dict[tuple[str, str], int]:
    """Return the time of copies by the parts of a step before and after them, the longest first."""
    name = np.append(line.name, np.int32(-1))
    codes = [name[before], name[after]]
    pair, first = factorize_rows(codes)
    found: Counter[tuple[str, str]] = Counter()
    for at, sum_ns in zip(first.tolist(), sum_by(pair, ns, first.size).tolist(), strict=True):
        begin, end = (int(each[at]) for each in codes)
        found[_part(names[begin]) if begin >= 0 else BEGIN, _part(names[end]) if end >= 0 else END] += sum_ns
    return dict(found.most_common())


def _part(name: str) -> str:
    """Return the part of a step, else the operation, of a name."""
    return next((part for part, fits in PARTS.items() if fits.match(name)), name)
