"""Judge the priced times of two dry runs: draw by draw, as each draw of the constants holds for both."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.metrics import STEP_TIME
from overlapscope.analysis.structure.compare_structure import StructureComparison
from overlapscope.errors import InputError
from overlapscope.gate.comparable import PRICE, Mismatch
from overlapscope.gate.judge import MetricOutcome, MetricVerdict, OutcomeReason
from overlapscope.gate.policy import JUDGED, Policy
from overlapscope.timeline.columns import Floats
from overlapscope.whatif.pricing.result import INTERVAL, Constant, Interval, Prices

EXPOSED: Final = "exposed_comm_ns"
PRICED: Final = (STEP_TIME, EXPOSED)
"""Metrics that a price has."""
ALIKE: Final = 1e-3
"""Relative difference up to which constants count as the same: a fit meets its step within 1e-5."""
UNPRICED: Final = "no price"


class Time(msgspec.Struct, frozen=True):
    """A priced time of the job's step: its value, or None for a range, and its draws."""

    value_ns: float | None
    draws_ns: Floats

    @property
    def middle_ns(self) -> float:
        """The value; of a range the median of its draws."""
        return float(np.median(self.draws_ns)) if self.value_ns is None else self.value_ns


def prices_of(run: MeasuredRun, ranks: Sequence[int]) -> list[Prices]:
    """Return the prices of a dry run, one for each of `ranks`; empty where one of them has none.

    Raises InputError for a price that was not written by `dryrun`.
    """
    found = [run.prices.get(rank) for rank in ranks]
    return [] if None in found else [_read(each, run.name) for each in found]


def _read(price: object, name: str) -> Prices:
    try:
        found = msgspec.convert(price, Prices)
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: its price cannot be read ({error}); make the dry run again") from None
    if len(found.ranks) != 1 or len({_draws(each) for each in _times(found)}) > 1:
        raise InputError(f"{name}: its price is not that of one rank; make the dry run again")
    return found


def _times(price: Prices) -> list[Interval | None]:
    return [price.ranks[0].step, price.ranks[0].exposed_comm]


def _draws(time: Interval | None) -> int:
    return 0 if time is None else len(time.draws_ns)


def price_mismatch(base: Sequence[Prices], candidate: Sequence[Prices], *, allowed: bool) -> Mismatch | None:
    """Return in what two prices differ besides the step itself; None where they are priced alike, or neither is."""
    if not base and not candidate:
        return None
    ours, theirs = ([_words(each[0])] if each else [UNPRICED] for each in (base, candidate))
    if base and candidate:
        differ = _differing(base[0], candidate[0])
        ours, theirs = ([", ".join([*words, *more])] for words, more in zip((ours, theirs), differ, strict=True))
    return None if ours == theirs else Mismatch(key=PRICE, base=ours, candidate=theirs, allowed=allowed)


def _words(price: Prices) -> str:
    return f"{price.device} with {price.links} ({price.recipe})"


def _differing(base: Prices, candidate: Prices) -> tuple[list[str], list[str]]:
    """Return the constants that are not the same, in words."""
    known = [{each.name: each for each in side.constants} for side in (base, candidate)]
    names = [name for name in {**known[0], **known[1]} if not _alike(known[0].get(name), known[1].get(name))]
    ours, theirs = (
        [f"{name} {found.value:.4g}" if (found := side.get(name)) else f"no {name}" for name in names] for side in known
    )
    return ours, theirs


def _alike(one: Constant | None, other: Constant | None) -> bool:
    if one is None or other is None:
        return one is other
    same_range = (one.low, one.high) == (other.low, other.high)
    return same_range and math.isclose(one.value, other.value, rel_tol=ALIKE)


def judge_priced(
    base: Sequence[Prices], candidate: Sequence[Prices], structure: StructureComparison, policy: Policy
) -> list[MetricVerdict]:
    """Judge step time and exposed communication of two dry runs that are priced alike; those that gate come first.

    A difference counts from the policy's minimum on, where the 80 % interval of the draws' differences does not hold 0.
    Steps of another batch or sequence are not judged.
    """
    gating = [name for name in policy.metrics if name in PRICED]
    order = [*gating, *(name for name in PRICED if name not in gating)]
    times = [{name: _job_time(side, name) for name in PRICED} for side in (base, candidate)]
    return [_judged(name, times[0][name], times[1][name], structure, policy) for name in order]


def _job_time(ranks: Sequence[Prices], name: str) -> Time | None:
    """Return a time of the job: of its slowest rank, or exposed as a mean over ranks; None where a rank has none."""
    prices = [each.ranks[0] for each in ranks]
    found = [each.step if name == STEP_TIME else each.exposed_comm for each in prices]
    known = [each for each in found if each is not None and each.draws_ns]
    if len(known) < len(found):
        return None
    fold = np.max if name == STEP_TIME else np.mean
    values = [each.value_ns for each in known if each.value_ns is not None]
    draws = np.array([each.draws_ns for each in known], np.float64)
    return Time(float(fold(values)) if len(values) == len(known) else None, fold(draws, axis=0))


def _judged(
    name: str, base: Time | None, candidate: Time | None, structure: StructureComparison, policy: Policy
) -> MetricVerdict:
    definition = JUDGED[name]
    verdict: MetricOutcome = "not_applicable"
    reason: OutcomeReason = "missing"
    size = low = high = minimum = None
    if base is None or candidate is None:
        if base is not None or candidate is not None:
            reason = "missing_in_base" if base is None else "missing_in_candidate"
    elif structure.workload != 1.0:
        reason = "other_workload"
    else:
        size = candidate.middle_ns - base.middle_ns
        common = min(base.draws_ns.size, candidate.draws_ns.size)  # versions may draw more often, from the same seed
        low, high = np.quantile(candidate.draws_ns[:common] - base.draws_ns[:common], INTERVAL).tolist()
        low, high = min(low, size), max(high, size)
        minimum = max(policy.min_relative * base.middle_ns, float(policy.min_absolute_ns))
        reason = "within_interval" if low <= 0 <= high else "told"
        if abs(size) < minimum or size == 0:
            reason = "within_minimum"
        verdict = "unchanged" if reason == "within_minimum" else "inconclusive"
        if reason == "told":
            verdict = "regressed" if size > 0 else "improved"
    ours, theirs = (None if each is None else each.value_ns for each in (base, candidate))
    known = size is not None and ours is not None and theirs is not None
    return MetricVerdict(
        name=name, unit=definition.unit, better=definition.better, gates=name in policy.metrics, verdict=verdict,
        reason=reason, base=_whole(ours), candidate=_whole(theirs), difference=_whole(size) if known else None,
        relative=size / ours if known and size is not None and ours else None, base_runs=int(base is not None),
        candidate_runs=int(candidate is not None), minimum=minimum, test="priced", probability=None, low=low, high=high,
        floor=None, calibrated=None,
    )  # fmt: skip


def _whole(value_ns: float | None) -> int | None:
    return None if value_ns is None else round(value_ns)
