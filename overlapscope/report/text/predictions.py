"""Render predictions of step time next to what later runs measured."""

from collections.abc import Sequence
from typing import Final

from overlapscope.analysis.compare.prediction_check import Noted, Outcome, trust, words
from overlapscope.report.formatting import aligned, count, ms, signed_percent
from overlapscope.report.model import Table

HEAD: Final = ("settings", "predicted ms", "90 % interval", "measured ms", "error", "", "run", "predicted on")
MAX_ROWS: Final = 12


def rows(tested: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row of cells for each outcome; their columns are `HEAD`."""
    return [
        (
            words(each.prediction.knobs),
            ms(each.prediction.step_ns),
            f"{ms(each.prediction.low_ns)} .. {ms(each.prediction.high_ns)}",
            ms(each.measured_step_ns),
            signed_percent(each.error),
            "inside" if each.inside else "outside",
            each.run,
            each.prediction.made_at,
        )
        for each in tested
    ]


def table(tested: Sequence[Outcome]) -> str:
    """Return the last outcomes as a text table, followed by `accuracy`; empty without any."""
    record = trust(tested)
    if record is None:
        return ""
    lines = aligned([list(HEAD), *map(list, rows(tested[-MAX_ROWS:]))])
    return "\n".join([*lines, accuracy(tested)])


def accuracy(tested: Sequence[Outcome]) -> str:
    """Return how many measurements lie inside the predicted interval, in a sentence; empty without any."""
    record = trust(tested)
    if record is None:
        return ""
    return (
        f"{record.inside} of {count(record.measured, 'measured prediction')} inside the interval, "
        f"mean error {record.mean_error * 100:.1f} %."
    )


def earlier(kept: Noted) -> str:
    """Return the earlier predictions that a run directory holds, and their outcomes; empty without any."""
    if not kept.predictions:
        return ""
    last = kept.predictions[-1]
    made = f"{count(len(kept.predictions), 'prediction')} recorded, the last on {last.made_at}"
    if not kept.outcomes:
        return f"{made}; none measured yet: overlapscope compare RUN NEW_RUN --record"
    return f"{made}; measured:\n{table(kept.outcomes)}"


def tables(tested: Sequence[Outcome]) -> tuple[Table, ...]:
    """Return the last outcomes as a table of a sheet; empty without any."""
    if not tested:
        return ()
    return (Table(head=HEAD, rows=tuple(rows(tested[-MAX_ROWS:])), note=accuracy(tested)),)
