"""What a recording shows of its job: the frameworks it uses, its optimizer, and whether it trains."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.run import Run
from overlapscope.whatif.parallelism import FRAMEWORK_NAMES, SERVES, has_megatron_groups, parallelism_of

ONLY_SEEN: Final = {"fsdp2", "megatron"}
"""Frameworks that are advised only where they are seen; others leave fewer names."""
OPTIMIZER: Final = re.compile(r"^Optimizer\.(?:step|zero_grad)#(?P<name>\w+)\.")
"""torch's annotations of an optimizer."""
FUSABLE: Final = ("SGD", "Adam", "AdamW", "Adagrad")
"""Optimizers of torch with `fused=True`."""
FUSED: Final = re.compile(r"Fused(?:Adam|Sgd|Adagrad)|_fused_(?:adam|sgd|adagrad)", re.I)
MANY_AT_ONCE: Final = re.compile(r"^aten::_foreach_(?:add|addcdiv|addcmul|lerp)_")
"""Operations of torch's optimizers that take many parameters in one launch; clipping by norm makes other ones."""
FSDP1: Final = "FullyShardedDataParallel."
"""In names of the ranges of FSDP's first version."""
TRAINS: Final = re.compile(r"Backward\d*$|^autograd::|^Optimizer\.|AccumulateGrad")


class JobKind(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job from its recording."""

    frameworks: tuple[str, ...]
    """Those seen by name, as keys of `Recommendation.apply`."""
    serves: bool
    """Whether it is an inference server: its names are seen, and none of training."""
    optimizer: str | None
    """Class of torch's optimizer; None where it was not recorded."""
    is_fused: bool
    """Whether the optimizer's kernels are fused, or take many parameters each."""
    is_npu: bool
    """Whether its devices are Ascend's."""


def job_kind(run: Run) -> JobKind:
    """Return what the names, groups and calls of a run show of its job."""
    names = {name for each in run.ranks.values() for name in each.names}
    found = {key for key, pattern in FRAMEWORK_NAMES.items() if any(pattern.search(name) for name in names)}
    found |= {"ddp"} if any(each.recorded.get("ddp") for each in run.ranks.values()) else set()
    found |= {"megatron"} if has_megatron_groups(run) else set()
    like = parallelism_of(run)
    found |= {"fsdp2"} if like == "fsdp" else set()
    trains = like in ("ddp", "fsdp") or any(TRAINS.search(name) for name in names)
    optimizers = {match["name"] for name in names if (match := OPTIMIZER.match(name)) is not None}
    return JobKind(
        frameworks=tuple(key for key in FRAMEWORK_NAMES if key in found),
        serves=not trains and any(SERVES.match(name) for name in names),
        optimizer=optimizers.pop() if len(optimizers) == 1 else None,
        is_fused=any(FUSED.search(name) or MANY_AT_ONCE.search(name) for name in names),
        is_npu="Ascend" in str(run.fingerprint.get("device") or ""),
    )


def uses_fsdp1(run: Run) -> bool:
    """Return whether a run uses FSDP's first version, which has other settings than the second."""
    return any(FSDP1 in name for timeline in run.ranks.values() for name in timeline.names)


def uses_rocm(run: Run) -> bool:
    """Return whether calls of AMD's runtime, or its devices, are seen in a run."""
    is_amd = str(run.fingerprint.get("device") or "").startswith("AMD ")
    return is_amd or any(name.startswith("hip") for each in run.ranks.values() for name in each.names)


def fitted(found: Sequence[Recommendation], job: JobKind) -> list[Recommendation]:
    """Return recommendations without code for frameworks that the job does not use; that for the ones it is known to
    use comes first.
    """
    return [replace(each, apply=_fitted(each.apply, job)) for each in found]


def _fitted(apply: Mapping[str, str], job: JobKind) -> dict[str, str]:
    used = [key for key in job.frameworks if key in apply]
    out = set(FRAMEWORK_NAMES) if job.serves else ONLY_SEEN
    kept = [*used, *(key for key in apply if key not in used and key not in out)]
    return {key: apply[key] for key in kept} if kept else dict(apply)
