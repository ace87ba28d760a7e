"""Who waited and who was waited for, as text: a table, a sentence for each straggler, what is unpaired, clocks."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from overlapscope.analysis.result import Analysis, Skew, Straggler
from overlapscope.analysis.straggler_cause import HELD_BY
from overlapscope.report.formatting import aligned, count, ms, percent

MAX_ROWS: Final = 8
MAX_REASONS: Final = 3
LONGEST_REASON: Final = 200
CLOCK_SHOWS_NS: Final = 1_000_000
"""A clock that is off by more than this is worth a line: logs of the ranks cannot be read side by side then."""
APART: Final = 1.05
"""A straggler's blame and that of the table are told apart from this factor."""
WORDS: Final[Mapping[str, str]] = {
    "calls": "came last to {} calls",
    "computed_more_ns": "computed {} more than its peers",
    "communicated_more_ns": "communicated {} more",
    "idle_more_ns": "idle {} longer than its peers",
    "before_first_launch_ns": "{} of that before a step's first launch",
    "launched_late_ns": "{} in calls that were launched late",
    "on_core_more_ns": "on a core {} longer",
    "off_core_more_ns": "off its core {} longer",
    "waited_for_core_more_ns": "waited {} longer for a core",
    "compute_ns": "compute {} in all",
    "peers_compute_ns": "its peers' compute {}",
    "work_ns": "its kernels at the usual speed {}",
    "peers_work_ns": "its peers' kernels at the usual speed {}",
    "slowness": "its kernels take {} times as long as usual",
    "in_larger_grids": "{} of its compute in larger grids than its peers'",
    "garbage_collector_ns": "collected garbage {} longer",
    "data_loading_ns": "between steps, as in loading data, {} longer",
    "cpu_throttled_ns": "held off its core {} longer by its limit",
    "allocator_retries_more": "its allocator asked again {} times more",
    "recording_cost_ns": "recording cost at most {}",
    "sm_clock_mhz": "its clock {} MHz",
    "peers_sm_clock_mhz": "its peers' clock {} MHz",
}
"""How each figure is told; one that is not here is told by its own name."""
SHARES: Final = frozenset({"in_larger_grids"})
CHANCE: Final = "chance"
LEAST_CHANCE: Final = 1e-4


def lines(analysis: Analysis, *, all_rows: bool) -> str:
    """Return the text, the most blamed first; of runs without matched calls only why there are none."""
    skew = analysis.skew
    parts = [*_table(analysis, all_rows=all_rows), *_stragglers(analysis, all_rows=all_rows)]
    parts += matched_words(skew)
    shown = skew.reasons if all_rows else skew.reasons[:MAX_REASONS]
    parts += [f"  {_flat(each, all_rows=all_rows)}" for each in shown]
    if len(shown) < len(skew.reasons):
        parts.append(f"  {count(len(skew.reasons) - len(shown), 'more reason')}: --all")
    return "\n".join([*parts, *_clocks(skew, all_rows=all_rows)])


def matched_words(skew: Skew) -> list[str]:
    """Say how many calls were matched, and how many not; nothing where there was nothing to match."""
    if not (skew.ranks or skew.pairs or skew.unmatched):
        return []
    messages = f" and {count(skew.pairs, 'send')} with their receives" if skew.pairs else ""
    matched = f"{count(skew.matched, 'collective')}{messages} matched across ranks"
    return [matched + (f", {skew.unmatched} calls not" if skew.unmatched else "") + "."]


def straggler_words(analysis: Analysis, limit: int) -> list[str]:
    """Return a sentence for each rank that the others waited for, the most blamed first."""
    listed = {each.rank: each.blame_ns for each in analysis.skew.ranks}
    bound = "at most " if analysis.run.missing_ranks else ""
    return [
        f"Rank {each.rank} held the others up for {bound}{_amount(each, listed)}: {_why(each)}."
        for each in analysis.skew.stragglers[:limit]
    ]


def _flat(text: str, *, all_rows: bool) -> str:
    flat = " ".join(text.split())
    return flat if all_rows or len(flat) <= LONGEST_REASON else flat[: LONGEST_REASON - 3] + "..."


def _table(analysis: Analysis, *, all_rows: bool) -> list[str]:
    skew = analysis.skew
    if not skew.ranks:
        return []
    ranked = sorted(skew.ranks, key=lambda each: (-each.blame_ns, each.rank))
    shown = ranked if all_rows else ranked[:MAX_ROWS]
    head = ["waiting, in all", "waited ms", "of its collectives", "held others up ms", "times last"]
    cells = [
        [f"rank {each.rank}", ms(each.wait_ns), percent(each.wait_fraction), ms(each.blame_ns), str(each.times_last)]
        for each in shown
    ]
    rows = [*aligned([head, *cells])]
    if len(shown) < len(ranked):
        rows.append(f"{len(ranked) - len(shown)} more ranks that held others up less: --all")
    return rows


def _stragglers(analysis: Analysis, *, all_rows: bool) -> list[str]:
    told = straggler_words(analysis, len(analysis.skew.stragglers) if all_rows else MAX_ROWS)
    return [*told, "What to do: docs/findings/straggler.md"] if told else []


def _amount(straggler: Straggler, listed: Mapping[int, int]) -> str:
    """Return the time, with the part of it that the table does not hold."""
    more = straggler.blame_ns - listed.get(straggler.rank, 0)
    time = f"{ms(straggler.blame_ns)} ms"
    if straggler.blame_ns <= APART * listed.get(straggler.rank, 0):
        return time
    return f"{time}, {ms(more)} ms of it through ranks that waited for it, or in uneven exchanges"


def _why(straggler: Straggler) -> str:
    evidence: Mapping[str, Any] = straggler.evidence
    words = HELD_BY[straggler.held_by]
    idle, before = evidence.get("idle_more_ns"), evidence.get("before_first_launch_ns")
    if straggler.held_by == "host" and idle and before and before > 0:
        words += f" ({ms(min(before, idle))} of {ms(idle)} ms before a step's first launch)"
    if evidence.get("recording_may_explain"):
        words += ", which recording itself may explain"
    return words


def _clocks(skew: Skew, *, all_rows: bool) -> list[str]:
    """Name the clocks that are off by so much that people stumble over it, and how well the others agree."""
    far = sorted(((rank, off) for rank, off in skew.clock_offset_ns.items()), key=lambda each: -abs(each[1]))
    far = [(rank, off) for rank, off in far if all_rows or abs(off) >= CLOCK_SHOWS_NS]
    if not far:
        return []
    shown = far if all_rows else far[:MAX_ROWS]
    told = ", ".join(f"rank {rank} {'+' if off >= 0 else '-'}{ms(abs(off))}" for rank, off in shown)
    more = f", {len(far) - len(shown)} more: --all" if len(shown) < len(far) else ""
    residual = f", to within {ms(skew.residual_ns)} ms" if skew.residual_ns is not None else ""
    return [f"Clocks against the middle one, ms (taken out above{residual}): {told}{more}."]


def evidence_words(evidence: Mapping[str, Any]) -> str:
    """Return the figures in one line; of times those that are more than nothing."""
    told = [_words(key).format(_figure(key, value)) for key, value in evidence.items() if _tells(key, value)]
    chance = evidence.get(CHANCE)
    if isinstance(chance, int | float):
        shown = f"{'less than ' if chance < LEAST_CHANCE else ''}{max(chance, LEAST_CHANCE) * 100:.2f} %"
        told.append(f"among equals by chance in {shown} of runs")
    return "; ".join(told)


def _tells(key: str, value: Any) -> bool:
    """Return whether a figure has something to say: flags are told by the sentence, lists are too long for it."""
    if key in (CHANCE, "throttle_reasons") or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 or not key.endswith("_ns")


def _words(key: str) -> str:
    return WORDS.get(key) or f"{key.removesuffix('_ns').replace('_', ' ').replace('{', '').replace('}', '')} {{}}"


def _figure(key: str, value: float) -> str:
    if key.endswith("_ns"):
        return f"{ms(value)} ms"
    return percent(value) if key in SHARES else f"{value:,.4g}"


def missing_words(missing: Collection[int], unread: Collection[int]) -> str:
    """Return both numbers, e.g. `6 not recorded, 1 not readable`; nothing where no rank is missing."""
    lost = len({*unread}.intersection(missing)) if missing else len(unread)
    parts = ((len(missing) - (lost if missing else 0), "not recorded"), (lost, "not readable"))
    return ", ".join(f"{number} {what}" for number, what in parts if number)
