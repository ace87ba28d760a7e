"""A bucket's size in the words and units of each framework."""

from collections.abc import Mapping
from typing import Any, Final

MIB: Final = 1 << 20


def snippets(knobs: Mapping[str, Any], item_bytes: int) -> dict[str, str]:
    """Give how to set the buckets of `knobs` (torch's words, MiB) in each framework; `item_bytes` of one gradient.

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
    """Spell a knob's value as Python, without figures that mean nothing."""
    if isinstance(value, float):
        return f"{value:g}"
    return f"[{', '.join(f'{each:.6g}' for each in value)}]" if isinstance(value, list) else repr(value)
