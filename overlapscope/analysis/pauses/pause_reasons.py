"""Name what may be behind the pauses of hosts, by what was recorded around them."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.common.user_ranges import row_of_pause
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE, TO_HOST
from overlapscope.analysis.pauses.costly_pauses import (
    ALIKE,
    AT_ONE_PLACE,
    FEWEST_RECURRING,
    CostlyPause,
    common_place,
    ranks_by_step,
    times_in_steps,
)
from overlapscope.analysis.pauses.gathered_objects import follow_gathered_objects
from overlapscope.analysis.pauses.known_work import MOST_OF_PAUSE, USUAL, known_work, range_lengths
from overlapscope.analysis.pauses.long_pauses import BEGIN, LongPauses
from overlapscope.analysis.stragglers.new_kernels import before_first_runs, kernels_of_one_rank
from overlapscope.timeline.columns import COPY, NONE, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.run import RankTimeline, Run

WHY: Final = "garbage collection, a logger, a file, a lock or a lost core"
OWN_CODE: Final = "the program's own code there, which takes the same time in every step, or gc.collect() in it"
FEWEST_STEPS: Final = 3
"""Pauses are the program's own code if they come in so many steps or more, and alike in all of them. A choice."""
ONE_LENGTH: Final = 0.01
"""Pauses that do not come in every step of every rank are that, too, if all differ from their median by at most this
share, so rarely do accidents agree on several ranks. A choice."""
FETCH: Final = "a batch that is fetched, as copies follow"
COPIED: Final = "what it does with what was copied to it just before, as images, logs or a checkpoint"
OBJECTS: Final = (
    "what it does with Python objects that it probably gathered just before, as all_gather_object does (gather "
    "tensors, or seldom)"
)
COPIED_FOR_NS, COPIED_JUST_NS = 200_000, 1_000_000
"""A copy that takes so long, and ends so near to the begin of a pause, is no single figure such as a loss, which takes
microseconds. A choice: a megabyte to pageable memory, at 5 GB/s, or several to pinned memory."""
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
IN_MOST = 0.75
"""A range is what a host does in its pauses if each rank that pauses does so in this share of the steps. A choice:
collections and locks come now and then, wherever the host is."""
ANYWHERE: Final = "it loses its core, or another thread of it holds Python's lock"


class PauseReason(msgspec.Struct, frozen=True, kw_only=True):
    """What may be behind pauses."""

    text: str
    """In words, as a title ends."""
    work: str | None = None
    """The kind of host work (`HostWork.id`) that they are in; the rest but `wait_or_not` is not asked then."""
    does: str | None = None
    """The range that hosts are in whenever they pause, where that is no accident; the rest but `may_compile` is not
    asked then."""
    in_optimizer: bool = False
    """Whether that is a part of an optimizer's step."""
    own_code: bool = False
    """Whether they recur as the program's own code does."""
    copied_back: bool = False
    """Whether the host computed with what was copied to it, and copied as much back."""
    copied: bool = False
    """Whether each begins as a long copy to the host ends, and what is done with that comes first."""
    objects: bool = False
    """Whether most follow a gather of Python objects."""
    wait_or_not: bool = False
    """Whether they perhaps come whether the host waits for its device before them or not."""
    may_compile: bool


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
    objects: bool = False
    """Most follow a gather of Python objects."""
    before_first_run: str | None = None
    """A kernel that is launched for the first time just after one of them, where most are before such."""
    perhaps_in: str | None = None
    """The range that covers them, of which it is not known whether it always lasts so long."""


def pause_reason(
    run: Run, found: Sequence[CostlyPause], known: Mapping[int, LongPauses], *, anywhere: bool
) -> PauseReason:
    """Return what may be behind some pauses of the `known` ranks, one or more; `anywhere`: they are many, at many
    places, of one rank alone of several."""
    work = None if anywhere else known_work(run, found)
    if work is not None:
        kind, inside = work
        if len(inside) < len(found):
            return _beside_others(run, found, known, inside)
        traits = _traits(run, found, known, anywhere=False, perhaps_in=None)
        comes_anyway = traits.copied or traits.objects
        return PauseReason(text=kind.does, work=kind.id, wait_or_not=comes_anyway, may_compile=False)
    steps = max(own.steps for own in known.values())
    doing = _range_of_all(run, found, len({each.rank for each in found}) * steps)
    if doing is not None and doing.recurs:
        return PauseReason(
            text=_does_what(doing), does=doing.range, in_optimizer=doing.optimizer, may_compile=_may_compile(found)
        )
    fixed = () if anywhere else _of_one_length(found, known)
    if 0 < len(fixed) < len(found):
        return _beside_others(run, found, known, fixed)
    traits = _traits(run, found, known, anywhere=anywhere, perhaps_in=None if doing is None else doing.range)
    return PauseReason(
        text=_why(found, known.keys(), traits),
        own_code=traits.own_code,
        copied_back=traits.copied_back,
        copied=traits.copied and not (anywhere or traits.copied_back),
        objects=traits.objects,
        wait_or_not=not anywhere and (_may_fetch(found, traits) or traits.copied or traits.objects),
        may_compile=_may_compile(found) or traits.before_first_run is not None,
    )


def _beside_others(
    run: Run, found: Sequence[CostlyPause], known: Mapping[int, LongPauses], fixed: Sequence[CostlyPause]
) -> PauseReason:
    """Return what may be behind pauses of which most, the `fixed`, are of one length or in one kind of host work, and
    behind the others."""
    chosen = set(map(id, fixed))
    others = [each for each in found if id(each) not in chosen]
    own, other = (pause_reason(run, each, known, anywhere=False) for each in (fixed, others))
    text = f"{own.text} ({len(fixed)} of {len(found)} pauses); behind the others {other.text}"
    return msgspec.structs.replace(own, text=text, may_compile=own.may_compile or other.may_compile)


def _range_of_all(run: Run, found: Sequence[CostlyPause], times: int) -> _Doing | None:
    """Return the range that covers each of the pauses, without a launch in it; None where there is none.

    `times` is how many steps the ranks that pause have in sum.
    """
    names, around = set(), []
    for each in found:
        timeline = run.ranks[each.rank]
        row = row_of_pause(timeline, each.lane, each.start_ns, each.end_ns)
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
    lengths = [range_lengths(run, rank, name.__eq__) for rank in {each.rank for each in found}]
    several = max(each.size for each in lengths) >= FEWEST_RECURRING
    usual_ns = float(np.median(np.concatenate(lengths)))
    return several and usual_ns >= USUAL * median(each.paused_ns for each in found)


def _covers(timeline: RankTimeline, row: int, pause: CostlyPause) -> bool:
    notes = timeline.annotations
    covered = min(int(notes.end_ns[row]), pause.end_ns) - max(int(notes.start_ns[row]), pause.start_ns)
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


def _traits(
    run: Run, found: Sequence[CostlyPause], known: Mapping[int, LongPauses], *, anywhere: bool, perhaps_in: str | None
) -> _Traits:  # fmt: skip
    in_phase = any(IN_PHASE.search(name) for each in found for name in _ranges_around(run.ranks[each.rank], each))
    of_ranks: defaultdict[int, list[CostlyPause]] = defaultdict(list)
    for each in found:
        of_ranks[each.rank].append(each)
    pauses = [(run.ranks[rank], own) for rank, own in of_ranks.items()]
    return _Traits(
        anywhere=anywhere,
        own_code=not anywhere and (_is_own_code(found, known) or len(_of_one_length(found, known)) == len(found)),
        no_batch=in_phase or any(_loads_elsewhere(*each) for each in pauses),
        copied=all(_copied_to_host(*each) for each in pauses),
        copied_back=not anywhere and _copied_back(run, found),
        objects=not anywhere and _objects(run, of_ranks),
        before_first_run=_before_first_run(run, found),
        perhaps_in=perhaps_in,
    )


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
        and times_in_steps(found)[-1] == 1
        and all(len(lengths[rank]) == own.steps >= FEWEST_STEPS for rank, own in known.items())
        and all(abs(each.paused_ns - usual[each.rank]) <= ALIKE * usual[each.rank] for each in found)
    )


def _of_one_length(found: Sequence[CostlyPause], known: Mapping[int, LongPauses]) -> Sequence[CostlyPause]:
    """Return the pauses at the place of nearly all, if they have one length on several ranks, and come once in most
    steps, `FEWEST_STEPS` or more, of most ranks each; else none. A first step may begin after its pause, and another
    pause may stand in the place of one."""
    place, most = common_place(found)
    own = [each for each in found if (each.before, each.after) == place]
    steps = ranks_by_step(own)
    shared = [ranks for ranks in steps.values() if len(ranks) >= IN_MOST * len(known)]
    usual = median(each.paused_ns for each in own)
    recurs = (
        most
        and len(known) > 1
        and {each.rank for each in own} == known.keys()
        and len(shared) == len(steps)
        and len(shared) >= max(FEWEST_STEPS, IN_MOST * max(each.steps for each in known.values()))
        and times_in_steps(own)[-1] == 1
        and all(abs(each.paused_ns - usual) <= ONE_LENGTH * usual for each in own)
    )
    return own if recurs else ()


def _loads_elsewhere(timeline: RankTimeline, pauses: Sequence[CostlyPause]) -> bool:
    """Return whether ranges in which batches are fetched were recorded, and none overlaps one of a rank's pauses."""
    notes = timeline.annotations
    loads = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    begin, end = notes.start_ns[loads], notes.end_ns[loads]
    return bool(begin.size) and not all(((begin < each.end_ns) & (end > each.start_ns)).any() for each in pauses)


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
    spans = timeline.spans
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
    first = np.flatnonzero(np.abs(begins_ns - pause.end_ns) <= COPIED_JUST_NS)[:1]
    if not (last.size and first.size):
        return False
    before, after = to_host[: last[0] + 1][::-1], to_device[first[0] :]
    names = {PINNED.search(timeline.names[spans.name[row]]) is not None for row in (before[0], after[0])}
    ratio = _row_ns(spans.start_ns[before], spans.end_ns[before]) / _row_ns(spans.start_ns[after], spans.end_ns[after])
    return len(names) == 1 and 1 / COPY_BACK_RATIO <= ratio <= COPY_BACK_RATIO


def _objects(run: Run, of_ranks: Mapping[int, Sequence[CostlyPause]]) -> bool:
    """Return whether most of several pauses follow a gather of Python objects."""
    follow = [
        follow_gathered_objects(run.ranks[rank], np.array([each.start_ns for each in own]))
        for rank, own in of_ranks.items()
    ]
    every = np.concatenate(follow)
    return every.size >= FEWEST_RECURRING and bool(every.mean() >= IN_MOST)


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
        names = before_first_runs(run.ranks[rank], alone, np.array([each.end_ns for each in own]))
        for each, name in zip(own, names, strict=True):
            if name is not None:
                first_runs[rank, name] = max(first_runs.get((rank, name), 0), each.paused_ns)
    if len(first_runs) < max(FEWEST_RECURRING, AT_ONE_PLACE * len(found)):
        return None
    return max(first_runs, key=first_runs.__getitem__)[1]


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
    if traits.objects:
        why = f"{OBJECTS}; else {why}"
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
    sets = list(ranks_by_step(found).values())
    return len(known) > 1 and common_place(found)[1] and sets != [] and all(ranks == set(known) for ranks in sets)
