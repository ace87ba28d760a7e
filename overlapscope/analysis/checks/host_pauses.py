"""Find hosts of devices that pause now and then, as garbage collection, a logger or a lock make them, at a cost."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.stragglers.long_pauses import BEGIN, LongPauses
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.python_stack import stack_at
from overlapscope.timeline.run import Run

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
WHY: Final = "garbage collection, a logger, a file, a lock or a lost core"
FETCH: Final = "a batch that is fetched, as copies follow"
COPIES: Final = re.compile(r"(?i)memcpy|aten::(to|_to_copy|copy_)$")
"""Operations and calls that copy a batch to the device."""
ANYWHERE: Final = "it loses its core, or another thread of it holds Python's lock"


class CostlyPause(msgspec.Struct, frozen=True, kw_only=True):
    """One pause, as listed as evidence."""

    rank: int
    step: int
    start_ns: int
    """On the rank's own clock."""
    paused_ns: int
    idle_ns: int
    """Of it, the device of the rank was idle."""
    waited_ns: int
    """At most so long another rank waited for this one in the next call that both make; 0 where none was matched."""
    into_step_ns: int
    before: str
    after: str
    inside: str | None


def host_pauses(
    run: Run,
    known: Mapping[int, LongPauses],
    splits: Sequence[Split],
    step_ns: float | None,
    said: Sequence[Finding],
) -> list[Finding]:
    """Return at most one finding, of all pauses; none where hosts share cores, by what was `said`: that is why then."""
    every = [each for rank, own in known.items() for each in _pauses(run, rank, own, splits)]
    if not every or not step_ns or lack_cores(said):
        return []
    steps = max(own.steps for own in known.values())
    found, anywhere = _of_one_rank(every, len(known))
    costs = _costs_ns(found)
    cost_ns = sum(costs.values()) / steps
    alone = max(costs, key=costs.__getitem__) if steps >= FEWEST_STEPS else None
    alone = alone if alone is not None and costs[alone] >= IN_ONE_STEP * sum(costs.values()) else None
    between, one_place = _place(found)
    if cost_ns < WORTH * step_ns or not (anywhere or one_place or _times_a_step(found) <= FEW_A_STEP):
        return []
    longest = max(found, key=lambda each: each.paused_ns)
    ranks, paused_steps = (sorted({getattr(each, of) for each in found}) for of in ("rank", "step"))
    inside = _inside(run, known[longest.rank], longest) if one_place else None
    return [
        Finding(
            id="host_pauses",
            severity="warning",
            title=f"{_who(found, steps, anywhere=anywhere)}"
            f"{_where(found, between if one_place else None, inside, step_ns)}; "
            f"{_costs(found, cost_ns if alone is None else costs[alone], alone)}: "
            f"{_why(found, len(known), anywhere=anywhere)}",
            evidence={
                "ranks": ranks,
                "steps": paused_steps,
                "of_steps": steps,
                "number": len(found),
                "paused_ns": round(float(np.median([each.paused_ns for each in found]))),
                "idle_ns": sum(each.idle_ns for each in found),
                "cost_ns": round(cost_ns),
                "alone_in_step": alone,
                "alone_cost_ns": None if alone is None else costs[alone],
                "one_place": one_place,
                "anywhere": anywhere,
                "at_begin": all(each.before == BEGIN for each in found),
                "in_turn": len(ranks) > 1 and len({(each.rank, each.step) for each in found}) == len(paused_steps),
                "inside": inside,
                "pauses": [
                    msgspec.structs.asdict(each)
                    for each in sorted(found, key=lambda each: -each.idle_ns)[:MOST_LISTED]
                ],
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _of_one_rank(found: Sequence[CostlyPause], ranks: int) -> tuple[Sequence[CostlyPause], bool]:
    """Return the pauses to name, and whether they are many at many places, of one rank alone of several."""
    ((rank, times),) = Counter(each.rank for each in found).most_common(1)
    own = [each for each in found if each.rank == rank]
    idle_ns, of_all_ns = (sum(each.idle_ns for each in some) for some in (own, found))
    its = times >= OF_ONE_RANK * len(found) and idle_ns >= OF_ONE_RANK * of_all_ns
    anywhere = not _place(own)[1] and _times_a_step(own) > FEW_A_STEP
    return (own, True) if anywhere and ranks > 1 and its else (found, False)


def _place(found: Sequence[CostlyPause]) -> tuple[tuple[str, str], bool]:
    """Return between which operations most pauses are, and whether that is nearly all of them."""
    ((between, times),) = Counter((each.before, each.after) for each in found).most_common(1)
    return between, times >= AT_ONE_PLACE * len(found)


def _times_a_step(found: Sequence[CostlyPause]) -> float:
    return float(np.median(list(Counter((each.rank, each.step) for each in found).values())))


def _why(found: Sequence[CostlyPause], ranks: int, *, anywhere: bool) -> str:
    """Return what may be behind the pauses."""
    if anywhere:
        peers = f"the hosts of the {ranks - 1} other ranks" if ranks > 2 else "the host of the other rank"
        return f"{peers} hardly pause{'s' * (ranks == 2)}, so perhaps {ANYWHERE}"
    begun = sum(each.before == BEGIN for each in found)
    why = f"{FETCH}, {WHY}" if all(COPIES.search(each.after) for each in found) else WHY
    if not begun:
        return why
    return f"the start of the profiler, {why}" if begun == len(found) else f"{why}, or the profiler at its start"


def _pauses(run: Run, rank: int, own: LongPauses, splits: Sequence[Split]) -> Iterator[CostlyPause]:
    waited = _waited_ns(run, rank, own, splits).tolist() if own.start_ns.size else []
    columns = (own.start_ns, own.end_ns, own.idle_ns, own.step, own.into_step_ns)
    rows = zip(*(each.tolist() for each in columns), waited, own.between, own.inside, strict=True)
    for start, end, idle, step, into, waits, (before, after), inside in rows:
        yield CostlyPause(
            rank=rank, step=step, start_ns=start, paused_ns=end - start, idle_ns=idle, waited_ns=waits,
            into_step_ns=into, before=before, after=after, inside=inside,
        )  # fmt: skip


def _waited_ns(run: Run, rank: int, own: LongPauses, splits: Sequence[Split]) -> Ints:
    """Return for each pause how long another rank waited for this one, if it came last to the call that it launched
    next: at most as long as it had paused."""
    found = np.zeros(own.start_ns.size, np.int64)
    next_ns = np.full(own.start_ns.size, np.iinfo(np.int64).max)
    for each in splits:
        if rank not in each.block.ranks:
            continue
        row = each.block.ranks.index(rank)
        launch = run.ranks[rank].collectives.launch_ns[each.block.rows[row]]
        order = np.argsort(launch, kind="stable")
        place = np.searchsorted(launch[order], own.end_ns)
        there = np.flatnonzero(place < order.size)
        call = order[place[there]]
        sooner = launch[call] < next_ns[there]
        there, call = there[sooner], call[sooner]
        next_ns[there] = launch[call]
        found[there] = np.where(each.last[call] == row, each.wait_ns[:, call].max(axis=0), 0)
    clipped: Ints = np.minimum(found, own.end_ns - own.start_ns)
    return clipped


def _costs_ns(found: Sequence[CostlyPause]) -> dict[int, int]:
    """Return by step the idle time in pauses of the rank that loses most in it: ranks pause at once."""
    idle: Counter[tuple[int, int]] = Counter()
    for each in found:
        idle[each.step, each.rank] += each.idle_ns
    most: dict[int, int] = {}
    for (step, _), ns in idle.items():
        most[step] = max(most.get(step, 0), ns)
    return most


def _inside(run: Run, own: LongPauses, longest: CostlyPause) -> str | None:
    """Return the Python function in which the longest pause was, where stacks were recorded, else its range."""
    lane = own.lane[int(np.searchsorted(own.start_ns, longest.start_ns))]
    stack = stack_at(run.ranks[longest.rank], lane, longest.start_ns + longest.paused_ns // 2)
    return stack[-1] if stack else longest.inside


def _from_to(times_ns: Sequence[int]) -> str:
    least, most = (f"{ns / 1e6:.1f}" for ns in (min(times_ns), max(times_ns)))
    return f"{most} ms" if least == most else f"{least} to {most} ms"


def _who(found: Sequence[CostlyPause], steps: int, *, anywhere: bool) -> str:
    """Return which hosts paused, and for how long; how often where one does at many places."""
    who = "the host" if len({each.rank for each in found}) == 1 else "hosts"
    times = f"{len(found)} times, " if anywhere else ""
    return f"{who} paused {times}for {_from_to([each.paused_ns for each in found])} ({_whose(found, steps)})"


def _whose(found: Sequence[CostlyPause], of: int) -> str:
    """Return which ranks paused in which steps."""
    ranks_of: defaultdict[int, set[int]] = defaultdict(set)
    for each in found:
        ranks_of[each.step].add(each.rank)
    sets: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for step in sorted(ranks_of):
        sets[tuple(sorted(ranks_of[step]))].append(step)
    if len(sets) > MOST_SETS:
        return f"{len(found)} times in {len(ranks_of)} of {of} steps, {rank_list(set[int]().union(*sets))}"
    return "; ".join(f"{rank_list(ranks)} in {_steps(steps, of)}" for ranks, steps in sets.items())


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
    first: dict[tuple[int, int], int] = {}
    for each in found:  # by begin
        first.setdefault((each.rank, each.step), each.into_step_ns)
    there = list(first.values())
    into = f", {_from_to(there)} into the step" if max(there) - min(there) <= WORTH * step_ns else ""
    within = "" if inside is None else f", in {short(inside)}"
    return f", {mostly}between {short(between[0])} and {short(between[1])}{within}{into}"


def _costs(found: Sequence[CostlyPause], cost_ns: float, alone: int | None) -> str:
    """Return what pauses cost a step, or the only step that they are in."""
    waited = max(each.waited_ns for each in found)
    others = f", and others waited up to {_from_to([waited])} for it" if waited else ""
    when = "a step" if alone is None else f"in step {alone}" + " alone" * (len({each.step for each in found}) > 1)
    return f"the device that lost most was idle for {_from_to([round(cost_ns)])} {when}{others}"
