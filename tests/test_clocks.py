"""Clocks that drift or jump: whose it is, how much, and that nobody is blamed for it.

Jobs are of pairs that meet often and of rows that meet seldom, so that both ranks of a pair could be taken for the one
with the wrong clock. All calls start together but where a test has one late; ends scatter by microseconds.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from overlapscope.analysis.across import across
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, Run
from tests.builders import EPOCH_NS
from tests.kineto_writer import MS, US
from tests.test_matching import Call, job

SETS = {"p0": (0, 1), "p1": (2, 3), "p2": (4, 5), "p3": (6, 7), "r0": (0, 2, 4, 6), "r1": (1, 3, 5, 7)}
GROUPS = tuple(Group(name=name, size=len(ranks), ranks=ranks) for name, ranks in SETS.items())


def pairs_and_rows(steps: int = 12, late: dict[int, int] | None = None) -> Run:
    """Give a job of steps: four calls in each pair, one in each row; some ranks come late to each row's call."""
    random = np.random.default_rng(3)
    calls: dict[int, list[Call]] = {rank: [] for rank in range(8)}
    for step in range(steps):
        for at, (name, ranks) in enumerate(SETS.items()):
            for k in range(1 if name.startswith("r") else 4):
                begin = step * 10 * MS + k * 2 * MS + (MS if name.startswith("r") else 0) + at * 10 * US
                arrive = {rank: begin + (late or {}).get(rank, 0) * name.startswith("r") for rank in ranks}
                end = max(arrive.values()) + 300 * US
                for rank in ranks:
                    took = end + int(random.integers(0, 3 * US)) - arrive[rank]
                    seq = step * 4 + k
                    calls[rank].append(
                        Call(op="all_reduce", group=name, size=len(ranks), start=arrive[rank], length=took, seq=seq)
                    )
    return job(calls, GROUPS)


Told = Callable[[np.ndarray], np.ndarray]


def with_clock(run: Run, rank: int, told: Told) -> Run:
    """Give the run with what a rank's clock shows as `told` makes it of nanoseconds since the job began."""
    calls = run.ranks[rank].collectives

    def of(times: np.ndarray) -> np.ndarray:
        return np.where(times == NONE, NONE, told(times - EPOCH_NS) + EPOCH_NS)

    changed = replace(calls, start_ns=of(calls.start_ns), end_ns=of(calls.end_ns))
    return replace(run, ranks={**run.ranks, rank: replace(run.ranks[rank], collectives=changed)})


@pytest.mark.parametrize("rank", range(8))
def test_a_clock_that_runs_fast_is_that_rank_s_alone(rank):
    before = across(pairs_and_rows(late={6: 500 * US}))
    found = across(with_clock(pairs_and_rows(late={6: 500 * US}), rank, lambda at: at + at // 1000))
    for each in range(8):
        assert found.clocks.drift[each] == pytest.approx(1e-3 if each == rank else 0, abs=2e-5)
        assert abs(found.clocks.offset_ns[each]) < 5 * US
        assert found.waits[each].blame_ns == pytest.approx(before.waits[each].blame_ns, abs=240 * 3 * US)
    assert max(found.clocks.spread_ns(block).max() for block in found.matching.blocks) < 10 * US
