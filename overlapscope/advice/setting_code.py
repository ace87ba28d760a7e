"""Code that applies a replayed setting, for each framework, in its own names and units."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

ARGUMENTS: Final = (
    "bucket_cap_mb", "bucket_cap_mb_list", "gradient_as_bucket_view", "find_unused_parameters", "static_graph",
)  # fmt: skip
"""Knobs that are arguments of DistributedDataParallel."""
MORE: Final = (*ARGUMENTS[1:], "hook", "no_sync")
"""Knobs other than the cap."""
HOOK: Final = (
    "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook\n"
    "model.register_comm_hook(None, bf16_compress_hook)"
)
NO_SYNC: Final = "with model.no_sync():  # all but the last backward pass of a step\n    loss.backward()"
MIB: Final = 1 << 20


def setting_code(
    knobs: Mapping[str, Any], item_bytes: int, present: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Return the code by framework for `Settings.knobs()`; empty for hypothetical settings.

    With knobs other than a cap that are not among the `present` ones, only code for DistributedDataParallel is
    returned. Code outside the constructor is included only where it is not `present`.
    """
    if "link_speed" in knobs or "late_ranks" in knobs or knobs.get("small_last_bucket"):
        return {}
    found = snippets({name: value for name, value in knobs.items() if name in ARGUMENTS}, item_bytes)
    more = {name for name, value in knobs.items() if name in MORE and value and present.get(name) != value}
    if not more:
        return found
    lines = [found["ddp"]]
    lines += [HOOK] if "hook" in more else []
    lines += [NO_SYNC] if "no_sync" in more else []
    return {"ddp": "\n".join(lines)}


def snippets(knobs: Mapping[str, Any], item_bytes: int) -> dict[str, str]:
    """Return how to set the buckets of `knobs` (torch's names, MiB) in each framework; `item_bytes` is of one element.

    DistributedDataParallel counts MiB, Horovod bytes, DeepSpeed elements, Megatron parameters; FSDP2 has no buckets but
    reduces what one call of `fully_shard` wraps. A list of caps only DistributedDataParallel knows.
    """
    found = {"ddp": f"DistributedDataParallel(model, {', '.join(f'{k}={spelled(v)}' for k, v in knobs.items())})"}
    cap_mb = knobs.get("bucket_cap_mb")
    if cap_mb is None:
        return found
    size_bytes = round(float(cap_mb) * MIB)
    elements = max(size_bytes // item_bytes, 1)
    wrapped = f"# FSDP2 reduces what one call wraps: fully_shard(module) for modules of about {elements} parameters"
    return found | {
        "fsdp2": wrapped,
        "deepspeed": f'{{"zero_optimization": {{"reduce_bucket_size": {elements}}}}}',
        "megatron": f"--overlap-grad-reduce --ddp-bucket-size {elements}",
        "horovod": f"HOROVOD_FUSION_THRESHOLD={size_bytes}",
    }


def spelled(value: Any) -> str:
    """Format a knob's value as Python, without meaningless digits."""
    if isinstance(value, float):
        return f"{value:g}"
    return f"[{', '.join(f'{each:.6g}' for each in value)}]" if isinstance(value, list) else repr(value)
