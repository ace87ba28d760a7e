"""What to change, with what it gains, risks and rests on; and how earlier predictions held."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.prediction_check import Outcome, words
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.report.formatting import count, ms, percent, signed_percent
from overlapscope.report.text.analysis import mean, windows
from overlapscope.report.text.cross_rank import evidence_words, straggler_words
from overlapscope.report.verdicts import ADVICE, CONFIDENCE

FRAMEWORKS: Final[Mapping[str, str]] = {
    "ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
    "nccl": "NCCL",
}  # fmt: skip
MB: Final = 1e6


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted gain and its interval, for a bar on the scale of all of them."""

    gain_ns: int
    low_ns: int
    high_ns: int


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation as it is shown."""

    id: str
    title: str
    verdict: str
    gain: str
    """Milliseconds first; empty without a predicted gain."""
    interval: Gain | None
    facts: tuple[tuple[str, str], ...]
    """Name and words: what it rests on, memory, numerics."""
    apply: tuple[tuple[str, str, str], ...]
    """Framework as in addresses, its name, and what to write there."""
    verify: str


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
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
        """Return whether the interval held it."""
        return self.low_ns <= self.measured_ns <= self.high_ns


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What is so today, as far as it is known: a step, what of it is exposed, and who held the others up."""

    step_ns: float | None = None
    exposed_ns: float | None = None
    late: str = ""


def now(analysis: Analysis) -> Now:
    """Return it for a run: the mean of its whole steps."""
    what, by_rank = windows(analysis)
    steps = [each for own in by_rank.values() for each in own]
    late = " ".join(straggler_words(analysis, 1))
    if what != "step" or not steps:
        return Now(late=late)
    figures = mean(steps)
    return Now(step_ns=figures.window_ns, exposed_ns=figures.exposed_comm_ns, late=late)


def shown(found: Sequence[Recommendation], today: Now) -> tuple[Shown, ...]:
    """Return all recommendations."""
    return tuple(_shown(each, today) for each in found)


def lead(found: Sequence[Recommendation]) -> str:
    """Say what there is to gain, milliseconds first; or that there is nothing."""
    gains = [each for each in found if each.predicted_gain_ns and each.verdict == "change"]
    if not found:
        return "Nothing to recommend."
    if not gains:
        first = found[0]
        return f"{first.title}." if first.verdict != "trial" else "Nothing that surely gains; what follows is a trial."
    best = max(gains, key=lambda each: each.predicted_gain_ns or 0)
    return f"{ms(best.predicted_gain_ns)} ms a step to gain: {best.title}."


def frameworks(found: Sequence[Shown]) -> list[str]:
    """Return the frameworks that any recommendation has words for, in the order in which they are known."""
    there = {key for each in found for key, _, _ in each.apply}
    return [*(key for key in FRAMEWORKS if key in there), *sorted(there - set(FRAMEWORKS))]


def framework_name(key: str) -> str:
    """Return a framework's name."""
    return FRAMEWORKS.get(key, key)


def code_for(each: Shown, framework: str | None) -> tuple[str, str, str] | None:
    """Return what to write in the chosen framework, else in the first one that it is told for; None without any."""
    chosen = [told for told in each.apply if told[0] == framework]
    return next(iter([*chosen, *each.apply]), None)


def earlier(tested: Sequence[Outcome]) -> tuple[Earlier, ...]:
    """Return what later runs measured."""
    return tuple(
        Earlier(
            settings=words(each.prediction.knobs), predicted_ns=each.prediction.step_ns, low_ns=each.prediction.low_ns,
            high_ns=each.prediction.high_ns, measured_ns=each.measured_step_ns, run=each.run,
            made_at=each.prediction.made_at,
        )
        for each in tested
    )  # fmt: skip


def earlier_words(tested: Sequence[Earlier]) -> str:
    """Say how often predictions held."""
    if not tested:
        return ""
    inside = sum(each.inside for each in tested)
    error = sum(abs(each.predicted_ns / each.measured_ns - 1) for each in tested) / len(tested)
    return f"{inside} of {count(len(tested), 'measured prediction')} inside the interval, mean error {percent(error)}."


def earlier_rows(tested: Sequence[Earlier]) -> list[tuple[str, ...]]:
    """Return a row for each earlier prediction."""
    return [
        (each.settings, each.run, each.made_at, ms(each.predicted_ns), f"{ms(each.low_ns)} to {ms(each.high_ns)}",
         ms(each.measured_ns), signed_percent(each.predicted_ns / each.measured_ns - 1),
         "inside" if each.inside else "outside")
        for each in tested
    ]  # fmt: skip


def _shown(each: Recommendation, today: Now) -> Shown:
    interval = None
    gain = ""
    if each.predicted_gain_ns is not None:
        low, high = each.gain_low_ns or 0, each.gain_high_ns or 0
        interval = Gain(gain_ns=each.predicted_gain_ns, low_ns=low, high_ns=high)
        share = f", {percent(each.predicted_gain_ns / today.step_ns)}" if today.step_ns else ""
        gain = f"saves {ms(each.predicted_gain_ns)} ms a step{share} ({ms(low)} to {ms(high)} ms, 90 %)"
    elif each.gain_high_ns:
        gain = f"at most {ms(each.gain_high_ns)} ms: what its cause takes today"
    return Shown(
        id=each.id,
        title=each.title,
        verdict=ADVICE[each.verdict],
        gain=gain,
        interval=interval,
        facts=tuple(_facts(each, today)),
        apply=tuple((key, framework_name(key), text) for key, text in each.apply.items()),
        verify=each.verify,
    )


def _facts(each: Recommendation, today: Now) -> list[tuple[str, str]]:
    evidence: Mapping[str, Any] = getattr(each, "evidence", {})
    told = evidence_words(evidence) if evidence else _evidence(each, today)
    found = [("Evidence", told)] if told else []
    found.append(("Rests on", CONFIDENCE[each.confidence]))
    found += [
        (name, "; ".join(told))
        for name, told in (("Measured", getattr(each, "measured", [])), ("Assumed", getattr(each, "assumed", [])))
        if told
    ]
    if each.memory_bytes is not None and each.memory_bytes:
        more = "more" if each.memory_bytes > 0 else "less"
        found.append(("Memory", f"{abs(each.memory_bytes) / MB:,.1f} MB {more} on each rank"))
    else:
        found.append(("Memory", "as it is"))
    numerics = "changes: hold the loss against the present one" if each.changes_numerics else "unchanged"
    return [*found, ("Numerics", numerics)]


def _evidence(each: Recommendation, today: Now) -> str:
    """Return what the analysis holds for it, where the recommendation itself says nothing."""
    if each.id.startswith("late_rank"):
        return today.late
    if today.step_ns is None or today.exposed_ns is None:
        return ""
    return f"{ms(today.exposed_ns)} ms of a {ms(today.step_ns)} ms step is exposed communication"
