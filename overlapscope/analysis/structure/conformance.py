"""Hold a recorded job against its dry run: what it communicates otherwise, and which overlap did not happen."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.structure.call_changes import (
    GATHERS,
    CallDifference,
    CallPairs,
    call_differences,
    pair_calls,
)
from overlapscope.analysis.structure.compare_structure import StructureComparison, call_totals, grouped, merged
from overlapscope.analysis.structure.kinds import StructureChange
from overlapscope.analysis.structure.rank_structure import (
    Calls,
    RankStructure,
    call_names,
    group_keys,
    structure_of,
)
from overlapscope.timeline.columns import NONE, Flags, Ints, take
from overlapscope.timeline.dimensions import FORWARD
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline, Run

OVERLAPPED: Final = 0.02
"""Share of a call's duration that must be beside compute in the usual step, so that its overlap did happen."""
LEAST_SHARE: Final = 0.01
"""Shorter calls, as a share of all communication of the step, are not asked for overlap."""
COMPARED: Final = ("elements", "dtype", "phase", "module")
"""Columns that not every recording has."""


class RecordedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The usual step of a recorded rank: the calls that most of its complete steps make, in their order."""

    calls: Calls
    steps: int
    """Complete steps that make them."""
    other_steps: list[int]
    """Complete steps that make other calls."""
    overlapped: npt.NDArray[np.float64]
    """Share of each call's duration beside compute, median over the steps; NaN where it is not known."""
    duration_ns: npt.NDArray[np.float64]
    """Mean over the steps; NaN where it is not known."""
    lacking: tuple[str, ...]
    """Columns that the recording does not have."""


def conformance(dry: Run, recorded: Run) -> StructureComparison | None:
    """Return how a recorded job differs from its dry run, by what its ranks usually do in a step.

    A rank is held against the same rank of the dry run; without pipeline stages, whose ranks do different work, else
    against the dry run's first, with groups of the same size taken for the same. None without anything to compare.
    """
    intended = structure_of(dry)
    found: dict[StructureChange, list[int]] = {}
    held, not_held, notes = list[int](), list[int](), list[str]()
    totals: list[tuple[Calls, Calls]] = []
    if not intended:
        return None
    alike = not any(np.isin(each.calls.op.astype(str), list(POINT_TO_POINT)).any() for each in intended.values())
    lacking: set[str] = set()
    others: dict[int, list[int]] = {}
    members = group_keys(recorded.groups)
    for rank, timeline in sorted(recorded.ranks.items()):
        steps = recorded_steps(timeline, members)
        own = intended.get(rank) or (intended[min(intended)] if alike else None)
        if steps is None or own is None:
            not_held.append(rank)
            continue
        held.append(rank)
        by_size = rank not in intended or not all(name in members for name in set(steps.calls.group_name.tolist()))
        base, candidate = _comparable(own.calls, steps, by_size=by_size)
        totals.append((base, candidate))
        differences = _differences(base, candidate, steps)
        lacking |= set(steps.lacking)
        if steps.other_steps:
            others[rank] = steps.other_steps
        step = msgspec.structs.replace(own, rank=rank, calls=candidate)
        for change in grouped(msgspec.structs.replace(own, calls=base), step, differences):
            found.setdefault(_with_lines(change, own), []).append(rank)
    if not held:
        return None
    if not_held:
        notes.append(f"{rank_list(not_held)}: not held against the dry run, which did not run as such a rank, or "
                     "without a complete step")  # fmt: skip
    if lacking:
        notes.append(f"not recorded, so not compared: {', '.join(sorted(lacking))}")
    if others:
        rank, steps_of_it = next(iter(others.items()))
        notes.append(f"some steps make other calls, of rank {rank}: {', '.join(map(str, steps_of_it[:8]))}")
    if not _overlap_known(recorded):
        notes.append("whether overlap happened is not known: the recording has no times of compute and of collectives")
    return StructureComparison(
        ranks=held,
        workload=1.0,
        changes=merged(found),
        totals=call_totals(totals),
        base_flops=None,
        candidate_flops=None,
        base_peak_bytes=None,
        candidate_peak_bytes=None,
        of_recording=True,
        notes=notes,
    )


def recorded_steps(timeline: RankTimeline, members: Mapping[str, str]) -> RecordedSteps | None:
    """Return the usual step of a rank; None where it has no complete step, or communicates in none."""
    calls = timeline.collectives
    complete = [each.step for each in step_windows(timeline) if each.complete]
    if timeline.steps.step.size and not complete:
        complete = [int(each) for each in timeline.steps.step[~timeline.steps.cut].tolist()]
    pseudo = rows_named(calls.op, timeline.names, lambda name: name in OPS_WITHOUT_VOLUME - {"barrier"})
    rows_of = {
        step: _ordered(timeline, np.flatnonzero((calls.step == step) & ~pseudo)) for step in dict.fromkeys(complete)
    }
    rows_of = {step: rows for step, rows in rows_of.items() if rows.size}
    if not rows_of:
        return None
    keys = {step: _key(timeline, rows) for step, rows in rows_of.items()}
    usual, steps = Counter(keys.values()).most_common(1)[0]
    alike = [step for step, key in keys.items() if key == usual]
    rows = rows_of[alike[-1]]
    chosen = take(calls, rows)
    every = np.stack([rows_of[step] for step in alike])
    names = call_names(chosen, timeline.names, members)
    messages = np.isin(names["op"].astype(str), list(POINT_TO_POINT))
    nowhere = np.full(rows.size, NONE, np.int64)
    nothing, none = np.full(rows.size, None, np.object_), np.zeros(rows.size, np.bool_)
    return RecordedSteps(
        calls=Calls(
            **names,
            group_size=chosen.group_size,
            elements=chosen.elements,
            size_bytes=chosen.bytes,
            peer=chosen.peer,
            source=nothing,
            stream=nothing,
            parameters=nowhere,
            prefetched=none,
            overlappable=none,
            known=none,
            before_backward_ends=none,
            context=np.full((rows.size, 2), None, np.object_),
            position=np.zeros(rows.size),
            launch_order=nowhere,
            ready_order=nowhere,
            needed_order=nowhere,
        ),
        steps=steps,
        other_steps=sorted(keys.keys() - set(alike)),
        overlapped=_overlapped(timeline, every),
        duration_ns=_durations(timeline, every),
        lacking=(
            *(name for name in COMPARED if _is_missing(names.get(name, chosen.elements))),
            *(["peer"] if messages.any() and (chosen.peer[messages] == NONE).all() else []),
        ),
    )


def _ordered(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return rows in the order of their launches, which sources without launch times keep in their tables."""
    launched = timeline.collectives.launch_ns[rows]
    found: Ints = rows[np.argsort(launched, kind="stable")] if (launched != NONE).all() else rows
    return found


def _key(timeline: RankTimeline, rows: Ints) -> bytes:
    calls = timeline.collectives
    return np.stack([calls.op[rows], calls.group[rows], calls.dtype[rows], calls.elements[rows]]).tobytes()


def _is_missing(column: npt.NDArray[np.generic]) -> bool:
    missing: Flags = column == (None if column.dtype == object else NONE)
    return bool(missing.all())


def _overlapped(timeline: RankTimeline, rows: Ints) -> npt.NDArray[np.float64]:
    """Return the share of each call's duration beside compute, median over steps; `rows` has shape (steps, calls)."""
    calls, compute = timeline.collectives, Coverage.of(timeline.spans).compute
    starts, ends = calls.start_ns[rows.reshape(-1)], calls.end_ns[rows.reshape(-1)]
    known = (starts != NONE) & (ends > starts)
    shares = np.full(starts.size, np.nan)
    if known.any() and compute.starts.size:
        at = np.flatnonzero(known)
        order = at[np.argsort(starts[at], kind="stable")]
        before = _covered_before(compute, ends[order]) - _covered_before(compute, starts[order])
        shares[order] = before / (ends[order] - starts[order])
    with np.errstate(all="ignore"):
        table = shares.reshape(rows.shape)
        some = ~np.isnan(table).all(axis=0)
        found = np.full(rows.shape[1], np.nan)
        found[some] = np.nanmedian(table[:, some], axis=0)
    return found


def _durations(timeline: RankTimeline, rows: Ints) -> npt.NDArray[np.float64]:
    starts, ends = timeline.collectives.start_ns[rows], timeline.collectives.end_ns[rows]
    found: npt.NDArray[np.float64] = np.where((starts != NONE) & (ends != NONE), ends - starts, np.nan).mean(axis=0)
    return found


def _covered_before(busy: Intervals, times_ns: Ints) -> Ints:
    """Return how much of the time before each moment a set covers."""
    until = np.concatenate([[0], np.cumsum(busy.ends - busy.starts)])
    last = np.searchsorted(busy.starts, times_ns, side="right")
    inside = np.where(last > 0, np.minimum(times_ns, busy.ends[last - 1]) - busy.starts[last - 1], 0)
    found: Ints = np.where(last > 0, until[np.maximum(last - 1, 0)] + inside, 0)
    return found


def _comparable(dry: Calls, steps: RecordedSteps, *, by_size: bool) -> tuple[Calls, Calls]:
    """Return both sides without what the recording lacks; with `by_size` groups of one size are one group."""
    sides = [dry, steps.calls]
    for side, calls in enumerate(sides):
        nothing = np.full(calls.op.size, None, np.object_)
        changed = {
            "stream": nothing,
            "context": np.stack([nothing, nothing], axis=1),
            "position": np.zeros(calls.op.size),
        }
        for name in steps.lacking:
            changed[name] = np.full(calls.op.size, NONE, np.int64) if name in ("elements", "peer") else nothing
        if by_size:
            changed["group"] = calls.group_size.astype(object)
        sides[side] = msgspec.structs.replace(calls, **changed)
    return sides[0], sides[1]


def _differences(base: Calls, candidate: Calls, steps: RecordedSteps) -> list[CallDifference]:
    ours, theirs = _before_backward_alike(base), _before_backward_alike(candidate)
    pairs = pair_calls(ours, theirs)
    return [*call_differences(ours, theirs, pairs, scheduled=False), *_overlap(base, candidate, pairs, steps)]


def _before_backward_alike(calls: Calls) -> Calls:
    """Return calls without the phase `forward`, which a recording without the model also calls what is around it."""
    phases = calls.phase.copy()
    phases[phases == FORWARD] = None
    return msgspec.structs.replace(calls, phase=phases)


def _overlap(base: Calls, candidate: Calls, pairs: CallPairs, steps: RecordedSteps) -> list[CallDifference]:
    """Return the calls that could have overlapped with compute and did not, where their times are known."""
    ours, theirs = pairs.base, pairs.candidate
    intended = base.known[ours] & base.overlappable[ours] & (candidate.group_size[theirs] != 1)
    long = steps.duration_ns >= LEAST_SHARE * np.nansum(steps.duration_ns)
    # NaN is neither more nor less: what is not known is not missed.
    missed = intended & (steps.overlapped[theirs] < OVERLAPPED) & long[theirs]
    gathers = np.isin(base.op[ours].astype(str), GATHERS)
    return [
        CallDifference(kind="prefetch_lost" if gathered else "overlap_lost", base=a, candidate=b)
        for a, b, gathered in zip(ours[missed].tolist(), theirs[missed].tolist(), gathers[missed].tolist(), strict=True)
    ]


def _with_lines(change: StructureChange, dry: RankStructure) -> StructureChange:
    """Return a difference with the lines that the dry run knows for its operation, phase and modules."""
    if change.sources:
        return change
    calls = dry.calls
    rows = (calls.op == change.op) & (calls.phase == change.phase)
    if change.modules:
        rows &= np.isin(calls.module.astype(str), change.modules)
    return msgspec.structs.replace(change, sources=tuple(dict.fromkeys(filter(None, calls.source[rows].tolist()))))


def _overlap_known(recorded: Run) -> bool:
    return any(
        Coverage.of(each.spans).compute.starts.size and (each.collectives.end_ns != NONE).any()
        for each in recorded.ranks.values()
    )
