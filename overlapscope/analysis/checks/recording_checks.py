"""Findings about the recording itself: partly recorded groups, unreadable files, contradicting overlap figures."""

import math
from collections.abc import Container, Mapping, Sequence, Set
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.recorded_calls import calls_and_numbers
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.columns import NONE, or_none
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

MOST: Final = 3
"""Files named in the title."""
MOST_LISTED: Final = 20
"""Files listed as evidence."""
_Recorded = tuple[str | None, tuple[int, ...]]
"""A group by its name, and the recorded ranks that made calls of it."""
OVERLAPPED: Final = "overlapped_us"
ROUNDING_US: Final = 1.0
"""Sums of rounded parts differ by some nanoseconds for each part ..."""
ROUNDING_SHARE: Final = 1e-3
"""... so long steps with many parts may differ by a thousandth."""


def partly_recorded_groups(run: Run, cross_rank: CrossRank) -> list[Finding]:
    """Return a finding for groups with members that were not recorded: the durations of their calls are only bounds.

    There is none for the recording of a single rank, where every report says so anyway. Calls of a group that were cut
    off on a member are in the reasons of the matching.
    """
    if len(run.ranks) < 2:
        return []
    sizes = {group.name: group.size if group.ranks is None else len(group.ranks) for group in run.groups}
    blocks = (*cross_rank.matching.blocks, *cross_rank.matching.uneven)
    recorded: dict[str | None, set[int]] = {}
    kinds: dict[_Recorded, set[tuple[str, int | None]]] = {}
    for block in blocks:
        recorded.setdefault(block.group, set()).update(block.ranks)
        kinds.setdefault((block.group, block.ranks), set()).add((block.op, block.bytes))
    some_ranks = len(run.ranks) < (run.world_size or 0)
    partial: dict[_Recorded, int | None] = {}
    for block in blocks:
        size = sizes.get(block.group or "")
        missing = some_ranks if size is None else size > len(recorded[block.group])
        if not block.whole and missing and not _part_of_another((block.group, block.ranks), kinds):
            partial[block.group, block.ranks] = size
    partial |= _recorded_on_one_rank(run, recorded)
    if not partial:
        return []
    (group, ranks), members = next(iter(partial.items()))
    whose = f"group {group}" if group else "an unnamed group"
    others = f" and some of {len(partial) - 1} more groups" if len(partial) > 1 else ""
    what = f"{len(ranks)} of {members} members of {whose}{others} were recorded"
    if members is None:
        what = f"{len(run.ranks)} of {run.world_size} ranks were recorded, perhaps not all members of {whose}{others}"
    return [
        Finding(
            id="few_ranks_recorded",
            severity="info",
            title=f"only {what}: durations of their calls include time spent waiting for the other members, transfer "
            "times, leads and what others waited for a rank are upper bounds, and stragglers among the others are not "
            "found",
            evidence={"groups": len(partial), "ranks": list(run.ranks), "world_size": run.world_size},
            known_from="trace",
        )
    ]


def _part_of_another(own: _Recorded, kinds: Mapping[_Recorded, Set[tuple[str, int | None]]]) -> bool:
    """Return whether more ranks made the same kinds of calls (operation and bytes) in a group of this name: of one that
    some ranks recorded for longer, a part of the calls is of these ranks alone."""
    group, ranks = own
    return any(
        group == other and set(ranks) < set(others) and kinds[own] <= made for (other, others), made in kinds.items()
    )


def _recorded_on_one_rank(run: Run, matched: Container[str | None]) -> dict[_Recorded, int | None]:
    """Return the size of each group of several ranks that made calls of which one member was recorded."""
    found: dict[_Recorded, int | None] = {}
    members = {group.name: group.ranks for group in run.groups if group.ranks is not None}
    for rank, timeline in run.ranks.items():
        codes = unique(timeline.collectives.group)
        for name in [timeline.names[code] for code in codes[codes >= 0].tolist()]:
            ranks = members.get(name, ())
            if len(ranks) > 1 and name not in matched and run.ranks.keys() & set(ranks) == {rank}:
                found[name, (rank,)] = len(ranks)
    return found


def sampled_recording(run: Run, sampled: Sequence[int]) -> list[Finding]:
    """Return a finding for the ranks of which most events are missing."""
    if not sampled:
        return []
    calls, numbers = map(sum, zip(*(calls_and_numbers(run.ranks[rank]) for rank in sampled), strict=True))
    return [
        Finding(
            id="sampled_recording",
            severity="warning",
            title=f"most events of {rank_list(sampled)} are missing: of the calls of the runtime that were numbered "
            f"{percent_text(calls / numbers)} are there, and kernels that were launched begin late for no recorded "
            "reason; compute and communication are at least what is recorded, and when devices were idle is not known: "
            "record whole, without sampling or filters",
            evidence={"ranks": list(sampled), "calls": calls, "numbers": numbers},
            known_from="trace",
        )
    ]


def unread_ranks(run: Run) -> list[Finding]:
    """Return a finding for missing ranks whose files could not be read, with the reasons."""
    missing = frozenset(run.unread_ranks)
    sources = [each for each in run.sources if missing.intersection(each.unread_ranks)]
    if not sources:
        return []
    named = [f"{each.path} ({'; '.join(each.warnings)})" for each in sources[:MOST]]
    more = [f"{len(sources) - MOST} more"] if len(sources) > MOST else []
    ranks = list_some(run.unread_ranks)
    what = (
        f"rank {ranks} is missing because its file" if len(missing) == 1 else f"ranks {ranks} are missing, whose files"
    )
    them = "it" if len(sources) == 1 else "them"
    todo = f"repair {them} or copy {them} again, and repeat the analysis"
    return [
        Finding(
            id="unread_ranks",
            severity="warning",
            title=f"{what} could not be read: {', '.join([*named, *more])}; {todo}",
            evidence={"ranks": list(run.unread_ranks), "files": [each.path for each in sources[:MOST_LISTED]]},
            known_from="trace",
        )
    ]


def reported_overlap(facts: Facts, ours: Mapping[tuple[int, int | None], Breakdown]) -> list[Finding]:
    """Return findings for overlap figures stated by a source that differ from ours by more than rounding.

    `ours` holds the breakdown of each (rank, step), of whole recordings with step None.
    """
    figures = facts.figures
    if OVERLAPPED not in facts.names:
        return []
    findings = []
    for row in np.flatnonzero(figures.name == facts.names.index(OVERLAPPED)).tolist():
        rank, step = int(figures.rank[row]), int(figures.step[row])
        found = ours.get((rank, or_none(step)))
        stated = float(figures.value[row])
        if found is None or found.overlapped_ns is None or not math.isfinite(stated):
            continue
        here = found.overlapped_ns / 1000
        if abs(here - stated) <= max(ROUNDING_US, ROUNDING_SHARE * max(here, stated)):
            continue
        place = f"rank {rank}" if step == NONE else f"step {step} of rank {rank}"
        source = facts.name(int(figures.source[row]))
        findings.append(
            Finding(
                id=f"reported_overlap:rank{rank}" + ("" if step == NONE else f":step{step}"),
                severity="warning",
                title=f"{source} states {stated / 1000:.3f} ms of overlapped communication in {place}; its trace shows "
                f"{here / 1000:.3f} ms",
                evidence={"rank": rank, "step": or_none(step), "stated_us": stated, "found_us": here},
                known_from="trace",
            )
        )
    return findings
