"""The links between devices that our own capture noted on each rank, as one table of the job."""

from collections.abc import Iterable
from typing import Any

from overlapscope.timeline.columns import NONE, make
from overlapscope.timeline.facts import Facts, Links
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline


def recorded_links(ranks: Iterable[RankTimeline]) -> Facts:
    """Give the links of all ranks' devices, each once; a host without a name, or an odd entry, is left out."""
    rows: dict[tuple[str, str, str], tuple[str | None, int]] = {}
    for timeline in ranks:
        settings, links = timeline.recorded.get("settings"), timeline.recorded.get("links")
        host = settings.get("host") if isinstance(settings, dict) else None
        if not isinstance(host, str) or not isinstance(links, list):
            continue
        for link in links:
            found = _row(link)
            if found is not None:
                rows[host, *found[0]] = found[1]
    names = NameTable()
    if not rows:
        return Facts()
    table = make(
        Links,
        len(rows),
        host=names.encode([key[0] for key in rows]),
        a=names.encode([key[1] for key in rows]),
        b=names.encode([key[2] for key in rows]),
        kind=names.codes(kind for kind, _ in rows.values()),
        lanes=[lanes for _, lanes in rows.values()],
    )
    return Facts(names=tuple(names.to_list()), links=table)


def _row(link: Any) -> tuple[tuple[str, str], tuple[str | None, int]] | None:
    if not isinstance(link, dict):
        return None
    a, b, kind, lanes = (link.get(key) for key in ("a", "b", "kind", "lanes"))
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    if not isinstance(lanes, int) or isinstance(lanes, bool) or not 0 <= lanes < 1 << 16:
        lanes = NONE
    return (a, b), (kind if isinstance(kind, str) else None, lanes)
