"""The blocking chain of a recommendation as a small picture, from the chain that the timeline shows for it."""

from typing import Final

from overlapscope.report.formatting import ms
from overlapscope.report.perfetto.tracks import lane_name
from overlapscope.timeline.run import Run
from overlapscope_dashboards.parts.chain_picture import ChainArrow, ChainBox, ChainPicture
from overlapscope_dashboards.timeline.blocking_chain import BlockingChain, ChainStep

MOST_ROWS: Final = 5
MOST_STEPS: Final = 12
_COLOURS: Final = {
    "host": "host", "hand": "host", "call": "host", "alloc": "host", "sync": "waiting", "poll": "waiting",
    "compute": "compute", "lane": "compute", "occupancy": "compute", "copy": "copy", "owncall": "copy",
    "comm": "exposed", "transfer": "exposed", "launch": "launch", "event": "idle", "arrive": "waiting",
}  # fmt: skip
"""Of a step, by the kind of its latest link."""


def chain_picture(run: Run, found: BlockingChain) -> ChainPicture:
    """Return the steps of a chain that decided the interval, the nearest first, to the scale of `found.reach`.

    Rows are streams and threads in the order in which the chain comes to them; what leads beyond `MOST_ROWS` is left
    out. A step that began before the reach is cut there.
    """
    low, high = (ns / 1e6 for ns in found.reach)
    steps = [(number, each) for number, each in enumerate(found.steps, 1) if not each.earlier][:MOST_STEPS]
    rows = _rows(found, steps)
    place = {row: at for at, row in enumerate(rows)}
    for rank in {rank for rank, _ in rows}:  # what lies on no stream or thread is drawn on the first of its rank
        place.setdefault((rank, -1), next(at for at, row in enumerate(rows) if row[0] == rank))

    def share(time_ms: float) -> float:
        return min(max((time_ms - low) / (high - low), 0.0), 1.0) if high > low else 0.0

    rank, begin, end = found.marked
    explained = [each for each in rows if each[0] == rank][:1]
    boxes = [
        ChainBox(row=place[row], start=share(begin), end=share(end), kind="", number=0, label=found.doing,
                 words=f"explained: {ms(begin * 1e6)} to {ms(end * 1e6)} ms of rank {rank}")
        for row in explained
    ]  # fmt: skip
    arrows = []
    for number, each in steps:
        (rank0, lane0, begin), (rank1, lane1, end) = each.path
        cause, effect = (rank0, lane0), (rank1, lane1)
        words = f"{number}. {each.words}: {each.lasts}"
        if cause in place and end > begin:
            kind = _COLOURS.get(each.kind, "idle")
            boxes.append(ChainBox(row=place[cause], start=share(begin), end=share(end), kind=kind, number=number,
                                  label=str(number), words=words))  # fmt: skip
        if cause in place and effect in place and place[cause] != place[effect]:
            arrows.append(ChainArrow(at=share(end), from_row=place[cause], to_row=place[effect], number=number,
                                     words=words))  # fmt: skip
    return ChainPicture(
        rows=tuple(_label(run, *row) for row in rows), boxes=tuple(boxes), arrows=tuple(arrows), start_ns=low * 1e6,
        end_ns=high * 1e6, words=found.lead[-1],
    )  # fmt: skip


def _rows(found: BlockingChain, steps: list[tuple[int, ChainStep]]) -> list[tuple[int, int]]:
    """Return (rank, row in its `Lanes`) of the rows, the explained rank's first."""
    visited = [(rank, lane) for _, each in steps for rank, lane, _ in reversed(each.path)]
    first = [each for each in visited if each[0] == found.marked[0]][:1] or [(found.marked[0], -1)]
    rows = list(dict.fromkeys([*first, *visited]))
    on_lanes = {rank for rank, lane in rows if lane >= 0}
    return [(rank, lane) for rank, lane in rows if lane >= 0 or rank not in on_lanes][:MOST_ROWS]


def _label(run: Run, rank: int, lane: int) -> str:
    return f"rank {rank}" + (f" · {lane_name(run.ranks[rank], lane).partition(' (')[0]}" if lane >= 0 else "")
