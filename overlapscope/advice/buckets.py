"""What a replay under other settings recommends: buckets, views of them, fewer bits; or to leave them alone."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from overlapscope.advice.given import WORTH
from overlapscope.advice.of_scenario import of_scenario
from overlapscope.advice.setting_code import HOOK, setting_code
from overlapscope.advice.units import spelled
from overlapscope.analysis.analyze import Recommendation
from overlapscope.whatif.scenario import Scenario, WhatIf

VIEW: Final = "gradient_as_bucket_view"
MOST_SHOWN: Final = 3
"""Caps of a list that a title shows; the code has all."""


def bucket_advice(told: WhatIf, item_bytes: int) -> list[Recommendation]:
    """Give recommendations, best first; nothing where the recording is not understood well enough, or waiting for a
    late rank dominates: the reasons say so.
    """
    if told.verdict == "insufficient_data" or told.waiting:
        return []
    found = [_cap(told, item_bytes), _views(told, item_bytes), _fewer_bits(told)]
    return [each for each in found if each is not None]


def adds_views(told: WhatIf) -> bool:
    """Whether the advised change makes gradients views of their buckets: its gain holds what views save."""
    return told.verdict == "change" and bool(_changed(told).get(VIEW))


def _cap(told: WhatIf, item_bytes: int) -> Recommendation:
    if told.verdict == "change":
        knobs, present = told.best.knobs, told.baseline.knobs
        best, apply = _row(told.scenarios, knobs), setting_code(knobs, item_bytes, present)
        title = f"Set {_shown(_changed(told))}"
        memory_bytes = best.memory_bytes - told.scenarios[0].memory_bytes or None
        return of_scenario(told, best, "bucket_cap", title, "change", apply=apply, memory_bytes=memory_bytes)
    title = "Leave the buckets as they are: no cap gains more than the noise, or surely gains at all"
    return of_scenario(told, told.scenarios[0], "keep_buckets", title, "no_change")


def _views(told: WhatIf, item_bytes: int) -> Recommendation | None:
    """Views save the memory of all buckets; they are worth it where the step gets no longer, as far as is known."""
    base = told.scenarios[0]
    with_views = {**base.knobs, VIEW: True}
    row = next((each for each in told.scenarios[1:] if each.knobs == with_views), None)
    if row is None or row.gain < 0 or row.gain_low < -WORTH or not base.memory_bytes or adds_views(told):
        return None
    saved = base.memory_bytes - row.memory_bytes
    title = f"gradient_as_bucket_view=True saves {saved / 1e6:.1f} MB, and the copies out of buckets"
    apply = setting_code(with_views, item_bytes, base.knobs)
    return of_scenario(told, row, "bucket_view", title, "change", apply=apply, memory_bytes=-saved)


def _fewer_bits(told: WhatIf) -> Recommendation | None:
    """Give the trial of 16 bits, where it surely gains; whether the model trains as well is never promised."""
    row = next((each for each in told.scenarios if each.changes_numerics), None)
    if row is None or row.gain_low <= 0:
        return None
    title = "Try to send 16-bit gradients: changes numerics, so hold the loss against the present one"
    return of_scenario(told, row, "sixteen_bit_gradients", title, "trial", apply={"ddp": HOOK})


def _changed(told: WhatIf) -> dict[str, Any]:
    """Give the best knobs that are not so at present; what is set no longer is False."""
    knobs, present = told.best.knobs, told.baseline.knobs
    left = {name: False for name, value in present.items() if value is True and name not in knobs}
    return {name: value for name, value in knobs.items() if present.get(name) != value} | left


def _shown(knobs: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}=[{', '.join(spelled(each) for each in value[:MOST_SHOWN])}, ...]"
        if isinstance(value, list) and len(value) > MOST_SHOWN
        else f"{name}={spelled(value)}"
        for name, value in knobs.items()
    )


def _row(scenarios: Sequence[Scenario], knobs: dict[str, object]) -> Scenario:
    return next(each for each in scenarios if each.knobs == knobs)
