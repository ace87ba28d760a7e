"""Judge two sides by a policy (`overlapscope.gate/1`): a verdict for each metric, one overall, and its exit code."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from overlapscope.analysis.compare.compare import Comparison, common_steps, compare
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.metrics import Metric, Unit
from overlapscope.analysis.structure.compare_structure import StructureComparison
from overlapscope.analysis.structure.kinds import StructureChange
from overlapscope.gate.calibrate import NoiseFloor
from overlapscope.gate.comparable import JOB, PRICE, Mismatch, mismatches, unknown_keys
from overlapscope.gate.judge import MetricVerdict, judge_metrics
from overlapscope.gate.policy import INCONCLUSIVE, JUDGED, Policy, StructurePolicy
from overlapscope.gate.priced import judge_priced, price_mismatch, prices_of

SCHEMA: Literal["overlapscope.gate/1"] = "overlapscope.gate/1"
GateOutcome = Literal["passed", "regressed", "inconclusive", "missing", "not_comparable"]
_EXIT_CODES: dict[GateOutcome, int] = {"passed": 0, "regressed": 1, "missing": 3, "not_comparable": 3}
INCONCLUSIVE_CODE = 4
ONE_SIDED: Final = ("missing_in_base", "missing_in_candidate")


class BudgetVerdict(msgspec.Struct, kw_only=True, frozen=True):
    """An absolute limit on the candidate."""

    name: str
    unit: Unit
    limit: float
    at_least: bool
    """Whether the limit is a lower limit, because more is better."""
    value: int | float | None
    kept: bool | None
    """Null where the value is not known."""


class Gate(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.gate/1`. Missing is null."""

    schema_: Literal["overlapscope.gate/1"] = SCHEMA
    verdict: GateOutcome
    """`missing`: a gating metric is not known on one side, or no gating metric is known on both."""
    exit_code: int
    metrics: list[MetricVerdict]
    """Gating metrics first; empty where the runs are not comparable."""
    budgets: list[BudgetVerdict]
    mismatches: list[Mismatch]
    unknown_keys: list[str]
    """Keys of the job that only one side has recorded, so that it is not known whether they differ."""
    floor_runs: int | None
    """Number of runs of the noise calibration; null where the default was used."""
    floor_differs: list[str]
    """Keys in which the calibration runs differ from these runs."""
    alpha: float
    comparison: Comparison
    failed_changes: list[int] = []
    """Differences between dry runs that fail the gate, as positions in `comparison.structure.changes`."""


def judge(
    base: Sequence[MeasuredRun],
    candidate: Sequence[MeasuredRun],
    policy: Policy,
    floor: NoiseFloor | None = None,
    left_out: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Gate:
    """Judge a candidate against a base; each side is one run or several of the same code.

    `left_out` has for each side why runs could not be read.
    """
    chosen = common_steps(base, candidate)
    comparison = compare(base, candidate, chosen, left_out)
    differ = mismatches(base, candidate, comparison, policy.allow_mismatch)
    comparable = all(each.allowed for each in differ)
    metrics, budgets, failed = list[MetricVerdict](), list[BudgetVerdict](), list[int]()
    structure = comparison.structure
    if comparable and structure is not None:
        failed = failing(structure, policy.structure)
        ours, theirs = (prices_of(side[0], structure.ranks) for side in (base, candidate))
        otherwise = price_mismatch(ours, theirs, allowed=PRICE in policy.allow_mismatch)
        differ += [] if otherwise is None else [otherwise]
        unlike = otherwise is not None and not otherwise.allowed
        comparable = bool(failed) or not (structure.not_comparable or unlike)
        if ours and theirs and not unlike:
            metrics = judge_priced(ours, theirs, structure, policy)
        budgets = [_budget(name, limit, comparison.metrics) for name, limit in policy.budgets.items()]
    elif comparable:
        metrics = judge_metrics(comparison.metrics, chosen.tables, policy, floor)
        budgets = [_budget(name, limit, comparison.metrics) for name, limit in policy.budgets.items()]
    verdict: GateOutcome = "not_comparable"
    if comparable:
        verdict = _of_dry_runs(failed, metrics, budgets) if structure is not None else _whole(metrics, budgets)
    return Gate(
        verdict=verdict,
        exit_code=_exit_code(verdict, metrics, policy),
        metrics=metrics,
        budgets=budgets,
        mismatches=differ,
        unknown_keys=unknown_keys(base, candidate),
        floor_runs=None if floor is None else len(floor.runs),
        floor_differs=[] if floor is None else _other_job(floor, base),
        alpha=policy.alpha,
        comparison=comparison,
        failed_changes=failed,
    )


def failing(structure: StructureComparison, policy: StructurePolicy) -> list[int]:
    """Return which differences of two dry runs fail the gate, as positions in their list."""
    return [at for at, each in enumerate(structure.changes) if each.kind in policy.fail and _grew(each, policy)]


def _grew(change: StructureChange, policy: StructurePolicy) -> bool:
    """Return whether a difference is larger than the policy allows; those that are no growth always are."""
    allowed = {
        "bytes_grew": policy.max_bytes_growth,
        "memory_grew": policy.max_memory_growth,
        "flops_grew": policy.max_flops_growth,
    }.get(change.kind)
    if allowed is None or not change.base or change.candidate is None:
        return True
    return change.candidate - change.base > allowed * change.base


def _of_dry_runs(
    failed: Sequence[int], metrics: Sequence[MetricVerdict], budgets: Sequence[BudgetVerdict]
) -> GateOutcome:
    """Return the verdict on structure and prices; dry runs without a price pass by their structure alone."""
    if failed:
        return "regressed"
    known = any(each.gates and each.verdict != "not_applicable" for each in metrics)
    one_sided = any(each.gates and each.reason in ONE_SIDED for each in metrics)
    return _whole(metrics, budgets) if known or one_sided or budgets else "passed"


def _budget(name: str, limit: float, metrics: Sequence[Metric]) -> BudgetVerdict:
    definition = JUDGED[name]
    value = next(each.candidate.value for each in metrics if each.name == name)
    at_least = definition.better == "higher"
    kept = None if value is None else (value >= limit if at_least else value <= limit)
    return BudgetVerdict(name=name, unit=definition.unit, limit=limit, at_least=at_least, value=value, kept=kept)


def _whole(metrics: Sequence[MetricVerdict], budgets: Sequence[BudgetVerdict]) -> GateOutcome:
    """Combine the verdicts: a regression first, then missing values, then inconclusive ones."""
    gating = [each for each in metrics if each.gates]
    if any(each.verdict == "regressed" for each in gating) or any(each.kept is False for each in budgets):
        return "regressed"
    one_sided = any(each.reason in ONE_SIDED for each in gating)
    nothing = all(each.verdict == "not_applicable" for each in gating) and not budgets
    if one_sided or nothing or any(each.kept is None for each in budgets):
        return "missing"
    return "inconclusive" if any(each.verdict == "inconclusive" for each in gating) else "passed"


def _exit_code(verdict: GateOutcome, metrics: Sequence[MetricVerdict], policy: Policy) -> int:
    undecided = verdict == "inconclusive" or any(each.gates and each.verdict == "not_applicable" for each in metrics)
    if verdict in ("passed", "inconclusive"):
        return INCONCLUSIVE_CODE if undecided and INCONCLUSIVE in policy.fail_on else 0
    return _EXIT_CODES[verdict]


def _other_job(floor: NoiseFloor, base: Sequence[MeasuredRun]) -> list[str]:
    """Return the keys of the job that differ between the calibration runs and the base."""
    known = {key: value for key, value in floor.identity.items() if key in JOB}
    return [key for key, value in known.items() if any(run.identity.get(key, value) != value for run in base)]
