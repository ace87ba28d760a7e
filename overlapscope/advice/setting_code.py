"""How to bring a replayed setting about, in the code of each framework that can."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from overlapscope.advice.units import snippets

ARGUMENTS: Final = (
    "bucket_cap_mb", "bucket_cap_mb_list", "gradient_as_bucket_view", "find_unused_parameters", "static_graph",
)  # fmt: skip
"""Knobs that DistributedDataParallel takes."""
MORE: Final = (*ARGUMENTS[1:], "hook", "no_sync")
"""Knobs that are more than a cap."""
HOOK: Final = (
    "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook\n"
    "model.register_comm_hook(None, bf16_compress_hook)"
)
NO_SYNC: Final = "with model.no_sync():  # all but the last backward pass of a step\n    loss.backward()"


def setting_code(
    knobs: Mapping[str, Any], item_bytes: int, present: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Give the code by framework for `Settings.knobs()`; nothing for what no setting brings about.

    What is more than a cap only DistributedDataParallel is told here, unless it is so already, among the `present`
    knobs. What stands beside the constructor is told only where it is not `present`.
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
