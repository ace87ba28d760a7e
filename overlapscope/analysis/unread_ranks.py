"""Ranks that are missing though a file of theirs is there: it could not be read, and that may be mended."""

from typing import Final

from overlapscope.analysis.findings import Finding
from overlapscope.timeline.listed import listed
from overlapscope.timeline.run import Run

MOST: Final = 3
"""Files that the title names."""
MOST_LISTED: Final = 20
"""Files that the evidence names."""


def unread_ranks(run: Run) -> list[Finding]:
    """Report them, with which files and why; of others nothing was there at all."""
    missing = frozenset(run.unread_ranks)
    sources = [each for each in run.sources if missing.intersection(each.unread_ranks)]
    if not sources:
        return []
    named = [f"{each.path} ({'; '.join(each.warnings)})" for each in sources[:MOST]]
    more = [f"{len(sources) - MOST} more"] if len(sources) > MOST else []
    ranks = listed(run.unread_ranks)
    what = (
        f"rank {ranks} is missing because its file" if len(missing) == 1 else f"ranks {ranks} are missing, whose files"
    )
    them = "it" if len(sources) == 1 else "them"
    todo = f"mend {them} or copy {them} anew, and read again"
    return [
        Finding(
            id="unread_ranks",
            severity="warning",
            title=f"{what} could not be read: {', '.join([*named, *more])}; {todo}",
            evidence={"ranks": list(run.unread_ranks), "files": [each.path for each in sources[:MOST_LISTED]]},
            known_from="trace",
        )
    ]
