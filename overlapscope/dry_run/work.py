"""What an operation costs: its kind of work, floating-point operations, and bytes read and written."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from overlapscope.timeline.columns import ATTENTION, FRAMEWORK_COPY, MATMUL, MEMORY

_ROWS_TOUCHED: Final = {"embedding": 0, "index_select": 0, "gather": 0, "nll_loss_forward": 0, "index": 0}
"""Operations that read only some rows of an argument, by its position: as many bytes as they return."""
_NO_WORK: Final = frozenset({
    "detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "set_", "resize_", "is_same_size",
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "record_stream",
    "_has_compatible_shallow_copy_type", "is_pinned", "_pin_memory", "sym_size", "sym_numel", "sym_stride",
})  # fmt: skip
"""Operations that only make or describe a tensor; views say so themselves."""
_CPU_ATTENTION: Final = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable": "_scaled_dot_product_flash_attention",
}
"""Operations that torch counts no FLOPs for, and those that it does, with the same first arguments."""


class TensorUse(NamedTuple):
    """One tensor of an operation, and how many bytes of it are touched."""

    tensor: Any
    size_bytes: int


class Work(NamedTuple):
    """What one operation does; tensors that it only views are in neither list."""

    kind: int
    flops: int
    read: Sequence[TensorUse]
    written: Sequence[TensorUse]


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work | None:
    """Return what an operation of torch's dispatcher did; None for a view, or one that does no work.

    FLOPs follow `torch.utils.flop_counter`, those of causal attention halved.
    """
    packet = func.overloadpacket.__name__
    if _does_nothing(func, packet):
        return None
    mutated = _mutated(func)
    written = [each for at in mutated for each in tensors_in(_argument(func, at, args, kwargs))]
    changed = {id(each) for each in written}
    read = [each for each in tensors_in((args, kwargs)) if id(each) not in changed or not packet.endswith("zero_")]
    if packet in _OVERWRITING:
        read = [each for each in read if id(each) not in changed]
    made = [each for each in tensors_in(result) if id(each) not in changed]
    if packet == "all_gather_copy_in":  # it copies into the rank's own part of the output
        read, written, made = tensors_in(args[0]), [], tensors_in(args[0])
    flops = _flops(func, packet, args, kwargs, result)
    return Work(
        kind=_kind(func, packet, flops),
        flops=flops,
        read=_touched(func, packet, read, args, made),
        written=[TensorUse(each, size_of(each)) for each in (*written, *made)],
    )


_OVERWRITING: Final = frozenset({
    "zero_", "fill_", "copy_", "normal_", "uniform_", "split_with_sizes_copy", "chunk_cat", "_foreach_copy_",
    "_foreach_zero_", "all_gather_copy_in", "exponential_", "bernoulli_", "random_",
})  # fmt: skip
"""Operations that do not read what they write over."""


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    import torch  # noqa: PLC0415 - loaded only where a step runs

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(each)]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_in(each)]
    return []


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor's elements; of an expanded one, those of its storage."""
    own = int(tensor.numel()) * int(tensor.element_size())
    return min(own, int(tensor.untyped_storage().nbytes()))


def _touched(
    func: Any, packet: str, read: Sequence[Any], args: tuple[Any, ...], made: Sequence[Any]
) -> list[TensorUse]:
    position = _ROWS_TOUCHED.get(packet)
    if position is None or func.namespace != "aten" or not made or position >= len(args):
        return [TensorUse(each, size_of(each)) for each in read]
    rows = args[position]
    return [TensorUse(each, min(size_of(each), size_of(made[0])) if each is rows else size_of(each)) for each in read]


@cache
def _does_nothing(func: Any, packet: str) -> bool:
    if func.namespace not in ("aten", "prims"):
        return False
    if packet in _NO_WORK or packet.startswith("sym_"):
        return True
    if packet in ("_foreach_zero_",):
        return False
    returns = func._schema.returns
    views = [each.alias_info is not None and not each.alias_info.is_write for each in returns]
    return bool(returns) and all(views)


@cache
def _mutated(func: Any) -> tuple[int, ...]:
    """Return the positions of the arguments that an operation writes to."""
    arguments = func._schema.arguments
    return tuple(at for at, each in enumerate(arguments) if each.alias_info is not None and each.alias_info.is_write)


def _argument(func: Any, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if position < len(args):
        return args[position]
    return kwargs.get(func._schema.arguments[position].name)


def _flops(func: Any, packet: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    formula = _formula(func, packet)
    if formula is None:
        return 0
    if not _is_attention(packet):
        return int(formula(*args, **kwargs, out_val=result))
    from torch.utils._python_dispatch import _disable_current_modes  # noqa: PLC0415

    with _disable_current_modes():  # lengths of packed sequences are read, where the program has them as constants
        flops = int(formula(*args, **kwargs, out_val=result))
    return flops // 2 if _is_causal(func, args, kwargs) else flops


@cache
def _formula(func: Any, packet: str) -> Any:
    import torch  # noqa: PLC0415 - loaded only where a step runs
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415

    known = _CPU_ATTENTION.get(packet)
    return flop_registry.get(func.overloadpacket if known is None else getattr(torch.ops.aten, known))


def _is_attention(packet: str) -> bool:
    return "attention" in packet or "_attn" in packet


def _is_causal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    names = [each.name for each in func._schema.arguments]
    if "is_causal" not in names:
        return False
    return bool(_argument(func, names.index("is_causal"), args, kwargs))


def _kind(func: Any, packet: str, flops: int) -> int:
    if func.namespace == "fsdp":
        return FRAMEWORK_COPY
    if _is_attention(packet):
        return ATTENTION
    return MATMUL if flops else MEMORY
