"""Pauses of one rank's host at one place, again and again: a reason of its own, even where its device hid some."""

from overlapscope.analysis.stragglers.own_pauses import own_pauses
from overlapscope.analysis.stragglers.shared_cores import HostTimes, host_times
from overlapscope.timeline.columns import ANNOTATION, HOST, RUNTIME
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000
LANES = ({"process": "0", "label": "7"}, {"kind": HOST, "process": "9", "label": "9"})


def host_of(rank: int, pauses_ms: list[int], *, before: str = "optimizer", in_call: bool = False) -> RankTimeline:
    """Return a rank whose host launches a kernel in its optimizer, pauses, and fetches a batch, again and again.

    With `in_call` a call lasts for each pause. Before the last pause something else ends than the optimizer.
    """
    host: list[Row] = []
    work: list[Row] = []
    at = EPOCH
    for number, ms in enumerate(pauses_ms):
        name = before if number == len(pauses_ms) - 1 else "optimizer"
        call: Row = {"kind": RUNTIME, "lane": 1, "name": "cudaLaunchKernel", "correlation": number}
        host += [
            {"kind": ANNOTATION, "lane": 1, "name": name, "start_ns": at, "end_ns": at + MS},
            {**call, "start_ns": at + MS // 2, "end_ns": at + MS // 2 + 5_000},
        ]
        work.append({
            "name": "gemm", "start_ns": at + MS, "end_ns": at + 2 * MS, "launch_ns": at + MS // 2,
            "correlation": number,
        })  # fmt: skip
        until = at + MS + ms * MS
        if in_call:
            host.append({**call, "name": "cudaMalloc", "correlation": 100, "start_ns": at + MS, "end_ns": until})
        host.append({"kind": ANNOTATION, "lane": 1, "name": "batch", "start_ns": until, "end_ns": until + MS})
        at = until + 2 * MS
    host.sort(key=lambda row: (row["start_ns"], -row["end_ns"]))
    whole: Row = {"start_ns": EPOCH, "end_ns": at, "host_events": True}
    return rank_timeline(rank, work=work, lanes=LANES, host=host, recordings=[whole])


def reason(late: RankTimeline, peer: RankTimeline, delayed_ms: int = 40) -> dict[str, object]:
    ranks = {0: late, 1: peer}
    hosts = {rank: times for rank, each in ranks.items() if (times := host_times(each))}
    assert all(isinstance(each, HostTimes) for each in hosts.values())
    return own_pauses(0, [1], Run(world_size=2, ranks=ranks), hosts, delayed_ms * MS)


def test_pauses_between_the_same_ranges_that_no_peer_has_are_a_reason_of_its_own() -> None:
    found = reason(host_of(0, [30, 32, 31]), host_of(1, [1, 1, 1]))
    assert found == {"paused_between": ["optimizer", "batch"], "pauses": 3, "pauses_ns": [30 * MS, 32 * MS]}


def test_what_ends_before_may_differ_where_the_same_range_follows() -> None:
    found = reason(host_of(0, [30, 32, 31], before="log"), host_of(1, [1, 1, 1]))
    assert found["paused_between"] == ["", "batch"]


def test_pauses_are_no_reason_where_a_peer_pauses_there_too_or_they_are_few_or_explain_little_or_are_in_calls() -> None:
    late, peer = host_of(0, [30, 32, 31]), host_of(1, [1, 1, 1])
    assert reason(late, host_of(1, [1, 20, 1])) == {}
    assert reason(host_of(0, [30, 32, 1]), peer) == {}
    assert reason(late, peer, delayed_ms=200) == {}
    assert reason(host_of(0, [30, 32, 31], in_call=True), peer) == {}
