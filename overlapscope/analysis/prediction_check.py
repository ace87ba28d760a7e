"""What was predicted of a run's other settings, and what later runs measured: how far predictions can be believed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose
from typing import Annotated, Any, Final, Literal

import msgspec

SCHEMA: Literal["overlapscope.predictions/1"] = "overlapscope.predictions/1"
SAME: Final = 1e-3
"""Share by which a setting may differ and be the same: torch keeps a cap in whole bytes."""
MAX_LIST: Final = 3
CAPS: Final = ("bucket_cap_mb", "bucket_cap_mb_list")
"""Knobs that do nothing but decide buckets: two of their values are one setting where the buckets are the same."""
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What a file holds is taken from anybody: a larger number could not be reckoned with as a float."""
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
Value = bool | Whole | float | str | None
Knobs = dict[str, Value | list[Value]]


class Prediction(msgspec.Struct, kw_only=True, frozen=True):
    """The step of one setting, as it was predicted from a recording under another. The interval is 90 %."""

    made_at: str
    """Date or time, as it was given."""
    version: str
    """Of the tool."""
    verdict: str
    """Of all predictions made with it: `change` or `no_change`."""
    recommended: bool
    present: Knobs
    """Settings of the recording."""
    present_step_ns: Positive
    ranks: Positive
    gradient_bytes: Positive
    """With `ranks`, what tells one workload from another."""
    knobs: Knobs
    """Settings that are predicted."""
    step_ns: Positive
    low_ns: Whole
    high_ns: Whole


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """A prediction, and what a run under the predicted settings measured."""

    prediction: Prediction
    run: str
    measured_step_ns: Positive
    inside: bool
    """Whether the measured step lies in the predicted interval."""
    error: float
    """predicted / measured - 1"""


class Noted(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """What a run directory keeps: predictions, and the later runs that tested them."""

    schema_: Literal["overlapscope.predictions/1"] = SCHEMA
    predictions: list[Prediction] = []
    outcomes: list[Outcome] = []


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run tells that a prediction is held against."""

    run: str
    knobs: Mapping[str, Any]
    step_ns: int
    ranks: int
    gradient_bytes: int
    has_buckets: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether other knobs make the very buckets that this run has."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How often predictions held."""

    measured: int
    inside: int
    mean_error: float
    """Of the size of errors."""


def outcomes(predictions: Sequence[Prediction], seen: Iterable[Observed]) -> tuple[list[Outcome], list[str]]:
    """Hold runs against the last prediction of their settings; and say of each run why none is of it."""
    found, without = [], []
    for each in seen:
        of_it = [one for one in predictions if _is_workload(one, each)]
        # What is as it was when recorded tests no prediction made from that.
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
            without.append(f"{each.run}: the predictions are of another model or number of ranks")
        elif len(changed) == len(of_it):
            of_torch = each.knobs.get("bucket_cap_mb", 0) is None
            default = " (torch's default is 25 after a first bucket of 1)" if of_torch else ""
            without.append(f"{each.run}: no prediction is of its settings, {words(each.knobs)}{default}")
    return found, without


def same_setting(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two sets of knobs are one setting."""
    return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())


def _is_of(knobs: Mapping[str, Any], seen: Observed) -> bool:
    """Return whether a run's settings are these: knob by knob, or all but the caps and the same buckets.

    torch's default (`bucket_cap_mb=None`: 25 MiB after a first bucket of 1) is another setting than 25, and makes the
    same buckets of some models.
    """
    if same_setting(knobs, seen.knobs):
        return True
    others, own = ({name: value for name, value in each.items() if name not in CAPS} for each in (knobs, seen.knobs))
    return same_setting(others, own) and seen.has_buckets(knobs)


def joined(noted: Noted, predictions: Sequence[Prediction] = (), tested: Sequence[Outcome] = ()) -> Noted:
    """Add predictions and outcomes; what a run measured for a prediction stands once, as it was held against last."""
    kept = {_key(each): each for each in [*noted.outcomes, *tested]}
    return Noted(predictions=[*noted.predictions, *predictions], outcomes=list(kept.values()))


def trust(tested: Sequence[Outcome]) -> Trust | None:
    """Return how often predictions held; None where none was tested."""
    if not tested:
        return None
    mean_error = sum(abs(each.error) for each in tested) / len(tested)
    return Trust(measured=len(tested), inside=sum(each.inside for each in tested), mean_error=mean_error)


def words(knobs: Mapping[str, Any]) -> str:
    """Return settings as they are written in Python, long lists cut."""
    return ", ".join(f"{name}={_word(value)}" for name, value in knobs.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value[:MAX_LIST]))}{', ...' if len(value) > MAX_LIST else ''}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _key(outcome: Outcome) -> tuple[str, str, bytes]:
    """Return what tells one outcome from another: two recordings predict the same setting otherwise."""
    of = outcome.prediction
    content = (of.present, of.present_step_ns, of.knobs, of.step_ns)
    return outcome.run, of.made_at, msgspec.json.encode(content)


def _is_workload(prediction: Prediction, seen: Observed) -> bool:
    return (prediction.ranks, prediction.gradient_bytes) == (seen.ranks, seen.gradient_bytes)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (a, b))
    return isclose(a, b, rel_tol=SAME) if numbers else bool(a == b)
