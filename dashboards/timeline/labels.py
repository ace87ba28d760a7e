"""Text for spans, cells and windows: exact times for hover details and tables."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import cause_label
from overlapscope.analysis.per_rank.occupancy import STATES, UNRECORDED, spent_together
from overlapscope.report.formatting import ms, percent, size
from overlapscope.timeline.columns import NONE
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.window import TimeWindow

NAMES: Final = {
    "exposed": "exposed comm",
    "hidden": "overlapped comm",
    "compute": "compute only",
    "copy": "memcpy only",
    "idle": "idle",
    "unrecorded": "not recorded",
}
ORDER: Final = ("compute", "hidden", "exposed", "copy", "idle", "unrecorded")
MAX_NAME: Final = 120


class StateTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time in one state; `share` is relative to the recorded time."""

    state: str
    spent_ns: int
    share: float | None


def state_times(spent: Sequence[int]) -> list[StateTime]:
    """Return the times of `spent` (indexed by `STATES`) in the order of ORDER; unrecorded time only if there is any."""
    recorded = sum(spent) - spent[UNRECORDED]
    return [
        StateTime(
            state=state,
            spent_ns=spent[STATES.index(state)],
            share=None if state == "unrecorded" or not recorded else spent[STATES.index(state)] / recorded,
        )
        for state in ORDER
        if state != "unrecorded" or spent[UNRECORDED]
    ]


def times_in_window(source: TimelineSource, window: TimeWindow, ranks: Sequence[int]) -> dict[int, list[int]]:
    """Return each rank's exact times (ns) in a window, indexed by `STATES`."""
    snapshot = source.snapshot
    begin, end = window.start_ns + snapshot.origin_ns, window.end_ns + snapshot.origin_ns
    place = {rank: at for at, rank in enumerate(source.ranks)}
    return {rank: spent_together([snapshot.occupancy[place[rank]]], begin, end).tolist() for rank in ranks}


def longest_spans(
    source: TimelineSource, window: TimeWindow, ranks: Sequence[int], most: int
) -> list[tuple[int, str, int, str, int]]:
    """Return (length in ns, name, rank, lane, start) of the longest spans in a window, the longest first."""
    rows: list[tuple[int, str, int, str, int]] = []
    for rank in ranks:
        timeline = source.tables(rank)
        for lane in source.lanes(rank).lanes:
            at = lane.in_view(window.start_ns, window.end_ns)
            taken = lane.end_ns[at] - lane.start_ns[at]
            for place in np.argsort(-taken, kind="stable")[:most].tolist():
                code = int(timeline.spans.name[lane.rows[at[place]]])
                name = timeline.names[code] if code >= 0 else "unnamed"
                rows.append((int(taken[place]), name, rank, lane.label, int(lane.start_ns[at[place]])))
    return sorted(rows, key=lambda each: -each[0])[:most]


def format_duration(ns: int) -> str:
    """Return a duration in ns, µs or ms."""
    return f"{ns:,} ns" if ns < 1_000 else f"{ns / 1e3:,.3f} µs" if ns < 1_000_000 else f"{ms(ns)} ms"


def describe_cell(ranks: Sequence[int], window: TimeWindow, spent: Sequence[int]) -> tuple[str, list[str]]:
    """Return the description of a heat map cell: (ranks and time, time in each state)."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]} together"
    when = f"{ms(window.start_ns)} ms, {format_duration(window.length_ns)} long"
    parts = [
        f"{NAMES[each.state]} {format_duration(each.spent_ns)}"
        + ("" if each.share is None else f" ({percent(each.share)})")
        for each in state_times(spent)
        if each.spent_ns
    ]
    return f"{who} at {when}", parts


def describe_span(source: TimelineSource, rank: int, row: int) -> tuple[str, list[str]]:
    """Return the description of a span: (name, known facts)."""
    timeline = source.tables(rank)
    spans, names = timeline.spans, timeline.names
    code = int(spans.name[row])
    taken = int(spans.end_ns[row] - spans.start_ns[row])
    start = int(source.aligned(rank, spans.start_ns[row : row + 1])[0])
    parts = [f"rank {rank}", f"{format_duration(taken)} from {ms(start)} ms"]
    if spans.step[row] != NONE:
        parts.append(f"step {int(spans.step[row])}")
    if spans.host_op[row] >= 0:
        parts.append(f"in {names[int(spans.host_op[row])][:MAX_NAME]}")
    if spans.collective[row] != NONE:
        parts += _describe_call(source.call_figures(rank, int(spans.collective[row])), taken)
    return (names[code] if code >= 0 else "unnamed")[:MAX_NAME], parts


def _describe_call(figures: Mapping[str, Any], taken_ns: int) -> list[str]:
    parts: list[str] = []
    if "op" in figures:
        group = f" over {figures['group_size']} ranks" if "group_size" in figures else ""
        kind = f", {figures['dimension']} parallel" if "dimension" in figures else ""
        parts.append(f"{str(figures['op'])[:40]}{group}{kind}")
    if "bytes" in figures:
        parts.append(size(int(figures["bytes"])))
        moved = figures.get("transfer_ns", taken_ns)
        if moved:
            sure = "" if "transfer_ns" in figures else " or more"
            parts.append(f"algbw {figures['bytes'] / moved:,.2f} GB/s{sure}")
    if "wait_ns" in figures:
        last = (
            f" for rank {figures['last_rank']}" if figures.get("last_rank", NONE) != NONE and figures["wait_ns"] else ""
        )
        parts.append(f"waited {format_duration(int(figures['wait_ns']))}{last}")
    if figures.get("exposed_ns"):
        parts.append(f"exposed {format_duration(int(figures['exposed_ns']))}")
    if "cause" in figures:
        parts.append(f"cause: {cause_label(str(figures['cause']))}")
    return parts
