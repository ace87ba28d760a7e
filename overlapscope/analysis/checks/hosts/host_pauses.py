"""Find hosts of devices that pause now and then, as garbage collection, a logger or a lock make them, at a cost."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.wording import ranks_of_run, short
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.pauses.costly_pauses import (
    FEWEST_RECURRING,
    CostlyPause,
    common_place,
    costliest_place,
    costly_pauses,
    ranks_by_step,
    times_in_steps,
    usual_length_ns,
)
from overlapscope.analysis.pauses.first_calls import before_first_calls
from overlapscope.analysis.pauses.long_pauses import BEGIN, LongPauses
from overlapscope.analysis.pauses.pause_reasons import pause_reason
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.timeline.columns import Flags
from overlapscope.timeline.python_stack import innermost, stack_at
from overlapscope.timeline.run import Run

WORTH: Final = 0.02
"""Least share of a step that the device of the rank that loses most in it is idle in pauses, in the mean: two
recordings of unchanged code differ by as much."""
FEW_A_STEP: Final = 3
"""At many places a host pauses at most so often in a step, in the median of those with a pause. A choice: one that
loses its core stops again and again, wherever it is. That is said only where it is one rank's ..."""
OF_ONE_RANK: Final = 0.9
"""... with this share of all pauses, and of the idle time in them, so that its peers hardly pause."""
FEWEST_STEPS, IN_ONE_STEP = 3, 0.75
"""Of so many steps or more, one that holds this share of the cost is named with it: a mean over all is in none of them.
A choice."""
MOST_LISTED: Final = 16
"""Pauses listed as evidence, the costliest."""
MOST_SETS: Final = 3
"""Sets of ranks that paused in the same steps, in a title."""
MOST_BEGINS: Final = 4
"""Pauses of one step of which a title says when they begin. A choice: more are no place."""
STEPS_IDLE_NS: Final = "steps_idle_ns"
"""In the evidence: for how long the device that lost most in each of its `steps` idled in all of the pauses there."""
WAIT_OR_NOT: Final = "wait_or_not"
"""In the evidence, from `PauseReason`: whether the pauses perhaps come whether the host waits for its device before
them or not."""
MOSTLY: Final = 0.5
"""Pauses of which it is said how long they are, and in which step, are why that step idles for longer where this share
of what is more is in them."""
WAITED: Final = 0.5
"""Pauses cost all ranks what the device that lost most idles where another waited, or idled so, for this share of it. A
choice: else the rank may have been ahead by the rest."""
DIFFER: Final = 2
"""Of pauses of which one is so many times as long as another the longest is told, no mean. A choice."""


def host_pauses(
    run: Run,
    known: Mapping[int, LongPauses],
    splits: Sequence[Split],
    step_ns: float | None,
    said: Sequence[Finding],
    *,
    of_steps: bool = True,
    cut_short: Collection[int] = (),
) -> list[Finding]:
    """Return at most one finding, of all pauses, else of what comes before the first calls of a recording; none where
    hosts share cores, by what was `said`: that is why then.

    `step_ns` is the length of a step, or of a whole recording: `of_steps` tells which. Steps that are `cut_short`, and
    have no pause, count in no mean: they lack what comes before the next one.
    """
    if not step_ns or lack_cores(said):
        return []
    every = [each for each in costly_pauses(run, known, splits) if (each.step is not None) == of_steps]
    others = {rank: own.outside for rank, own in known.items() if own.outside is not None}
    # Nothing is matched for these: what of them others waited for is not known beside all other pauses.
    outside = costly_pauses(run, others, ()) if of_steps and every else []
    found = _costly(run, known, every if of_steps else _at_costliest_place(every), outside, step_ns, cut_short)
    return found or (before_first_calls({rank: run.ranks[rank] for rank in known}, step_ns) if of_steps else [])


def _costly(
    run: Run,
    known: Mapping[int, LongPauses],
    every: Sequence[CostlyPause],
    outside: Sequence[CostlyPause],
    step_ns: float,
    cut_short: Collection[int],
) -> list[Finding]:
    """Return the finding of pauses that idle devices, where these cost enough; `outside` are those in no whole step."""
    if not every:
        return []
    steps = max(own.steps for own in known.values())
    found, anywhere = _of_one_rank(every, len(known))
    again = _like(found, outside)
    begun = max(own.begun for own in known.values()) if again else steps
    begun = max(begun - len({*cut_short}.difference(each.step for each in (*found, *again))), 1)
    costs = _costs_ns(found)
    in_all_ns = sum(costs.values()) + sum(_costs_ns(again).values())
    cost_ns = in_all_ns / (1 if found[0].step is None else begun)  # figures are of all recordings then
    alone = _step_alone(found, costs, again) if steps >= FEWEST_STEPS else None
    few = anywhere or common_place(found)[1] or median(times_in_steps(found)) <= FEW_A_STEP
    if cost_ns < WORTH * step_ns or not few:
        return []
    place = _place(run, found, anywhere=anywhere)
    reason = msgspec.structs.asdict(pause_reason(run, found, known, anywhere=anywhere))
    why = reason.pop("text")
    device_step = _device_step(run, found, alone)
    return [
        Finding(
            id="host_pauses",
            severity="warning",
            title=f"{_who(run, found, again, steps, anywhere=anywhere)}"
            f"{_where(found, place, step_ns)}; "
            f"{_costs(found, cost_ns if alone is None else costs[alone], _when(found, alone, device_step))}: "
            f"{why}",
            evidence={
                "of_steps": steps,
                "begun_steps": begun,
                "cost_ns": round(cost_ns),
                "alone_in_step": alone,
                "alone_cost_ns": None if alone is None else costs[alone],
                **place,
                "anywhere": anywhere,
                **reason,
                "device_step": device_step,
                "delays_all": delays_all(run, found, device_step),
                "before_any_call": False,
                **_evidence(found),
                "again": _costliest(again),
            },
            known_from="trace",
        )
    ]


def delays_all(run: Run, found: Sequence[CostlyPause], device_step: int | None) -> bool:
    """Return whether all ranks lose what the device that lost most idles in the pauses: others wait for most of it, or
    pause in the same steps, too, or there are no others."""
    ranks_of = ranks_by_step(found)
    if ranks_of and device_step is None:
        return False  # the time of a step does not hold it
    ranks_in: dict[int | None, set[int]] = dict(ranks_of.items()) if ranks_of else {None: {each.rank for each in found}}
    is_whole = len(run.ranks) == run.world_size
    every = {step for step, ranks in ranks_in.items() if is_whole and len(ranks) == len(run.ranks)}
    lost = [each.idle_ns if each.step in every else min(each.waited_ns, each.idle_ns) for each in found]
    return bool(sum(lost) >= WAITED * sum(each.idle_ns for each in found) > 0)


def without_pauses(
    times: Sequence[Finding], pauses: Sequence[Finding], windows: Mapping[int, Sequence[StepWindow]]
) -> list[Finding]:
    """Return the findings on times of steps without those that idle for longer as hosts pause in them: `pauses`, those
    of `host_pauses`, say so. `windows` are all steps of each rank."""
    named = [each.evidence for each in pauses if not each.evidence["before_any_call"]]
    return [each for each in times if not any(_explains(evidence, each, windows) for evidence in named)]


def _explains(
    evidence: Mapping[str, Any], found: Finding, windows: Mapping[int, Sequence[StepWindow]]
) -> bool:  # fmt: skip
    """Return whether most of the idle time that makes a step odd is in pauses whose length and step are said."""
    odd, alone = found.evidence, evidence["alone_in_step"]
    range_of_step = odd.get("range", odd.get("idle_range", evidence["inside"]))
    if not found.id.startswith("odd_step:idle_ns:") or range_of_step != evidence["inside"]:
        return False
    pauses = [each for each in evidence["pauses"] if alone is None or each["step"] == alone]
    if found.id.endswith(":others") or (alone is None and evidence["lengths_differ"]):
        return False
    least_ns = MOSTLY * (odd["idle_ns"] - odd["median_of_others_ns"])
    return all(
        sum(
            min(each["idle_ns"], _within(each, window))
            for window in (own.window for own in windows[rank] if own.step == odd["step"] and own.window is not None)
            for each in pauses
            if each["rank"] == rank
        )
        >= least_ns
        for rank in odd.get("ranks", [odd["rank"]])
    )


def _within(pause: Mapping[str, Any], window: tuple[int, int]) -> int:
    """Return how much of a pause, as listed, lies in a window, in ns."""
    start, end = int(pause["start_ns"]), int(pause["start_ns"] + pause["paused_ns"])
    return max(min(window[1], end) - max(window[0], start), 0)


def rows_of(evidence: Mapping[str, Any], rank: int, own: LongPauses) -> Flags:
    """Return which pauses of a rank the finding is of, by its evidence: those in its steps, or, without marks of steps,
    at its place; none before the first calls of a recording."""
    if rank not in evidence["ranks"] or evidence["before_any_call"]:
        return np.zeros(own.start_ns.size, np.bool_)
    if evidence["steps"]:
        return np.isin(own.step, evidence["steps"])
    first = evidence["pauses"][0]
    return np.array([each == (first["before"], first["after"]) for each in own.between], np.bool_)


def _evidence(found: Sequence[CostlyPause]) -> dict[str, Any]:
    """Return what the pauses themselves show, and the costliest of them."""
    by_step, times, ranks = ranks_by_step(found), times_in_steps(found), sorted({each.rank for each in found})
    costs = _costs_ns(found)
    lengths = [each.paused_ns for each in found]
    differ = max(lengths) >= DIFFER * min(lengths)
    return {
        "ranks": ranks,
        "steps": sorted(by_step),
        STEPS_IDLE_NS: [costs[step] for step in sorted(by_step)],
        "number": len(found),
        "times_a_step": [times[0], times[-1]],
        "paused_ns": max(lengths) if differ else round(fmean(lengths)),
        "lengths_differ": differ,
        "usual_ns": usual_length_ns(found),
        "idle_ns": sum(each.idle_ns for each in found),
        "at_begin": all(each.before == BEGIN for each in found),
        "in_turn": len(ranks) > 1 and bool(by_step) and all(len(those) == 1 for those in by_step.values()),
        "pauses": _costliest(found),
    }


def _place(run: Run, found: Sequence[CostlyPause], *, anywhere: bool) -> dict[str, Any]:
    """Return where most of the idle time in pauses is, if that is one place: between which operations, in what the
    longest pause there is, and how many pauses are elsewhere."""
    between, one_place = costliest_place(found)
    there = [each for each in found if (each.before, each.after) == between and one_place and not anywhere]
    return {
        "one_place": bool(there),
        "after": between[0] if there else None,
        "before": between[1] if there else None,
        "inside": _inside(run, max(there, key=lambda each: each.paused_ns)) if there else None,
        "elsewhere": len(found) - len(there),
    }


def _costliest(found: Sequence[CostlyPause]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(each) for each in sorted(found, key=lambda each: -each.idle_ns)[:MOST_LISTED]]


def _like(found: Sequence[CostlyPause], outside: Sequence[CostlyPause]) -> list[CostlyPause]:
    """Return those of the pauses in no whole step that are like one of these of their rank: between the same
    operations, and less than `DIFFER` times as long, or short."""
    lengths: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for each in found:
        lengths[each.rank, each.before, each.after].append(each.paused_ns)

    def alike(one: CostlyPause) -> bool:
        own = lengths.get((one.rank, one.before, one.after), ())
        return any(max(one.paused_ns, ns) < DIFFER * min(one.paused_ns, ns) for ns in own)

    return [each for each in outside if alike(each)]


def _step_alone(
    found: Sequence[CostlyPause], costs: Mapping[int | None, int], again: Sequence[CostlyPause]
) -> int | None:  # fmt: skip
    """Return the step that holds most of the cost, unless a pause like its own is in no whole step; None for none."""
    costliest = max(costs, key=costs.__getitem__)
    if costs[costliest] < IN_ONE_STEP * sum(costs.values()):
        return None
    return None if _like([each for each in found if each.step == costliest], again) else costliest


def _of_one_rank(found: Sequence[CostlyPause], ranks: int) -> tuple[Sequence[CostlyPause], bool]:
    """Return the pauses to name, and whether they are many at many places, of one rank alone of several."""
    ((rank, times),) = Counter(each.rank for each in found).most_common(1)
    own = [each for each in found if each.rank == rank]
    idle_ns, of_all_ns = (sum(each.idle_ns for each in some) for some in (own, found))
    its = times >= OF_ONE_RANK * len(found) and idle_ns >= OF_ONE_RANK * of_all_ns
    anywhere = not common_place(own)[1] and median(times_in_steps(own)) > FEW_A_STEP
    return (own, True) if anywhere and ranks > 1 and its else (found, False)


def _at_costliest_place(every: Sequence[CostlyPause]) -> list[CostlyPause]:
    """Return the pauses between the two operations between which devices idle for longest, of those between which the
    host of a rank pauses `FEWEST_RECURRING` times."""
    times = Counter((each.before, each.after, each.rank) for each in every)
    recurring = {(before, after) for (before, after, _), count in times.items() if count >= FEWEST_RECURRING}
    found = [each for each in every if (each.before, each.after) in recurring]
    between, _ = costliest_place(found) if found else (None, False)
    return [each for each in found if (each.before, each.after) == between]


def times_a_step(times: Sequence[int], window: str = "step") -> str:
    """Return in words how often ranks pause in a step or a recording, which they do so many `times`, fewest first; with
    a comma, and empty where each does once."""
    least, most = times[0], times[-1]
    return f"{'up to ' * (least < most)}{most} times a {window}, " if most > 1 else ""


def _device_step(run: Run, found: Sequence[CostlyPause], alone: int | None) -> int | None:
    """Return the step that the device was in as it idled in the costliest pause, of those in the step `alone` if there
    is one; None where these are all in no step of the device, as before the first kernel of a recording."""
    if found[0].step is None:
        return None
    in_steps = {
        rank: [(each.window, each.step) for each in step_windows(run.ranks[rank]) if each.window is not None]
        for rank in {each.rank for each in found}
    }
    of_step = [each for each in found if alone is None or each.step == alone]
    costliest_first = sorted(of_step, key=lambda each: -each.idle_ns)
    steps = (_step_around(in_steps[each.rank], each) for each in costliest_first)
    return next((step for step in steps if step is not None), None)


def _step_around(windows: Sequence[tuple[tuple[int, int], int]], pause: CostlyPause) -> int | None:
    """Return the step whose window holds most of a pause."""
    held = {step: min(end, pause.end_ns) - max(start, pause.start_ns) for (start, end), step in windows}
    return next((step for step, ns in held.items() if 2 * ns >= pause.paused_ns), None)


def _when(found: Sequence[CostlyPause], alone: int | None, device_step: int | None) -> str:
    """Return when devices idle in the pauses."""
    if found[0].step is None:
        return "in the recording"
    if device_step is None:
        return "before the first kernel of its step, which the time of a step does not hold"
    if alone is None:
        return "a step"
    return of_step_alone(alone, device_step) + " alone" * (len({each.step for each in found}) > 1)


def of_step_alone(alone: int, device_step: int | None) -> str:
    """Return when a device idles in the pauses of a host in one step alone: it may be in the step before."""
    if device_step is None:
        return f"before the first kernel of step {alone}"
    return f"in step {alone}" if device_step == alone else f"between steps {device_step} and {alone}"


def _costs_ns(found: Sequence[CostlyPause]) -> dict[int | None, int]:
    """Return by step the idle time in pauses of the rank that loses most in it: ranks pause at once."""
    idle: Counter[tuple[int | None, int]] = Counter()
    for each in found:
        idle[each.step, each.rank] += each.idle_ns
    most: dict[int | None, int] = {}
    for (step, _), ns in idle.items():
        most[step] = max(most.get(step, 0), ns)
    return most


def _inside(run: Run, longest: CostlyPause) -> str | None:
    """Return the Python function in which the longest pause was, where stacks were recorded, else its range."""
    stack = stack_at(run.ranks[longest.rank], longest.lane, longest.start_ns + longest.paused_ns // 2)
    return innermost(stack) or longest.inside


def _from_to(times_ns: Sequence[int]) -> str:
    least, most = (f"{ns / 1e6:.1f}" for ns in (min(times_ns), max(times_ns)))
    return f"{most} ms" if least == most else f"{least} to {most} ms"


def _who(
    run: Run, found: Sequence[CostlyPause], again: Sequence[CostlyPause], steps: int, *, anywhere: bool
) -> str:  # fmt: skip
    """Return which hosts paused, for how long, and how often where one does at many places, or each more than once."""
    who = "the host" if len({each.rank for each in found}) == 1 else "hosts"
    some = anywhere or found[0].step is None
    times = f"{len(found)} times, " if some else times_a_step(times_in_steps(found))
    lengths = _from_to([each.paused_ns for each in (*found, *again)])
    outside = again_outside([each.step for each in again])
    return f"{who} paused {times}for {lengths} ({_whose(run, found, steps)}{outside})"


def again_outside(steps: Collection[int | None]) -> str:
    """Return in words that such pauses are in no whole step as well, with a comma; empty for none.

    `steps` are the last whole steps that had begun before each of them.
    """
    if not steps:
        return ""
    if len({*steps}) > 1:
        return f", and {len(steps)} times in no whole step"
    (step,) = {*steps}
    return f", and again {'before the first whole step' if step is None else f'after step {step}, in no whole step'}"


def _whose(run: Run, found: Sequence[CostlyPause], of: int) -> str:
    """Return which ranks paused in which steps."""
    ranks_of = ranks_by_step(found)
    if not ranks_of:
        return ranks_of_run({each.rank for each in found}, len(run.ranks))
    sets: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for step in sorted(ranks_of):
        sets[tuple(sorted(ranks_of[step]))].append(step)
    if len(sets) > MOST_SETS:
        every = ranks_of_run(set[int]().union(*sets), len(run.ranks))
        return f"{len(found)} times in {len(ranks_of)} of {of} steps, {every}"
    return "; ".join(f"{ranks_of_run(ranks, len(run.ranks))} in {_steps(steps, of)}" for ranks, steps in sets.items())


def _steps(steps: Sequence[int], of: int) -> str:
    if len(steps) == of and of > 1:
        return f"each of {of} steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {list_some(steps)}"


def _where(found: Sequence[CostlyPause], place: Mapping[str, Any], step_ns: float) -> str:
    """Return at which place of the step the pauses were; `place` is the result of `_place`."""
    if not place["one_place"]:
        return ", at several places" if len(found) > 1 else f", after {short(found[0].before)}"
    mostly = "mostly " * (place["elsewhere"] > 0)
    between = (place["after"], place["before"])
    into = _into_step([each for each in found if (each.before, each.after) == between], step_ns)
    within = "" if place["inside"] is None else f", in {short(place['inside'])}"
    return f", {mostly}between {short(place['after'])} and {short(place['before'])}{within}{into}"


def _into_step(found: Sequence[CostlyPause], step_ns: float) -> str:
    """Return how far into a step each of its pauses at one place begins, with a comma, where all steps with some agree
    in all of them; else nothing: the first alone would be taken for the place of all."""
    begins: defaultdict[tuple[int, int | None], list[int]] = defaultdict(list)
    for each in found:
        begins[each.rank, each.step].append(each.into_step_ns)
    each_of = [sorted(own) for own in begins.values()]
    if found[0].step is None or len({*map(len, each_of)}) > 1 or len(each_of[0]) > MOST_BEGINS:
        return ""
    every = list(zip(*each_of, strict=True))
    if any(max(some) - min(some) > WORTH * step_ns for some in every):
        return ""
    *others, last = map(_from_to, every)
    listed = f"{', '.join(each.removesuffix(' ms') for each in others)} and {last}" if others else last
    return f", {listed} into the step"


def _costs(found: Sequence[CostlyPause], cost_ns: float, when: str) -> str:
    """Return what pauses cost a step, or the only step that they are in."""
    waited = max(each.waited_ns for each in found)
    others = f", and others waited up to {_from_to([waited])} for it" if waited else ""
    return f"the device that lost most was idle for {_from_to([round(cost_ns)])} {when}{others}"
