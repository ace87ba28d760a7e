"""Messages that take several times as long between some ranks, where no host is known."""

from typing import Any

import pytest

from overlapscope.analysis.checks.links.slower_messages import slower_messages
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
MB = 1_000_000


def found(slow_ms: int, *, slow: int = 1, waits_ms: int = 0, host: str | None = None, pairs: int = 3) -> list[Finding]:
    """Even ranks send 2 MB to the next one in 1 ms, those of pair `slow` in `slow_ms`, and one end of each may wait."""
    calls: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(2 * pairs)}
    for at in range(0, 800 * MS, 100 * MS):
        for rank, own in calls.items():
            is_slow = rank // 2 == slow
            start = at - MS * waits_ms * (rank % 2 if is_slow else 1 - rank % 2)
            end = at + MS * (slow_ms if is_slow else 1)
            own.append(
                {"op": "recv" if rank % 2 else "send", "peer": rank ^ 1, "group": "p2p", "group_size": 2 * pairs,
                 "bytes": 2 * MB, "launch_ns": start, "start_ns": start, "end_ns": end}
            )  # fmt: skip
    recorded = {} if host is None else {"settings": {"host": host}}
    ranks = {rank: rank_timeline(rank, calls=own, recorded=recorded) for rank, own in calls.items()}
    run = Run(world_size=2 * pairs, ranks=ranks)
    return slower_messages(run, match_and_align(run).pairs.pairs)


def test_they_are_named_with_what_they_reach_beside_the_others() -> None:
    (each,) = found(4)
    assert (each.id, each.severity) == ("slower_messages", "info")
    assert "between ranks 2 and 3 take 4 ms (0.5 GB/s), between the other 2 pairs 1 ms (2 GB/s)" in each.title
    assert [pair["ranks"] for pair in each.evidence["pairs"]] == [[2, 3]]


@pytest.mark.parametrize(
    "but", [{"slow_ms": 2}, {"slow": 3}, {"waits_ms": 3}, {"host": "one"}, {"pairs": 2}],
    ids=["little", "none", "one end waits", "hosts are known", "one other pair"],
)  # fmt: skip
def test_nothing_is_said_where_it_is_not_sure(but: dict[str, Any]) -> None:
    assert found(**{"slow_ms": 4, **but}) == []


def test_what_the_others_wait_is_not_their_messages_time() -> None:
    """Their senders come 3 ms before the receivers: the shorter end is what the message takes."""
    assert found(40, waits_ms=3)[0].evidence["others_median_ns"] == MS
