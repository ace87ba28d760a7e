"""The rank that a file's or a folder's name speaks of."""

import re
from pathlib import Path

from overlapscope.timeline.run import MAX_RANKS

_RANK = re.compile(
    r"(?<![dtpec]p)(?<![dtpec]p[-_])(?<!local)(?<!local[-_])(?<!node[-_])rank[-_.=]?(\d{1,7})(?!\d)", re.I
)
"""A rank in the world; not `local_rank1`, `dp_rank_1` and their like, which are ranks in something else."""


def rank_from_path(path: Path) -> int | None:
    """Give the rank that a file's name, else its folder's name, speaks of (`rank3`, `rank_03`, `rank-3of8`)."""
    for part in (path.name, path.parent.name):
        found = [int(number) for number in _RANK.findall(part) if int(number) <= MAX_RANKS]
        if found:
            return found[0] if len(set(found)) == 1 else None
    return None
