"""Find hosts of devices that pause now and then, as garbage collection, a logger or a lock make them, at a cost."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.common.user_ranges import row_of_pause
from overlapscope.analysis.common.wording import ranks_of_run, short
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE, TO_HOST
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.stragglers.first_calls import before_first_calls
from overlapscope.analysis.stragglers.long_pauses import BEGIN, LongPauses
from overlapscope.analysis.stragglers.new_kernels import before_first_runs, kernels_of_one_rank
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.analysis.stragglers.whole_processes import of_whole_processes
from overlapscope.display import list_some
from overlapscope.timeline.columns import COPY, NONE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.python_stack import innermost, stack_at
from overlapscope.timeline.run import RankTimeline, Run

WORTH: Final = 0.02
"""Least share of a step that the device of the rank that loses most in it is idle in pauses, in the mean: two
recordings of unchanged code differ by as much."""
AT_ONE_PLACE: Final = 0.75
"""Pauses are at one place if this share of them is between the same operations. A choice."""
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
ALIKE: Final = 0.05
"""Pauses are of one length if they differ from their median by at most this share, and a rank idles for longer in
pauses than another if by more than this share. A choice."""
WHY: Final = "garbage collection, a logger, a file, a lock or a lost core"
OWN_CODE: Final = "the program's own code there, which takes the same time in every step, or gc.collect() in it"
WAIT_OR_NOT: Final = "wait_or_not"
"""In the evidence: whether the pauses perhaps come whether the host waits for its device before them or not."""
FETCH: Final = "a batch that is fetched, as copies follow"
COPIED: Final = "what it does with what was copied to it just before"
COPIED_FOR_NS, COPIED_JUST_NS = 1_000_000, 1_000_000
"""A copy that takes so long, and ends so near to the begin of a pause, is no single figure such as a loss. A choice:
megabytes."""
COPIED_BACK: Final = (
    "each time the host computed with, or sent, what was copied to it just before, and copied as much back"
)
COPY_BACK_NS, COPY_BACK_RATIO = 10_000, 1.5
"""What is copied to a host and back takes so long or more, which no single figure does, and at most so many times as
long one way as the other. Choices: tens of kilobytes; memory that is pinned, or not."""
PINNED: Final = re.compile("pinned", re.IGNORECASE)
FIRST_RUNS: Final = "compilation, tuning or loading of kernels, as most come just before first runs of such ({name})"
COMPILES: Final = "compilation for a new shape"
COMPILES_NS: Final = 50_000_000
"""Compilers of graphs and kernels take longer than this. A choice: from tenths of a second to minutes."""
COPIES: Final = re.compile(r"(?i)memcpy|aten::(to|_to_copy|copy_)$")
"""Operations and calls that copy a batch to the device."""
IN_PHASE: Final = re.compile(r"(?i)(?<![a-z])(forward|backward|optimizer)")
"""Ranges in which no loop fetches a batch."""
MOST_OF_PAUSE, IN_MOST = 0.9, 0.75
"""A range is what a host does in its pauses if it covers this share of each, and each rank that pauses does so in this
share of the steps. Choices: collections and locks come now and then, wherever the host is."""
FEWEST_RECURRING: Final = 2
"""Of a single step nobody knows whether its pauses recur. In a recording without marks of steps a rank pauses so often
at one place: a single pause may be what comes before a loop."""
USUAL: Final = 0.5
"""A range that lasts for this share of the pauses in its median is not one that an accident falls in. A choice."""
DIFFER: Final = 2
"""Of pauses of which one is so many times as long as another the longest is told, no mean. A choice."""
ANYWHERE: Final = "it loses its core, or another thread of it holds Python's lock"


class CostlyPause(msgspec.Struct, frozen=True, kw_only=True):
    """One pause, as listed as evidence."""

    rank: int
    step: int | None
    """None where no steps are marked."""
    start_ns: int
    """On the rank's own clock."""
    paused_ns: int
    idle_ns: int
    """Of it, the device of the rank was idle."""
    waited_ns: int
    """At most so long another rank waited for this one in the next call that both make, for the time by which this one
    idled for longer in pauses; 0 where none was matched, or they paused alike."""
    into_step_ns: int
    before: str
    after: str
    inside: str | None
    lane: int = -1
    """The thread (row in `Lanes`) that goes on after it, else the one before it; -1 for none."""


class _Doing(msgspec.Struct, frozen=True, kw_only=True):
    """The range that hosts are in whenever they pause."""

    range: str
    optimizer: bool
    """Whether it is a part of an optimizer's step."""
    recurs: bool
    """Whether it is no accident that hosts pause in it."""


class _Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of pauses in which hosts are in no one range."""

    anywhere: bool = False
    """They are many, at many places, of one rank alone of several."""
    own_code: bool = False
    """They recur, and are no accident."""
    no_batch: bool = False
    """No batch is fetched in some, as they are in forward, backward or the optimizer, or beside no range that loads."""
    copied: bool = False
    """Each begins as a long copy to the host ends."""
    copied_back: bool = False
    """Each ends with the launch of a copy to the device that takes as long as one to the host just before it."""
    before_first_run: str | None = None
    """A kernel that is launched for the first time just after one of them, where most are before such."""
    perhaps_in: str | None = None
    """The range that covers them, of which it is not known whether it always lasts so long."""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """The matched calls that a rank made."""

    number: Ints
    """Which of all matched calls it is, ascending."""
    launch_ns: Ints
    """On the rank's own clock; NONE where it is not known."""
    by_launch: Ints
    """Rows of the calls of which it is known, by launch."""


class _Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls, by number; `last`, `waiter` and `wait_ns` have one value for each."""

    made: Mapping[int, _Made]
    """Which of them each rank made."""
    last: Ints
    """The rank that arrived last."""
    waiter: Ints
    """The rank that waited for longest, ..."""
    wait_ns: Ints
    """... and for how long."""


def host_pauses(
    run: Run,
    known: Mapping[int, LongPauses],
    splits: Sequence[Split],
    step_ns: float | None,
    said: Sequence[Finding],
    *,
    of_steps: bool = True,
) -> list[Finding]:
    """Return at most one finding, of all pauses, else of what comes before the first calls of a recording; none where
    hosts share cores, by what was `said`: that is why then.

    `step_ns` is the length of a step, or of a whole recording: `of_steps` tells which.
    """
    if not step_ns or lack_cores(said):
        return []
    known = of_whole_processes(run.ranks, known)
    matched = _matched(run, known.keys(), splits)
    pauses = (each for rank in known for each in _pauses(rank, known, matched))
    every = [each for each in pauses if (each.step is not None) == of_steps]
    found = _costly(run, known, every if of_steps else _at_costliest_place(every), step_ns)
    return found or (before_first_calls({rank: run.ranks[rank] for rank in known}, step_ns) if of_steps else [])


def _costly(
    run: Run, known: Mapping[int, LongPauses], every: Sequence[CostlyPause], step_ns: float
) -> list[Finding]:  # fmt: skip
    """Return the finding of pauses that idle devices, where these cost enough."""
    if not every:
        return []
    steps = max(own.steps for own in known.values())
    found, anywhere = _of_one_rank(every, len(known))
    costs = _costs_ns(found)
    cost_ns = sum(costs.values()) / (1 if found[0].step is None else steps)  # figures are of all recordings then
    alone = max(costs, key=costs.__getitem__) if steps >= FEWEST_STEPS else None
    alone = alone if alone is not None and costs[alone] >= IN_ONE_STEP * sum(costs.values()) else None
    between, one_place = _place(found)
    if cost_ns < WORTH * step_ns or not (anywhere or one_place or median(_times(found)) <= FEW_A_STEP):
        return []
    inside = _inside(run, max(found, key=lambda each: each.paused_ns)) if one_place else None
    covered = _does(run, found, len({each.rank for each in found}) * steps)
    does = covered if covered is not None and covered.recurs else None
    unknown = does is None and not anywhere
    own_code = unknown and _is_own_code(found, known)
    traits = replace(
        _traits(run, found, anywhere=anywhere, own_code=own_code),
        copied_back=unknown and _copied_back(run, found),
        before_first_run=_before_first_run(run, found) if does is None else None,
        perhaps_in=None if covered is None else covered.range,
    )
    why = _does_what(does) if does is not None else _why(found, known.keys(), traits)
    device_step = _device_step(run, found, alone)
    return [
        Finding(
            id="host_pauses",
            severity="warning",
            title=f"{_who(run, found, steps, anywhere=anywhere)}"
            f"{_where(found, between if one_place else None, inside, step_ns)}; "
            f"{_costs(found, cost_ns if alone is None else costs[alone], _when(found, alone, device_step))}: {why}",
            evidence={
                "of_steps": steps,
                "cost_ns": round(cost_ns),
                "alone_in_step": alone,
                "alone_cost_ns": None if alone is None else costs[alone],
                "one_place": one_place,
                "anywhere": anywhere,
                "inside": inside,
                "does": None if does is None else does.range,
                "in_optimizer": does is not None and does.optimizer,
                "own_code": own_code,
                "copied_back": traits.copied_back,
                "device_step": device_step,
                WAIT_OR_NOT: unknown and (_may_fetch(found, traits) or traits.copied),
                "before_any_call": False,
                **_evidence(found),
                "may_compile": _may_compile(found) or traits.before_first_run is not None,
            },
            known_from="trace",
        )
    ]


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
    by_step, times, ranks = _by_step(found), _times(found), sorted({each.rank for each in found})
    lengths = [each.paused_ns for each in found]
    differ = max(lengths) >= DIFFER * min(lengths)
    return {
        "ranks": ranks,
        "steps": sorted(by_step),
        "number": len(found),
        "times_a_step": [times[0], times[-1]],
        "paused_ns": max(lengths) if differ else round(fmean(lengths)),
        "lengths_differ": differ,
        "idle_ns": sum(each.idle_ns for each in found),
        "at_begin": all(each.before == BEGIN for each in found),
        "in_turn": len(ranks) > 1 and bool(by_step) and all(len(those) == 1 for those in by_step.values()),
        "pauses": [
            msgspec.structs.asdict(each) for each in sorted(found, key=lambda each: -each.idle_ns)[:MOST_LISTED]
        ],
    }


def _of_one_rank(found: Sequence[CostlyPause], ranks: int) -> tuple[Sequence[CostlyPause], bool]:
    """Return the pauses to name, and whether they are many at many places, of one rank alone of several."""
    ((rank, times),) = Counter(each.rank for each in found).most_common(1)
    own = [each for each in found if each.rank == rank]
    idle_ns, of_all_ns = (sum(each.idle_ns for each in some) for some in (own, found))
    its = times >= OF_ONE_RANK * len(found) and idle_ns >= OF_ONE_RANK * of_all_ns
    anywhere = not _place(own)[1] and median(_times(own)) > FEW_A_STEP
    return (own, True) if anywhere and ranks > 1 and its else (found, False)


def _at_costliest_place(every: Sequence[CostlyPause]) -> list[CostlyPause]:
    """Return the pauses between the two operations between which devices idle for longest, of those between which the
    host of a rank pauses `FEWEST_RECURRING` times."""
    times = Counter((each.before, each.after, each.rank) for each in every)
    recurring = {(before, after) for (before, after, _), count in times.items() if count >= FEWEST_RECURRING}
    idle_ns = Counter[tuple[str, str]]()
    for each in every:
        if (each.before, each.after) in recurring:
            idle_ns[each.before, each.after] += each.idle_ns
    places = [place for place, _ in idle_ns.most_common(1)]
    return [each for each in every if (each.before, each.after) in places]


def _place(found: Sequence[CostlyPause]) -> tuple[tuple[str, str], bool]:
    """Return between which operations most pauses are, and whether that is nearly all of them."""
    ((between, times),) = Counter((each.before, each.after) for each in found).most_common(1)
    return between, times >= AT_ONE_PLACE * len(found)


def times_a_step(times: Sequence[int], window: str = "step") -> str:
    """Return in words how often ranks pause in a step or a recording, which they do so many `times`, fewest first; with
    a comma, and empty where each does once."""
    least, most = times[0], times[-1]
    return f"{'up to ' * (least < most)}{most} times a {window}, " if most > 1 else ""


def _times(found: Sequence[CostlyPause]) -> list[int]:
    """Return how often each rank paused in each step in which it did, fewest first."""
    return sorted(Counter((each.rank, each.step) for each in found).values())


def _by_step(found: Sequence[CostlyPause]) -> dict[int, set[int]]:
    """Return which ranks paused in each step; empty where none is marked."""
    ranks_of: defaultdict[int, set[int]] = defaultdict(set)
    for each in found:
        if each.step is not None:
            ranks_of[each.step].add(each.rank)
    return ranks_of


def _does(run: Run, found: Sequence[CostlyPause], times: int) -> _Doing | None:
    """Return the range that covers each of the pauses, without a launch in it; None where there is none.

    `times` is how many steps the ranks that pause have in sum.
    """
    names, around = set(), []
    for each in found:
        timeline, end_ns = run.ranks[each.rank], each.start_ns + each.paused_ns
        row = row_of_pause(timeline, each.lane, each.start_ns, end_ns)
        if row is None or not _covers(timeline, row, each) or _launches_in(timeline, row):
            return None
        names.add(timeline.names[int(timeline.annotations.name[row])])
        around.append(any(map(OPTIMIZER_MARK.match, _ranges_around(timeline, each))))
    if len(names) != 1:
        return None
    name = names.pop()
    return _Doing(
        range=name, optimizer=all(around), recurs=_in_most_steps(found, times) or _lasts_so_long(run, found, name)
    )


def _in_most_steps(found: Sequence[CostlyPause], times: int) -> bool:
    """Return whether there are pauses in several steps, and in most of so many steps of the ranks."""
    steps = {(each.rank, each.step) for each in found}
    return len({each.step for each in found}) >= FEWEST_RECURRING and len(steps) >= IN_MOST * times


def _lasts_so_long(run: Run, found: Sequence[CostlyPause], name: str) -> bool:
    """Return whether a rank that pauses is in ranges of this name several times, and those of all ranks that pause last
    about as long as the pauses, in the median: also where a loop enters one only in some of its steps."""
    lengths = []
    for rank in {each.rank for each in found}:
        notes = run.ranks[rank].annotations
        own = rows_named(notes.name, run.ranks[rank].names, name.__eq__)
        lengths.append((notes.end_ns - notes.start_ns)[own])
    several = max(each.size for each in lengths) >= FEWEST_RECURRING
    usual_ns = float(np.median(np.concatenate(lengths)))
    return several and usual_ns >= USUAL * median(each.paused_ns for each in found)


def _is_own_code(found: Sequence[CostlyPause], known: Mapping[int, LongPauses]) -> bool:
    """Return whether each rank pauses once in each of its steps, `FEWEST_STEPS` or more, all at one place, and each for
    as long in all of them: collectors, locks and lost cores come now and then, and wherever the host is."""
    lengths: defaultdict[int, list[int]] = defaultdict(list)
    for each in found:
        lengths[each.rank].append(each.paused_ns)
    usual = {rank: median(own) for rank, own in lengths.items()}
    return (
        found[0].step is not None
        and len({(each.before, each.after) for each in found}) == 1
        and _times(found)[-1] == 1
        and all(len(lengths[rank]) == own.steps >= FEWEST_STEPS for rank, own in known.items())
        and all(abs(each.paused_ns - usual[each.rank]) <= ALIKE * usual[each.rank] for each in found)
    )


def _covers(timeline: RankTimeline, row: int, pause: CostlyPause) -> bool:
    notes, end_ns = timeline.annotations, pause.start_ns + pause.paused_ns
    covered = min(int(notes.end_ns[row]), end_ns) - max(int(notes.start_ns[row]), pause.start_ns)
    return covered >= MOST_OF_PAUSE * pause.paused_ns


def _launches_in(timeline: RankTimeline, row: int) -> bool:
    notes, launch_ns = timeline.annotations, timeline.spans.launch_ns
    return bool(((launch_ns >= notes.start_ns[row]) & (launch_ns < notes.end_ns[row])).any())


def _ranges_around(timeline: RankTimeline, pause: CostlyPause) -> list[str]:
    """Return the names of all ranges of its thread that the middle of a pause lies in."""
    notes, middle = timeline.annotations, pause.start_ns + pause.paused_ns // 2
    rows = np.flatnonzero((notes.lane == pause.lane) & (notes.start_ns <= middle) & (notes.end_ns >= middle))
    return [timeline.names[code] for code in notes.name[rows].tolist()]


def _does_what(does: _Doing) -> str:
    what = "the optimizer computes on the host" if does.optimizer else "what it does or waits for there is the pause"
    return f"each time the host was in {short(does.range)} and launched nothing in it: {what}"


def _traits(run: Run, found: Sequence[CostlyPause], *, anywhere: bool = False, own_code: bool = False) -> _Traits:
    in_phase = any(IN_PHASE.search(name) for each in found for name in _ranges_around(run.ranks[each.rank], each))
    of_ranks: defaultdict[int, list[CostlyPause]] = defaultdict(list)
    for each in found:
        of_ranks[each.rank].append(each)
    pauses = [(run.ranks[rank], own) for rank, own in of_ranks.items()]
    return _Traits(
        anywhere=anywhere, own_code=own_code,
        no_batch=in_phase or any(_loads_elsewhere(*each) for each in pauses),
        copied=all(_copied_to_host(*each) for each in pauses),
    )  # fmt: skip


def _loads_elsewhere(timeline: RankTimeline, pauses: Sequence[CostlyPause]) -> bool:
    """Return whether ranges in which batches are fetched were recorded, and none overlaps one of a rank's pauses."""
    notes = timeline.annotations
    loads = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    begin, end = notes.start_ns[loads], notes.end_ns[loads]
    return bool(begin.size) and not all(
        ((begin < each.start_ns + each.paused_ns) & (end > each.start_ns)).any() for each in pauses
    )


def _copied_to_host(timeline: RankTimeline, pauses: Sequence[CostlyPause]) -> bool:
    """Return whether a long copy from the device to the host ended where each of a rank's pauses begins."""
    spans = timeline.spans
    long = (spans.kind == COPY) & (spans.end_ns - spans.start_ns >= COPIED_FOR_NS)
    rows = np.flatnonzero(long & rows_named(spans.name, timeline.names, TO_HOST.search))
    return all((np.abs(spans.end_ns[rows] - each.start_ns) <= COPIED_JUST_NS).any() for each in pauses)


def _copied_back(run: Run, found: Sequence[CostlyPause]) -> bool:
    """Return whether each of several pauses begins as a copy to the host ends, and ends with the launch of a copy to
    the device that takes about as long: the host computed what it copies back."""
    return len(found) >= FEWEST_RECURRING and all(_is_between_copies(run.ranks[each.rank], each) for each in found)


def _is_between_copies(timeline: RankTimeline, pause: CostlyPause) -> bool:
    spans, pause_end_ns = timeline.spans, pause.start_ns + pause.paused_ns
    copies = (spans.kind == COPY) & (spans.end_ns - spans.start_ns >= COPY_BACK_NS)
    to_host, to_device = (
        rows[np.argsort(spans.start_ns[rows], kind="stable")]
        for rows in (
            np.flatnonzero(copies & rows_named(spans.name, timeline.names, direction.search))
            for direction in (TO_HOST, TO_DEVICE)
        )
    )
    last = np.flatnonzero(np.abs(spans.end_ns[to_host] - pause.start_ns) <= COPIED_JUST_NS)[-1:]
    begins_ns = np.where(spans.launch_ns == NONE, spans.start_ns, spans.launch_ns)[to_device]
    first = np.flatnonzero(np.abs(begins_ns - pause_end_ns) <= COPIED_JUST_NS)[:1]
    if not (last.size and first.size):
        return False
    before, after = to_host[: last[0] + 1][::-1], to_device[first[0] :]
    names = {PINNED.search(timeline.names[spans.name[row]]) is not None for row in (before[0], after[0])}
    ratio = _row_ns(spans.start_ns[before], spans.end_ns[before]) / _row_ns(spans.start_ns[after], spans.end_ns[after])
    return len(names) == 1 and 1 / COPY_BACK_RATIO <= ratio <= COPY_BACK_RATIO


def _row_ns(start_ns: Ints, end_ns: Ints) -> int:
    """Return how long the copies of a row take, from the first one on, until one is not right beside the one before."""
    apart = np.maximum(start_ns[1:], start_ns[:-1]) - np.minimum(end_ns[1:], end_ns[:-1])
    beside = np.concatenate([[True], np.cumprod(apart <= COPIED_JUST_NS).astype(np.bool_)])
    return int((end_ns - start_ns)[beside].sum())


def _before_first_run(run: Run, found: Sequence[CostlyPause]) -> str | None:
    """Return the name of a kernel that is launched for the first time after the longest pause before such a one, where
    `AT_ONE_PLACE` of the pauses are each before another: else it may be chance; else None."""
    first_runs: dict[tuple[int, str], int] = {}
    alone = kernels_of_one_rank(run)
    for rank in {each.rank for each in found}:
        own = [each for each in found if each.rank == rank]
        names = before_first_runs(run.ranks[rank], alone, np.array([each.start_ns + each.paused_ns for each in own]))
        for each, name in zip(own, names, strict=True):
            if name is not None:
                first_runs[rank, name] = max(first_runs.get((rank, name), 0), each.paused_ns)
    if len(first_runs) < max(FEWEST_RECURRING, AT_ONE_PLACE * len(found)):
        return None
    return max(first_runs, key=first_runs.__getitem__)[1]


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
    end_ns = pause.start_ns + pause.paused_ns
    held = {step: min(end, end_ns) - max(start, pause.start_ns) for (start, end), step in windows}
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


def _why(found: Sequence[CostlyPause], known: Collection[int], traits: _Traits) -> str:
    """Return what may be behind the pauses of some of the `known` ranks."""
    ranks = len(known)
    first_run = "" if traits.before_first_run is None else FIRST_RUNS.format(name=short(traits.before_first_run))
    if traits.anywhere:
        peers = f"the hosts of the {ranks - 1} other ranks" if ranks > 2 else "the host of the other rank"
        why = f"{peers} hardly pause{'s' * (ranks == 2)}, so perhaps {ANYWHERE}"
        return f"{first_run}; {why}" if first_run else why
    if traits.copied_back:
        return f"{COPIED_BACK}, or {FETCH}" if _may_fetch(found, traits) else COPIED_BACK
    begun = sum(each.before == BEGIN for each in found)
    why = OWN_CODE if traits.own_code else WHY
    why = f"{FETCH}, {why}" if _may_fetch(found, traits) else why
    why = f"{COPIED}, {why}" if traits.copied else why
    why = why if traits.perhaps_in is None else f"what it does or waits for in {short(traits.perhaps_in)}, {why}"
    if first_run:
        why = f"{first_run}; else {why}"
    elif _may_compile(found) and not traits.own_code:
        first = _all_at_once(found, known) and not traits.copied
        why = f"{COMPILES}, {why}" if first else f"{why}, or {COMPILES}"
    if not begun:
        return why
    return f"the start of the profiler, {why}" if begun == len(found) else f"{why}, or the profiler at its start"


def _may_fetch(found: Sequence[CostlyPause], traits: _Traits) -> bool:
    """Return whether perhaps a batch is fetched in each: copies follow, and nothing speaks against it."""
    return not traits.no_batch and all(COPIES.search(each.after) for each in found)


def _may_compile(found: Sequence[CostlyPause]) -> bool:
    return max(each.paused_ns for each in found) >= COMPILES_NS


def _all_at_once(found: Sequence[CostlyPause], known: Collection[int]) -> bool:
    """Return whether all of several ranks paused in the same steps, at one place: a lock or a collector stops one."""
    sets = list(_by_step(found).values())
    return len(known) > 1 and _place(found)[1] and sets != [] and all(ranks == set(known) for ranks in sets)


def _pauses(rank: int, known: Mapping[int, LongPauses], matched: _Matched) -> Iterator[CostlyPause]:
    own = known[rank]
    waited = _waited_ns(rank, known, matched).tolist()
    columns = (own.start_ns, own.end_ns, own.idle_ns, own.step, own.into_step_ns)
    rows = zip(*(each.tolist() for each in columns), waited, own.between, own.inside, own.lane, strict=True)
    for start, end, idle, step, into, waits, (before, after), inside, lane in rows:
        yield CostlyPause(
            rank=rank, step=None if step == NONE else step, start_ns=start, paused_ns=end - start, idle_ns=idle,
            waited_ns=waits, into_step_ns=into, before=before, after=after, inside=inside, lane=lane,
        )  # fmt: skip


def _matched(run: Run, ranks: Collection[int], splits: Sequence[Split]) -> _Matched:
    """Return all matched calls, numbered over the splits, and which of them each of these ranks made."""
    rows: dict[int, list[tuple[Ints, Ints]]] = {rank: [] for rank in ranks}
    last, waiter, wait_ns = ([np.empty(0, np.int64)] for _ in range(3))
    begin = 0
    for each in splits:
        members, waits = np.array(each.block.ranks), each.wait_ns
        last.append(members[each.last])
        waiter.append(members[waits.argmax(axis=0)])
        wait_ns.append(waits.max(axis=0))
        number = np.arange(begin, begin + each.last.size)
        begin += each.last.size
        for rank, calls in zip(each.block.ranks, each.block.rows, strict=True):
            if rank in rows:
                rows[rank].append((number, run.ranks[rank].collectives.launch_ns[calls]))
    return _Matched(
        made={rank: _made(own) for rank, own in rows.items()},
        last=np.concatenate(last), waiter=np.concatenate(waiter), wait_ns=np.concatenate(wait_ns),
    )  # fmt: skip


def _made(parts: Sequence[tuple[Ints, Ints]]) -> _Made:
    none = (np.empty(0, np.int64), np.empty(0, np.int64))
    number, launch_ns = (np.concatenate(each) for each in zip(none, *parts, strict=True))
    order = np.argsort(launch_ns, kind="stable")
    return _Made(number=number, launch_ns=launch_ns, by_launch=order[launch_ns[order] != NONE])


def _waited_ns(rank: int, known: Mapping[int, LongPauses], matched: _Matched) -> Ints:
    """Return for each pause how long another rank waited for this one, if it came last to the call that it launched
    next: at most as long as it idled in it, and as it idled for longer in pauses, since the call before that both made,
    than the one that waited for longest. 0 where that is not known, or they idled alike."""
    own, made = known[rank], matched.made[rank]
    place = np.searchsorted(made.launch_ns[made.by_launch], own.end_ns)
    there = np.flatnonzero(place < made.by_launch.size)
    row = made.by_launch[place[there]]
    is_last = matched.last[made.number[row]] == rank
    there, row = there[is_last], row[is_last]
    call = made.number[row]
    more = np.zeros(own.start_ns.size, np.int64)
    for other in known.keys() & {*matched.waiter[call].tolist()}:
        of_it = matched.waiter[call] == other
        launched_ns = made.launch_ns[row[of_it]]
        more[there[of_it]] = _idled_more_ns((rank, other), known, matched, launched_ns)
    more[more <= ALIKE * own.idle_ns] = 0
    found = np.zeros(own.start_ns.size, np.int64)
    found[there] = matched.wait_ns[call]
    clipped: Ints = np.minimum(np.minimum(found, own.idle_ns), more)
    return clipped


def _idled_more_ns(
    pair: tuple[int, int], known: Mapping[int, LongPauses], matched: _Matched, launched_ns: Ints
) -> Ints:  # fmt: skip
    """Return by how much longer the first of two ranks idled in pauses than the second, before its launches of some of
    the calls that both made (`launched_ns`), and after those of the calls before them; 0 where one of these launches is
    not known."""
    first, second = (matched.made[rank] for rank in pair)
    rows = first.by_launch[np.isin(first.number[first.by_launch], second.number)]
    launches = (first.launch_ns[rows], second.launch_ns[np.searchsorted(second.number, first.number[rows])])
    at = np.searchsorted(launches[0], launched_ns)
    idled, unknown = [], np.zeros(at.size, np.bool_)
    for rank, launch_ns in zip(pair, launches, strict=True):
        since, until = np.where(at > 0, launch_ns[at - 1], np.iinfo(np.int64).min + 1), launch_ns[at]
        unknown |= (since == NONE) | (until == NONE)
        idled.append(_idle_between(known[rank], since, until))
    more: Ints = np.where(unknown, 0, idled[0] - idled[1])
    return more


def _idle_between(pauses: LongPauses, since_ns: Ints, until_ns: Ints) -> Ints:
    """Return for how long a device was idle in the pauses that began between each two moments."""
    idle_ns = np.append(0, np.cumsum(pauses.idle_ns))
    first, end = (np.searchsorted(pauses.start_ns, each) for each in (since_ns, until_ns))
    found: Ints = idle_ns[end] - idle_ns[first]
    return found


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


def _who(run: Run, found: Sequence[CostlyPause], steps: int, *, anywhere: bool) -> str:
    """Return which hosts paused, for how long, and how often where one does at many places, or each more than once."""
    who = "the host" if len({each.rank for each in found}) == 1 else "hosts"
    some = anywhere or found[0].step is None
    times = f"{len(found)} times, " if some else times_a_step(_times(found))
    return f"{who} paused {times}for {_from_to([each.paused_ns for each in found])} ({_whose(run, found, steps)})"


def _whose(run: Run, found: Sequence[CostlyPause], of: int) -> str:
    """Return which ranks paused in which steps."""
    ranks_of = _by_step(found)
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


def _where(
    found: Sequence[CostlyPause], between: tuple[str, str] | None, inside: str | None, step_ns: float
) -> str:  # fmt: skip
    """Return at which place of the step the pauses were."""
    if between is None:
        return ", at several places" if len(found) > 1 else f", after {short(found[0].before)}"
    mostly = "" if all((each.before, each.after) == between for each in found) else "mostly "
    first: dict[tuple[int, int | None], int] = {}
    for each in found:  # by begin
        first.setdefault((each.rank, each.step), each.into_step_ns)
    there = list(first.values())
    same = found[0].step is not None and max(there) - min(there) <= WORTH * step_ns
    into = f", {_from_to(there)} into the step" if same else ""
    within = "" if inside is None else f", in {short(inside)}"
    return f", {mostly}between {short(between[0])} and {short(between[1])}{within}{into}"


def _costs(found: Sequence[CostlyPause], cost_ns: float, when: str) -> str:
    """Return what pauses cost a step, or the only step that they are in."""
    waited = max(each.waited_ns for each in found)
    others = f", and others waited up to {_from_to([waited])} for it" if waited else ""
    return f"the device that lost most was idle for {_from_to([round(cost_ns)])} {when}{others}"
