"""What a replay of FSDP2 recommends: when parameters are gathered, how long they stay, how many at once."""

from typing import Any, Final

from overlapscope.advice.of_scenario import of_scenario
from overlapscope.analysis.analyze import Recommendation
from overlapscope.whatif.scenario import WhatIf

APPLY: Final = {
    "reshard_after_forward": "fully_shard(module, reshard_after_forward=False)",
    "forward_prefetch": "module.set_modules_to_forward_prefetch([...])  # the next {value}, on each one",
    "backward_prefetch": "module.set_modules_to_backward_prefetch([...])  # the {value} before it, on each one",
    "modules_per_group": "fully_shard([module, next_module])  # {value} neighbours in one call",
    "reduce_dtype": "fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
}
"""Calls of FSDP2 (torch 2.6 and later) for each knob that is replayed."""


def gather_advice(told: WhatIf) -> list[Recommendation]:
    """Give recommendations for a recording of FSDP2; nothing for others, or where no setting surely gains."""
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
