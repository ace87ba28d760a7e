"""Several sources of one rank to one timeline."""

from collections.abc import Mapping, Sequence

import msgspec

from overlapscope.timeline.columns import size
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Group, RankTimeline, join_recordings


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a job, one timeline each."""

    ranks: Mapping[int, RankTimeline]
    groups: tuple[Group, ...]
    facts: Facts
    """With the process group of each communicator."""
    notes: tuple[str, ...] = ()
    """What could not be merged, and why."""


def merge_sources(parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts) -> Merged:
    """Join each rank's recordings in time, and its logs to them.

    What a timeline says itself is never replaced; what a log says is taken over where it is certain of which call it
    is, or where all calls that it may be of agree. Raises InputError where two recordings of a rank overlap.
    """
    if not size(facts.members) and all(part.basis != "log" for of_rank in parts.values() for part in of_rank):
        return Merged(ranks={rank: join_recordings(parts[rank]) for rank in sorted(parts)}, groups=groups, facts=facts)
    from overlapscope.ingest.merge_logs import merge_with_logs  # noqa: PLC0415 - most jobs have no logs

    return merge_with_logs(parts, groups, facts)
