"""Find the rank and the host of a trace that states neither: in its groups, and in its file's name."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.reader import rank_from_path
from overlapscope.timeline.columns import HOST, NONE
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Group, RankTimeline

_HANDLER: Final = re.compile(r"(?P<host>.+)_(?P<process>\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
"""Name that `tensorboard_trace_handler` makes by default: host, process id, time (torch/profiler/profiler.py)."""
_NUMBERED: Final = re.compile(
    r"(?:.*[-_.])?(?:(?:rank|gpu|device|process|proc|pid)[-_.]?\d*|worker[_.]?\d*)", re.IGNORECASE
)
"""A word, with or without its number, that is no host's: it says which rank or device it is."""


def with_rank(timeline: RankTimeline, stated: int | None, path: Path, groups: Sequence[Group]) -> RankTimeline:
    """Return the timeline with its rank: as stated, else as its groups prove where the file's name says none either.

    A message's peer that is the rank itself is impossible: it is then unknown.
    """
    by_name = rank_from_path(path)
    shown = common_member(timeline, groups) if stated is None and by_name is None else None
    rank = next((each for each in (stated, shown) if each is not None), UNKNOWN_RANK)
    own = by_name if rank == UNKNOWN_RANK and by_name is not None else rank
    calls = timeline.collectives
    if own != UNKNOWN_RANK and (calls.peer == own).any():
        calls = replace(calls, peer=np.where(calls.peer == own, NONE, calls.peer))
    return replace(timeline, rank=rank, collectives=calls)


def common_member(timeline: RankTimeline, groups: Sequence[Group]) -> int | None:
    """Return the one rank that is a member of every group in which calls were made; None unless exactly one is."""
    members = {group.name: frozenset(group.ranks) for group in groups if group.ranks}
    named = [timeline.names[code] for code in np.unique(timeline.collectives.group).tolist() if code >= 0]
    known = [members[name] for name in named if name in members]
    common = frozenset.intersection(*known) if known else frozenset()
    rank = next(iter(common), UNKNOWN_RANK)
    return rank if len(common) == 1 and 0 <= rank <= MAX_RANKS else None


def host_in_name(path: Path, timeline: RankTimeline) -> str | None:
    """Return the host in the name of a file, if the process id beside it is one that the trace recorded.

    A name that numbers a rank (`rank3`, `gpu-2`, `worker0`) is none; `worker-1`, with a hyphen, may be a pod's and is.
    """
    found = _HANDLER.fullmatch(path.name)
    if found is None or _NUMBERED.fullmatch(found["host"]):
        return None
    lanes = timeline.lanes
    processes = {timeline.names[code] for code in np.unique(lanes.process[lanes.kind == HOST]).tolist() if code >= 0}
    return found["host"] if found["process"] in processes else None
