"""Stragglers, wait time by rank and clock alignment: sentences, tables and a chart for reports."""

from collections.abc import Iterator
from typing import Final

from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Analysis, Skew
from overlapscope.analysis.unseen_waits import lacks_members
from overlapscope.report.formatting import count, ms
from overlapscope.report.model import Chart, Series, Table
from overlapscope.report.text.cross_rank import (
    columns_text,
    drained_text,
    evidence_text,
    in_flight_text,
    late_end_text,
    late_together_text,
    matched_text,
    straggler_sentences,
    unseen_text,
    wait_head,
    wait_rows,
)

MAX_RANKS: Final = 64
MAX_STRAGGLERS: Final = 8
MAX_REASONS: Final = 3


def cross_rank_sentences(analysis: Analysis) -> tuple[str, ...]:
    """Return sentences on stragglers and their causes, on matched and unmatched calls, and on the clocks."""
    skew = analysis.skew
    sentences = [*in_flight_text(analysis), *(" ".join(each.split()) for each in drained_text(analysis))]
    sentences += straggler_sentences(analysis, MAX_STRAGGLERS)
    together = late_together_text(analysis)
    sentences += [together] * bool(together)
    if skew.ranks and not skew.stragglers and not together:
        sentences.append(
            f"No straggler: {rank_list(skew.in_turn)} and the others wait for each other in turn."
            if skew.in_turn
            else "No straggler: no rank delayed the others more than chance explains."
        )
    sentences += [*late_end_text(skew), *(" ".join(each.split()) for each in unseen_text(skew))]
    sentences += matched_text(skew, lacks=lacks_members(analysis), known=bool(analysis.run.missing_ranks))
    sentences += [" ".join(each.split()) for each in skew.reasons[:MAX_REASONS]]
    if len(skew.reasons) > MAX_REASONS:
        sentences.append(f"{count(len(skew.reasons) - MAX_REASONS, 'more reason')}: overlapscope analyze --all")
    return (*sentences, *_clocks(skew))


def straggler_table(analysis: Analysis) -> Table:
    """Return the stragglers, each with its cause, the evidence for it, and the delay that it caused."""
    shown = analysis.skew.stragglers[:MAX_STRAGGLERS]
    rows = [
        (f"rank {each.rank}", each.held_by.replace("_", " "), evidence_text(each.evidence), ms(each.blame_ns))
        for each in shown
    ]
    more = len(analysis.skew.stragglers) - len(shown)
    note = "Whole recording; includes delay that was passed on to further ranks."
    if more:
        note += f" {count(more, 'more rank')}: overlapscope analyze --all"
    head = ("straggler", "cause", "evidence", "delay ms")
    return Table(head=head, rows=tuple(rows), left=3, note=note)


def wait_table(analysis: Analysis) -> Table:
    """Return the wait time of each rank, the one that others waited longest for first."""
    lacks = lacks_members(analysis)
    rows = wait_rows(analysis.skew, lacks=lacks)
    note = columns_text(analysis)
    if len(rows) > MAX_RANKS:
        note += f" {count(len(rows) - MAX_RANKS, 'more rank')} for which others waited less: overlapscope analyze --all"
    return Table(head=wait_head(lacks=lacks), rows=tuple(rows[:MAX_RANKS]), note=note)


def wait_charts(analysis: Analysis) -> Iterator[Chart]:
    """Yield the chart of how long each rank waited and delayed others; none where no wait time was measured."""
    ranks = analysis.skew.ranks
    if not any(each.wait_ns or each.blame_ns for each in ranks):
        return
    chosen = sorted(ranks, key=lambda each: (-max(each.blame_ns, each.wait_ns), each.rank))[:MAX_RANKS]
    shown = sorted(chosen, key=lambda each: each.rank)
    most, longest = max(shown, key=lambda each: each.blame_ns), max(shown, key=lambda each: each.wait_ns)
    left_out = f" Shown: the {len(shown)} of {len(ranks)} ranks with the most." if len(shown) < len(ranks) else ""
    yield Chart(
        title="Wait time and delay caused, by rank",
        words=f"Rank {longest.rank} waited the longest, {ms(longest.wait_ns)} ms; "
        f"rank {most.rank} delayed the others most, {ms(most.blame_ns)} ms.{left_out}",
        kind="grouped",
        axis="ms, whole recording",
        section="why",
        categories=tuple(f"rank {each.rank}" for each in shown),
        series=(
            Series(name="delayed others", values=tuple(each.blame_ns / 1e6 for each in shown)),
            Series(name="waited for others", values=tuple(each.wait_ns / 1e6 for each in shown)),
        ),
    )


def _clocks(skew: Skew) -> Iterator[str]:
    if skew.residual_ns is None:
        return
    far = max(skew.clock_offset_ns.items(), key=lambda each: abs(each[1]), default=None)
    corrected = ""
    if far is not None and far[1]:
        corrected = f"; the largest corrected offset is {ms(abs(far[1]))} ms, of rank {far[0]}"
    yield f"The ranks' clocks agree to within {ms(skew.residual_ns)} ms{corrected}."
