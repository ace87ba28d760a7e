"""The figures of the overview page, from an analysis: how much communication is exposed, and why."""

from collections.abc import Iterator, Sequence
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
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cost.throughput import Throughput
from overlapscope.analysis.exposure.exposed import PLACES, UNKNOWN
from overlapscope.analysis.job_step.attribution import divided
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import Analysis, MeanStep
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.report.formatting import count, ms, percent
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text import throughput
from overlapscope.report.text.analysis import headline, interference_text, placed_ns
from overlapscope.report.text.exposed_causes import largest_cause
from overlapscope.report.text.idle_time import idle_text
from overlapscope.report.text.main_sentences import (
    basis_text,
    copies_text,
    exposed_most_and_least,
    first_sentence,
    further_sentences,
    headline_basis,
    median_text,
    sentence,
    share_text,
)
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR
from overlapscope_dashboards.parts.bars import BarRow, Segment
from overlapscope_dashboards.parts.quantities import Figure, Time, Words, exact_text

FINDING_PLACES: Final = {
    "straggler": "longest-waiting", "shared_cores": "loss", "overlap_without_effect": "longest-exposed",
    "pipeline_bubble": "longest-idle", "synchronisation": "longest-idle", "low_bandwidth": "longest-exposed",
}  # fmt: skip
"""Names of the places on the timeline that show a finding, by its kind."""
IDLE: Final = "idle"
"""Name of the part that is all idle time, where its causes are not known."""
WORK: Final = ("compute", "hidden", "copy")
"""Kinds of parts in which spans run that are not exposed communication."""
MOSTLY: Final = 0.5
"""Least share of exposed time that is most of it."""
MAX_NAMES: Final = 8
"""Most named rows of a table; the rest is summed in one row."""


DIMENSIONS: Final = {DATA: "DP", TENSOR: "TP", PIPELINE: "PP", EXPERT: "EP", CONTEXT: "CP"}
"""Kinds of parallelism as the field writes them, by the dimension of a group."""


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step, as in the headline: medians, which need not add up to `whole_ns`, or means."""

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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A place on the timeline that proves a sentence: its name there (`chain=`), in a word, and what it is."""

    chain: str
    words: str
    what: str


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """A claim with the places that prove it."""

    words: Words
    proofs: tuple[Evidence, ...] = ()

    @property
    def text(self) -> str:
        """Its exact text, with times as commands print them."""
        return exact_text(self.words)


def facts(analysis: Analysis) -> str:
    """Return what was recorded, in one line: ranks, kinds of parallelism where groups say so, steps, device."""
    first, *rest = headline(analysis).split(", ", 1)
    return ", ".join([first, *parallelism(analysis), *rest])


def parallelism(analysis: Analysis) -> list[str]:
    """Return each kind of parallelism with the size of its groups, such as TP 8, where groups say so."""
    sizes: dict[str, set[int]] = {}
    for row in analysis.collectives:
        if row.dimension in DIMENSIONS and row.group_size:
            sizes.setdefault(row.dimension, set()).add(row.group_size)
    return [
        f"{short} {' and '.join(map(str, sorted(sizes[name])))}" for name, short in DIMENSIONS.items() if name in sizes
    ]


def lead(analysis: Analysis) -> Sentence:
    """Return the first sentence: how much of a step is exposed."""
    head, mean = analysis.headline, analysis.mean_step
    if head.window is None:
        return Sentence(words=(sentence(analysis),))
    exposed_ns = analysis.main_figures.exposed_comm_ns
    proofs = _exposed("longest-exposed", "show", "the longest exposed communication") if exposed_ns else ()
    if mean is not None or exposed_ns is None:
        return Sentence(words=(first_sentence(analysis),), proofs=proofs)
    return Sentence(
        words=(Time(exposed_ns), " of a ", Time(head.step_ns),
               f" {head.window} is exposed communication ({share_text(head)}); ",
               Time(head.overlapped_ns), f" more is overlapped with compute{copies_text(head)}."),
        proofs=proofs,
    )  # fmt: skip


def happened(analysis: Analysis) -> tuple[Sentence, ...]:
    """Return further sentences on what happened: wait and transfer, the ranks, what it costs."""
    head = analysis.headline
    found = [*_waiting(analysis)]
    if head.window is not None:
        proofs = lead(analysis).proofs
        found += [Sentence(words=(line,), proofs=proofs) for line in [median_text(analysis)] if line]
        found += _by_rank(analysis)
        found += [Sentence(words=(line,), proofs=proofs) for line in further_sentences(analysis)]
    # Its last line says what exposed and idle time cost.
    rates = [Sentence(words=(line,)) for line in throughput.lines(analysis.throughput, head, analysis.mean_step)]
    if rates and analysis.main_figures.exposed_comm_ns:
        rates[-1] = msgspec.structs.replace(rates[-1], proofs=lead(analysis).proofs)
    found += rates
    return tuple(found)


def why(analysis: Analysis) -> tuple[Sentence, ...]:
    """Return sentences on causes: of exposed and of idle time the largest, and the longest loss."""
    main = analysis.main_figures
    found = []
    if (largest := largest_cause(analysis)) is not None:
        most = "Exposed mostly" if largest.share >= MOSTLY else "Largest part of exposed time"
        mean = ", in the mean step" if largest.of_mean and analysis.mean_step is None else ""
        cause, what = largest.causes[0], f"the longest: {largest.label}"
        found.append(
            Sentence(words=(f"{most}{mean}: ", Time(largest.ns), f" {largest.label}."),
                     proofs=_exposed(f"longest-{cause}", "show", what) if cause in CAUSES else ())
        )  # fmt: skip
    for each in analysis.skew.stragglers[:1]:
        proofs = _exposed("longest-waiting", "show", "the longest wait for another rank")
        words: Words = (f"Straggler rank {each.rank}: {STRAGGLER_CAUSES[each.held_by]}.",)
        found.append(Sentence(words=words, proofs=proofs))
    if main.idle_ns:
        idle = idle_text(analysis) or f"Idle {ms(main.idle_ns)} ms a {analysis.headline.window}."
        proofs = _exposed("longest-idle", "show", "the longest time without any work")
        found.append(Sentence(words=(idle,), proofs=proofs))
    if slowed := interference_text(analysis):
        proofs = _exposed("longest-hidden", "show", "the longest communication beside compute")
        found.append(Sentence(words=(slowed,), proofs=proofs))
    loss = analysis.critical_path.longest_loss
    if loss is not None:
        what = f"{ms(loss.end_ns - loss.start_ns)} ms without compute or copies"
        of_step = "a typical step" if analysis.headline.steps > 1 else f"step {loss.step}"
        whole = "the recording" if loss.step is None else of_step
        place = f"rank {loss.rank} at {ms((loss.start_ns + loss.end_ns) / 2)} ms"
        found.append(
            Sentence(
                words=(f"Longest loss of {whole}: ", Time(loss.end_ns - loss.start_ns), " without compute or copies."),
                proofs=_exposed("loss", place, what),
            )
        )  # fmt: skip
    return tuple(found)


def place_of_finding(finding: Finding) -> tuple[Evidence, ...]:
    """Return the place that shows a finding, by its kind; none for findings of settings and files."""
    chain = FINDING_PLACES.get(finding.id.partition(":")[0])
    return _exposed(chain, "show", finding.title) if chain else ()


def _exposed(chain: str, words: str, what: str) -> tuple[Evidence, ...]:
    return (Evidence(chain=chain, words=words, what=what),)


def _waiting(analysis: Analysis) -> Iterator[Sentence]:
    """Yield a sentence on exposed time spent waiting for other ranks, and what is left; none without any."""
    main = analysis.main_figures
    waited = sum(main.causes.get(cause, 0) for cause in WAITS_FOR_ANOTHER_RANK)
    if not waited:
        return
    rest = (main.exposed_comm_ns or 0) - waited
    yield Sentence(
        words=(Time(waited), " of it is spent waiting for another rank, ", Time(rest), " for the rest."),
        proofs=_exposed("longest-waiting", "show", "the longest wait for another rank"),
    )


def _by_rank(analysis: Analysis) -> Iterator[Sentence]:
    """Yield a sentence on what medians are of, and on the most and the least exposed rank; none for one window."""
    ends, text = exposed_most_and_least(analysis), basis_text(analysis)
    if not text:
        return
    if ends is None or ms(ends[0][1]) == ms(ends[1][1]):
        yield Sentence(words=(text,), proofs=lead(analysis).proofs)
        return
    (most, most_ns), (least, least_ns) = ends
    proofs = tuple(
        Evidence(chain=f"longest-exposed-{rank}", words=f"rank {rank}",
                 what=f"the longest exposed communication of rank {rank}")
        for rank, ns in ends if ns
    )  # fmt: skip
    yield Sentence(
        words=(f"{headline_basis(analysis.headline)}; most exposed on rank {most} (", Time(most_ns),
               f"), least on rank {least} (", Time(least_ns), ")."),
        proofs=proofs,
    )  # fmt: skip


def key_figures(analysis: Analysis) -> list[Figure]:
    """Return the key figures of a step."""
    head, main, cost = analysis.headline, analysis.main_figures, analysis.throughput
    if head.window is None:
        return []
    what, of = head.window, "median" if analysis.mean_step is None else "mean"
    exposed, idle, late = ("", "", "") if cost is None else (
        _a_day(cost.exposed_gpu_hours_a_day, cost),
        _a_day(cost.idle_gpu_hours_a_day, cost),
        _a_day(cost.late_starts_gpu_hours_a_day, cost),
    )  # fmt: skip
    found: list[Figure] = [
        (what.capitalize(), Time(main.step_ns), (f"{of} of {count(main.steps, 'step')}",) if head.steps > 1 else ()),
        ("Exposed", Time(main.exposed_comm_ns), (f"{percent(main.exposed_fraction)} of a {what}{exposed}",)),
        ("Overlapped", Time(main.overlapped_ns), (f"{percent(main.overlap_efficiency)} of communication",)),
        ("Compute only", Time(main.compute_only_ns), (f"{_share(main.compute_only_ns, main)} of a {what}",)),
        ("Idle", Time(main.idle_ns), (f"{_share(main.idle_ns, main)} of a {what}{idle}",)),
    ]
    if cost is not None and cost.late_starts is not None and late:
        most = f"mean over ranks, most on rank {cost.late_starts.rank}: "
        found.append(
            ("Before first kernels", Time(cost.late_starts.mean_ns), (most, Time(cost.late_starts.most_ns), late))
        )
    return found


def _a_day(hours: float | None, cost: Throughput) -> str:
    """Return what a loss costs a day, as words behind another figure; empty where that is not known."""
    rate = cost.price_per_gpu_hour
    words = throughput.cost_text(hours, None if hours is None or rate is None else hours * rate)
    return f"; {words}" if words else ""


def step(analysis: Analysis) -> StepParts | None:
    """Return the parts of a step: compute, overlapped, exposed by cause, memcpy, idle by cause, outside; None without
    times."""
    head, main = analysis.headline, analysis.main_figures
    if head.window is None:
        return None

    on_cpu = not analysis.run.has_device

    def part(words: str, name: str, kind: str) -> Segment:
        return Segment(name=words, ns=getattr(main, name) or 0, kind=kind)

    segments = [
        part("compute only", "compute_only_ns", "compute"),
        part("overlapped communication", "overlapped_ns", "hidden"),
        *(
            Segment(
                name=f"exposed: {cause_label(cause, on_cpu=on_cpu)}",
                ns=ns,
                kind=cause if cause in CAUSES else "unknown",
            )
            for cause, ns in sorted(main.causes.items(), key=lambda each: -each[1])
        ),
        part("memcpy only", "copy_only_ns", "copy"),
        *(
            Segment(
                name=f"idle: {idle_label(cause, on_cpu=on_cpu)}",
                ns=ns,
                kind=f"idle-{cause}" if cause in IDLE_CAUSES else "idle",
            )
            for cause, ns in sorted(main.idle_causes.items(), key=lambda each: -each[1])
        ),
        *([] if main.idle_causes else [part(IDLE, "idle_ns", "idle")]),
        part("start of recording", "start_of_recording_ns", "idle"),
        part("outside the rank's own step", "outside_ns", "idle"),
    ]
    return StepParts(
        what=head.window,
        whole_ns=main.step_ns or 0,
        exposed_ns=main.exposed_comm_ns or 0,
        segments=tuple(each for each in segments if each.ns > 0),
        basis=headline_basis(head, analysis.mean_step),
    )


def place_of_part(part: Segment) -> tuple[str, str]:
    """Return the name of the place on the timeline that shows a part of the step, and what is there; empty without."""
    if part.kind in CAUSES or part.kind in WORK:
        return f"longest-{part.kind}", ""
    if part.name == IDLE:
        return "longest-idle", ""
    if part.kind.removeprefix("idle-") in IDLE_CAUSES:
        return "longest-idle", "the longest idle time, whatever its cause"
    return "", ""


def by_place(analysis: Analysis) -> tuple[ExposedByPlace, ...]:
    """Return exposed time by dimension, phase and module, without those that are not known."""
    found = []
    for name in PLACES:
        sums = divided(placed_ns(analysis), getattr(analysis.exposed_by, name))
        if set(sums) - {UNKNOWN}:
            names = {key: f"{DIMENSIONS[key]} ({key})" if key in DIMENSIONS else key for key in sums}
            named = [BarRow(name=names[key], ns=ns, kind="exposed") for key, ns in sums.items()]
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
    """Return each rank's median exposed time over its complete steps, or its mean one where that is the main figure,
    else that of its recording."""
    there = [each for each in analysis.ranks if each.rank in {*analysis.headline.ranks}]
    exposed = [(each.rank, rank_figures(each, analysis.mean_step)["exposed_comm_ns"]) for each in there]
    return tuple(BarRow(name=f"rank {rank}", ns=ns) for rank, ns in exposed if ns is not None)


def _share(part: float | None, main: Headline | MeanStep) -> str:
    return percent(part / main.step_ns if part is not None and main.step_ns else None)
