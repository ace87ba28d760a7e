"""Which rank a recorded process was, from the environment and the command line it was started with.

Only the variables named here are looked at; an environment holds secrets.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from overlapscope.timeline.run import MAX_RANKS

_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables of rank and world size, by launcher; the first that stands decides."""
KNOWN: Final = frozenset(name for pair in _VARIABLES for name in pair if name)
_OPTION: Final = re.compile(r"--?(?P<name>nnodes|node[-_]rank|nproc[-_]per[-_]node)(?:=(?P<value>.*))?")


class RankHint(msgspec.Struct, frozen=True, kw_only=True):
    """The rank of a recording's first process, and the size of the job; None where it is not said."""

    first: int | None = None
    world_size: int | None = None
    said_by: str = ""


def rank_hint(variables: Mapping[str, str], arguments: Sequence[str], processes: int) -> RankHint:
    """Give what the start of a recording with so many ranks says.

    A rank variable is the rank of one process only. torchrun's options say the first rank of a node when its number of
    processes is that which was recorded; one node alone begins with rank 0.
    """
    if processes == 1:
        for rank_name, size_name in _VARIABLES:
            rank = _number(variables.get(rank_name))
            size = _number(variables.get(size_name))
            if rank is not None and (size is None or rank < size):
                return RankHint(first=rank, world_size=size or None, said_by=f"{rank_name}={rank}")
    options = _options(arguments)
    nodes, node, per_node = (options.get(name) for name in ("nnodes", "node_rank", "nproc_per_node"))
    if per_node == processes and nodes == 1:
        return RankHint(first=0, world_size=per_node, said_by=f"--nnodes=1 --nproc-per-node={per_node}")
    if per_node == processes and node is not None and nodes is not None and node < nodes:
        said_by = f"--node-rank={node} --nproc-per-node={per_node}"
        return RankHint(first=node * per_node, world_size=nodes * per_node, said_by=said_by)
    return RankHint()


def _options(arguments: Sequence[str]) -> dict[str, int]:
    found = {}
    for at, text in enumerate(arguments):
        option = _OPTION.fullmatch(text)
        if option:
            following = arguments[at + 1] if at + 1 < len(arguments) else None
            value = _number(option["value"] if option["value"] is not None else following)
            if value is not None:
                found[option["name"].replace("-", "_")] = value
    return found


def _number(text: str | None) -> int | None:
    if text is None or not re.fullmatch(r"[0-9]{1,7}", text.strip()):
        return None
    return int(text) if int(text) <= MAX_RANKS else None
