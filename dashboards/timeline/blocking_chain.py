"""The blocking chain of a moment or a span: what it waited for, step by step, each with its place on the timeline; and
the same as a small picture."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.graph.answers import Chain
from overlapscope.analysis.graph.chains import PlacedLink, lane_of_node
from overlapscope.analysis.graph.explained import WORKING, RunChains
from overlapscope.analysis.graph.gains import whole_slack
from overlapscope.analysis.graph.model import Graph
from overlapscope.errors import UsageError
from overlapscope.report.formatting import count, ms
from overlapscope.report.perfetto.tracks import lane_name
from overlapscope.report.text.chain import Stretch, gain_words, heading, more_links, slack_words, stretches
from overlapscope.timeline.columns import DEVICE, NONE
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope_dashboards.parts.chain_picture import ChainArrow, ChainBox, ChainPicture
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.timeline.evidence import named_moment, same_state
from overlapscope_dashboards.timeline.labels import format_duration
from overlapscope_dashboards.timeline.source import TimelineSource, source_of

MOST_LINKS: Final = 60
MOST_RANKS: Final = 4
"""Ranks of a chain whose streams are shown with it, those nearest to the moment first."""
_ASKED: Final = re.compile(r"([0-9]{1,9})([@:])([0-9]{1,18})")
_TITLES: Final = {
    "idle": "Why is rank {rank} idle here?",
    "exposed communication": "Why is communication of rank {rank} exposed here?",
}

MOST_FRAMES: Final = 200
LONGEST_FRAME: Final = 200

MOST_ROWS: Final = 5
MOST_STEPS: Final = 12
"""Rows and steps of a small picture, those nearest to the moment first."""
_PICTURED: Final = {
    "host": "host", "hand": "host", "call": "host", "alloc": "host", "sync": "waiting", "poll": "waiting",
    "compute": "compute", "lane": "compute", "occupancy": "compute", "copy": "copy", "owncall": "copy",
    "comm": "exposed", "transfer": "exposed", "launch": "launch", "event": "idle", "arrive": "waiting",
}  # fmt: skip
"""Colour of a step in a small picture, by the kind of its latest link."""


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a chain as text, and the line that it is on the timeline."""

    words: str
    where: str
    """Rank, and stream or thread."""
    when: str
    lasts: str
    known: str
    slack: str
    """Empty where it is not known."""
    gain: str
    """How much earlier the recording would have ended without it, at most; n/a where it is not known."""
    kind: str
    """What it is, by the name of its latest link in `Link.kind`."""
    earlier: bool
    """Whether it ended before the interval that is explained began."""
    path: list[tuple[int, int, float]]
    """(rank, row in its `Lanes` or -1, milliseconds): from the cause to its effect."""
    pause: tuple[float, float] | None = None
    """Of several calls of a host the time in or between them that takes most of the interval (ms) ..."""
    pause_words: str = ""
    """... and its length and place in words."""


class BlockingChain(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of a moment or a span, for the panel beside the timeline. Times are from the run's start."""

    asked: str
    """As in the address: `RANK@NS` for a moment, `RANK:SPAN` for the begin of a span."""
    title: str
    doing: str
    """What the rank did at the moment, in a word or two; empty for the begin of a span."""
    lead: list[str]
    steps: list[ChainStep]
    """The latest first."""
    notes: list[str]
    """Slack, and why the chain ends where it does."""
    python: list[str]
    """The Python stack at the moment, or at the span's launch, the outermost function first."""
    command: str
    """The command that prints it."""
    ranks: list[int]
    """The first ranks that the chain leads to, the explained one first."""
    on_threads: bool
    """Whether it leads through host threads whose events were recorded beside a device."""
    marked: tuple[int, float, float]
    """Rank, begin and end (ms) of the interval that is explained."""
    reach: tuple[int, int]
    """The window (ns) that holds the interval and what decided it."""


def blocking_chain(opened: OpenRun, asked: str, at_ns: int | None = None) -> BlockingChain:
    """Return the chain that an address asks for, also by name (`named_moment`); raises UsageError where there is none.

    Of communication that was exposed at `at_ns`, where it was clicked, it is that of the moment: what ended it.
    """
    source = source_of(opened)
    named = named_moment(opened, source, asked)
    given = _ASKED.fullmatch(asked if named is None else f"{named[0]}@{named[1]}")
    if given is None:
        raise UsageError(f"chain={asked[:40]!r}: write RANK@NANOSECONDS or RANK:SPAN, such as 3@412500000 or 3:1024")
    rank, number, of_span = int(given[1]), int(given[3]), given[2] == ":"
    chains = opened.chains
    opened.doing = f"Building the dependency graph of {count(len(opened.run.ranks), 'rank')}."
    found = chains.before(rank, number, most=MOST_LINKS) if of_span else chains.at(rank, number, most=MOST_LINKS)
    if of_span and at_ns is not None and found.explains.kind == "comm":
        clicked = chains.at(rank, at_ns, most=MOST_LINKS)
        if clicked.doing == "exposed communication":
            found, number, of_span = clicked, at_ns, False
    where = f"--span {rank}:{number}" if of_span else f"--at {rank}:{number / 1e6:.6f}"
    command = opened.command(f"overlapscope explain RUN {where}")
    return _shown(
        opened.run, source, chains, found, f"{rank}{':' if of_span else '@'}{number}", command, of_span=of_span
    )


def _shown(
    run: Run, source: TimelineSource, chains: RunChains, found: Chain, asked: str, command: str, *, of_span: bool
) -> BlockingChain:
    spans = run.ranks[found.rank].spans
    graph = chains.graph(found.rank, int(spans.recording[found.explains.span]))
    begin_ns, end_ns = chains.interval(found, of_span=of_span)
    rows = stretches(found.chain)
    placed = chains.placed(found, of_span=of_span, explains_since_ns=begin_ns + found.origin_ns)
    gains = chains.gains(found, [row.links for row in rows], of_span=of_span)
    steps = [
        _step(run, graph, found, row, links, places, begin_ns, gain_ns)
        for (row, links, places), gain_ns in zip(_by_row(graph, found, rows, placed), gains, strict=True)
    ]
    decisive = [(row, step) for row, step in zip(rows, steps, strict=True) if not step.earlier]
    ranks = dict.fromkeys([found.rank, *(row.rank for row, _ in decisive)])
    begins = [row.start_ns if step.pause is None else int(step.pause[0] * 1e6) for row, step in decisive]
    reach = min([begin_ns, *begins]), max([end_ns, *(row.end_ns for row, _ in decisive)])
    if not of_span and found.doing in WORKING:  # what runs at the moment, not only what it waited for
        working = same_state(source, found.rank, found.moment_ns)
        reach = min(reach[0], working[0]), max(reach[1], working[1])
    title = _TITLES.get("" if of_span else found.doing, "Why did {name} begin only then?")
    name = (found.explains.op or found.explains.name or "this span")[:60]
    return BlockingChain(
        asked=asked, title=title.format(rank=found.rank, name=name), doing="" if of_span else found.doing,
        lead=[heading(found), *_most_of_it(rows, steps, begin_ns, end_ns)], steps=steps,
        notes=[each for each in (slack_words(found), _ending(found)) if each], command=command,
        python=[each[:LONGEST_FRAME] for each in found.python[-MOST_FRAMES:]],
        ranks=list(ranks)[:MOST_RANKS],
        on_threads=any(_on_thread(run, each) for each in steps),
        marked=(found.rank, begin_ns / 1e6, end_ns / 1e6), reach=reach,
    )  # fmt: skip


def _by_row(
    graph: Graph, found: Chain, rows: Sequence[Stretch], placed: Sequence[PlacedLink]
) -> Iterator[tuple[Stretch, list[PlacedLink], list[tuple[int, int, float]]]]:
    """Yield each row with its links, and where its time began and ended."""
    # The arrival of a collective lies on no rank: it is drawn where the member that waited for it ran.
    first = next(each for each in graph.ranks if each.rank == found.rank)
    at = int(np.flatnonzero(first.span_row == found.explains.span)[0])
    places = [(found.rank, int(first.span_lane[at]), found.explains.start_ns / 1e6)]
    for each in placed:
        rank, lane = lane_of_node(graph, each.before) or places[-1][:2]
        places.append((rank, max(lane, -1), (each.link.start_ns - found.origin_ns) / 1e6))
    links, passed = iter(placed), 0
    for row in rows:
        yield row, list(islice(links, row.links)), [places[passed + row.links], places[passed]]
        passed += row.links


def _step(
    run: Run, graph: Graph, found: Chain, row: Stretch, links: Sequence[PlacedLink],
    places: list[tuple[int, int, float]], begin_ns: int, gain_ns: int | None,
) -> ChainStep:  # fmt: skip
    latest = links[0]
    named = places[0] if latest.link.span is None or latest.link.kind != "host" else places[1]
    slack = int(whole_slack(graph)[latest.node]) if found.slack_ns is not None else NONE
    earlier = row.end_ns <= begin_ns
    paused = latest.link.calls > 1 and not earlier
    pause = [at_ns - found.origin_ns for at_ns in latest.pause_ns] if paused else []
    return ChainStep(
        words=row.words,
        where=_where(run.ranks[row.rank], named[1] if named[0] == row.rank else -1),
        when=f"{ms(row.start_ns)} to {ms(row.end_ns)} ms",
        lasts=format_duration(max(row.end_ns - row.start_ns, 0)),
        known=row.known,
        slack="" if slack == NONE else "no slack" if slack <= 0 else f"slack {format_duration(slack)}",
        gain=gain_words(gain_ns),
        kind=latest.link.kind,
        earlier=earlier,
        path=places,
        pause=(pause[0] / 1e6, pause[1] / 1e6) if pause else None,
        pause_words=f"paused {format_duration(pause[1] - pause[0])} from {ms(pause[0])} ms" if pause else "",
    )


def _where(timeline: RankTimeline, lane: int) -> str:
    return f"rank {timeline.rank}" + (f", {lane_name(timeline, lane).partition(' (')[0][:40]}" if lane >= 0 else "")


def _on_thread(run: Run, step: ChainStep) -> bool:
    return not step.earlier and any(
        lane >= 0 and run.ranks[rank].has_device and run.ranks[rank].lanes.kind[lane] != DEVICE
        for rank, lane, _ in step.path
    )


def _most_of_it(rows: Sequence[Stretch], steps: Sequence[ChainStep], begin_ns: int, end_ns: int) -> list[str]:
    """Return a sentence on the step with the most time inside the interval; none where the interval is empty."""
    inside = [min(row.end_ns, end_ns) - max(row.start_ns, begin_ns) for row in rows]
    at = int(np.argmax(inside)) if inside else -1
    if at < 0 or inside[at] <= 0 or end_ns <= begin_ns:
        return []
    what = f"its host, which {steps[at].pause_words}" if steps[at].pause_words else rows[at].words
    return [f"Most of these {ms(end_ns - begin_ns)} ms, {ms(inside[at])} ms: rank {rows[at].rank}, {what}."]


def _ending(found: Chain) -> str:
    if found.reason:
        return f"The rest is not known: {found.reason}."
    return f"Earlier links: add --links {more_links(found)} to the command." if found.is_cut else ""


# --- as a small picture -----------------------------------------------------------------------------------------------


def chain_picture(run: Run, found: BlockingChain) -> ChainPicture:
    """Return the steps of a chain that decided the interval, the nearest first, to the scale of `found.reach`.

    Rows are streams and threads in the order in which the chain comes to them; what leads beyond `MOST_ROWS` is left
    out. A step that began before the reach is cut there.
    """
    low, high = (ns / 1e6 for ns in found.reach)
    steps = [(number, each) for number, each in enumerate(found.steps, 1) if not each.earlier][:MOST_STEPS]
    rows = _picture_rows(found, steps)
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
            kind = _PICTURED.get(each.kind, "idle")
            boxes.append(ChainBox(row=place[cause], start=share(begin), end=share(end), kind=kind, number=number,
                                  label=str(number), words=words))  # fmt: skip
        if cause in place and effect in place and place[cause] != place[effect]:
            arrows.append(ChainArrow(at=share(end), from_row=place[cause], to_row=place[effect], number=number,
                                     words=words))  # fmt: skip
    return ChainPicture(
        rows=tuple(_picture_label(run, *row) for row in rows), boxes=tuple(boxes), arrows=tuple(arrows),
        start_ns=low * 1e6, end_ns=high * 1e6, words=found.lead[-1],
    )  # fmt: skip


def _picture_rows(found: BlockingChain, steps: list[tuple[int, ChainStep]]) -> list[tuple[int, int]]:
    """Return (rank, row in its `Lanes`) of the rows, the explained rank's first."""
    visited = [(rank, lane) for _, each in steps for rank, lane, _ in reversed(each.path)]
    first = [each for each in visited if each[0] == found.marked[0]][:1] or [(found.marked[0], -1)]
    rows = list(dict.fromkeys([*first, *visited]))
    on_lanes = {rank for rank, lane in rows if lane >= 0}
    return [(rank, lane) for rank, lane in rows if lane >= 0 or rank not in on_lanes][:MOST_ROWS]


def _picture_label(run: Run, rank: int, lane: int) -> str:
    return f"rank {rank}" + (f" · {lane_name(run.ranks[rank], lane).partition(' (')[0]}" if lane >= 0 else "")
