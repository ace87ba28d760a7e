"""Recommendations with gain, risk and evidence, and how accurate earlier predictions were."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.compare.prediction_check import Outcome, words
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.report.formatting import count, ms, percent, signed_percent
from overlapscope.report.text.advice import REPLAY_CAPPED, published_text, replay_words, shown_text
from overlapscope.report.text.cross_rank import evidence_text, straggler_sentences
from overlapscope.report.text.throughput import cost_text
from overlapscope.report.verdicts import ADVICE, CONFIDENCE
from overlapscope_dashboards.parts.quantities import Time, Words

FRAMEWORKS: Final[Mapping[str, str]] = {
    "ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
    "nccl": "NCCL", "torch": "PyTorch", "linux": "Linux", "slurm": "Slurm", "nvidia": "NVIDIA tools",
}  # fmt: skip
MB: Final = 1e6


class ShownGain(msgspec.Struct, frozen=True, kw_only=True):
    """What a change saves of a step, or of the recording, which lasts `whole_ns` today."""

    whole_ns: float | None
    """None where it is not known: then there is no bar."""
    gain_ns: int | None
    """None for a bound, which no change may save completely."""
    low_ns: int
    high_ns: int

    def left(self, gain_ns: float) -> float:
        """Return what is left of the whole after a gain, as a share of it, 0 to 1."""
        return min(max(1 - gain_ns / self.whole_ns, 0.0), 1.0) if self.whole_ns else 1.0


class ShownAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation as text."""

    id: str
    title: str
    tags: tuple[tuple[str, str], ...]
    """(Words, tone): verdict, memory, numerics."""
    gain_words: Words
    """The gain or its bound; empty without either."""
    why_words: str
    """What the figure is: a prediction with its interval, or what bounds it."""
    cost: str
    """In GPU-hours a day; empty where it is not known."""
    gain: ShownGain | None
    facts: tuple[tuple[str, str], ...]
    """(Name, text): evidence, what was measured and assumed."""
    apply: tuple[tuple[str, str, str], ...]
    """(Framework key, framework name, code); that which the run uses first."""
    verify: str
    knobs: Mapping[str, Any]
    """The settings that a prediction is of; empty for a bound."""


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
    """The main figure's step or recording: its time, its exposed time, and the worst straggler as text; None where not
    known."""

    window: str = "step"
    step_ns: float | None = None
    exposed_ns: float | None = None
    late: str = ""


def current_step(analysis: Analysis) -> CurrentStep:
    """Return the main figure of a run."""
    main = analysis.main_figures
    return CurrentStep(
        window=analysis.headline.window or "step", step_ns=main.step_ns, exposed_ns=main.exposed_comm_ns,
        late=" ".join(straggler_sentences(analysis, 1)),
    )  # fmt: skip


def shown(found: Sequence[Recommendation], current: CurrentStep) -> tuple[ShownAdvice, ...]:
    """Return all recommendations as text."""
    return tuple(_shown(each, current) for each in found)


def lead(found: Sequence[Recommendation]) -> Words:
    """Return a sentence on what to do first and its gain, or that there is nothing to do."""
    if not found:
        return ("Nothing to recommend.",)
    first = found[0]
    gain = gain_words(first)
    return (f"{first.title}: ", *gain, ".") if gain else (f"{first.title}.",)


def gain_words(each: Recommendation) -> Words:
    """Return the predicted gain or its upper bound, as `report.text.advice.gain`; empty where neither is known."""
    if each.predicted_gain_ns is not None:
        return ("saves ", Time(each.predicted_gain_ns), f" a {each.per}")
    if each.gain_high_ns is None:
        return ()
    if "pauses_capped_ns" in each.evidence:
        return (f"{REPLAY_CAPPED} ", Time(each.gain_high_ns), f" a {each.per} shorter")
    if each.bound_from == "loss":
        return ("costs ", Time(each.gain_high_ns), f" a {each.per}")
    if each.bound_from == "replay" and each.loss_ns is not None and each.loss_ns != each.gain_high_ns:
        before, after = replay_words(each)
        return ("costs ", Time(each.loss_ns), f" a {each.per}; {before}", Time(each.gain_high_ns), f" {after}")
    return ("saves at most ", Time(each.gain_high_ns), f" a {each.per}")


def of_setting(each: ShownAdvice, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the earlier predictions of a recommendation's settings that were measured."""
    return [one for one in outcomes if each.knobs and dict(one.prediction.knobs) == dict(each.knobs)]


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
    gain = None
    if each.predicted_gain_ns is not None or each.gain_high_ns:
        whole_ns = current.step_ns if each.per == current.window else each.evidence.get("recorded_ns")
        gain = ShownGain(whole_ns=whole_ns, gain_ns=each.predicted_gain_ns, low_ns=each.gain_low_ns or 0,
                         high_ns=each.gain_high_ns or 0)  # fmt: skip
    words = gain_words(each)
    if gain is not None and gain.whole_ns:
        saved_ns = gain.high_ns if gain.gain_ns is None else gain.gain_ns
        share = percent(saved_ns / gain.whole_ns).replace(" ", "\N{NO-BREAK SPACE}")
        words = (*words, f" ({share})")
    return ShownAdvice(
        id=each.id,
        title=each.title,
        tags=tuple(_tags(each)),
        gain_words=words,
        why_words=_why(each),
        cost=cost_text(each.gpu_hours_a_day, each.price_a_day),
        gain=gain,
        facts=tuple(_facts(each, current)),
        apply=tuple((key, FRAMEWORKS.get(key, key), text) for key, text in each.apply.items()),
        verify=each.verify,
        knobs=each.knobs,
    )


def _tags(each: Recommendation) -> Iterator[tuple[str, str]]:
    yield ADVICE[each.verdict], ""
    if each.memory_bytes:
        more = "more" if each.memory_bytes > 0 else "less"
        yield f"{abs(each.memory_bytes) / MB:,.1f} MB {more} memory", "warn" if each.memory_bytes > 0 else ""
    else:
        yield "memory unchanged", ""
    yield ("changes numerics: compare the loss", "warn") if each.changes_numerics else ("numerics unchanged", "")


def _why(each: Recommendation) -> str:
    if each.predicted_gain_ns is not None:
        low, high = ms(each.gain_low_ns or 0), ms(each.gain_high_ns or 0)
        return f"Predicted by a replay: {low} to {high} ms with 90 %; from {CONFIDENCE[each.confidence]}."
    if not each.gain_high_ns:
        return "Nothing measured says how much it gains."
    if "pauses_capped_ns" in each.evidence:
        return "No prediction: a replay of the recording with every pause of a host cut to 3 ms; shorter ones stay."
    if each.bound_from == "replay" or "replayed_gain_ns" in each.evidence:
        return "A bound, not a prediction: a replay of the recording without it."
    return "A bound, not a prediction: the time that its cause takes now. No change may save all of it."


def _facts(each: Recommendation, current: CurrentStep) -> list[tuple[str, str]]:
    words = evidence_text(each.evidence) if each.evidence else _evidence(each, current)
    found = [("Evidence", words)] if words else []
    found += [("Shown by", shown_text(each.shown_by))] if each.shown_by else []
    found += [("Elsewhere", published_text(each.published))] if each.published else []
    found += [
        (name, "; ".join(items)) for name, items in (("Measured", each.measured), ("Assumed", each.assumed)) if items
    ]
    return found


def _evidence(each: Recommendation, current: CurrentStep) -> str:
    """Return evidence from the analysis, for a recommendation without evidence of its own."""
    if each.id.startswith("late_rank"):
        return current.late
    if current.step_ns is None or current.exposed_ns is None:
        return ""
    return f"{ms(current.exposed_ns)} ms of a {ms(current.step_ns)} ms {current.window} is exposed communication"
