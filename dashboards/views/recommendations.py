"""Recommendations with gain, risk and evidence, and how accurate earlier predictions were."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.compare.prediction_check import Outcome, words
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.report.formatting import count, ms, percent, signed_percent
from overlapscope.report.text.advice import published_text, shown_text
from overlapscope.report.text.cross_rank import evidence_text, straggler_sentences
from overlapscope.report.verdicts import ADVICE, CONFIDENCE

FRAMEWORKS: Final[Mapping[str, str]] = {
    "ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
    "nccl": "NCCL", "serving": "serving", "host": "host", "environment": "environment",
}  # fmt: skip
MB: Final = 1e6


class GainInterval(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted gain and its 90 % interval."""

    gain_ns: int
    low_ns: int
    high_ns: int


class ShownAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation as text."""

    id: str
    title: str
    verdict: str
    gain: str
    """Milliseconds first; empty without a predicted gain."""
    interval: GainInterval | None
    facts: tuple[tuple[str, str], ...]
    """(Name, text): evidence, confidence, memory, numerics."""
    apply: tuple[tuple[str, str, str], ...]
    """(Framework key in addresses, framework name, code)."""
    verify: str


class MeasuredPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction that a later run measured."""

    settings: str
    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    run: str
    made_at: str

    @property
    def inside(self) -> bool:
        """Whether the measured step time is inside the interval."""
        return self.low_ns <= self.measured_ns <= self.high_ns


class CurrentStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step as recorded: its time, its exposed time, and the worst straggler as text; None where not known."""

    step_ns: float | None = None
    exposed_ns: float | None = None
    late: str = ""


def current_step(analysis: Analysis) -> CurrentStep:
    """Return the headline of a run's complete steps."""
    late, head = " ".join(straggler_sentences(analysis, 1)), analysis.headline
    if head.window != "step":
        return CurrentStep(late=late)
    return CurrentStep(step_ns=head.step_ns, exposed_ns=head.exposed_comm_ns, late=late)


def shown(found: Sequence[Recommendation], current: CurrentStep) -> tuple[ShownAdvice, ...]:
    """Return all recommendations as text."""
    return tuple(_shown(each, current) for each in found)


def lead(found: Sequence[Recommendation]) -> str:
    """Return a sentence on the largest gain, or that there is none."""
    gains = [each for each in found if each.predicted_gain_ns and each.verdict == "change"]
    if not found:
        return "Nothing to recommend."
    if not gains:
        first = found[0]
        return (
            f"{first.title}."
            if first.verdict != "trial"
            else "No certain gain; the recommendations below are worth a trial."
        )
    best = max(gains, key=lambda each: each.predicted_gain_ns or 0)
    return f"{ms(best.predicted_gain_ns)} ms per step to gain: {best.title}."


def frameworks(found: Sequence[ShownAdvice]) -> list[str]:
    """Return the frameworks that any recommendation has code for, in the order of FRAMEWORKS."""
    there = {key for each in found for key, _, _ in each.apply}
    return [*(key for key in FRAMEWORKS if key in there), *sorted(there - set(FRAMEWORKS))]


def framework_name(key: str) -> str:
    """Return a framework's name."""
    return FRAMEWORKS.get(key, key)


def code_for(each: ShownAdvice, framework: str | None) -> tuple[str, str, str] | None:
    """Return the code for the selected framework, else for the first one available; None without any."""
    chosen = [snippet for snippet in each.apply if snippet[0] == framework]
    return next(iter([*chosen, *each.apply]), None)


def earlier(outcomes: Sequence[Outcome]) -> tuple[MeasuredPrediction, ...]:
    """Return the predictions that later runs measured."""
    return tuple(
        MeasuredPrediction(
            settings=words(each.prediction.knobs), predicted_ns=each.prediction.step_ns, low_ns=each.prediction.low_ns,
            high_ns=each.prediction.high_ns, measured_ns=each.measured_step_ns, run=each.run,
            made_at=each.prediction.made_at,
        )
        for each in outcomes
    )  # fmt: skip


def earlier_words(outcomes: Sequence[MeasuredPrediction]) -> str:
    """Return a sentence on how often measurements were inside the interval."""
    if not outcomes:
        return ""
    inside = sum(each.inside for each in outcomes)
    error = sum(abs(each.predicted_ns / each.measured_ns - 1) for each in outcomes) / len(outcomes)
    return (
        f"{inside} of {count(len(outcomes), 'measured prediction')} inside the interval, mean error {percent(error)}."
    )


def earlier_rows(outcomes: Sequence[MeasuredPrediction]) -> list[tuple[str, ...]]:
    """Return a row for each earlier prediction."""
    return [
        (each.settings, each.run, each.made_at, ms(each.predicted_ns), f"{ms(each.low_ns)} to {ms(each.high_ns)}",
         ms(each.measured_ns), signed_percent(each.predicted_ns / each.measured_ns - 1),
         "inside" if each.inside else "outside")
        for each in outcomes
    ]  # fmt: skip


def _shown(each: Recommendation, current: CurrentStep) -> ShownAdvice:
    interval = None
    gain = ""
    if each.predicted_gain_ns is not None:
        low, high = each.gain_low_ns or 0, each.gain_high_ns or 0
        interval = GainInterval(gain_ns=each.predicted_gain_ns, low_ns=low, high_ns=high)
        share = f", {percent(each.predicted_gain_ns / current.step_ns)}" if current.step_ns else ""
        gain = f"saves {ms(each.predicted_gain_ns)} ms per step{share} ({ms(low)} to {ms(high)} ms, 90 %)"
    elif each.gain_high_ns:
        why = "a replay without it" if "replayed_gain_ns" in each.evidence else "the time its cause takes now"
        gain = f"at most {ms(each.gain_high_ns)} ms: {why}"
    return ShownAdvice(
        id=each.id,
        title=each.title,
        verdict=ADVICE[each.verdict],
        gain=gain,
        interval=interval,
        facts=tuple(_facts(each, current)),
        apply=tuple((key, framework_name(key), text) for key, text in each.apply.items()),
        verify=each.verify,
    )


def _facts(each: Recommendation, current: CurrentStep) -> list[tuple[str, str]]:
    evidence: Mapping[str, Any] = getattr(each, "evidence", {})
    words = evidence_text(evidence) if evidence else _evidence(each, current)
    found = [("Evidence", words)] if words else []
    found += [("Shown by", shown_text(each.shown_by))] if each.shown_by else []
    found += [("Elsewhere", published_text(each.published))] if each.published else []
    found.append(("Based on", CONFIDENCE[each.confidence]))
    found += [
        (name, "; ".join(items))
        for name, items in (("Measured", getattr(each, "measured", [])), ("Assumed", getattr(each, "assumed", [])))
        if items
    ]
    if each.memory_bytes is not None and each.memory_bytes:
        more = "more" if each.memory_bytes > 0 else "less"
        found.append(("Memory", f"{abs(each.memory_bytes) / MB:,.1f} MB {more} on each rank"))
    else:
        found.append(("Memory", "unchanged"))
    numerics = "changes: compare the loss with the current one" if each.changes_numerics else "unchanged"
    return [*found, ("Numerics", numerics)]


def _evidence(each: Recommendation, current: CurrentStep) -> str:
    """Return evidence from the analysis, for a recommendation without evidence of its own."""
    if each.id.startswith("late_rank"):
        return current.late
    if current.step_ns is None or current.exposed_ns is None:
        return ""
    return f"{ms(current.exposed_ns)} ms of a {ms(current.step_ns)} ms step is exposed communication"
