"""What a replay of the recording recommends under other settings, beside what rules found."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from overlapscope.advice.rule_input import VERIFY, WORTH
from overlapscope.advice.setting_code import HOOK, setting_code, spelled
from overlapscope.analysis.across_ranks import Across
from overlapscope.analysis.result import Recommendation
from overlapscope.errors import InputError
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp_predict import answer
from overlapscope.whatif.ddp_recording import RecordedCase, from_run
from overlapscope.whatif.graph_predict import answer_run
from overlapscope.whatif.parallelism import kind_of
from overlapscope.whatif.result import Scenario, WhatIf

VIEW: Final = "gradient_as_bucket_view"
MOST_SHOWN: Final = 3
"""Caps of a list that a title shows; the code has all."""
APPLY: Final = {
    "reshard_after_forward": "fully_shard(module, reshard_after_forward=False)",
    "forward_prefetch": "module.set_modules_to_forward_prefetch([...])  # the next {value}, on each one",
    "backward_prefetch": "module.set_modules_to_backward_prefetch([...])  # the {value} before it, on each one",
    "modules_per_group": "fully_shard([module, next_module])  # {value} neighbours in one call",
    "reduce_dtype": "fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
}
"""Calls of FSDP2 (torch 2.6 and later) for each knob that is replayed."""


def by_replay(
    run: Run,
    together: Across,
    found: list[Recommendation],
    caps_mb: Sequence[float],
    keep: Callable[[RecordedCase, WhatIf], None] | None,
) -> tuple[list[Recommendation], list[str]]:
    """Return what rules `found` with what a replay recommends, and the reasons beside it or for its not being one.

    `caps_mb` are the caps to try; `keep` gets what was replayed and what it told, if it was.
    """
    try:
        case = from_run(run, together)
    except InputError as error:
        return _of_another_kind(run, together, found, error)
    told = answer(case, caps_mb)
    if keep is not None:
        keep(case, told)
    of_buckets = bucket_advice(told, ITEM_BYTES[case.recorded.dtypes[0]])
    # A predicted gain of views stands for what the copies' time only bounds.
    if adds_views(told) or any(each.id == "bucket_view" for each in of_buckets):
        found = [each for each in found if each.id != "communication_copies" or set(each.apply) != {"ddp"}]
    return [*of_buckets, *found], list(told.reasons)


def _of_another_kind(
    run: Run, together: Across, found: list[Recommendation], why: InputError
) -> tuple[list[Recommendation], list[str]]:
    """Add what a replay of FSDP2 recommends; `why` says why it is no recording of DistributedDataParallel."""
    if kind_of(run) != "fsdp":
        return found, [f"no setting was replayed: {why}"]
    try:
        told = answer_run(run, together, why=str(why))
    except InputError as error:
        return found, [f"no setting was replayed: {error}"]
    return [*gather_advice(told), *found], list(told.reasons)


def of_scenario(
    told: WhatIf,
    row: Scenario,
    name: str,
    title: str,
    verdict: str,
    *,
    apply: dict[str, str] | None = None,
    memory_bytes: int | None = None,
) -> Recommendation:
    """Return the recommendation of a scenario, its gain in nanoseconds of the present step."""
    measured = told.baseline.measured_step_ns or told.baseline.replayed_step_ns
    confidence: Literal["mixed", "assumed"] = "mixed" if told.interference.identified else "assumed"
    gains = (row.gain, row.gain_low, row.gain_high) if verdict != "no_change" else (None, None, None)
    gain, low, high = (None if each is None else round(each * measured) for each in gains)
    return Recommendation(
        id=name,
        title=title,
        verdict=verdict,
        predicted_gain_ns=gain,
        gain_low_ns=low,
        gain_high_ns=high,
        confidence=confidence,
        memory_bytes=memory_bytes,
        changes_numerics=row.changes_numerics,
        apply=apply or {},
        verify=VERIFY,
        evidence={
            "step_ns": measured,
            "predicted_step_ns": row.predicted_step_ns,
            "exposed_comm_ns": row.exposed_comm_ns,
            **({"buckets": row.buckets} if row.buckets else {}),
            "replay_error": told.baseline.replay_error,
        },
        measured=["the present step, its gradients and transfers"] if told.baseline.measured_step_ns else [],
        assumed=[each.name.replace("_", " ") for each in told.assumptions],
    )


def bucket_advice(told: WhatIf, item_bytes: int) -> list[Recommendation]:
    """Return recommendations, best first; nothing where the recording is not understood well enough, or waiting for a
    late rank dominates: the reasons say so.
    """
    if told.verdict == "insufficient_data" or told.waiting:
        return []
    found = [_cap(told, item_bytes), _views(told, item_bytes), _fewer_bits(told)]
    return [each for each in found if each is not None]


def adds_views(told: WhatIf) -> bool:
    """Return whether the advised change makes gradients views of their buckets: its gain holds what views save."""
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
    """Return the trial of 16 bits, where it surely gains; whether the model trains as well is never promised."""
    row = next((each for each in told.scenarios if each.changes_numerics), None)
    if row is None or row.gain_low <= 0:
        return None
    title = "Try to send 16-bit gradients: changes numerics, so hold the loss against the present one"
    return of_scenario(told, row, "sixteen_bit_gradients", title, "trial", apply={"ddp": HOOK})


def _changed(told: WhatIf) -> dict[str, Any]:
    """Return the best knobs that are not so at present; what is set no longer is False."""
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


def gather_advice(told: WhatIf) -> list[Recommendation]:
    """Return recommendations for a recording of FSDP2; nothing for others, or where no setting surely gains."""
    if told.kind != "fsdp" or told.verdict != "change":
        return []
    best = next(each for each in told.scenarios if each.knobs == told.best.knobs)
    title = f"Set {', '.join(f'{name}={value}' for name, value in best.knobs.items())}"
    found = [of_scenario(told, best, "fsdp_gathers", title, "change", apply=_apply(best.knobs),
                         memory_bytes=best.memory_bytes)]  # fmt: skip
    for each in told.scenarios:
        if each.changes_numerics and each.gain_low > 0 and set(each.knobs) <= set(APPLY):
            title = "Try to reduce gradients in 16 bits: changes numerics, so hold the loss against the present one"
            found.append(of_scenario(told, each, "sixteen_bit_gradients", title, "trial", apply=_apply(each.knobs)))
    return found


def _apply(knobs: dict[str, Any]) -> dict[str, str]:
    return {"fsdp2": "\n".join(APPLY[name].format(value=value) for name, value in knobs.items())}
