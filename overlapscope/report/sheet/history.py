"""The sheet and the charts of a history: step time and exposed communication from run to run."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from overlapscope.analysis.common.wording import first_and_count, short
from overlapscope.analysis.compare.history import History, HistoryRun
from overlapscope.report.formatting import amount, change, count, ms, signed_percent
from overlapscope.report.model import Chart, Series, Sheet, Table
from overlapscope.report.text import predictions as predictions_text
from overlapscope.report.text.compare import LONGEST_WINDOW, METRIC_LABELS

STEP_TIME, EXPOSED, WORST, OVERLAP = "step_time_ns", "exposed_comm_ns", "exposed_comm_worst_ns", "overlap_efficiency"
MAX_ROWS: Final = 200
"""The table lists this many of the last runs."""
MAX_POINTS: Final = 1_000
"""The charts draw this many of the last runs."""
MAX_CHANGES: Final = 3
MAX_NOTES: Final = 12


def sheet_of_history(found: History) -> Sheet:
    """Return the sheet of a history: first against last run, the largest growth, then one row per run."""
    shown = list(enumerate(found.runs))[-MAX_ROWS:]
    note = "Medians over complete steps; means over ranks." if found.window == "step" else "Whole recordings."
    if found.window == "step" and found.steps_by == "longest_window":
        note += f" {LONGEST_WINDOW}"
    if len(shown) < len(found.runs):
        note += f" {count(len(found.runs) - len(shown), 'earlier run')} not shown."
    head = ("run", "steps", "step time ms", "exposed ms", "change", "worst rank ms", "overlap")
    return Sheet(
        title=f"History of {count(len(found.runs), 'run')}",
        lead=tuple(_lead(found)),
        tables=(
            Table(head=head, rows=tuple(_row(found.runs, at) for at, _ in shown), note=note),
            *predictions_text.tables(found.predictions),
        ),
        warnings=tuple(_warnings(found)),
        notes=tuple(_notes(found))[:MAX_NOTES],
    )


def charts_of_history(found: History) -> Iterator[Chart]:
    """Yield the charts of step time and of exposed time over the runs."""
    runs = found.runs[-MAX_POINTS:]
    names = tuple(short(each.name) for each in runs)
    for title, metrics in (
        ("Step time, run by run", (STEP_TIME,)),
        ("Exposed communication, run by run", (EXPOSED, WORST)),
    ):
        series = tuple(
            Series(name=METRIC_LABELS[name], values=tuple(_in_ms(each, name) for each in runs)) for name in metrics
        )
        known = [value for value in series[0].values if value is not None]
        if known:
            words = f"From {min(known):,.3f} to {max(known):,.3f} ms; {known[-1]:,.3f} ms in the last run."
            yield Chart(title=title, words=words, kind="lines", axis="ms", categories=names, series=series)


def _in_ms(run: HistoryRun, name: str) -> float | None:
    value = run.values.get(name)
    return None if value is None else value / 1e6


def _lead(found: History) -> Iterator[str]:
    for name, words in ((EXPOSED, "Exposed communication"), (STEP_TIME, "Step time")):
        known = [(short(each.name), value) for each in found.runs if (value := each.values.get(name)) is not None]
        if len(known) > 1:
            (first, was), (last, now) = known[0], known[-1]
            relative = f" ({signed_percent((now - was) / was)})" if was else ""
            difference = f"{change(now - was, 'ns')} ms{relative}"
            yield f"{words}: {ms(was)} ms in {first}, {ms(now)} ms in {last}: {difference}."
    most = max(_growths(found), default=None, key=lambda each: each[0])
    if most is not None and most[0] > 0:
        yield f"The largest growth of exposed communication is {ms(most[0])} ms, from {most[1]} to {most[2]}."


def _growths(found: History) -> Iterator[tuple[float, str, str]]:
    known = [(each.name, value) for each in found.runs if (value := each.values.get(EXPOSED)) is not None]
    for (before, was), (after, now) in pairwise(known):
        yield now - was, short(before), short(after)


def _row(runs: Sequence[HistoryRun], at: int) -> tuple[str, ...]:
    values = runs[at].values
    now, was = values.get(EXPOSED), runs[at - 1].values.get(EXPOSED) if at else None
    since = "" if not at else change(None if now is None or was is None else now - was, "ns")
    return (
        short(runs[at].name), str(runs[at].steps), ms(values.get(STEP_TIME)), ms(now), since, ms(values.get(WORST)),
        amount(values.get(OVERLAP), "ratio"),
    )  # fmt: skip


def _warnings(found: History) -> Iterator[str]:
    sizes = sorted({each.world_size for each in found.runs if each.world_size is not None})
    if len(sizes) > 1:
        named = first_and_count([str(each) for each in sizes], 6, ", ")
        yield f"jobs of {named} ranks: their figures are not comparable"
    lost = [short(each.name) for each in found.runs if each.missing_ranks]
    if lost:
        yield f"ranks are missing in {first_and_count(lost, 6, ', ')}"
    unknown = [short(each.name) for each in found.runs if each.values.get(EXPOSED) is None]
    if unknown:
        yield f"exposed communication is not known in {first_and_count(unknown, 6, ', ')}"


def _notes(found: History) -> Iterator[str]:
    for each in found.runs:
        if each.changes:
            words = [
                f"{c.key} {short(c.before or 'not known')} became {short(c.after or 'not known')}" for c in each.changes
            ]
            yield f"since {short(each.name)}: {first_and_count(words, MAX_CHANGES, '; ')}"
