"""Idle time that hosts decided, a step: by kind and by call, with the longest pause and the chain that led to it; and
words for what a host does in most of it, where no rule of its own says that."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Final, TypeVar

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms
from overlapscope.analysis.checks.hosts.host_pauses import STEPS_IDLE_NS
from overlapscope.analysis.common.user_ranges import times_in_ranges
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.found_causes import HostLoss, LossKind
from overlapscope.analysis.result import ShownBy
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.columns import RUNTIME, Flags, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

LEAST_IDLE: Final = 0.05
"""Least share of a step that a host leaves its device idle to be recommended. A choice: more than twice `WORTH`,
because some of it is caused by the profiler, and how much is not known."""

MOSTLY: Final = 0.5
"""Least share of the idle time that one kind of loss has to be named, of it that a range covers, and of the longest
loss of a step that another step has to be named beside it."""
AFTER: Final = 0.1
"""Of waits at most so much lies in a range in which the host works after them. A choice."""
NEARLY_ALL: Final = 0.9
"""Of a range that covers less of the idle time, its share is said beside it; the fewest steps that have so much of a
loss are its steps. A choice."""
APART: Final = 1.5
"""Steps of which one loses so many times what another does have no figure in common. A choice."""
MOST_OF_STEPS: Final = 0.8
"""A range that covers more of all steps says nothing of where in them. A choice."""
NAMED: Final = 0.05
"""Least share of a loss that a call has to be named beside it. A choice: less is not worth changing the call."""
RETURNS_BEFORE_NS: Final = 5_000
"""A call that waits returns at most so long before the gap that it leaves. A choice: clocks of hosts and devices differ
by microseconds."""
UNEVEN: Final = 1.5
"""A rank is named that loses so many times the mean of all."""
DOES: Final[Mapping[LossKind, str]] = {
    "data_loading": "fetches a batch",
    "garbage_collection": "collects garbage",
    "allocation": "allocates or frees device memory",
    "blocking_call": "waits for the device",
    "poll": "polls the device",
    "pause": "launches nothing",
    "long_pause": "launches nothing",
}
"""What a host does; the rate of launches has no time of its own."""

Named = TypeVar("Named")


class HostTime(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of some kinds; ns a step, mean over ranks, as in the headline."""

    ns: int
    by_kind: dict[str, int]
    by_call: dict[str, int]
    """Of calls with a name, the longest first; how long each was, however short."""
    after_ns: int
    """Of `ns`, what lies after calls that had emptied the device, while the host launched again."""
    by_window: dict[int, Ints]
    """By rank, in each of its windows, few long ones too: as recorded, not scaled to the headline."""
    waits: tuple[tuple[str, str | None], ...]
    """Calls that have at least the share `NAMED` of it, each with the operation that made it, None without one, the
    longest first."""
    awaited: dict[tuple[str, str | None], str]
    """What the longest piece of each of these waits waited for, by its name, where that is known."""
    shown_by: ShownBy | None
    """The longest pause, of kinds and calls that few long steps are not the only ones to have."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The range in which a host passes most of some idle time."""

    name: str
    share: float
    """Of that idle time."""
    words: str
    """As a title ends, with the share where that is not nearly all."""


class RankLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost by hosts, of the rank that loses most where the loss of the median step of all says less."""

    ns: int
    """A step, in the mean over all steps."""
    words: str
    """How long in how many steps, and how long in the mean."""
    of: str
    """" of rank N", where others lose far less; else empty."""
    in_steps: Mapping[int, int] = {}
    """Where the mean is over all steps, by the number of each what the rank that loses most in it loses, in ns; else
    empty."""

    def evidence(self) -> dict[str, list[int]]:
        """Return the steps that count in the mean, with what each loses: what makes a long one of them so is no loss of
        its own."""
        lost = {step: ns for step, ns in self.in_steps.items() if ns}
        return {"steps": [*lost], STEPS_IDLE_NS: [*lost.values()]} if lost else {}


def in_the_mean(given: RuleInput, by_window: Mapping[int, Ints], least: float) -> RankLoss | None:
    """Return what is lost in the mean over all steps (`lost_in_steps`), few long ones too, if that is the share `least`
    of a step, and not all in the first one, where much begins that later steps lack; None also where ranks do not
    communicate: none waits for it."""
    lost = {rank: own for rank, own in by_window.items() if own.size}
    if given.per != "step" or not lost or (len(lost) > 1 and not given.figures.comm_ns):
        return None
    means = {rank: float(own.mean()) for rank, own in lost.items()}
    rank = uneven_rank(means)
    own = lost_in_steps(given, lost, rank)
    mean_ns = float(own.mean())
    if not mean_ns or mean_ns < least * given.step_ns or _is_of_first(given, lost, rank):
        return None
    there = _have_most(own)
    low, high = float(own[there].min()), float(own[there].max())
    each = f"{ms(low)} to {ms(high)}" if high >= APART * low else ms(float(own[there].mean()))
    apart = rank is None and len(lost) > 1 and not given.ranks_are_joined
    of_all = f" of {rank_list(sorted(lost))}" * apart
    steps = f" in {there.sum()} of {own.size} steps{of_all}" if not there.all() else f" in each step{of_all}"
    return RankLoss(
        ns=round(mean_ns),
        words=f"{each}{steps}, {ms(mean_ns)} a step in the mean",
        of="" if rank is None else f" of rank {rank}",
        in_steps=_in_numbered_steps(given, lost),
    )


def uneven_rank(typical_ns: Mapping[int, float]) -> int | None:
    """Return the rank that loses far more in a typical step than the mean of all; None without."""
    most = max(typical_ns, key=typical_ns.__getitem__, default=None)
    return most if most is not None and typical_ns[most] >= UNEVEN * fmean(typical_ns.values()) > 0 else None


def lost_in_steps(given: RuleInput, lost: Mapping[int, Ints], rank: int | None) -> Ints:
    """Return what is lost in each step: by this rank; without one, by the rank that loses most in it, as the others
    wait for it; and where no call joins these ranks, by each rank on its own, all their steps one after the other."""
    if rank is not None:
        return lost[rank]
    return most_by_number(given, lost) if given.ranks_are_joined else np.concatenate([*lost.values()])


def _is_of_first(given: RuleInput, lost: Mapping[int, Ints], rank: int | None) -> bool:
    """Return whether the first step of several loses far more than each later one."""
    own = lost[rank] if rank is not None else most_by_number(given, lost)
    return bool(own.size > 1 and own[1:].max() < MOSTLY * own.max())


def _in_numbered_steps(given: RuleInput, lost: Mapping[int, Ints]) -> dict[int, int]:
    """Return by number of a step what the rank that loses most in it loses."""
    numbers = unique(np.array([number for rank in lost for number in given.numbers[rank]], np.int64))
    return dict(zip(numbers.tolist(), most_by_number(given, lost).tolist(), strict=True))


def _have_most(own: Ints) -> Flags:
    """Return the fewest steps that have nearly all of a loss, and those that lose about as much as the longest does."""
    longest = np.sort(own)[::-1]
    nearly_all = int(np.searchsorted(np.cumsum(longest), NEARLY_ALL * own.sum()))
    return np.asarray(own >= min(MOSTLY * longest[0], longest[nearly_all]), np.bool_)


def most_by_number(given: RuleInput, by_window: Mapping[int, Ints]) -> Ints:
    """Return what the rank that loses most loses in each step, in the order of the steps' numbers: ranks may have
    recorded other steps."""
    numbers = np.array([number for rank in by_window for number in given.numbers[rank]], np.int64)
    steps = unique(numbers)
    found = np.zeros(steps.size, np.int64)
    if steps.size:
        np.maximum.at(found, np.searchsorted(steps, numbers), np.concatenate([*by_window.values()]))
    return found


def host_time(given: RuleInput, *kinds: LossKind) -> HostTime:
    """Return the idle time of these kinds; the sums of steps are scaled to the idle time of the headline.

    Few long steps are not in these sums, as in the headline's causes: a median is none of theirs.
    """
    sums: dict[tuple[str, str], int] = defaultdict(int)
    by_window = {rank: np.zeros(len(windows), np.int64) for rank, windows in given.windows.items()}
    usual = {rank: given.is_usual(rank) for rank in given.windows}
    longest: tuple[int, HostLoss] | None = None
    after_ns = 0
    waits: dict[tuple[str, str | None], int] = defaultdict(int)
    longest_of: dict[tuple[str, str | None], HostLoss] = {}
    for rank, losses in given.host_losses.items():
        for each in losses:
            if each.kind not in kinds:
                continue
            own = _within(each, given.windows.get(rank, ()))
            usual_ns = int(own[usual[rank]].sum()) if rank in usual else 0
            sums[each.kind, each.call or ""] += usual_ns
            if rank in usual and each.after is not None:
                after_ns += int(_within(each, given.windows[rank], each.after)[usual[rank]].sum())
            if each.call:
                key = each.call, each.op
                waits[key] += usual_ns
                longest_of[key] = max(each, longest_of.get(key, each), key=_length)
            if rank in by_window:
                by_window[rank] += own
            if usual_ns and (longest is None or _length(each) > _length(longest[1])):
                longest = rank, each
    scale = (given.figures.idle_ns or 0) / given.idle_ns if given.idle_ns else 0.0
    by_kind: dict[str, float] = defaultdict(float)
    by_call: dict[str, float] = defaultdict(float)
    for (kind, call), ns in sums.items():
        by_kind[kind] += ns * scale
        by_call[call] += ns * scale
    by_call.pop("", None)
    return HostTime(
        ns=round(sum(by_kind.values())),
        by_kind={kind: round(ns) for kind, ns in by_kind.items()},
        by_call={call: round(ns) for call, ns in sorted(by_call.items(), key=lambda each: -each[1])},
        after_ns=round(after_ns * scale),
        by_window=by_window,
        waits=tuple(worth_naming(waits)),
        awaited={key: name for key, each in longest_of.items() if (name := awaited_name(each.chain))},
        shown_by=None if longest is None else shown_by(given.run.ranks[longest[0]], longest[1]),
    )


def launching_share(given: RuleInput) -> float:
    """Return which share of the idle time because of waits lies in gaps in which no such wait ended: there a host that
    lost its lead by them launches one call after the other, and its device is ready before each."""
    launching = every = 0
    for rank, losses in given.host_losses.items():
        timeline = given.run.ranks[rank]
        calls = select_host_spans(timeline.host, (RUNTIME,))
        for each in losses:
            if each.kind != "blocking_call" or each.call is None:
                continue
            starts, ends = each.when
            returns = np.sort(calls.end_ns[rows_named(calls.name, timeline.names, each.call.__eq__)])
            waited = np.searchsorted(returns, ends, "right") > np.searchsorted(returns, starts - RETURNS_BEFORE_NS)
            if returns.size:  # else it is no call that was recorded as such
                when = Intervals(starts[~waited], ends[~waited])
                launching += int(_within(each, given.windows.get(rank, ()), when).sum())
            every += int(_within(each, given.windows.get(rank, ())).sum())
    return launching / every if every else 0.0


def awaited_name(chain: Iterable[Link]) -> str:
    """Return the name of what the latest wait of a chain waited for; empty where that is not known."""
    return next((each.what for each in chain if each.kind == "sync"), None) or ""


def worth_naming(times: Mapping[Named, int]) -> list[Named]:
    """Return what has at least the share `NAMED` of all these times, the longest first."""
    least = NAMED * sum(times.values())
    return [each for each in sorted(times, key=lambda one: -times[one]) if times[each] >= least]


def shown_by(timeline: RankTimeline, loss: HostLoss) -> ShownBy:
    """Return the longest piece of a loss as the evidence of a recommendation."""
    start, end = loss.longest
    after = loss.after is not None and int(BusyTime(loss.after).within(start, end)) > 0
    return ShownBy(
        rank=timeline.rank, start_ns=start, end_ns=end, call=loss.call, op=loss.op, after_call=after,
        chain=list(loss.chain),
    )  # fmt: skip


def _within(loss: HostLoss, windows: Windows, when: Intervals | None = None) -> Ints:
    """Return for how long a loss, or a part of it, lasts in each window."""
    starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
    return BusyTime(loss.when if when is None else when).within(starts, ends)


def _length(loss: HostLoss) -> int:
    return loss.longest[1] - loss.longest[0]


def blocker_words(given: RuleInput, idle_ns: int) -> str:
    """Return what the host does in most of a step's idle time, in which range, call and steps, of the rank that loses
    most by it, for the end of a title; empty where that is not known."""
    found: dict[tuple[int, LossKind], list[HostLoss]] = {}
    for rank, losses in given.host_losses.items():
        for each in losses:
            if each.kind in DOES and rank in given.windows:
                found.setdefault((rank, each.kind), []).append(each)
    by_step = {key: _by_step(given, key[0], own) for key, own in found.items()}
    most = max(by_step, key=lambda key: int(by_step[key].sum()), default=None)
    if most is None or by_step[most].mean() < MOSTLY * idle_ns:
        return ""
    rank, kind = most
    of_kind, own = found[most], by_step[most]
    name = _range(given.run.ranks[rank], union(*(each.when for each in of_kind)))
    call = max(of_kind, key=lambda each: length(each.when)).call
    there = _have_most(own)
    steps = [number for number, chosen in zip(given.numbers[rank], there.tolist(), strict=True) if chosen]
    where = f", in {short(name)}" if name else f", in {short(call)}" if call else ""
    when = "" if there.all() or given.per != "step" else f"in step{'' if len(steps) == 1 else 's'} {list_some(steps)} "
    of = f"on rank {rank} " if len(given.windows) > 1 else ""
    return f" ({of}{when}the host {DOES[kind]}{where})"


def range_of_waits(given: RuleInput, *kinds: LossKind) -> str:
    """Return words for the range that `place_of_waits` finds, for the end of a title; empty without one."""
    place = place_of_waits(given, *kinds)
    return "" if place is None else place.words


def place_of_waits(given: RuleInput, *kinds: LossKind) -> Place | None:
    """Return the range in which the host of the rank that loses most passes most of the idle time of waits: one in
    which it works after them, or one that holds them; None without one."""
    found: dict[int, list[HostLoss]] = {}
    for rank, losses in given.host_losses.items():
        found[rank] = [each for each in losses if each.kind in kinds and rank in given.windows]
    most = max(found, key=lambda rank: sum(length(each.when) for each in found[rank]), default=None)
    if most is None or not found[most]:
        return None
    timeline, when = given.run.ranks[most], union(*(each.when for each in found[most]))
    name = _range(timeline, when)
    times = times_in_ranges(timeline, names={name}).get(name) if name else None
    if name is None or times is None or length(times) > MOST_OF_STEPS * _recorded_ns(given, most):
        return None
    share = length(intersection(when, times)) / length(when)
    calls = {each.call for each in found[most] if each.call}
    named = rows_named(np.arange(len(timeline.names), dtype=np.int32), timeline.names, calls.__contains__)
    own = select_host_spans(timeline.host, (RUNTIME,), named)
    waits = union((own.start_ns, own.end_ns))
    inside = length(intersection(waits, times))
    if not length(waits) or MOSTLY * length(waits) <= inside:
        words = f", {'' if share >= NEARLY_ALL else f'{percent_text(share)} of that '}in {short(name)}"
        return Place(name=name, share=share, words=words)
    if inside >= AFTER * length(waits):
        return None
    return Place(name=name, share=share, words=f", then works in {short(name)}")


def _recorded_ns(given: RuleInput, rank: int) -> int:
    return sum(end - start for start, end in given.windows[rank])


def _by_step(given: RuleInput, rank: int, losses: list[HostLoss]) -> Ints:
    starts, ends = np.array(given.windows[rank], np.int64).reshape(-1, 2).T
    return BusyTime(union(*(each.when for each in losses))).within(starts, ends)


def _range(timeline: RankTimeline, when: Intervals) -> str | None:
    """Return the name of the shortest range, on a thread of the steps' marks, that covers most of these times."""
    notes, steps = timeline.annotations, timeline.steps
    lanes = unique(notes.lane[np.isin(notes.start_ns, steps.start_ns)])
    times = times_in_ranges(timeline, lanes=lanes if lanes.size else None)
    covering = [name for name, own in times.items() if length(intersection(own, when)) >= MOSTLY * length(when)]
    return min(covering, key=lambda name: length(times[name]), default=None)
