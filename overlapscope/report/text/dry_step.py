"""Render what a dry run says: calls and bytes by place, FLOPs, memory, host synchronisations. It has no times."""

from typing import Final

from overlapscope.analysis.dry_step import DryCalls, DryRank, DryStep
from overlapscope.report.formatting import NOT_APPLICABLE, aligned, count, short, size

UNTIMED: Final = "A dry run: counts, bytes, order and memory are those of the code; nothing is timed (times are n/a)."
FLOP_UNITS: Final = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
MOST_CALLS: Final = 24
MOST_MODULE: Final = 44
MOST_LINES: Final = 4


def lines(step: DryStep | None, *, all_rows: bool) -> str:
    """Return the tables of each rank; empty for a recorded run."""
    if step is None:
        return ""
    shown = step.ranks if all_rows else step.ranks[:1]
    more = len(step.ranks) - len(shown)
    rest = f"\n\n{count(more, 'more rank')}: --all" if more else ""
    return "\n\n".join(_rank(each, all_rows=all_rows, named=len(step.ranks) > 1) for each in shown) + rest


def _rank(rank: DryRank, *, all_rows: bool, named: bool) -> str:
    parts = [f"rank {rank.rank}" if named else "", _calls(rank.calls, all_rows=all_rows), _work(rank), _memory(rank)]
    syncs = sorted(rank.host_syncs.items(), key=lambda each: -each[1])
    if syncs:
        at = ", ".join(f"{line} ({times}x)" if times > 1 else line for line, times in syncs[:MOST_LINES])
        parts.append(f"The host waits for the device at {at}.")
    return "\n\n".join(part for part in parts if part)


def _calls(calls: list[DryCalls], *, all_rows: bool) -> str:
    if not calls:
        return "No collectives."
    shown = calls if all_rows else sorted(calls, key=lambda each: -(each.total_bytes or 0))[:MOST_CALLS]
    kept = [each for each in calls if each in shown]
    head = ["collective", "size", "type", "ranks", "where", "calls", "total", "can overlap"]
    rows = [
        [
            each.op,
            size(each.bytes),
            each.dtype or "?",
            str(each.group_size or "?"),
            " ".join(filter(None, (each.dimension, each.phase, short(each.module or "", MOST_MODULE)))),
            str(each.calls),
            size(each.total_bytes),
            f"{each.prefetched} of {each.calls}" if each.prefetched + each.not_prefetched else NOT_APPLICABLE,
        ]
        for each in kept
    ]
    more = len(calls) - len(kept)
    return "\n".join(aligned([head, *rows], left=5)) + (f"\n{more} more kinds of collective: --all" if more else "")


def _work(rank: DryRank) -> str:
    flops = ", ".join(f"{_flops(value)} {name}" for name, value in rank.flops.items())
    moved, fused = sum(rank.moved_bytes.values()), sum(rank.fused_bytes.values())
    joined = f"{size(moved)} read and written ({size(fused)} where memory-bound operations are fused)"
    return f"{rank.operations:,} operations: {flops}{', ' if flops else ''}{joined}."


def _flops(value: int) -> str:
    return next((f"{value / one:,.3g} {unit}" for one, unit in FLOP_UNITS if value >= one), f"{value} FLOP")


def _memory(rank: DryRank) -> str:
    if rank.peak_bytes is None:
        return ""
    kinds = sorted(rank.at_peak_bytes.items(), key=lambda each: -each[1])
    of = ", ".join(f"{name.replace('_', ' ')} {size(value)}" for name, value in kinds)
    return f"Memory at the peak: {size(rank.peak_bytes)}{f' ({of})' if of else ''}."
