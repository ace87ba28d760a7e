"""Read `communication.json` and `communication_matrix.json`: what HCCL measured of each collective, of each link.

Writer: torch_npu `profiler/analysis/prof_view/_communication_parser.py`: step, then p2p and collective, then the
operation, its times (ms) and, by kind of link, what it moved (MB, 1e6 bytes). The sums that stand among the
operations as "Total Op Info" are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from overlapscope.display_path import shown, shown_name
from overlapscope.errors import InputError
from overlapscope.ingest.ascend_folder import rank_of
from overlapscope.ingest.fact_tables import FigureRows
from overlapscope.ingest.json_file import read_json
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.run import UNKNOWN_RANK, Source

TOTAL: Final = "Total Op Info"
_TIMES: Final = {
    "Elapse Time(ms)": "elapse_ms",
    "Transit Time(ms)": "transit_ms",
    "Wait Time(ms)": "wait_ms",
    "Synchronization Time(ms)": "synchronization_ms",
    "Idle Time(ms)": "idle_ms",
}
_LINK: Final = {"Transit Size(MB)": "moved_mb", "Transit Time(ms)": "moving_ms", "Bandwidth(GB/s)": "gbs"}
_STEP: Final = re.compile(r"^step(\d{0,18})$")


def read_communication(path: Path, context: ReadContext) -> Reading:
    """Read either file. Raises InputError when it holds no operation with figures."""
    content, stream = read_json(path, context.max_bytes, context.progress)
    figures = FigureRows(rank_of(path))
    operations = unusable = 0
    for step, name, told in _operations(content):
        operations += 1
        added = (
            _add_times(figures, step, name, told)
            if "Communication Time Info" in told
            else _add_links(figures, step, name, told)
        )
        unusable += not added
    if operations == unusable:
        raise InputError(f"{shown(path)}: holds no operation with figures")
    return Reading(
        facts=figures.facts(shown_name(path)),
        source=Source(
            path=shown(path),
            ranks=() if figures.rank == UNKNOWN_RANK else (figures.rank,),
            events=operations,
            dropped=unusable,
            warnings=tuple(stream.warnings),
        ),
    )


def _operations(content: Any) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Yield (step, operation, what is told of it); msprof's own file has neither steps nor kinds."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if not isinstance(value, dict):
            continue
        step = _STEP.match(key)
        if step is None:
            if key != TOTAL:
                yield None, key, value
            continue
        number = int(step[1]) if step[1] else None
        for kind in value.values():
            if isinstance(kind, dict):
                yield from (
                    (number, name, each) for name, each in kind.items() if name != TOTAL and isinstance(each, dict)
                )


def _add_times(figures: FigureRows, step: int | None, name: str, told: dict[str, Any]) -> bool:
    times = told["Communication Time Info"]
    if not isinstance(times, dict):
        return False
    added = [figures.add(name, short, times.get(title), step=step) for title, short in _TIMES.items()]
    links = told.get("Communication Bandwidth Info")
    for kind, link in links.items() if isinstance(links, dict) else ():
        if isinstance(link, dict) and link.get("Transit Size(MB)"):
            for title, short in _LINK.items():
                figures.add(name, f"{kind.lower()}_{short}", link.get(title), step=step)
    return any(added)


def _add_links(figures: FigureRows, step: int | None, name: str, told: dict[str, Any]) -> bool:
    added = False
    for pair, link in told.items():
        if isinstance(link, dict) and "Transit Size(MB)" in link:
            kind = str(link.get("Transport Type") or "link").lower()
            for title, short in _LINK.items():
                added |= figures.add(f"{name} {pair}", f"{kind}_{short}", link.get(title), step=step)
    return added
