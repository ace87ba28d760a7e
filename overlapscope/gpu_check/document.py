"""The document `overlapscope.gpu_check/1`: checks with their figures, and the judgement of each figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

SCHEMA: Final = "overlapscope.gpu_check/1"
Verdict = Literal["accepted", "refused", "not run"]
Value = float | int | bool | str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An acceptance figure: the measured figure of this name must lie between the limits, both included."""

    figure: str
    means: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def wanted(self) -> str:
        """Return the limits in words, such as `at most 6 µs`."""
        unit = f" {self.unit}" if self.unit else ""
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.at_least:g}{unit}"
        parts = []
        if self.at_least is not None:
            parts.append(f"at least {self.at_least:g}{unit}")
        if self.at_most is not None:
            parts.append(f"at most {self.at_most:g}{unit}")
        return " and ".join(parts)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check, which runs in a process of its own for at most `limit_seconds`."""

    name: str
    title: str
    shows: str
    """What it measures, in one sentence."""
    guards: str
    """The defect of a recording that it would show."""
    measure: str
    """The function that measures, as `module:function`."""
    limit_seconds: float
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()
    """What of the machine it needs: keys of `inventory.REASONS`."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A rule with the figure that was measured; `value` is None where it was not."""

    figure: str
    means: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    value: Value | None = None
    verdict: Verdict
    reason: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check measured, and whether that is accepted."""

    name: str
    title: str
    shows: str
    guards: str
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    rules: tuple[Judged, ...] = ()
    figures: dict[str, Value] = {}
    kept: tuple[str, ...] = ()
    """Recordings kept of it, relative to the document's folder."""
    output: str = ""
    """The end of what its processes printed, where it was not accepted."""


class GpuCheck(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one machine."""

    schema: str = SCHEMA
    overlapscope: str
    date: str
    versions: dict[str, Value] = {}
    checks: tuple[CheckResult, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return how many checks have this verdict."""
        return sum(each.verdict == verdict for each in self.checks)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a check wrote and how it ended."""

    figures: dict[str, Value] = {}
    missing: dict[str, str] = {}
    """Why figures were not measured."""
    not_run: str | None = None
    """Why the check as a whole was not run."""
    failed: str | None = None
    """How it ended, where it did not end as it should."""


def judge(
    check: Check, measured: Measured, *, seconds: float = 0.0, kept: Sequence[str] = (), output: str = ""
) -> CheckResult:
    """Return the verdict: accepted only if the process ended well, and each figure was measured and is accepted.

    A figure beyond its limit, or a process that failed, refuses it; a figure that is missing leaves it not run.
    """
    why = measured.not_run or measured.failed
    rules = tuple(_judge(rule, measured.figures, measured.missing, why) for rule in check.rules)
    refused = [each for each in rules if each.verdict == "refused"]
    unknown = [each for each in rules if each.verdict == "not run"]
    verdict: Verdict = "accepted"
    reason = ""
    if measured.failed is not None:
        verdict, reason = "refused", measured.failed
    elif refused:
        verdict, reason = "refused", "; ".join(each.reason for each in refused)
    elif measured.not_run is not None:
        verdict, reason = "not run", measured.not_run
    elif unknown or not rules:
        verdict, reason = "not run", "; ".join(each.reason for each in unknown) or "it measures nothing"
    return CheckResult(
        name=check.name,
        title=check.title,
        shows=check.shows,
        guards=check.guards,
        verdict=verdict,
        reason=reason,
        seconds=round(seconds, 1),
        rules=rules,
        figures=dict(measured.figures),
        kept=tuple(kept),
        output="" if verdict == "accepted" else output,
    )


def _judge(rule: Rule, figures: Mapping[str, Value], missing: Mapping[str, str], why: str | None) -> Judged:
    value = figures.get(rule.figure)
    verdict: Verdict
    if value is None:
        verdict, reason = "not run", f"{rule.means}: {missing.get(rule.figure) or why or 'not measured'}"
    elif isinstance(value, str) or not _within(float(value), rule):  # also refuses what is not a number
        verdict, reason = "refused", f"{rule.means}: {shown(value, rule.unit)}, wanted {rule.wanted}"
    else:
        verdict, reason = "accepted", ""
    fields = msgspec.structs.asdict(rule)
    return Judged(**fields, value=value, verdict=verdict, reason=reason)


def _within(value: float, rule: Rule) -> bool:
    low = rule.at_least is None or value >= rule.at_least
    high = rule.at_most is None or value <= rule.at_most
    return low and high and not math.isnan(value)


def shown(value: Value | None, unit: str = "") -> str:
    """Return a figure as text, with four digits; an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".rstrip()
