"""Words about what is pointed at and what is in view: exact times, for readers of tables and for the pointer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.cause_table import cause_label
from overlapscope.analysis.occupancy import STATES, UNRECORDED, spent_together
from overlapscope.report.formatting import ms, percent, size
from overlapscope.timeline.columns import NONE
from overlapscope_dashboards.timeline.source import Source
from overlapscope_dashboards.timeline.window import Window

NAMES: Final = {
    "exposed": "exposed comm",
    "hidden": "hidden comm",
    "compute": "compute only",
    "copy": "copies only",
    "idle": "idle",
    "unrecorded": "not recorded",
}
ORDER: Final = ("compute", "hidden", "exposed", "copy", "idle", "unrecorded")
MAX_NAME: Final = 120


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """The time in one state; `share` is that of all recorded time."""

    state: str
    spent_ns: int
    share: float | None


def amounts(spent: Sequence[int]) -> list[Amount]:
    """Return the times of a sum over `STATES`, in the order of a list; unrecorded time only where there is any."""
    recorded = sum(spent) - spent[UNRECORDED]
    return [
        Amount(
            state=state,
            spent_ns=spent[STATES.index(state)],
            share=None if state == "unrecorded" or not recorded else spent[STATES.index(state)] / recorded,
        )
        for state in ORDER
        if state != "unrecorded" or spent[UNRECORDED]
    ]


def in_view(source: Source, window: Window, ranks: Sequence[int]) -> dict[int, list[int]]:
    """Return each rank's exact times in a window, by state in the order of `STATES`."""
    now = source.now
    begin, end = window.start_ns + now.origin_ns, window.end_ns + now.origin_ns
    place = {rank: at for at, rank in enumerate(source.ranks)}
    return {rank: spent_together([now.occupancy[place[rank]]], begin, end).tolist() for rank in ranks}


def length(ns: int) -> str:
    """Return a length in the unit that reads best."""
    return f"{ns:,} ns" if ns < 1_000 else f"{ns / 1e3:,.3f} µs" if ns < 1_000_000 else f"{ms(ns)} ms"


def of_cell(ranks: Sequence[int], window: Window, spent: Sequence[int]) -> tuple[str, list[str]]:
    """Say what a cell of the heat map is: (whose and when, the times)."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]} together"
    when = f"{ms(window.start_ns)} ms, {length(window.length_ns)} long"
    parts = [
        f"{NAMES[each.state]} {length(each.spent_ns)}" + ("" if each.share is None else f" ({percent(each.share)})")
        for each in amounts(spent)
        if each.spent_ns
    ]
    return f"{who} at {when}", parts


def of_span(source: Source, rank: int, row: int) -> tuple[str, list[str]]:
    """Say what a span is: (its name, what is known of it)."""
    timeline = source.tables(rank)
    spans, names = timeline.spans, timeline.names
    code = int(spans.name[row])
    taken = int(spans.end_ns[row] - spans.start_ns[row])
    start = int(source.aligned(rank, spans.start_ns[row : row + 1])[0])
    parts = [f"rank {rank}", f"{length(taken)} from {ms(start)} ms"]
    if spans.step[row] != NONE:
        parts.append(f"step {int(spans.step[row])}")
    if spans.host_op[row] >= 0:
        parts.append(f"in {names[int(spans.host_op[row])][:MAX_NAME]}")
    if spans.collective[row] != NONE:
        parts += _of_call(source.told(rank, int(spans.collective[row])), taken)
    return (names[code] if code >= 0 else "unnamed")[:MAX_NAME], parts


def _of_call(told: Mapping[str, Any], taken_ns: int) -> list[str]:
    parts: list[str] = []
    if "op" in told:
        group = f" over {told['group_size']} ranks" if "group_size" in told else ""
        kind = f", {told['dimension']} parallel" if "dimension" in told else ""
        parts.append(f"{str(told['op'])[:40]}{group}{kind}")
    if "bytes" in told:
        parts.append(size(int(told["bytes"])))
        moved = told.get("transfer_ns", taken_ns)
        if moved:
            sure = "" if "transfer_ns" in told else " or more"
            parts.append(f"algbw {told['bytes'] / moved:,.2f} GB/s{sure}")
    if "wait_ns" in told:
        last = f" for rank {told['last_rank']}" if told.get("last_rank", NONE) != NONE and told["wait_ns"] else ""
        parts.append(f"waited {length(int(told['wait_ns']))}{last}")
    if told.get("exposed_ns"):
        parts.append(f"exposed {length(int(told['exposed_ns']))}")
    if "cause" in told:
        parts.append(f"cause: {cause_label(str(told['cause']))}")
    return parts
