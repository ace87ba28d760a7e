"""Rule: `CUDA_DEVICE_MAX_CONNECTIONS` does not fit the job. 1 keeps launches in order, but prevents overlap of streams.

Megatron-LM before Blackwell requires 1 with tensor or context parallelism, so that a collective that is launched first
also begins first; with FSDP it refuses 1 (`megatron/training/arguments.py`).
"""

import re
from typing import Final

from overlapscope.advice.rule_input import RuleInput, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.dimensions import CONTEXT, TENSOR

NAME: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
BEFORE_BLACKWELL: Final = re.compile(r"\b(?:[VAH]100|[AH]800|H200|H20|GH200|[AL]40S?|A10|A30|L4|T4)\b")


def max_connections(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the recorded variable does not fit the parallelism of the job."""
    environments = [_environment(each.recorded) for each in given.run.ranks.values() if each.has_device]
    if not environments or any(each is None for each in environments):
        return None
    values = {(each or {}).get(NAME) for each in environments}
    if len(values) > 1:
        return None
    value = values.pop()
    dimensions = {row.dimension for row in given.analysis.collectives}
    splits = bool({TENSOR, CONTEXT} & dimensions)
    fsdp = "fsdp2" in given.job.frameworks
    if value == "1" and fsdp and not splits:
        why = "FSDP's all-gathers and reduce-scatters cannot overlap compute: all streams share one queue of the device"
        return _recommendation(given, value, why, f"unset {NAME}  # the default is 8")
    old = BEFORE_BLACKWELL.search(str(given.run.fingerprint.get("device") or ""))
    if value != "1" and splits and "megatron" in given.job.frameworks and old and not fsdp:
        why = "Megatron's overlap of tensor-parallel collectives needs launches in order before Blackwell"
        return _recommendation(given, value, why, f"export {NAME}=1")
    return None


def _recommendation(given: RuleInput, value: str | None, why: str, apply: str) -> Recommendation:
    return recommended(
        given,
        id="max_connections",
        title=f"{NAME} is {value or 'not set'}: {why}",
        apply={"environment": apply},
        evidence={"value": value, "device": given.run.fingerprint.get("device")},
        measured=["the variable, as recorded on every rank"],
        assumed=["the gain: this job was not measured with the other value"],
    )


def _environment(recorded: object) -> dict[str, str] | None:
    settings = recorded.get("settings") if hasattr(recorded, "get") else None
    found = settings.get("environment") if isinstance(settings, dict) else None
    return found if isinstance(found, dict) else None
