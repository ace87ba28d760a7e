"""Which rank computes longer in each step, where ranks wait for one now and for another then, on devices; and the rule
that says so where waiting is not the largest loss."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean, median
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import WORTH, RuleInput, ms, recommended
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.exposure.exposed_causes import each_causes
from overlapscope.analysis.result import WAITS_ITSELF, Recommendation, late_waits_ns
from overlapscope.analysis.stragglers.step_kernels import (
    LongerFamily,
    OfRank,
    does_the_same,
    had_more_work,
    kernels_of_steps,
    longer_family,
)
from overlapscope.display import list_some
from overlapscope.timeline.intervals import BusyTime, WindowSets

MOST_OF_IT: Final = 0.5
"""A rank explains a step's waiting that computes longer than its peers by this share of what they wait."""
IN_STEPS: Final = 0.75
"""Ranks explain it in this share of the steps in which others wait. A choice."""
ENOUGH_STEPS: Final = 3
FEWEST_STEPS: Final = 2
"""Of fewer than `ENOUGH_STEPS` ranks have to be seen to have had more work than their peers, in each: two devices may
each have been slower once."""
OF_RANKS: Final = 0.75
"""A step counts that is complete on this share of the ranks: recordings of some may begin or end a step apart."""
ATTENTION: Final = "attention"
"""As in `FAMILIES`."""
MOST_STEPS: Final = 8
"""In whose order ranks that are slower in turn are named."""
CLOCKS: Final = {"nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER  # clocks that fall, other processes"}
BATCHES: Final = {
    "torch": 'print(rank, step, batch["input_ids"].shape)  # sort samples by length, cap the tokens of a batch'
}
LENGTHS: Final = {
    "torch": "print(rank, step, (lengths**2).sum())  # attention takes the square of each document's length: even out "
    "this sum over ranks, not only tokens"
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


class _Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in which ranks are compared."""

    of: Mapping[int, Mapping[int, "_OfStep"]]
    """By step, then by rank."""
    windows: Mapping[int, Mapping[int, tuple[int, int]]]
    """By rank, then by step, in ns on its own clock; without steps that are cut short."""
    marked: bool = True
    """Whether their marks were recorded; else they are cycles of the optimizer."""
    in_part: tuple[int, ...] = ()
    """Those that were recorded in part."""

    @property
    def cut(self) -> list[int]:
        """Those that a rank recorded in part, or without their end."""
        return [step for step in self.of if any(step not in own for own in self.windows.values())]

    @property
    def ranks_of(self) -> Mapping[int, list[int]]:
        """By step, the ranks that recorded it."""
        return {step: list(of) for step, of in self.of.items()}


class SlowerInTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that compute longer than their peers, one in each step."""

    rank_of: Mapping[int, int]
    """By step, of those that it explains."""
    steps: int
    """All in which others wait."""
    same_work: bool | None
    """Whether its kernels are as many as its peers', by name, as large, and nearly all slower, in each of these steps;
    None where that is not known."""
    longer_in: LongerFamily | None
    """Where they had other work: the one family of kernels that it is in."""
    marked: bool
    """Whether steps are marked; else they are cycles of the optimizer, counted from 0."""
    in_part: tuple[int, ...]
    """Steps that were recorded in part."""
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
        known_from += f"; step {list_some(self.in_part)} was recorded in part" if self.in_part else ""
        if len(steps) > MOST_STEPS:
            return f"{rank_list({*self.rank_of.values()})}, in {len(steps)} of {self.steps} steps{known_from}"
        return f"ranks {', '.join(ranks)} in steps {', '.join(steps)}{known_from}"

    @property
    def which_work(self) -> str:
        """Words for the kernels that ranks had more work in; empty where these are not of one family."""
        if self.longer_in is None:
            return ""
        own, others = (f"{ms(least)} to {ms(most)}" for least, most in (self.longer_in.ns, self.longer_in.others_ns))
        return f"; {self.longer_in.family} takes {own} a step, depending on the rank, all other kernels {others}"

    @property
    def code(self) -> Mapping[str, str]:
        """What to type."""
        return LENGTHS if self.longer_in and self.longer_in.family == ATTENTION else WORDS[self.same_work][2]


def uneven_steps(given: RuleInput) -> Recommendation | None:
    """Recommend to even out what ranks compute in a step, where now this one and now that one computes longer."""
    found = slower_in_turn(given)
    if found is None or not given.is_worth(found.at_most_ns):
        return None
    what, does, _ = WORDS[found.same_work]
    each = "each step" if len(found.rank_of) == found.steps else f"{len(found.rank_of)} of {found.steps} steps"
    even = f"; even batches save at most {ms(found.evened_ns)}" if found.same_work is None else ""
    return recommended(
        given,
        id="uneven_steps",
        title=f"{what}: one rank {does} than its peers in {each}, now this one, now that one ({found.where})"
        f"{found.which_work}{even}",
        apply=found.code,
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
    most_of = {step: max(of, key=lambda rank: of[rank].compute_ns) for step, of in steps.items()}
    waits_of = {step: _peers_wait_ns(of, most_of[step]) for step, of in steps.items()}
    worth = [step for step, of in steps.items() if waits_of[step] >= WORTH * of[most_of[step]].window_ns]
    rank_of = {
        step: most_of[step]
        for step in worth
        if _as_recorded_ns(steps[step], most_of[step]) >= MOST_OF_IT * waits_of[step]
    }
    if len(rank_of) < max(IN_STEPS * len(worth), FEWEST_STEPS) or len(set(rank_of.values())) < 2:
        return None
    few = len(rank_of) < ENOUGH_STEPS or bool(known.in_part)
    if not few and any(_always(rank, steps) for rank in set(rank_of.values())):
        return None
    ran = kernels_of_steps(given.run, known.windows, sorted(set(rank_of.values())), known.cut if few else ())
    if few and (ran is None or not _is_seen(known, rank_of, ran)):
        return None
    same_work = None if ran is None else does_the_same(ran, known.ranks_of, rank_of)
    figures_of = 1 if known.marked else len(steps)
    whole = [step for step in steps if step not in known.in_part]
    bounds = [max(_longer_ns(steps[step], most_of[step]), waits_of[step] if step in rank_of else 0) for step in whole]
    evened = [_evened_ns(steps[step], most_of[step], waits=step in rank_of) for step in whole]
    return SlowerInTurn(
        rank_of=rank_of,
        steps=len(worth),
        same_work=same_work,
        longer_in=longer_family(ran, rank_of) if ran is not None and same_work is False else None,
        marked=known.marked,
        in_part=tuple(step for step in known.in_part if step in rank_of),
        at_most_ns=figures_of * fmean(evened if same_work is False else bounds),
        evened_ns=figures_of * fmean(evened),
    )


def _is_seen(known: _Steps, rank_of: Mapping[int, int], ran: Mapping[int, OfRank]) -> bool:
    """Return whether few steps show that what ranks compute differs: in each the rank had more work than its peers,
    which wait for it while it waits for next to none, and in the others it waits itself, for most of what they do."""
    peers_wait_ns = {step: _peers_wait_ns(known.of[step], most) for step, most in rank_of.items()}
    for step, rank in rank_of.items():
        if known.of[step][rank].waits_ns > WAITS_ITSELF * peers_wait_ns[step]:
            return False
        others = [at for at, other in rank_of.items() if other != rank and rank in known.of[at]]
        if any(known.of[at][rank].waits_ns < MOST_OF_IT * peers_wait_ns[at] for at in others) or not others:
            return False
        if not had_more_work(ran, step, rank):
            return False
    return True


def _peers_wait_ns(of: Mapping[int, "_OfStep"], most: int) -> float:
    return median(each.waits_ns for rank, each in of.items() if rank != most)


def _as_recorded_ns(of: Mapping[int, "_OfStep"], most: int) -> float:
    return of[most].compute_ns - median(each.compute_ns for rank, each in of.items() if rank != most)


def _evened_ns(of: Mapping[int, "_OfStep"], most: int, *, waits: bool) -> float:
    """Return how much shorter a step gets, at most, if its ranks compute for as long as their mean: by what the one
    that computes longest does beyond it, or, where the others wait for that, by what all wait in the mean."""
    beyond_ns = of[most].alone_ns - fmean(each.alone_ns for each in of.values())
    return max(beyond_ns, fmean(each.waits_ns for each in of.values()) if waits else 0.0)


def _longer_ns(of: Mapping[int, "_OfStep"], most: int) -> float:
    """Return how much longer a rank computes in a step than the median of its peers: as recorded, or without what
    communication beside it slows, whichever is more."""
    alone_ns = median(each.alone_ns for rank, each in of.items() if rank != most)
    return max(_as_recorded_ns(of, most), of[most].alone_ns - alone_ns)


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
    """Return the figures of each rank in each step that is complete on nearly all (`OF_RANKS`); beside one step alone
    in those, too, that all recorded in part."""
    whole, parts = (
        {
            info.rank: {
                each.step: _OfStep(
                    each.window_ns or 0, each.compute_ns or 0, late_waits_ns(each), each.interference_ns or 0
                )
                for each in info.steps
                if each.complete is complete
            }
            for info in given.analysis.ranks
        }
        for complete in (True, False)
    )
    of = _common(whole, max(OF_RANKS * len(whole), 2))
    in_part = _common(parts, len(parts)) if len(of) == 1 else {}
    added = {step: its for step, its in in_part.items() if not any(step in own for own in whole.values())}
    return _Steps(
        of=dict(sorted((of | added).items())),
        windows={rank: dict(zip(given.numbers[rank], own, strict=True)) for rank, own in given.windows.items()},
        in_part=tuple(added),
    )


def _common(of_ranks: Mapping[int, Mapping[int, "_OfStep"]], fewest: float) -> dict[int, dict[int, "_OfStep"]]:
    """Return by step, then by rank, the figures of steps that at least so many ranks have."""
    ranks_of = Counter(step for own in of_ranks.values() for step in own)
    common = sorted(step for step, ranks in ranks_of.items() if ranks >= fewest)
    return {step: {rank: own[step] for rank, own in of_ranks.items() if step in own} for step in common}
