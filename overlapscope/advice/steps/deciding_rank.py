"""How much of a step's exposed communication is of the rank that decides how long the step takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.advice.rule_input import RuleInput, ms
from overlapscope.analysis.job_step.headline import left_out
from overlapscope.analysis.result import Recommendation, StepBreakdown

MUCH_LESS: Final = 0.5
"""What the rank that computes longest is exposed is said, and bounds what less communication gains, where it is less
than this share of the mean over ranks. A choice: ranks that compute alike differ by chance."""
DECIDING_NS: Final = "deciding_ns"
"""In the evidence: what that is, and, where it is one rank in every step, ..."""
DECIDING_RANK: Final = "deciding_rank"
"""... that rank."""
BOUNDED: Final = (
    "for how long the rank that computes longest in each step is exposed, by which a step gets shorter at most"
)
FEWEST: Final = 2
"""Ranks, and steps, so that one may decide and another wait."""
WAITS_FOR_IT: Final = 0.5
"""A rank is named that computes longest in every usual step, longer than the median of its peers by this share, or
more, of what the mean rank is exposed beyond it: they wait for that. A choice, as for ranks that are slower in turn."""


class Deciding(msgspec.Struct, frozen=True, kw_only=True):
    """The rank of each step that computes longest; figures are means over the usual steps, in ns."""

    exposed_ns: float
    """For how long it is exposed."""
    rank: int | None = None
    """Where it is the same in every step, and its peers wait for it."""
    longer_ns: float = 0.0
    """How much longer than the median of its peers that one computes."""
    is_whole: bool = True
    """Whether all ranks were recorded; else another one may decide, and be exposed for less."""

    @property
    def words(self) -> str:
        """Words for a title."""
        exposed = f"{ms(self.exposed_ns)} of it"
        if self.rank is not None:
            return (
                f"; rank {self.rank} computes longest in each step, {ms(self.longer_ns)} longer than the median of the "
                f"others, which wait for it, and has {exposed}"
            )
        of_recorded = "which decides" if self.is_whole else "of those recorded"
        return f"; on the rank that computes longest in each step, {of_recorded}, {exposed}"


def deciding(given: RuleInput) -> Deciding | None:
    """Return the rank that computes longest in a step, where it is exposed for far less than the mean over ranks
    (`MUCH_LESS`), over the usual steps; None elsewhere.

    Without any exposed communication a step takes no less than that rank computes: the others only wait for it then.
    So it is beside ranks that were not recorded, too.
    """
    head = given.analysis.headline
    if not given.run_has_device or given.per != "step":
        return None
    without = left_out(head)
    by_step: dict[tuple[int, int], dict[int, StepBreakdown]] = {}
    for info in given.analysis.ranks:
        seen = Counter[int]()  # recordings of a rank may use a number again
        for each in info.steps:
            if each.complete and each.step not in without and each.compute_ns is not None:
                by_step.setdefault((each.step, seen[each.step]), {})[info.rank] = each
                seen[each.step] += 1
    steps = [of for of in by_step.values() if len(of) == len(given.analysis.ranks) >= FEWEST]
    if len(steps) < FEWEST:
        return None
    most_of = [max(of, key=lambda rank: of[rank].compute_ns or 0) for of in steps]
    exposed_ns = fmean(_exposed_ns(of[most]) for of, most in zip(steps, most_of, strict=True))
    mean_ns = fmean(_exposed_ns(each) for of in steps for each in of.values())
    if exposed_ns >= MUCH_LESS * mean_ns:
        return None
    found = Deciding(exposed_ns=exposed_ns, is_whole=given.is_whole)
    longer_ns = min(_longer_ns(of, most_of[0]) for of in steps)
    if len(set(most_of)) > 1 or longer_ns < WAITS_FOR_IT * (mean_ns - exposed_ns):
        return found
    return replace(found, rank=most_of[0], longer_ns=fmean(_longer_ns(of, most_of[0]) for of in steps))


def _longer_ns(of: Mapping[int, StepBreakdown], most: int) -> float:
    """Return how much longer than the median of its peers a rank computes in a step."""
    return (of[most].compute_ns or 0) - median(each.compute_ns or 0 for rank, each in of.items() if rank != most)


def with_deciding_bound(
    settings: Sequence[Recommendation], given: RuleInput, of_exposed: frozenset[str]
) -> list[Recommendation]:
    """Return recommendations, those that shorten exposed communication (`of_exposed`) with what the rank that decides
    is exposed as their bound; without those that are not worth it then."""
    decides = deciding(given)
    ns = None if decides is None else decides.exposed_ns
    found = []
    for each in settings:
        if ns is None or each.id not in of_exposed or each.gain_high_ns is None or each.per != given.per:
            found.append(each)
            continue
        bound = min(round(ns), each.gain_high_ns)
        if given.is_worth(bound):
            lost = None if each.loss_ns is None else min(round(ns), each.loss_ns)
            said = [*each.measured, *[BOUNDED] * (bound != each.gain_high_ns)]
            found.append(replace(each, gain_high_ns=bound, loss_ns=lost, measured=said))
    return found


def _exposed_ns(step: StepBreakdown) -> int:
    return step.exposed_comm_ns or 0
