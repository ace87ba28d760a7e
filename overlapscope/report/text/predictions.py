"""Predictions against what was measured, for people."""

from collections.abc import Sequence
from typing import Final

from overlapscope.analysis.prediction_check import Noted, Outcome, trust, words
from overlapscope.report.formatting import aligned, count, ms, signed_percent
from overlapscope.report.model import Table

HEAD: Final = ("settings", "predicted ms", "90 % interval", "measured ms", "error", "", "run", "predicted on")
MAX_ROWS: Final = 12


def rows(tested: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each outcome, under `HEAD`."""
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
    """Return the last outcomes as a table, and how often predictions held; empty without any."""
    held = trust(tested)
    if held is None:
        return ""
    lines = aligned([list(HEAD), *map(list, rows(tested[-MAX_ROWS:]))])
    return "\n".join([*lines, earned(tested)])


def earned(tested: Sequence[Outcome]) -> str:
    """Return how often predictions held, in a sentence; empty without any."""
    held = trust(tested)
    if held is None:
        return ""
    return (
        f"{held.inside} of {count(held.measured, 'measured prediction')} inside the interval, "
        f"mean error {held.mean_error * 100:.1f} %."
    )


def earlier(kept: Noted) -> str:
    """Return what a run keeps of earlier predictions; empty where it keeps none."""
    if not kept.predictions:
        return ""
    last = kept.predictions[-1]
    made = f"{count(len(kept.predictions), 'prediction')} noted, the last on {last.made_at}"
    if not kept.outcomes:
        return f"{made}; none was measured yet: overlapscope compare RUN NEW_RUN --record"
    return f"{made}; measured since:\n{table(kept.outcomes)}"


def tables(tested: Sequence[Outcome]) -> tuple[Table, ...]:
    """Return the last outcomes as a table of a sheet; none without any."""
    if not tested:
        return ()
    return (Table(head=HEAD, rows=tuple(rows(tested[-MAX_ROWS:])), note=earned(tested)),)
