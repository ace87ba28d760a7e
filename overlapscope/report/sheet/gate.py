"""The sheet of a gate result: the verdict, then each metric, then what grew, then the conditions of the verdict."""

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding, titles
from overlapscope.analysis.common.wording import first_and_count, short
from overlapscope.analysis.compare.compare import Comparison, headline_attributions
from overlapscope.analysis.job_step.attribution import EXPOSED, REST, Attribution, Part
from overlapscope.analysis.structure.compare_structure import StructureComparison
from overlapscope.analysis.structure.kinds import StructureChange
from overlapscope.gate.calibrate import DEFAULT_SHARE
from overlapscope.gate.comparable import PRICE
from overlapscope.gate.judge import MetricVerdict, OutcomeReason
from overlapscope.gate.statistics import LEAST_STEPS
from overlapscope.gate.verdict import ONE_SIDED, BudgetVerdict, Gate
from overlapscope.report.formatting import (
    NOT_APPLICABLE,
    amount,
    change,
    count,
    ms,
    signed_ms,
    signed_percent,
    size_of_change,
    with_unit,
)
from overlapscope.report.model import Sheet, Table
from overlapscope.report.text import structure as structure_text
from overlapscope.report.text.compare import LONGEST_WINDOW, METRIC_LABELS, SHARES_NOTE, by_longest_window, part_names
from overlapscope.report.verdicts import GATE

MAX_INFORMING = 4
MAX_NAMED = 2
"""Differences of dry runs in the headline."""
MAX_NOTES = 4
STATED_BY_GATE = ("differs_job", "single_runs", "job_not_known")
"""Findings of the comparison that the gate states in its own warnings."""
MAX_GROWN = 3
FLOOR = "Threshold: the larger of the minimum and the noise floor; smaller differences do not count."
NO_FLOOR = "Threshold: the minimum; smaller differences do not count."
UNDECIDED = ("inconclusive", "not_applicable")
LEAST_SHARE = 0.05
"""A part is left out that grew by less than this share of the largest growth."""


def sheet_of_gate(gate: Gate) -> Sheet:
    """Return the sheet of a gate result."""
    return Sheet(
        title=headline(gate),
        lead=tuple(
            metric_words(each)
            for each in gate.metrics
            if each.gates and (each.verdict in UNDECIDED or (each.test == "priced" and not _decides(each)))
        ),
        tables=_tables(gate),
        warnings=tuple(_warnings(gate)),
        notes=tuple(_notes(gate)),
    )


def headline(gate: Gate) -> str:
    """Return the verdict in one line, with the metrics and figures that decided it."""
    gating = [each for each in gate.metrics if each.gates]
    word = GATE[gate.verdict].words.upper()
    structure = gate.comparison.structure
    if gate.verdict == "not_comparable":
        unclear = [] if structure is None else structure.not_comparable
        return f"{word}: {'; '.join(filter(None, [_mismatches(gate, allowed=False), *unclear]))}"
    if structure is not None:
        return f"{word}: {_structure_words(gate, structure)}"
    if gate.verdict == "missing":
        lacking = [label(each.name) for each in gating if each.verdict == "not_applicable"]
        lacking += [f"{label(each.name)} (budget)" for each in gate.budgets if each.kept is None]
        return f"{word}: not measured on both sides: {', '.join(lacking) or 'any gating metric'}"
    if gate.verdict == "regressed":
        words = [_changed(each) for each in gating if each.verdict == "regressed"]
        words += [budget_words(each) for each in gate.budgets if each.kept is False]
        return f"{word}: {', '.join(words)}"
    if gate.verdict == "inconclusive":
        return f"{word}: {', '.join(_changed(each) for each in gating if each.verdict == 'inconclusive')}"
    improved = [each for each in gating if each.verdict == "improved"]
    same = [each for each in gating if each.verdict == "unchanged"]
    words = [_changed(each) for each in improved]
    words += [f"{first_and_count([label(each.name) for each in same], 4, ' and ')} unchanged"] if same else []
    return f"{word}: {', '.join(words) or 'all budgets kept'}"


def failed_changes(gate: Gate) -> list[StructureChange]:
    """Return the differences between dry runs that fail the gate."""
    structure = gate.comparison.structure
    return [] if structure is None else [structure.changes[at] for at in gate.failed_changes]


def _structure_words(gate: Gate, structure: StructureComparison) -> str:
    failed = [structure_text.change_words(each) for each in failed_changes(gate)]
    failed += [metric_words(each) for each in gate.metrics if each.gates and _decides(each)]
    failed += [budget_words(each) for each in gate.budgets if not each.kept]
    if failed:
        more = len(failed) - MAX_NAMED
        return "; ".join(failed[:MAX_NAMED]) + (f"; {count(more, 'more difference')}" if more > 0 else "")
    if not structure.changes:
        return structure_text.structure_sentence(structure)
    return f"{count(len(structure.changes), 'difference')}, none of which fails"


def _decides(each: MetricVerdict) -> bool:
    """Return whether a priced time is why the gate did not pass."""
    return each.verdict in ("regressed", "inconclusive") or each.reason in ONE_SIDED


def label(name: str) -> str:
    """Return the label of a metric; its own name where it has no label."""
    return METRIC_LABELS.get(name, short(name))


def metric_words(each: MetricVerdict) -> str:
    """Return in one line why a metric has its verdict."""
    if each.test == "priced":
        return _priced_words(each)
    by = change(each.difference, each.unit) + (" ms" if each.unit == "ns" else "")
    minimum, floor = size_of_change(each.minimum, each.unit), size_of_change(each.floor, each.unit)
    p_value = "p = n/a" if each.probability is None else f"p = {each.probability:.4f}"
    if each.probability is not None and each.probability < 1e-4:
        p_value = "p < 0.0001"
    above = f"the minimum of {minimum}" + (f" and the noise floor of {floor}" if each.floor is not None else "")
    runs = f"{each.base_runs} and {each.candidate_runs} runs"
    words: dict[OutcomeReason, str] = {
        "missing": "n/a, not measured on either side",
        "missing_in_base": "n/a, not measured in the base",
        "missing_in_candidate": "n/a, not measured in the candidate",
        "within_minimum": f"{by}, less than the minimum of {minimum}",
        "within_noise": f"{by} is more than the minimum of {minimum}, but unchanged code may differ by {floor}",
        "not_significant": f"{by}, but not significant ({p_value})",
        "too_few_runs": f"{by}, but {runs} are too few for so many gating metrics: record more",
        "too_few_steps": f"{by}, but a run has fewer than {LEAST_STEPS} complete steps: record more",
        "told": f"{by}, more than {above}; {p_value}",
    }
    return f"{label(each.name)}: {words[each.reason]}"


def _priced_words(each: MetricVerdict) -> str:
    reasons: dict[OutcomeReason, str] = {
        "missing": "n/a, neither side has a price",
        "missing_in_base": "n/a, the base has no price",
        "missing_in_candidate": "n/a, the candidate has no price",
        "other_workload": "n/a, batch or sequence differ",
    }
    words = reasons.get(each.reason)
    if words is None:
        by = "" if each.difference is None else f"{_changed_by(each)}, "
        against = "less" if each.reason == "within_minimum" else "more"
        words = (
            f"{by}80 % interval {change(each.low, each.unit)} to {change(each.high, each.unit)} ms; {against} than the "
            f"minimum of {size_of_change(each.minimum, each.unit)}"
        )
        words += ", but too close to call" if each.reason == "within_interval" else ""
    return f"{_named(each)}: {words}"


def _named(each: MetricVerdict) -> str:
    """Return the label of a metric, with the word that its value is estimated where it is."""
    return f"{label(each.name)}, priced" if each.test == "priced" else label(each.name)


def budget_words(each: BudgetVerdict) -> str:
    """Return in one line whether a budget was kept."""
    name, limit, value = label(each.name), with_unit(each.limit, each.unit), with_unit(each.value, each.unit)
    if each.kept is None:
        return f"budget of {name}: n/a, not measured in the candidate"
    sides = ("at least", "below") if each.at_least else ("at most", "over")
    if each.kept:
        return f"{name} {value}, {sides[0]} its budget of {limit}" if each.at_least else f"{name} {value} of {limit}"
    return f"{name} {value} is {sides[1]} its budget of {limit}"


def _changed(each: MetricVerdict) -> str:
    return f"{label(each.name)} {_changed_by(each)}"


def _changed_by(each: MetricVerdict) -> str:
    unit = " ms" if each.unit == "ns" else ""
    share = f" ({signed_percent(each.relative)})" if each.relative is not None and each.unit == "ns" else ""
    return f"{change(each.difference, each.unit)}{unit}{share}"


def _mismatches(gate: Gate, *, allowed: bool) -> str:
    chosen = [each for each in gate.mismatches if each.allowed == allowed]
    return "; ".join(
        f"{each.key} {first_and_count([short(v) for v in each.base], 3, ', ')}"
        + (
            f" became {first_and_count([short(v) for v in each.candidate], 3, ', ')}"
            if each.base != each.candidate
            else ", not the same in all runs"
        )
        for each in chosen
    )


def _tables(gate: Gate) -> tuple[Table, ...]:
    gating = [each for each in gate.metrics if each.gates]
    moved = [each for each in gate.metrics if not each.gates and each.verdict in ("regressed", "improved")]
    figures = ("base", "candidate", "difference", "%", "threshold")
    tables = [
        Table(
            head=("verdict", f"ms a {gate.comparison.window or 'step'}", *figures),
            rows=tuple(_row(each) for each in gating),
            left=2,
            note=NO_FLOOR if all(each.test == "priced" for each in gating) else FLOOR,
        ),
        Table(head=("other metrics", "", *figures), rows=tuple(_row(each) for each in moved[:MAX_INFORMING]), left=2),
        *_structure_tables(gate),
        Table(head=("budget", "", "candidate", "limit"), rows=tuple(map(_budget_row, gate.budgets)), left=2),
    ]
    if gate.verdict in ("regressed", "inconclusive") and gate.comparison.window is not None:
        tables.append(grown_table(gate.comparison))
    return tuple(tables)


def _structure_tables(gate: Gate) -> list[Table]:
    structure = gate.comparison.structure
    if structure is None:
        return []
    return [structure_text.structure_table(structure, gate.failed_changes), structure_text.totals_table(structure)]


def _budget_row(each: BudgetVerdict) -> tuple[str, ...]:
    word = NOT_APPLICABLE if each.kept is None else GATE["kept" if each.kept else "not_kept"].words
    return word, label(each.name), amount(each.value, each.unit), amount(each.limit, each.unit)


def _row(each: MetricVerdict) -> tuple[str, ...]:
    needed = max((value for value in (each.minimum, each.floor) if value is not None), default=None)
    return (
        GATE[each.verdict].words,
        _named(each),
        amount(each.base, each.unit),
        amount(each.candidate, each.unit),
        change(each.difference, each.unit),
        signed_percent(each.relative) if each.unit == "ns" else "",
        change(needed, each.unit).removeprefix("+"),
    )


def _warnings(gate: Gate) -> Iterable[str]:
    """Yield the conditions that limit the verdict, then the warnings of the comparison."""
    unlike = [each.key for each in gate.mismatches if not each.allowed]
    keys = " ".join(f"--allow-mismatch {each}" for each in unlike)
    if PRICE in unlike:
        alike = "give both the same device, links, recipe and measured steps (--calibrate BASE=STEP on both)"
        yield f"times are judged of dry runs that are priced alike: {alike}, or add {keys}"
    elif gate.verdict == "not_comparable" and unlike:
        yield f"nothing was judged; if the runs differ in this on purpose, add {keys}"
    if any(each.allowed for each in gate.mismatches):
        yield f"judged despite these differences, as allowed: {_mismatches(gate, allowed=True)}"
    if gate.unknown_keys:
        yield f"recorded on one side only, so a difference is not excluded: {', '.join(gate.unknown_keys)}"
    of_steps = [each for each in gate.metrics if each.gates and each.test == "bootstrap"]
    if of_steps:
        runs = f"{of_steps[0].base_runs} and {of_steps[0].candidate_runs}"
        yield f"few runs ({runs}): tested over steps with a noise floor; from four runs a side, over runs"
    if any(each.calibrated is False for each in of_steps):
        share = f"{DEFAULT_SHARE * 100:.0f} % of the step time"
        yield f"the noise floor is not calibrated: runs are assumed to differ by at least {share}; see gate --calibrate"
    if gate.floor_differs:
        yield f"the noise floor was calibrated on another job: {', '.join(gate.floor_differs)}"
    for side, side_runs in (("base", gate.comparison.base), ("candidate", gate.comparison.candidate)):
        if gate.comparison.structure is not None:  # a dry run is made of the ranks that were asked for
            break
        lost = {rank for run in side_runs for rank in run.missing_ranks}
        unread = {rank for run in side_runs for rank in run.unread_ranks}
        for ranks, how in ((lost - unread, "not recorded"), (unread, "not readable, although their files exist")):
            if ranks:
                names = first_and_count(list(map(str, sorted(ranks))), 8, ", ")
                yield f"{side}: {count(len(ranks), 'rank')} of the job {how}: {names}"
    yield from titles(_other_findings(gate))[0]


def _other_findings(gate: Gate) -> list[Finding]:
    return [each for each in gate.comparison.findings if not each.id.startswith(STATED_BY_GATE)]


def _notes(gate: Gate) -> list[str]:
    _, found = titles(_other_findings(gate))
    if gate.comparison.structure is not None and gate.comparison.window is None:
        found = [structure_text.PRICED_TIMES if gate.metrics else structure_text.NO_TIMES, *found]
    if by_longest_window(gate.comparison):
        found = [LONGEST_WINDOW, *found]
    more = len(found) - MAX_NOTES
    return found[:MAX_NOTES] + ([f"{count(more, 'more finding')}: overlapscope compare"] if more > 0 else [])


def grown(
    comparison: Comparison, within: Literal["step_time", "exposed_by_collective", "exposed_by_cause"]
) -> list[Part]:
    """Return the parts of a total that grew most, with names as people read them."""
    found = headline_attributions(comparison)
    if found is None:
        return []
    whole: Attribution = getattr(found, within)
    names = part_names(whole, comparison.collectives)
    parts = [replace(part, name=name) for name, part in zip(names, whole.parts, strict=True)
             if part.difference_ns > 0 and part.name != REST]  # fmt: skip
    most = max((each.difference_ns for each in parts), default=0)
    return [each for each in parts if each.difference_ns >= LEAST_SHARE * most][:MAX_GROWN]


def grown_table(comparison: Comparison) -> Table:
    """Return what grew as a table: activities, and collectives and causes unless exposed time did not grow."""
    activities = grown(comparison, "step_time")
    rows = [("step", *_cells(each)) for each in activities]
    if any(each.name == EXPOSED for each in activities) or not activities:
        rows += [("by collective", *_cells(each)) for each in grown(comparison, "exposed_by_collective")]
        rows += [("by cause", *_cells(each)) for each in grown(comparison, "exposed_by_cause")]
    note = f"The parts that grew most. {SHARES_NOTE}" if comparison.window == "step" else "The parts that grew most."
    head = ("what grew, ms", "", "base", "candidate", "difference")
    return Table(head=head, rows=tuple(rows), left=2, note=note)


def _cells(each: Part) -> tuple[str, ...]:
    return each.name, ms(each.base_ns), ms(each.candidate_ns), signed_ms(each.difference_ns)
