"""Which rank computes longer in each step, where ranks wait for one now and for another then, on devices; and the rule
that says so where waiting is not the largest loss."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import MOST_RANKS, WORTH, RuleInput, ms, recommended
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.exposure.exposed_causes import each_causes
from overlapscope.analysis.per_rank.kernels import LARGER
from overlapscope.analysis.result import Recommendation, late_waits_ns
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.intervals import BusyTime, WindowSets
from overlapscope.timeline.run import RankTimeline

MOST_OF_IT: Final = 0.5
"""A rank explains a step's waiting that computes longer than its peers by this share of what they wait."""
IN_STEPS: Final = 0.75
"""Ranks explain it in this share of the steps in which others wait. A choice."""
FEWEST_STEPS: Final = 3
OF_RANKS: Final = 0.75
"""A step counts that is complete on this share of the ranks: recordings of some may begin or end a step apart."""
SLOWER_TOO: Final = 0.5
"""A kernel is slower as its device is if it takes longer than its peers' by this share of what all of them do. A
choice: those that wait for memory slow down less with a lower clock."""
ALL_KINDS: Final = 0.85
"""A device does the same work slower where kernels with this share of the compute time are ..."""
FEW_KINDS: Final = 0.5
"""... and other work, where those with less than this share are: attention takes longer on longer documents, on grids
of the same size, and products of as many tokens do not."""
MOST_STEPS: Final = 8
"""In whose order ranks that are slower in turn are named."""
CLOCKS: Final = {"nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER  # clocks that fall, other processes"}
BATCHES: Final = {
    "torch": 'print(rank, step, batch["input_ids"].shape)  # sort samples by length, cap the tokens of a batch'
}
WORDS: Final[Mapping[bool | None, tuple[str, str, Mapping[str, str]]]] = {
    True: ("Find why devices are slower in turn", "does the same work slower", CLOCKS),
    False: ("Even out batches", "computes longer", BATCHES),
    None: ("Find why ranks compute longer in turn", "computes longer", BATCHES | CLOCKS),
}
"""What to do, what a rank does, and the code for it: by whether it did the same work."""
NO_LONGER: Final = "that no rank need compute longer than its peers: the gain is an upper bound"
UNSEEN: Final = "that ranks which were not recorded compute no longer than these"
NOT_MARKED: Final = "by the optimizer's kernels: steps are not marked"


class _Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a step."""

    counts: Mapping[str, int]
    """By name."""
    times_ns: Mapping[str, int]
    """In all, by name."""
    blocks: int
    """In all their grids: the size of their work."""


class _Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in which ranks are compared."""

    of: Mapping[int, Mapping[int, "_OfStep"]]
    """By step, then by rank."""
    windows: Mapping[int, Mapping[int, tuple[int, int]]]
    """By rank, then by step, in ns on its own clock; without steps that are cut short."""
    marked: bool = True
    """Whether their marks were recorded; else they are cycles of the optimizer."""


class SlowerInTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that compute longer than their peers, one in each step."""

    rank_of: Mapping[int, int]
    """By step, of those that it explains."""
    steps: int
    """All in which others wait."""
    same_work: bool | None
    """Whether its kernels are as many as its peers', by name, as large, and nearly all slower, in each of these steps;
    None where that is not known."""
    marked: bool
    """Whether steps are marked; else they are cycles of the optimizer, counted from 0."""
    at_most_ns: float
    """How much shorter the mean step, or a recording without marks of steps, gets, at most, if no rank computes longer:
    nor do peers then compute beside calls in which they wait."""
    evened_ns: float
    """The same if batches are why: evened out, each of these ranks computes as long as their mean."""

    def assumed(self, *, is_whole: bool) -> list[str]:
        """Words on what the bound assumes; `is_whole` tells whether all ranks of the job were recorded."""
        found = [NO_LONGER]
        if self.same_work is None:
            found.append(f"that devices differ: if batches do, even ones save at most {ms(self.evened_ns)}")
        return found if is_whole else [*found, UNSEEN]

    @property
    def where(self) -> str:
        """Words for the ranks and their steps."""
        steps, ranks = ([str(each) for each in those] for those in (self.rank_of, self.rank_of.values()))
        known_from = "" if self.marked else f", {NOT_MARKED}"
        if len(steps) > MOST_STEPS:
            return f"{rank_list({*self.rank_of.values()})}, in {len(steps)} of {self.steps} steps{known_from}"
        return f"ranks {', '.join(ranks)} in steps {', '.join(steps)}{known_from}"


def uneven_steps(given: RuleInput) -> Recommendation | None:
    """Recommend to even out what ranks compute in a step, where now this one and now that one computes longer."""
    found = slower_in_turn(given)
    if found is None or not given.is_worth(found.at_most_ns):
        return None
    what, does, code = WORDS[found.same_work]
    each = "each step" if len(found.rank_of) == found.steps else f"{len(found.rank_of)} of {found.steps} steps"
    even = f"; even batches save at most {ms(found.evened_ns)}" if found.same_work is None else ""
    return recommended(
        given,
        id="uneven_steps",
        title=f"{what}: one rank {does} than its peers in {each}, now this one, now that one ({found.where}){even}",
        apply=code,
        evidence={
            "rank_of_step": {str(step): rank for step, rank in found.rank_of.items()}, "steps": found.steps,
            "same_work": found.same_work,
        },
        at_most_ns=found.at_most_ns,
        measured=["how much longer than the median of its peers a rank computed in each step"],
        assumed=found.assumed(is_whole=given.is_whole),
    )  # fmt: skip


def slower_in_turn(given: RuleInput) -> SlowerInTurn | None:
    """Return the ranks that compute longer, in turn, than the median of their peers, by most of what these wait.

    None where that explains few of the steps, and without devices or several ranks.
    """
    if not given.run_has_device or len(given.analysis.ranks) < 2:
        return None
    known = _marked_steps(given) if given.per == "step" else _implied_steps(given)
    steps = known.of
    if len(steps) < FEWEST_STEPS:
        return None
    rank_of, waited, most_of = {}, 0, {}
    for step, of in steps.items():
        most = max(of, key=lambda rank: of[rank].compute_ns)
        peers = [each for rank, each in of.items() if rank != most]
        longer_ns = of[most].compute_ns - median(each.compute_ns for each in peers)
        waits_ns = median(each.waits_ns for each in peers)
        worth = waits_ns >= WORTH * of[most].window_ns
        waited += worth
        if worth and longer_ns >= MOST_OF_IT * waits_ns:
            rank_of[step] = most
        most_of[step] = most, (waits_ns if step in rank_of else 0)
    if len(rank_of) < max(IN_STEPS * waited, FEWEST_STEPS) or len(set(rank_of.values())) < 2:
        return None
    if any(_always(rank, steps) for rank in set(rank_of.values())):
        return None
    same_work = _do_the_same(given, known, rank_of)
    figures_of = 1 if known.marked else len(steps)
    bounds = [max(_longer_ns(steps[step], most), waits_ns) for step, (most, waits_ns) in most_of.items()]
    evened = [_evened_ns(steps[step], most, waits=step in rank_of) for step, (most, _) in most_of.items()]
    return SlowerInTurn(
        rank_of=rank_of,
        steps=waited,
        same_work=same_work,
        marked=known.marked,
        at_most_ns=figures_of * fmean(evened if same_work is False else bounds),
        evened_ns=figures_of * fmean(evened),
    )


def _evened_ns(of: Mapping[int, "_OfStep"], most: int, *, waits: bool) -> float:
    """Return how much shorter a step gets, at most, if its ranks compute for as long as their mean: by what the one
    that computes longest does beyond it, or, where the others wait for that, by what all wait in the mean."""
    beyond_ns = of[most].alone_ns - fmean(each.alone_ns for each in of.values())
    return max(beyond_ns, fmean(each.waits_ns for each in of.values()) if waits else 0.0)


def _longer_ns(of: Mapping[int, "_OfStep"], most: int) -> float:
    """Return how much longer a rank computes in a step than the median of its peers: as recorded, or without what
    communication beside it slows, whichever is more."""
    peers = [each for rank, each in of.items() if rank != most]
    return max(
        of[most].compute_ns - median(each.compute_ns for each in peers),
        of[most].alone_ns - median(each.alone_ns for each in peers),
    )


def _always(rank: int, steps: Mapping[int, Mapping[int, "_OfStep"]]) -> bool:
    """Return whether a rank computes longer than the median in most steps, by about as much: it has another role, such
    as the last stage of a pipeline, and is longest now before, now after others of that role."""
    own = [of for of in steps.values() if rank in of]
    longer = [of[rank].compute_ns - median(each.compute_ns for each in of.values()) for of in own]
    most = max(longer)
    return sum(each >= MOST_OF_IT * most > 0 for each in longer) >= IN_STEPS * len(longer)


class _OfStep(msgspec.Struct, frozen=True):
    window_ns: int
    compute_ns: int
    waits_ns: int
    slowed_ns: int = 0
    """By how much its compute is longer for communication beside it, where that is known."""

    @property
    def alone_ns(self) -> int:
        return self.compute_ns - self.slowed_ns


def _implied_steps(given: RuleInput) -> _Steps:
    """Return the figures of each rank in each cycle of the optimizer, where steps are not marked; what communication
    slows is not known of these."""
    cycles = given.optimizer_cycles
    if not cycles or cycles.keys() != given.coverage.keys():
        return _Steps(of={}, windows={}, marked=False)
    of_ranks = {}
    for rank, causes in each_causes(given.run, given.cross_rank, given.coverage, given.parts, given.transfers):
        sets = WindowSets.of([[window] for window in cycles[rank]])
        waits = np.sum([sets.within(causes.busy[cause]) for cause in WAITS_FOR_LATE_RANK], axis=0).tolist()
        computed = sets.within(BusyTime(given.coverage[rank].compute))
        of_ranks[rank] = [_OfStep(*each) for each in zip(sets.lengths, computed, waits, strict=True)]
    steps = range(len(next(iter(cycles.values()))))
    return _Steps(
        of={step: {rank: own[step] for rank, own in of_ranks.items()} for step in steps},
        windows={rank: dict(enumerate(own)) for rank, own in cycles.items()},
        marked=False,
    )


def _marked_steps(given: RuleInput) -> _Steps:
    """Return the figures of each rank in each step that is complete on nearly all (`OF_RANKS`)."""
    of_ranks = {
        info.rank: {
            each.step: _OfStep(
                each.window_ns or 0, each.compute_ns or 0, late_waits_ns(each), each.interference_ns or 0
            )
            for each in info.steps
            if each.complete
        }
        for info in given.analysis.ranks
    }
    ranks_of = Counter(step for own in of_ranks.values() for step in own)
    common = sorted(step for step, ranks in ranks_of.items() if ranks >= max(OF_RANKS * len(of_ranks), 2))
    return _Steps(
        of={step: {rank: own[step] for rank, own in of_ranks.items() if step in own} for step in common},
        windows={rank: dict(zip(given.numbers[rank], own, strict=True)) for rank, own in given.windows.items()},
    )


def _do_the_same(given: RuleInput, known: _Steps, rank_of: Mapping[int, int]) -> bool | None:
    """Return whether each of these ranks ran as many kernels of each name as its peers then did, on no larger grids,
    nearly all of them slower; False where few are. None between the two, where a grid, or what a peer ran in a step
    that it recorded completely, is not known, and of many ranks, which are not looked at."""
    ranks = given.analysis.ranks
    if len(ranks) > MOST_RANKS:
        return None
    ran = {info.rank: _kernels(given, info.rank, known.windows.get(info.rank, {})) for info in ranks}
    slower: list[float] = []
    for step, slow in rank_of.items():
        if step not in known.windows.get(slow, {step}):
            continue  # it is cut short
        own = ran[slow].get(step)
        peers = [each.get(step) for rank, each in ran.items() if rank != slow and rank in known.of[step]]
        theirs = [each for each in peers if each is not None]
        if own is None or not theirs or len(theirs) < len(peers):
            return None
        larger = own.blocks > LARGER * median(each.blocks for each in theirs)
        if larger or any(each.counts != own.counts for each in theirs):
            return False
        slower.append(_slower_share(own, theirs))
    if not slower:
        return None
    return True if min(slower) >= ALL_KINDS else False if median(slower) < FEW_KINDS else None


def _slower_share(own: _Kernels, peers: Sequence[_Kernels]) -> float:
    """Return the share of the compute time in kernels of names that take longer than the median of the peers'."""
    usual = {name: median(each.times_ns[name] for each in peers) for name in own.times_ns}
    all_ns = max(sum(usual.values()), 1)
    least = 1 + SLOWER_TOO * max(sum(own.times_ns.values()) / all_ns - 1, 0)
    return sum(ns for name, ns in usual.items() if own.times_ns[name] >= least * ns) / all_ns


def _kernels(given: RuleInput, rank: int, windows: Mapping[int, tuple[int, int]]) -> dict[int, _Kernels | None]:
    """Return the kernels that began in each step of a rank; None without any, or where a grid is not known."""
    timeline = given.run.ranks[rank].at_hand() if windows else None
    return {} if timeline is None else {step: _kernels_in(timeline, *window) for step, window in windows.items()}


def _kernels_in(timeline: RankTimeline, start_ns: int, end_ns: int) -> _Kernels | None:
    spans = timeline.spans
    rows = (spans.kind == COMPUTE) & (spans.start_ns >= start_ns) & (spans.start_ns < end_ns)
    if not rows.any() or (spans.blocks[rows] == NONE).any():
        return None
    codes, at = np.unique(spans.name[rows], return_inverse=True)
    names = [timeline.name(code) or "" for code in codes.tolist()]
    lasted = np.bincount(at, spans.end_ns[rows] - spans.start_ns[rows]).astype(np.int64)
    return _Kernels(
        counts=dict(zip(names, np.bincount(at).tolist(), strict=True)),
        times_ns=dict(zip(names, lasted.tolist(), strict=True)),
        blocks=int(spans.blocks[rows].sum()),
    )
