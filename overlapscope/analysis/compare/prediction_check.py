"""Check predictions of other settings against what later runs measured, to see how accurate predictions are."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose
from typing import Annotated, Any, Final, Literal

import msgspec

SCHEMA: Literal["overlapscope.predictions/1"] = "overlapscope.predictions/1"
SAME: Final = 1e-3
"""Relative difference up to which two values of a setting are the same: torch stores a cap in whole bytes."""
MAX_LIST: Final = 3
CAPS: Final = ("bucket_cap_mb", "bucket_cap_mb_list")
"""Knobs that only determine the buckets: two values are the same setting where they make the same buckets."""
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Files are untrusted input: a larger number would overflow when converted to float."""
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
Value = bool | Whole | float | str | None
Knobs = dict[str, Value | list[Value]]


class Prediction(msgspec.Struct, kw_only=True, frozen=True):
    """The predicted step time of one setting, from a recording under another setting. The interval is 90 %."""

    made_at: str
    """Date or time, as given."""
    version: str
    """Version of OverlapScope."""
    verdict: str
    """Verdict over all predictions made at the same time: `change` or `no_change`."""
    recommended: bool
    present: Knobs
    """Settings of the recording."""
    present_step_ns: Positive
    ranks: Positive
    gradient_bytes: Positive
    """With `ranks`, this identifies the workload."""
    knobs: Knobs
    """The predicted settings."""
    step_ns: Positive
    low_ns: Whole
    high_ns: Whole


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """A prediction, and the step time that a run with the predicted settings measured."""

    prediction: Prediction
    run: str
    measured_step_ns: Positive
    inside: bool
    """Whether the measured step lies in the predicted interval."""
    error: float
    """predicted / measured - 1"""


class Noted(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The prediction file of a run directory: predictions, and the later runs that tested them."""

    schema_: Literal["overlapscope.predictions/1"] = SCHEMA
    predictions: list[Prediction] = []
    outcomes: list[Outcome] = []


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a run that a prediction is compared with."""

    run: str
    knobs: Mapping[str, Any]
    step_ns: int
    ranks: int
    gradient_bytes: int
    has_buckets: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether other knobs make the same buckets as this run has."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How often predictions were correct."""

    measured: int
    inside: int
    mean_error: float
    """Mean of the absolute errors."""


def outcomes(predictions: Sequence[Prediction], seen: Iterable[ObservedRun]) -> tuple[list[Outcome], list[str]]:
    """Compare runs with the last prediction of their settings; also return why a run has no prediction."""
    found, without = [], []
    for each in seen:
        of_it = [one for one in predictions if _is_workload(one, each)]
        # A run with the settings of the recording does not test predictions made from that recording.
        changed = [one for one in of_it if not _is_of(one.present, each)]
        same = [one for one in changed if _is_of(one.knobs, each)]
        if same:
            last = same[-1]
            found.append(
                Outcome(
                    prediction=last,
                    run=each.run,
                    measured_step_ns=each.step_ns,
                    inside=last.low_ns <= each.step_ns <= last.high_ns,
                    error=last.step_ns / each.step_ns - 1,
                )
            )
        elif not of_it:
            without.append(f"{each.run}: the predictions are for another model or number of ranks")
        elif len(changed) == len(of_it):
            of_torch = each.knobs.get("bucket_cap_mb", 0) is None
            default = " (torch's default is 25 after a first bucket of 1)" if of_torch else ""
            without.append(f"{each.run}: there is no prediction for its settings, {words(each.knobs)}{default}")
    return found, without


def same_setting(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two sets of knobs are the same setting."""
    return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())


def _is_of(knobs: Mapping[str, Any], seen: ObservedRun) -> bool:
    """Return whether a run has these settings: all knobs are equal, or all except the caps, and the buckets are equal.

    torch's default (`bucket_cap_mb=None`: 25 MiB after a first bucket of 1 MiB) is another setting than 25, but makes
    the same buckets for some models.
    """
    if same_setting(knobs, seen.knobs):
        return True
    others, own = ({name: value for name, value in each.items() if name not in CAPS} for each in (knobs, seen.knobs))
    return same_setting(others, own) and seen.has_buckets(knobs)


def add_outcomes(noted: Noted, predictions: Sequence[Prediction] = (), tested: Sequence[Outcome] = ()) -> Noted:
    """Add predictions and outcomes; of several outcomes of one run and prediction, the last one is kept."""
    kept = {_key(each): each for each in [*noted.outcomes, *tested]}
    return Noted(predictions=[*noted.predictions, *predictions], outcomes=list(kept.values()))


def trust(tested: Sequence[Outcome]) -> Trust | None:
    """Return how often predictions were correct; None where none was tested."""
    if not tested:
        return None
    mean_error = sum(abs(each.error) for each in tested) / len(tested)
    return Trust(measured=len(tested), inside=sum(each.inside for each in tested), mean_error=mean_error)


def words(knobs: Mapping[str, Any]) -> str:
    """Return settings as Python keyword arguments; long lists are shortened."""
    return ", ".join(f"{name}={_word(value)}" for name, value in knobs.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value[:MAX_LIST]))}{', ...' if len(value) > MAX_LIST else ''}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _key(outcome: Outcome) -> tuple[str, str, bytes]:
    """Return the identity of an outcome: two recordings predict the same setting differently."""
    of = outcome.prediction
    content = (of.present, of.present_step_ns, of.knobs, of.step_ns)
    return outcome.run, of.made_at, msgspec.json.encode(content)


def _is_workload(prediction: Prediction, seen: ObservedRun) -> bool:
    return (prediction.ranks, prediction.gradient_bytes) == (seen.ranks, seen.gradient_bytes)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (a, b))
    return isclose(a, b, rel_tol=SAME) if numbers else bool(a == b)
