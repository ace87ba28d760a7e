"""Whether an analysis names those to blame and what held them: right, abstained, or wrong."""

from collections.abc import Sequence
from typing import Any, Final

from overlapscope.analysis.result import Analysis
from tests.property.synthetic.draw import Drawn
from tests.property.synthetic.faults import CAUSES
from tests.property.synthetic.job import Fault

RIGHT, ABSTAINED, WRONG = "right", "abstained", "wrong"
UNMARKED: Final = "host"
"""A collector's pause that telemetry does not note, and loading without a range that says so, are pauses of the host as
far as a trace can tell; of the latter it can tell that they come before the first launch of the step."""
MOST: Final = 0.5


def judge(drawn: Drawn, analysis: Analysis) -> str:
    """Judge what was said of a job with a fault; whoever is named besides those to blame makes it wrong."""
    fault = drawn.job.fault
    causes = {each.held_by for each in analysis.skew.stragglers}
    innocents = {each.rank for each in analysis.skew.stragglers} - set(fault.culprits)
    for each in analysis.findings:
        if each.id.startswith("slow_link"):
            causes.add("slow_link")
            innocents |= set() if _of_host(each.evidence, fault.culprits) else {-1}
        elif each.id.startswith("uneven_stages"):
            causes.add("more_work")
            innocents |= set(each.evidence["ranks"]) - set(fault.culprits)
    named = causes - {"unknown"}
    if innocents or named - _expected(drawn.job.fault, analysis):
        return WRONG
    return RIGHT if named else ABSTAINED


def _expected(fault: Fault, analysis: Analysis) -> set[str]:
    if fault.kind == "garbage_collector" and not fault.stall_noted:
        return {UNMARKED}
    if fault.kind == "data_loading" and not fault.load_marked and _before_launch(analysis):
        return {UNMARKED}
    return {CAUSES[fault.kind]}


def accused(analysis: Analysis) -> bool:
    """Return whether anybody, or any link, was said to be at fault."""
    blaming = ("slow_link", "uneven_stages")
    return bool(analysis.skew.stragglers) or any(each.id.startswith(blaming) for each in analysis.findings)


def _before_launch(analysis: Analysis) -> bool:
    evidence = analysis.skew.stragglers[0].evidence if analysis.skew.stragglers else {}
    return bool(evidence.get("before_first_launch_ns", 0) > MOST * evidence.get("idle_more_ns", 0))


def _of_host(evidence: Any, culprits: Sequence[int]) -> bool:
    """Return whether all that a finding calls slow touches the host of the culprits."""
    if evidence.get("rank") is not None:
        return bool(evidence["rank"] in culprits)
    return all(any(rank in culprits for rank in group["ranks"]) for group in evidence.get("groups", ()))
