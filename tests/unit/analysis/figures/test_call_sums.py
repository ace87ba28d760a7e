"""Rows of collectives, against the same sums taken call by call."""

from collections import defaultdict

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.collectives import CollectiveRow, collective_rows
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import Run
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.support.rank_rows import rank_timeline


@pytest.fixture(scope="module")
def run() -> Run:
    """A job of which one member's calls have another phase here and there, no times, or no name."""
    job = run_of(simulate(Job(layout=Layout(tp=2, pp=2, dp=2), seed=4, steps=3)))
    rng = np.random.default_rng(1)
    ranks = dict(job.ranks)
    for rank in (1, 4):
        calls, names = ranks[rank].collectives, ranks[rank].names
        phase = np.where(rng.random(size(calls)) < 0.2, names.index("all_reduce"), calls.phase).astype(np.int32)
        lost = np.where(rng.random(size(calls)) < 0.1, NONE, calls.start_ns)
        unnamed = rng.choice([-1, len(names), NONE], size(calls), p=[0.05, 0.05, 0.9])
        op = np.where(unnamed == NONE, calls.op, unnamed).astype(np.int32)
        ranks[rank] = replace(
            ranks[rank],
            names=(*names, "unknown"),
            collectives=replace(calls, phase=phase, start_ns=lost, op=op),
        )
    return replace(job, ranks=ranks)


def call_by_call(run: Run, exposed: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> list[CollectiveRow]:
    """Return the figures of each kind that need no more than sums, in any order, by going from call to call."""
    transfers = match_and_align(run).transfers(run)
    found: dict[tuple[object, ...], list[tuple[int, int, int, int, int]]] = defaultdict(list)
    for rank, timeline in run.ranks.items():
        calls, names = timeline.collectives, timeline.names
        for row in range(size(calls)):
            spelled = [
                names[code] if (code := int(getattr(calls, name)[row])) >= 0 else None
                for name in ("op", "group", "dtype", "dimension", "phase", "module", "algorithm", "protocol")
            ]
            key = (spelled[0] or "unknown", *spelled[1:], int(calls.group_size[row]), int(calls.bytes[row]))
            known = calls.start_ns[row] != NONE and calls.end_ns[row] != NONE
            duration = int(calls.end_ns[row] - calls.start_ns[row]) if known else NONE
            split_of = int(transfers[rank].transfer_ns[row]), int(transfers[rank].call[row])
            found[key].append((rank, duration, *split_of, int(exposed[rank][row])))
    rows = []
    for key, each in found.items():
        durations = [duration for _, duration, _, _, _ in each if duration != NONE]
        by_call: dict[object, int] = {}
        for at, (_, duration, _, number, _) in enumerate(each):
            if duration != NONE:
                key_of_call = number if number >= 0 else f"unmatched {at}"
                by_call[key_of_call] = min(by_call.get(key_of_call, duration), duration)
        shortest = [*by_call.values()]
        split = {number: transfer for _, _, transfer, number, _ in each if transfer != NONE}
        waited = [duration - transfer for _, duration, transfer, _, _ in each if transfer != NONE]
        matched = len(waited) == len(durations) > 0
        ranks = [rank for rank, *_ in each]
        rows.append(
            CollectiveRow(
                **dict(zip(("op", "group", "dtype", "dimension", "phase", "module", "algorithm", "protocol"), key[:8],
                           strict=True)),  # type: ignore[arg-type]
                group_size=key[8], bytes=key[9],  # type: ignore[arg-type]
                count=max(ranks.count(rank) for rank in ranks),
                estimate="matched" if matched else "upper_bound",
                transfer_ns_median=float(np.median([*split.values()] if matched else shortest)) if durations else None,
                baseline_ns=float(np.quantile([*split.values()], 0.1)) if matched and len(split) >= 5 else None,
                wait_fraction=sum(waited) / sum(durations) if matched else None,
                exposed_ns=round(sum(each[4] for each in each) / len(set(ranks))) if durations else None,
                algbw_gbs=None, busbw_gbs=None,
            )
        )  # fmt: skip
    return rows


def test_rows_are_what_going_from_call_to_call_gives(run: Run) -> None:
    rng = np.random.default_rng(2)
    exposed = {rank: rng.integers(0, 10**6, size(timeline.collectives)) for rank, timeline in run.ranks.items()}
    rows = collective_rows(run.ranks, {rank: [] for rank in run.ranks}, match_and_align(run).transfers(run), exposed)
    assert {each.estimate for each in rows} == {"matched", "upper_bound"}
    bare = [replace_rates(each) for each in rows]
    assert sorted(map(repr, bare)) == sorted(map(repr, call_by_call(run, exposed)))


def replace_rates(row: CollectiveRow) -> CollectiveRow:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return CollectiveRow(**{**fields, "algbw_gbs": None, "busbw_gbs": None})


def test_of_a_call_that_only_some_members_recorded_the_shortest_duration_bounds_its_transfer() -> None:
    names = ("all_reduce",)
    durations = {0: 500, 1: 200, 2: 900}
    ranks = {
        rank: rank_timeline(rank, names=names, calls=[{"op": "all_reduce", "start_ns": 0, "end_ns": ns, "bytes": 800}])
        for rank, ns in durations.items()
    }
    number = {rank: np.array([-1 if rank == 2 else 0]) for rank in ranks}
    part = Run(world_size=4, ranks=ranks, groups=(), fingerprint={})
    none = {rank: np.zeros(1, np.int64) for rank in ranks}
    transfers = match_and_align(part).transfers(part)
    (row,) = collective_rows(ranks, {rank: [] for rank in ranks}, transfers, none, number)
    assert (row.estimate, row.transfer_ns_median) == ("upper_bound", (200 + 900) / 2)
