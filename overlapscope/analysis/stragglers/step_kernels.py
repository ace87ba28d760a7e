"""What ranks computed in steps, by kernel: whether those that computed longer than their peers did the same work slower
or had more of it, and in which family of kernels."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.kernel_families import OTHER, family_of
from overlapscope.analysis.per_rank.kernels import LARGER
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.run import RankTimeline, Run

MOST_RANKS: Final = 8
"""Limit on the ranks whose spans are read."""
SLOWER_TOO: Final = 0.5
"""A kernel is slower as its device is if it takes longer than its peers' by this share of what all of them do. A
choice: those that wait for memory slow down less with a lower clock."""
ALL_KINDS: Final = 0.85
"""A device does the same work slower where kernels with this share of the compute time are ..."""
FEW_KINDS: Final = 0.5
"""... and other work, where those with less than this share are: attention takes longer on longer documents, on grids
of the same size, and products of as many tokens do not."""
MOST_OF_IT: Final = 0.5
"""More work explains that a rank computes longer where its grids are larger by this share of that; and one kernel does
where it alone takes so much of it longer."""
ALIKE: Final = 0.25
"""All other kernels are alike where they differ from the peers' by this share of what one family takes longer. A
choice: what overlaps them slows them, now more, now less."""


class StepKernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a step."""

    counts: Mapping[str, int]
    """By name."""
    times_ns: Mapping[str, int]
    """In all, by name."""
    blocks: int
    """In all their grids: the size of their work."""
    longest_ns: int
    """The longest one."""

    def family_ns(self, family: str) -> int:
        """Return how long the kernels of a family ran."""
        return sum(ns for name, ns in self.times_ns.items() if family_of(name) == family)

    @property
    def all_ns(self) -> int:
        """How long all ran; beside each other each counts."""
        return sum(self.times_ns.values())


OfRank = Mapping[int, StepKernels | None]
"""The kernels of a rank by step, without steps that are cut short; None without any, or where a grid is not known."""


class LongerFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family of kernels that ranks ran longer, where their other kernels ran as long as their peers'; over ranks and
    steps."""

    family: str
    ns: tuple[int, int]
    """The shortest and the longest time of a rank in a step, ..."""
    others_ns: tuple[int, int]
    """... and so of all other kernels."""


def kernels_of_steps(
    run: Run, windows: Mapping[int, Mapping[int, tuple[int, int]]], slow: Sequence[int], cut: Sequence[int]
) -> dict[int, OfRank] | None:
    """Return the kernels of the `slow` ranks and of others, `MOST_RANKS` at most, in their steps, and in those `cut`
    ones that `windows` lacks; None where so many are slow."""
    others = [rank for rank in run.ranks if rank not in slow]
    left = MOST_RANKS - len(slow)
    if len(others) > left:
        if left < 1:
            return None
        others = others[:: -(-len(others) // left)]
    return {rank: _kernels(run, rank, windows.get(rank, {}), cut) for rank in sorted([*slow, *others])}


def does_the_same(
    ran: Mapping[int, OfRank], recorded: Mapping[int, Sequence[int]], rank_of: Mapping[int, int]
) -> bool | None:
    """Return whether the rank of each step ran as many kernels of each name as its peers then did, on no larger grids,
    nearly all of them slower; False where few are. None between the two, and where a grid, or what a peer ran in a step
    that it recorded, is not known. `recorded` holds the ranks of each step."""
    slower: list[float] = []
    for step, slow in rank_of.items():
        if ran[slow] and step not in ran[slow]:
            continue  # it is cut short
        own = ran[slow].get(step)
        peers = [each.get(step) for rank, each in ran.items() if rank != slow and rank in recorded[step]]
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


def had_more_work(ran: Mapping[int, OfRank], step: int, slow: int) -> bool:
    """Return whether a single step shows that a rank had more work than its peers: all ran as many kernels of each name
    (of a step without its end, the same part), and it computed longer by more than one kernel, which may have been held
    up, on grids that are larger by most of that, or in few kinds of kernels."""
    own = ran[slow].get(step)
    others = [each.get(step) for rank, each in ran.items() if rank != slow]
    peers = [each for each in others if each is not None]
    if own is None or len(peers) < len(others) or any(each.counts != own.counts for each in peers):
        return False
    usual_ns = median(each.all_ns for each in peers)
    longest_ns = own.longest_ns - median(each.longest_ns for each in peers)
    if longest_ns > MOST_OF_IT * (own.all_ns - usual_ns):
        return False
    larger = own.blocks / median(each.blocks for each in peers)
    explained = max(1 + MOST_OF_IT * (own.all_ns / max(usual_ns, 1) - 1), LARGER)
    return larger >= explained or _slower_share(own, peers) < FEW_KINDS


def longer_family(ran: Mapping[int, OfRank], rank_of: Mapping[int, int]) -> LongerFamily | None:
    """Return the family of kernels that the rank of each step ran longer than the median of its peers, where its other
    kernels ran as long as theirs; None where there is none, or kernels are not known."""
    known = {step: {rank: its for rank, each in ran.items() if (its := each.get(step)) is not None} for step in rank_of}
    if any(slow not in known[step] or len(known[step]) < 2 for step, slow in rank_of.items()):
        return None
    families = {_longest_longer(known[step], slow) for step, slow in rank_of.items()}
    family = families.pop()
    if family is None or families:
        return None
    every = [each for of in known.values() for each in of.values()]
    own = [each.family_ns(family) for each in every]
    others = [each.all_ns - ns for each, ns in zip(every, own, strict=True)]
    return LongerFamily(family=family, ns=(min(own), max(own)), others_ns=(min(others), max(others)))


def _longest_longer(of: Mapping[int, StepKernels], slow: int) -> str | None:
    """Return the family that a rank ran longer than the median of its peers by most, where its other kernels,
    most of the compute, are alike."""
    peers = [each for rank, each in of.items() if rank != slow]
    longer = {
        family: of[slow].family_ns(family) - median(each.family_ns(family) for each in peers)
        for family in {family_of(name) for name in of[slow].times_ns} - {OTHER}
    }
    most = max(sorted(longer), key=longer.__getitem__, default=None)
    if most is None:
        return None
    rest_ns = of[slow].all_ns - of[slow].family_ns(most)
    usual_ns = median(each.all_ns - each.family_ns(most) for each in peers)
    mostly_others = usual_ns >= (1 - FEW_KINDS) * median(each.all_ns for each in peers)
    return most if mostly_others and abs(rest_ns - usual_ns) <= ALIKE * longer[most] else None


def _slower_share(own: StepKernels, peers: Sequence[StepKernels]) -> float:
    """Return the share of the compute time in kernels of names that take longer than the median of the peers'."""
    usual = {name: median(each.times_ns[name] for each in peers) for name in own.times_ns}
    all_ns = max(sum(usual.values()), 1)
    least = 1 + SLOWER_TOO * max(own.all_ns / all_ns - 1, 0)
    return sum(ns for name, ns in usual.items() if own.times_ns[name] >= least * ns) / all_ns


def _kernels(
    run: Run, rank: int, windows: Mapping[int, tuple[int, int]], cut: Sequence[int]
) -> dict[int, StepKernels | None]:
    """Return the kernels that began in each step of a rank."""
    timeline = run.ranks[rank].at_hand() if windows else None
    if timeline is None:
        return {}
    every = step_windows(timeline) if cut else []
    added = {each.step: each.window for each in every if each.step in cut and each.window is not None}
    return {step: _kernels_in(timeline, *window) for step, window in (added | dict(windows)).items()}


def _kernels_in(timeline: RankTimeline, start_ns: int, end_ns: int) -> StepKernels | None:
    spans = timeline.spans
    rows = (spans.kind == COMPUTE) & (spans.start_ns >= start_ns) & (spans.start_ns < end_ns)
    if not rows.any() or (spans.blocks[rows] == NONE).any():
        return None
    codes, at = np.unique(spans.name[rows], return_inverse=True)
    names = [timeline.name(code) or "" for code in codes.tolist()]
    each_ns = spans.end_ns[rows] - spans.start_ns[rows]
    lasted = np.bincount(at, each_ns).astype(np.int64)
    return StepKernels(
        counts=dict(zip(names, np.bincount(at).tolist(), strict=True)),
        times_ns=dict(zip(names, lasted.tolist(), strict=True)),
        blocks=int(spans.blocks[rows].sum()),
        longest_ns=int(each_ns.max()),
    )
