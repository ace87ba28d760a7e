"""Render a gate result as GitHub annotations: workflow commands, one per line, at most five."""

from typing import Final, Literal

from overlapscope.analysis.structure.kinds import StructureChange
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import inert
from overlapscope.report.sheet.gate import budget_words, failed_changes, grown, headline, metric_words
from overlapscope.report.text.structure import change_words

MAX_ANNOTATIONS: Final = 5
TITLE: Final = "OverlapScope"


def annotations(gate: Gate) -> list[str]:
    """Return an error for each failed metric and budget, else one for the whole gate; warnings where it passed."""
    if gate.exit_code == 0:
        words = [metric_words(each) for each in gate.metrics if each.gates and each.verdict == "inconclusive"]
        return [_command("warning", each) for each in words[:MAX_ANNOTATIONS]]
    placed = [_command("error", change_words(each), _line(each)) for each in failed_changes(gate)]
    errors = []
    if gate.verdict == "regressed":
        errors = [metric_words(each) for each in gate.metrics if each.gates and each.verdict == "regressed"]
        errors += [budget_words(each) for each in gate.budgets if each.kept is False]
        most = [*grown(gate.comparison, "exposed_by_collective")[:1], *grown(gate.comparison, "exposed_by_cause")[:1]]
        if most and errors:
            errors[0] = f"{errors[0]}\nlargest growth: {'; '.join(each.name for each in most)}"
    whole = [_command("error", each) for each in errors or ([] if placed else [headline(gate)])]
    return [*placed, *whole][:MAX_ANNOTATIONS]


def _line(change: StructureChange) -> tuple[str, str] | None:
    """Return file and number of the line that an annotation is shown at: where a module that differs was wrapped, which
    is what a change to settings changes, else the first line that launches what is new."""
    for place in (*change.set_up, *change.sources):
        file, _, number = place.rpartition(":")
        if file and number.isdecimal():
            return file, number
    return None


def _command(level: Literal["error", "warning"], message: str, line: tuple[str, str] | None = None) -> str:
    """Return one workflow command; escaping keeps the message from ending it or starting another one."""
    plain = inert(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    place = "" if line is None else f"file={_property(line[0])},line={line[1]},"
    return f"::{level} {place}title={TITLE}::{plain}"


def _property(text: str) -> str:
    """Return text as the value of a property, in which colons and commas have a meaning."""
    plain = inert(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return plain.replace(":", "%3A").replace(",", "%2C")
