"""Who waited, who was waited for and why, and how well the clocks agree: tables, sentences and a chart for reports."""

from collections.abc import Iterator
from typing import Final

from overlapscope.analysis.result import Analysis, Skew
from overlapscope.report.formatting import count, ms, percent
from overlapscope.report.model import Chart, Series, Table
from overlapscope.report.text.cross_rank import evidence_words, matched_words, straggler_words

MAX_RANKS: Final = 64
MAX_STRAGGLERS: Final = 8
MAX_REASONS: Final = 3


def waiting_words(analysis: Analysis) -> tuple[str, ...]:
    """Say who held the others up and why, what was matched, what was not, and what the clocks' residual is."""
    skew = analysis.skew
    told = [*straggler_words(analysis, MAX_STRAGGLERS)]
    if skew.ranks and not skew.stragglers:
        told.append("No rank held the others up for more than chance would have it.")
    told += matched_words(skew)
    told += [" ".join(each.split()) for each in skew.reasons[:MAX_REASONS]]
    if len(skew.reasons) > MAX_REASONS:
        told.append(f"{count(len(skew.reasons) - MAX_REASONS, 'more reason')}: overlapscope analyze --all")
    return (*told, *_clocks(skew))


def straggler_table(analysis: Analysis) -> Table:
    """Return the ranks that the others waited for, with what held each and the evidence for it."""
    shown = analysis.skew.stragglers[:MAX_STRAGGLERS]
    rows = [
        (f"rank {each.rank}", each.held_by.replace("_", " "), evidence_words(each.evidence), ms(each.blame_ns))
        for each in shown
    ]
    more = len(analysis.skew.stragglers) - len(shown)
    note = "In all of the recording, with what it passed on to others."
    if more:
        note += f" {count(more, 'more rank')}: overlapscope analyze --all"
    head = ("held the others up", "held by", "evidence", "ms")
    return Table(head=head, rows=tuple(rows), left=3, note=note)


def waiting_table(analysis: Analysis) -> Table:
    """Return each rank's waiting, the most blamed first."""
    ranked = sorted(analysis.skew.ranks, key=lambda each: (-each.blame_ns, each.rank))
    rows = [
        (f"rank {each.rank}", ms(each.wait_ns), percent(each.wait_fraction), ms(each.blame_ns), str(each.times_last))
        for each in ranked[:MAX_RANKS]
    ]
    note = "In all of the recording."
    if any(each.blame_estimate == "upper_bound" for each in ranked):
        note += " Some members were not recorded: a rank may have held others up for less, and waited longer."
    if len(ranked) > MAX_RANKS:
        note += f" {count(len(ranked) - MAX_RANKS, 'more rank')} held others up less: overlapscope analyze --all"
    head = ("waiting, in all", "waited ms", "of its collectives", "held others up ms", "times last")
    return Table(head=head, rows=tuple(rows), note=note)


def waiting_chart(analysis: Analysis) -> Iterator[Chart]:
    """Draw what each rank waited and what others waited for it; nothing where nobody is known to have waited."""
    ranks = analysis.skew.ranks
    if not any(each.wait_ns or each.blame_ns for each in ranks):
        return
    chosen = sorted(ranks, key=lambda each: (-max(each.blame_ns, each.wait_ns), each.rank))[:MAX_RANKS]
    shown = sorted(chosen, key=lambda each: each.rank)
    most, longest = max(shown, key=lambda each: each.blame_ns), max(shown, key=lambda each: each.wait_ns)
    left_out = f" Of {len(ranks)} ranks those with the most." if len(shown) < len(ranks) else ""
    yield Chart(
        title="Who waited, and who was waited for",
        words=f"Rank {longest.rank} waited the longest, {ms(longest.wait_ns)} ms; "
        f"rank {most.rank} held the others up the most, {ms(most.blame_ns)} ms.{left_out}",
        kind="grouped",
        axis="ms, in all of the recording",
        tells="why",
        categories=tuple(f"rank {each.rank}" for each in shown),
        series=(
            Series(name="held others up", values=tuple(each.blame_ns / 1e6 for each in shown)),
            Series(name="waited for others", values=tuple(each.wait_ns / 1e6 for each in shown)),
        ),
    )


def _clocks(skew: Skew) -> Iterator[str]:
    if skew.residual_ns is None:
        return
    far = max(skew.clock_offset_ns.items(), key=lambda each: abs(each[1]), default=None)
    taken = (
        "" if far is None or not far[1] else f"; what was taken out is at most {ms(abs(far[1]))} ms, of rank {far[0]}"
    )
    yield f"The ranks' clocks agree to within {ms(skew.residual_ns)} ms{taken}."
