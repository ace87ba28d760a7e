"""The figures of the overview page, from an analysis: how much communication is exposed, and why."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import (
    CAUSES,
    IDLE_CAUSES,
    WAITS_FOR_ANOTHER_RANK,
    cause_label,
    idle_label,
)
from overlapscope.analysis.exposure.exposed import PLACES, UNKNOWN
from overlapscope.analysis.job_step.attribution import divided
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.report.formatting import count, ms, percent
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text import throughput
from overlapscope.report.text.analysis import headline_basis, sentence
from overlapscope.timeline.columns import NONE, Ints
from overlapscope_dashboards.parts.bars import BarRow, Segment

MAX_NAMES: Final = 8
"""Most named rows of a table; the rest is summed in one row."""


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step, as in the headline: medians, which need not add up to `whole_ns`."""

    what: str
    """`step`, or `recording` where no step is complete."""
    whole_ns: float
    exposed_ns: float
    segments: tuple[Segment, ...]
    basis: str
    """What the figures are of, such as "Medians of 6 steps"."""


class ExposedByPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed time by dimension, phase or module (`name`), the largest first."""

    name: str
    rows: tuple[BarRow, ...]


class RankStepGrid(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Exposed nanoseconds by rank and step; NONE where a rank has no such complete step."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    exposed_ns: Ints
    """Shape (ranks, steps)."""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A grid reduced for drawing: a cell is the maximum over neighbouring ranks and consecutive steps."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    most_ns: Ints
    """Shape (rows, columns); NONE where nothing is known."""
    rank: Ints
    """The rank with the maximum of each cell."""
    step: Ints
    """The step with the maximum of each cell."""
    ranks_in_row: int
    steps_in_column: int

    @property
    def words(self) -> str:
        """A sentence on what a cell is; empty where it is one step of one rank."""
        parts = [
            words
            for number, words in (
                (self.ranks_in_row, f"{self.ranks_in_row} neighbouring ranks"),
                (self.steps_in_column, f"{self.steps_in_column} consecutive steps"),
            )
            if number > 1
        ]
        return f"Each cell is the maximum of {' and '.join(parts)}." if parts else ""


def lead(analysis: Analysis) -> tuple[str, ...]:
    """Return the first sentences: how much is exposed, how much of it is wait time and for which rank; throughput."""
    lines = [line for line in sentence(analysis).splitlines() if line]
    waits = waiting(analysis)
    return (
        *lines[:1],
        *([waits] if waits else []),
        *lines[1:],
        *throughput.lines(analysis.throughput, analysis.headline),
    )


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A place on the timeline that proves a sentence: its name there (`chain=`), in a word, and what it is."""

    chain: str
    words: str
    what: str


def lead_evidence(analysis: Analysis) -> tuple[tuple[Evidence, ...], ...]:
    """Return for each sentence of `lead` the places that prove it."""
    found: list[tuple[Evidence, ...]] = [()] * len(lead(analysis))
    head = analysis.headline
    if not head.exposed_comm_ns:
        return tuple(found)
    found[0] = (Evidence(chain="longest-exposed", words="show", what="the longest exposed communication"),)
    if waiting(analysis):
        found[1] = (Evidence(chain="longest-waiting", words="show", what="the longest wait for another rank"),)
    return tuple(found)


def more_evidence(analysis: Analysis) -> tuple[Evidence, ...]:
    """Return further places: of the most and the least exposed rank, of idle time, of the longest loss."""
    found, ranks = [], sorted(by_rank(analysis), key=lambda each: -each.ns)
    if len(ranks) > 1 and ranks[0].ns:
        for each, which in ((ranks[0], "most"), (ranks[-1], "least")):
            if each.ns:
                number = each.name.removeprefix("rank ")
                found.append(Evidence(chain=f"longest-exposed-{number}", words=f"{which} exposed: {each.name}",
                                      what=f"the longest exposed communication of {each.name}"))  # fmt: skip
    loss = analysis.critical_path.longest_loss
    if loss is not None:
        words = f"longest loss: rank {loss.rank} at {ms((loss.start_ns + loss.end_ns) / 2)} ms"
        what = f"{ms(loss.end_ns - loss.start_ns)} ms without compute"
        found.append(Evidence(chain="loss", words=words, what=what))
    if analysis.headline.idle_ns:
        found.append(
            Evidence(chain="longest-idle", words="longest idle time", what="the longest time without any work")
        )
    return tuple(found)


def waiting(analysis: Analysis) -> str:
    """Return a sentence on exposed time spent waiting for other ranks, and the worst straggler; empty without any."""
    waited = sum(analysis.headline.causes.get(cause, 0) for cause in WAITS_FOR_ANOTHER_RANK)
    if not waited:
        return ""
    words = f"{ms(waited)} ms of it is spent waiting for another rank"
    if analysis.skew.stragglers:
        first = analysis.skew.stragglers[0]
        return f"{words}, mostly for straggler rank {first.rank}: {STRAGGLER_CAUSES[first.held_by]}."
    return f"{words}."


def key_figures(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Return the key figures as (name, milliseconds, unit, text below)."""
    head = analysis.headline
    if head.window is None:
        return []
    what = head.window
    rows: list[tuple[str, float | None, str]] = [
        (what.capitalize(), head.step_ns, f"median of {count(head.steps, 'step')}" if head.steps > 1 else ""),
        ("Exposed", head.exposed_comm_ns, f"{percent(head.exposed_fraction)} of a {what}"),
        ("Overlapped", head.overlapped_ns, f"{percent(head.overlap_efficiency)} of communication"),
        ("Compute only", head.compute_only_ns, f"{_share(head.compute_only_ns, head)} of a {what}"),
        ("Idle", head.idle_ns, f"{_share(head.idle_ns, head)} of a {what}"),
    ]
    return [(name, ms(value), "ms" if value is not None else "", below) for name, value, below in rows]


def step(analysis: Analysis) -> StepParts | None:
    """Return the parts of a step: compute, overlapped, exposed by cause, memcpy, idle by cause, outside; None without
    times."""
    head = analysis.headline
    if head.window is None:
        return None

    on_cpu = not analysis.run.has_device

    def part(words: str, name: str, kind: str) -> Segment:
        return Segment(name=words, ns=getattr(head, name) or 0, kind=kind)

    segments = [
        part("compute only", "compute_only_ns", "compute"),
        part("overlapped communication", "overlapped_ns", "hidden"),
        *(
            Segment(
                name=f"exposed: {cause_label(cause, on_cpu=on_cpu)}",
                ns=ns,
                kind=cause if cause in CAUSES else "unknown",
            )
            for cause, ns in sorted(head.causes.items(), key=lambda each: -each[1])
        ),
        part("memcpy only", "copy_only_ns", "copy"),
        *(
            Segment(
                name=f"idle: {idle_label(cause, on_cpu=on_cpu)}",
                ns=ns,
                kind=f"idle-{cause}" if cause in IDLE_CAUSES else "idle",
            )
            for cause, ns in sorted(head.idle_causes.items(), key=lambda each: -each[1])
        ),
        *([] if head.idle_causes else [part("idle", "idle_ns", "idle")]),
        part("start of recording", "start_of_recording_ns", "idle"),
        part("outside the rank's own step", "outside_ns", "idle"),
    ]
    return StepParts(
        what=head.window,
        whole_ns=head.step_ns or 0,
        exposed_ns=head.exposed_comm_ns or 0,
        segments=tuple(each for each in segments if each.ns > 0),
        basis=headline_basis(head),
    )


def by_place(analysis: Analysis) -> tuple[ExposedByPlace, ...]:
    """Return exposed time by dimension, phase and module, without those that are not known."""
    found = []
    for name in PLACES:
        sums = divided(analysis.headline.exposed_comm_ns or 0, getattr(analysis.exposed_by, name))
        if set(sums) - {UNKNOWN}:
            named = [BarRow(name=key, ns=ns, kind="exposed") for key, ns in sums.items()]
            shown, rest = named[:MAX_NAMES], named[MAX_NAMES:]
            if rest:
                shown.append(BarRow(name=f"{len(rest)} more", ns=sum(each.ns for each in rest), kind="idle"))
            found.append(ExposedByPlace(name=name, rows=tuple(shown)))
    return tuple(found)


def grid(analysis: Analysis) -> RankStepGrid | None:
    """Return exposed time by rank and step; None with fewer than two complete steps."""
    by_rank = {
        info.rank: {each.step: each.exposed_comm_ns for each in info.steps if each.complete} for info in analysis.ranks
    }
    ranks = [rank for rank, own in by_rank.items() if own]
    steps = sorted({number for own in by_rank.values() for number in own})
    if len(steps) < 2 or not ranks:
        return None
    place = {number: at for at, number in enumerate(steps)}
    exposed = np.full((len(ranks), len(steps)), NONE, np.int64)
    for row, rank in zip(exposed, ranks, strict=True):
        known = {place[number]: ns for number, ns in by_rank[rank].items() if ns is not None}
        row[list(known)] = list(known.values())
    return RankStepGrid(ranks=tuple(ranks), steps=tuple(steps), exposed_ns=exposed)


def heat_map(found: RankStepGrid, rows: int, columns: int) -> HeatMap:
    """Return a grid reduced to at most `rows` by `columns` cells, each a maximum so that outliers stay visible."""
    tall, wide = -(-len(found.ranks) // rows), -(-len(found.steps) // columns)
    high, broad = -(-len(found.ranks) // tall), -(-len(found.steps) // wide)
    padded = np.full((high * tall, broad * wide), NONE, np.int64)
    padded[: len(found.ranks), : len(found.steps)] = found.exposed_ns
    cells = padded.reshape(high, tall, broad, wide).swapaxes(1, 2).reshape(high, broad, tall * wide)
    at = cells.argmax(axis=2)
    ranks = np.arange(high)[:, None] * tall + at // wide
    steps = np.arange(broad)[None, :] * wide + at % wide
    return HeatMap(
        rows=_range_labels(found.ranks, tall),
        columns=_range_labels(found.steps, wide),
        most_ns=cells.max(axis=2),
        rank=np.array(found.ranks)[np.minimum(ranks, len(found.ranks) - 1)],
        step=np.array(found.steps)[np.minimum(steps, len(found.steps) - 1)],
        ranks_in_row=tall,
        steps_in_column=wide,
    )


def most_exposed(found: RankStepGrid, most: int) -> tuple[list[int], list[int]]:
    """Return at most `most` rows and columns of a grid with the largest values, in grid order."""
    by_rank, by_step = found.exposed_ns.max(axis=1), found.exposed_ns.max(axis=0)
    rows, columns = (np.sort(np.argsort(-each, kind="stable")[:most]).tolist() for each in (by_rank, by_step))
    return rows, columns


def _range_labels(numbers: Sequence[int], each: int) -> tuple[str, ...]:
    parts = [numbers[at : at + each] for at in range(0, len(numbers), each)]
    return tuple(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def by_rank(analysis: Analysis) -> tuple[BarRow, ...]:
    """Return each rank's median exposed time over its complete steps, else that of its recording."""
    there = set(analysis.headline.ranks)
    exposed = [(each.rank, rank_figures(each)["exposed_comm_ns"]) for each in analysis.ranks if each.rank in there]
    return tuple(BarRow(name=f"rank {rank}", ns=ns) for rank, ns in exposed if ns is not None)


def _share(part: float | None, head: Headline) -> str:
    return percent(part / head.step_ns if part is not None and head.step_ns else None)
