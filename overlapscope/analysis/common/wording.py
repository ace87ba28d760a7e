"""Format ranks, groups and calls for the text of findings; long lists are shortened with a count of the rest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from overlapscope.analysis.common.group_progress import DEFAULT, GroupProgress
from overlapscope.display import shortened
from overlapscope.timeline.run import Run

MAX_LISTED: Final = 16
"""Ranks listed as evidence."""
LISTED: Final = 8
"""Ranks listed in a sentence."""


def group_label(run: Run, group: str) -> str:
    """Return a group's name with its description."""
    description = next((each.description for each in run.groups if each.name == group), None)
    said = "all ranks" if description == DEFAULT else short(description or "")
    return f"group {short(group)!r}" + (f" ({said})" if said else "")


def short(text: str) -> str:
    """Return a name on one line, at most 60 characters (`shortened`)."""
    return shortened(text, 60)


def id_part(group: str | None) -> str:
    """Return a group as part of a finding's id."""
    return "?" if group is None else short(group)


def call_label(standing: GroupProgress) -> str:
    """Return the collective that a rank waited in."""
    return f"{short(standing.op or 'collective')} #{standing.pending}"


def rank_list(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0, 1, 2`."""
    ordered = sorted(ranks)
    return (
        f"rank {ordered[0]}"
        if len(ordered) == 1
        else f"ranks {first_and_count([str(rank) for rank in ordered], LISTED, ', ')}"
    )


def ranks_of_run(ranks: Iterable[int], recorded: int) -> str:
    """Return `rank_list`, or `all 16 recorded ranks` where these are more than are listed, and all of a run."""
    those = set(ranks)
    return f"all {recorded} recorded ranks" if len(those) == recorded > LISTED else rank_list(those)


def first_and_count(parts: Sequence[str], limit: int, separator: str) -> str:
    """Return the first parts joined, with the number of the others."""
    shown = separator.join(parts[:limit])
    return shown if len(parts) <= limit else f"{shown} and {len(parts) - limit} more"


def first_of(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first MAX_LISTED entries."""
    return dict(list(entries.items())[:MAX_LISTED])
