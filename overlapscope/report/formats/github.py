"""Render a gate result as GitHub annotations: workflow commands, one per line, at most five."""

from typing import Final, Literal

from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import inert
from overlapscope.report.sheet.gate import budget_words, grown, headline, metric_words

MAX_ANNOTATIONS: Final = 5
TITLE: Final = "OverlapScope"


def annotations(gate: Gate) -> list[str]:
    """Return an error for each failed metric and budget, else one for the whole gate; warnings where it passed."""
    if gate.exit_code == 0:
        words = [metric_words(each) for each in gate.metrics if each.gates and each.verdict == "inconclusive"]
        return [_command("warning", each) for each in words[:MAX_ANNOTATIONS]]
    errors = []
    if gate.verdict == "regressed":
        errors = [metric_words(each) for each in gate.metrics if each.gates and each.verdict == "regressed"]
        errors += [budget_words(each) for each in gate.budgets if each.kept is False]
        most = [*grown(gate.comparison, "exposed_by_collective")[:1], *grown(gate.comparison, "exposed_by_cause")[:1]]
        if most and errors:
            errors[0] = f"{errors[0]}\nlargest growth: {'; '.join(each.name for each in most)}"
    return [_command("error", each) for each in (errors or [headline(gate)])[:MAX_ANNOTATIONS]]


def _command(level: Literal["error", "warning"], message: str) -> str:
    """Return one workflow command; escaping keeps the message from ending it or starting another one."""
    plain = inert(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title={TITLE}::{plain}"
