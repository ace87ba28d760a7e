"""Parse what the profiler writes about a collective (operation, sizes, group), for all torch versions.

Since torch 2.4 kernels have `Collective name`, `In msg nelems`, ...; before, sizes are only in the `Input Dims` of
the host annotation, and group size and sequence number in the positional `Concrete Inputs` of `record_param_comms`
(tensor, sequence, process group, rank, operation, splits, splits, world size: torch 2.0 to 2.3).
"""

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.timeline.operations import ITEM_BYTES, MAX_COUNT

_SPELLINGS: Final = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "longint": "int64",
    "int": "int32",
    "short": "int16",
    "shortint": "int16",
    "char": "int8",
    "signedchar": "int8",
    "byte": "uint8",
    "unsignedchar": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
}
"""C++ and c10 spellings, lower case without blanks and namespaces."""
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
MAX_GROUP_SIZE: Final = 1 << 22
MAX_NESTED: Final = 8


class CollectiveArgs(msgspec.Struct, gc=False):
    """Raw arguments of a kernel, `record_param_comms` or an annotation; None where absent."""

    collective_name: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    rank_start: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    target_rank: Any = msgspec.field(default=None, name="Dst Rank")
    seq: Any = msgspec.field(default=None, name="Seq")
    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    old_input_dims: Any = msgspec.field(default=None, name="Input dims")
    input_type: Any = msgspec.field(default=None, name="Input type")
    concrete_inputs: Any = msgspec.field(default=None, name="Concrete Inputs")
    record_function_id: Any = msgspec.field(default=None, name="Record function id")


def dtype_name(spelling: object) -> str | None:
    """Return torch's name of a dtype spelled by c10, C++ or torch (`Half`, `c10::Half`, `float16`); None if unknown."""
    return _torch_name(spelling) if isinstance(spelling, str) else None


@lru_cache(1024)
def _torch_name(spelling: str) -> str | None:
    plain = spelling.lower().replace("c10::", "").replace("torch.", "").replace(" ", "")
    name = _SPELLINGS.get(plain, plain)
    return name if name in ITEM_BYTES else None


def parse_count(value: object) -> int | None:
    """Return a non-negative whole number written as number or text; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < MAX_COUNT else None


def parse_function_id(args: CollectiveArgs) -> int | None:
    """Return the record function id of the host operation with these arguments; None if absent or 0."""
    return parse_count(args.record_function_id) or None


def peer_rank(args: CollectiveArgs) -> int | None:
    """Return the global rank that a send goes to or a recv comes from; None if not recorded.

    torch translates the rank in the group itself (`saveNcclMeta` in torch/csrc/profiler/util.cpp). Where both ends of a
    message stand there, the operation says which is the peer.
    """
    source, target = parse_count(args.source_rank), parse_count(args.target_rank)
    if source is None or target is None:
        return source if target is None else target
    return {"send": target, "recv": source}.get(canonical_operation(args.collective_name) or "")


_NAMED_PEER: Final = re.compile(r"^[a-z]*ccl:(?:send|recv) (?P<own>\d{1,9})(?:->|<-)(?P<peer>\d{1,9})$")


def named_peer_rank(name: str, members: Sequence[int]) -> int | None:
    """Return the global rank that a range such as `nccl:send 1->2` names, by its index among the group's members.

    torch writes both ranks as they are in the group (`pointToPoint` in ProcessGroupNCCL.cpp).
    """
    found = _NAMED_PEER.match(name)
    index = int(found["peer"]) if found else len(members)
    return members[index] if index < len(members) else None


def named_places(name: str) -> tuple[int, int] | None:
    """Return the places in their group of the rank that recorded such a range and of its peer; None for other names."""
    found = _NAMED_PEER.match(name)
    return (int(found["own"]), int(found["peer"])) if found else None


_CALLED_PEER = 2


def called_peer_rank(args: CollectiveArgs, members: Sequence[int]) -> int | None:
    """Return the global rank that `c10d::send` or `c10d::recv_` names by its index among the group's members.

    Their arguments are (tensors, group, rank in the group, tag); written where shapes are recorded.
    """
    values = args.concrete_inputs
    index = parse_count(values[_CALLED_PEER]) if isinstance(values, list) and len(values) > _CALLED_PEER else None
    return members[index] if index is not None and index < len(members) else None


def tensor_elements(dims: object, depth: int = 0) -> int | None:
    """Return the number of elements of one tensor's dims, or the sum over a list of tensors; None without dims."""
    if not isinstance(dims, list) or not dims or depth > MAX_NESTED:
        return None
    if all(isinstance(size, int) for size in dims):
        return parse_count(math.prod(dims)) if min(dims) >= 0 else None
    parts = [tensor_elements(each, depth + 1) for each in dims]
    known = [part for part in parts if part is not None]
    return parse_count(sum(known)) if len(known) == len(parts) else None


def input_elements(args: CollectiveArgs, position: int = 0) -> int | None:
    """Return the number of elements of the tensor (or list of tensors) at `position` of the recorded inputs."""
    dims = args.input_dims if args.input_dims is not None else args.old_input_dims
    if not isinstance(dims, list) or len(dims) <= position:
        return None
    types = args.input_type
    if dims[position] == [] and isinstance(types, list) and len(types) > position and dtype_name(types[position]):
        return 1  # a tensor without dimensions; what is no tensor has no type of one
    return tensor_elements(dims[position])


def input_dtype(args: CollectiveArgs) -> str | None:
    """Return the dtype of the first recorded input; None for lists of tensors, whose type is not written."""
    types = args.input_type
    return dtype_name(types[0]) if isinstance(types, list) and types else None


_OLD_CONCRETE_INPUTS = 8


def from_concrete_inputs(args: CollectiveArgs) -> tuple[int | None, int | None]:
    """Return (sequence number, group size) from the positional inputs that torch 2.0 to 2.3 record."""
    values = args.concrete_inputs
    if not isinstance(values, list) or len(values) != _OLD_CONCRETE_INPUTS:
        return None, None
    return parse_count(values[1]), parse_count(values[7]) or None


def group_ranks(args: CollectiveArgs, config: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the group's ranks, rebuilding lists that the profiler cut after 30 entries.

    Old versions write `[0, 1, ..., 29, ...]`, new ones `[0, ..., 28, ..., 63]`; what is missing comes from the
    group's entry in the trace's own configuration, else from start, stride and size where the visible part agrees.
    None when the list cannot be known.
    """
    size = parse_count(args.group_size)
    listed, cut = parse_ranks(args.group_ranks)
    configured = config.get(str(args.group_name)) if args.group_name is not None else None
    if listed is not None and not cut:
        return listed or configured
    if configured is not None:
        return configured
    start, stride = parse_count(args.rank_start), parse_count(args.rank_stride)
    if start is None or not stride or not size or size > MAX_GROUP_SIZE:
        return None
    rebuilt = tuple(range(start, start + stride * size, stride))
    return rebuilt if listed is None or _shows(rebuilt, listed) else None


def _shows(ranks: tuple[int, ...], listed: tuple[int, ...]) -> bool:
    """Return whether a cut list fits these ranks: their first ones, then the 30th (old form) or the last (new form)."""
    if not listed or len(listed) > len(ranks):
        return False
    ends = (ranks[len(listed) - 1], ranks[-1])
    return ranks[: len(listed) - 1] == listed[:-1] and listed[-1] in ends


def parse_ranks(text: object) -> tuple[tuple[int, ...] | None, bool]:
    """Parse ranks written as a list or as text; return them (None if unreadable) and whether `...` cut the list."""
    if isinstance(text, list):
        return (tuple(text), False) if all(isinstance(rank, int) for rank in text) else (None, False)
    if not isinstance(text, str) or not text.strip().startswith("["):
        return None, False
    cut = "..." in text or "\u2026" in text
    body = re.sub(r"\.\.\.|\u2026", "", text)
    body = re.sub(r",\s*(?=[,\]])", "", re.sub(r"\[\s*,", "[", body))
    try:
        ranks = json.loads(body)
    except (ValueError, RecursionError):
        return None, cut
    return (tuple(ranks), cut) if all(isinstance(rank, int) for rank in ranks) else (None, cut)
