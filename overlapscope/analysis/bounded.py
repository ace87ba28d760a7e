"""What cannot be told because only some ranks of a group were recorded."""

from overlapscope.analysis.across import Across
from overlapscope.analysis.findings import Finding
from overlapscope.timeline.run import Run


def bounded(run: Run, together: Across) -> list[Finding]:
    """Say of which groups some members were recorded and others not: what their calls took is then only a bound.

    A single rank's recording says so everywhere already; that some of a group's calls were cut off on a member stands
    in the reasons of the matching.
    """
    if len(run.ranks) < 2:
        return []
    sizes = {group.name: len(group.ranks) for group in run.groups if group.ranks is not None}
    blocks = (*together.matching.blocks, *together.matching.uneven)
    recorded: dict[str | None, set[int]] = {}
    for block in blocks:
        recorded.setdefault(block.group, set()).update(block.ranks)
    partial = {
        (block.group, block.ranks): sizes.get(block.group or "") or run.world_size
        for block in blocks
        if not block.whole and (sizes.get(block.group or "") or run.world_size or 0) > len(recorded[block.group])
    }
    if not partial:
        return []
    (group, ranks), members = next(iter(partial.items()))
    first = f"{len(ranks)} of {members} members of {f'group {group}' if group else 'an unnamed group'}"
    others = f" and some of {len(partial) - 1} more groups" if len(partial) > 1 else ""
    return [
        Finding(
            id="few_ranks_recorded",
            severity="info",
            title=f"only {first}{others} are here: durations of their calls hold waiting for ranks that are not, "
            "transfers and blame are bounds from above, and a late rank among those is not seen",
            evidence={"groups": len(partial), "ranks": list(run.ranks), "world_size": run.world_size},
            known_from="trace",
        )
    ]
