"""Whether an analysis names those to blame and what held them: right, abstained, or wrong."""

from collections.abc import Sequence
from typing import Any, Final

from overlapscope.analysis.analyze import Analysis
from tests.synthetic.draw import Drawn
from tests.synthetic.faults import CAUSES

RIGHT, ABSTAINED, WRONG = "right", "abstained", "wrong"
UNMARKED: Final = "host"
"""A collector's pause that telemetry does not note, and loading without a range that says so, are pauses of the host as
far as a trace can tell; of the latter it can tell that they come before the first launch of the step."""
MOST: Final = 0.5


def judge(drawn: Drawn, analysis: Analysis) -> str:
    """Judge what was said of a job with a fault; whoever is named besides those to blame makes it wrong."""
    fault = drawn.job.fault
    named = [(each.rank, each.held_by) for each in analysis.skew.stragglers]
    links = [each for each in analysis.findings if each.id.startswith("slow_link")]
    if any(rank not in fault.culprits for rank, _ in named):
        return WRONG
    if fault.kind == "slow_link":
        if not all(_of_host(each.evidence, fault.culprits) for each in links):
            return WRONG
        if any(held_by not in ("slow_link", "unknown") for _, held_by in named):
            return WRONG
        return RIGHT if links or any(held_by == "slow_link" for _, held_by in named) else ABSTAINED
    stages = [each for each in analysis.findings if each.id.startswith("uneven_stages")]
    if links or any(set(each.evidence["ranks"]) - set(fault.culprits) for each in stages):
        return WRONG
    expected = {CAUSES[fault.kind]}
    if fault.kind == "garbage_collector" and not fault.stall_noted:
        expected = {UNMARKED}
    if fault.kind == "data_loading" and not fault.load_marked:
        expected = {UNMARKED if _before_launch(analysis) else CAUSES[fault.kind]}
    causes = {held_by for _, held_by in named} - {"unknown"} | ({"more_work"} if stages else set())
    if causes - expected:
        return WRONG
    return RIGHT if causes else ABSTAINED


def accused(analysis: Analysis) -> bool:
    """Whether anybody, or any link, was said to be at fault."""
    blaming = ("slow_link", "uneven_stages")
    return bool(analysis.skew.stragglers) or any(each.id.startswith(blaming) for each in analysis.findings)


def _before_launch(analysis: Analysis) -> bool:
    told = analysis.skew.stragglers[0].evidence if analysis.skew.stragglers else {}
    return bool(told.get("before_first_launch_ns", 0) > MOST * told.get("idle_more_ns", 0))


def _of_host(evidence: Any, culprits: Sequence[int]) -> bool:
    """Whether all that a finding calls slow touches the host of the culprits."""
    if evidence.get("rank") is not None:
        return evidence["rank"] in culprits
    return all(any(rank in culprits for rank in group["ranks"]) for group in evidence["groups"])
