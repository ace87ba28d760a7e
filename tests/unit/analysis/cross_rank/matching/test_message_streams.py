"""Messages that devices run on several streams: both ends of one are those that end together."""

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matching.point_to_point import PairMatching, match_pairs
from overlapscope.timeline.columns import HOST, HOST_SPAN_KINDS
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline
from tests.support.writers.kineto import MS, US
from tests.unit.analysis.cross_rank.matching.test_matching import PAIR, Call, job

SENT_MS = (10, 20, 30, 40, 80, 100, 120, 140)
"""When rank 0 sends; each message takes 1 ms."""
WAITS_SINCE_MS = (1, 11, 2, 31, 41, 21, 101, 81)
"""When rank 1 begins to receive each ..."""
OTHER_STREAM = (2, 3, 4, 7)
"""... and which of them it receives on its second stream."""
METER = [Call(op="all_reduce", start=(160 + k) * MS, size=2, volume=4) for k in range(5)]


def two_streams(*, late_ns: int = 0, clock: bool = True) -> dict[int, list[Call]]:
    """Return the sends of rank 0, and the receives of rank 1, which end `late_ns` times their place later."""
    sends = [Call(op="send", peer=1, start=at * MS) for at in SENT_MS]
    receives = [
        Call(op="recv", peer=0, start=since * MS, length=(at - since + 1) * MS + late_ns * place)
        for place, (at, since) in enumerate(zip(SENT_MS, WAITS_SINCE_MS, strict=True))
    ]
    meter = METER * clock
    return {0: [*sends, *meter], 1: [*receives, *meter]}


def paired(found: PairMatching) -> list[tuple[int, int]]:
    return [rows for each in found.pairs for rows in zip(each.send_rows.tolist(), each.recv_rows.tolist(), strict=True)]


@pytest.mark.parametrize("clock", [True, False], ids=["one clock", "as far apart as most end"])
def test_a_receive_that_waits_beside_later_ones_is_of_the_send_that_ends_with_it(clock: bool) -> None:
    calls = two_streams(clock=clock)
    found = match_and_align(job(calls, (PAIR,))).pairs
    assert (found.unmatched, found.reasons) == (0, ())
    assert paired(found) == [(k, k) for k in range(8)]
    in_order = sorted(range(8), key=lambda row: WAITS_SINCE_MS[row])
    assert in_order != list(range(8))  # by order of their begins others were paired


def test_messages_on_several_streams_that_do_not_end_together_are_not_paired() -> None:
    found = match_and_align(job(two_streams(late_ns=2 * MS), (PAIR,))).pairs
    assert (found.matched, found.unmatched) == (0, 16)
    assert "do not end together" in found.reasons[0]


@pytest.mark.parametrize(("left_out", "matched"), [(1, 7), (2, 6)])
def test_messages_of_devices_of_which_one_recorded_more_are_paired_by_their_ends(left_out: int, matched: int) -> None:
    calls = two_streams()
    found = match_and_align(job({0: calls[0], 1: calls[1][left_out:]}, (PAIR,))).pairs
    assert (found.matched, found.unmatched) == (matched, left_out)
    assert paired(found) == [(k + left_out, k) for k in range(matched)]
    assert f"{left_out} of its {16 - left_out} sends and receives end together with no single one" in found.reasons[0]


@pytest.mark.parametrize(("every_us", "matched"), [(150, 0), (400, 5)])
def test_ends_tell_no_pairs_where_messages_follow_each_other_as_closely_as_ends_may_lie_apart(
    every_us: int, matched: int
) -> None:
    """Of 40 sends a rank received five, each 60 us later: every receive ends near some send."""
    sends = [Call(op="send", peer=1, start=at * every_us * US, length=10 * US) for at in range(40)]
    receives = [Call(op="recv", peer=0, start=(at * every_us + 60) * US, length=10 * US) for at in (10, 11, 12, 13, 14)]
    meter = [Call(op="all_reduce", start=(20 + at) * MS, size=2, volume=4) for at in range(5)]
    found = match_and_align(job({0: [*sends, *meter], 1: [*receives, *meter]}, (PAIR,))).pairs
    assert found.matched == matched


def test_without_a_clock_a_rank_that_recorded_fewer_messages_tells_no_pairs() -> None:
    calls = two_streams(clock=False)
    found = match_and_align(job({0: calls[0], 1: calls[1][1:]}, (PAIR,))).pairs
    assert found.matched == 0


def test_messages_of_hosts_keep_their_order() -> None:
    """gloo marks the end of a call where its host waits for it."""
    hosts = {rank: rank_timeline(rank, has_device=False, calls=_rows(calls)) for rank, calls in two_streams().items()}
    found = match_pairs(Run(world_size=2, ranks=hosts, groups=(PAIR,)), Clocks())
    assert paired(found) == list(enumerate(sorted(range(8), key=lambda row: WAITS_SINCE_MS[row])))


def _rows(calls: list[Call]) -> list[dict[str, object]]:
    return [
        {
            "op": each.op, "group": "g", "peer": each.peer, "bytes": each.volume, "start_ns": EPOCH_NS + each.start,
            "end_ns": EPOCH_NS + each.start + each.length,
        }
        for each in calls
        if each.op != "all_reduce"
    ]  # fmt: skip


def _stages(late_ns: int) -> Run:
    """Return two stages: the first computes and sends eight times; the second receives on two streams, and computes
    after each message until the first one sends the next. All kernels are launched before, in the order of their
    begins."""
    work_ms = {0: [*zip((0, *(at + 1 for at in SENT_MS)), (*SENT_MS, 160), strict=True)],
               1: [(at + 1, at + 9) for at in SENT_MS[:-1]] + [(141, 160)]}  # fmt: skip
    ranks = {}
    for rank, own in two_streams(late_ns=late_ns).items():
        calls: list[Row] = [
            {
                "op": each.op, "group": "g", "peer": each.peer, "bytes": each.volume, "group_size": 2, "seq": at,
                "dtype": "bfloat16", "lane": 2 if at in OTHER_STREAM else 1, "start_ns": EPOCH_NS + each.start,
                "end_ns": EPOCH_NS + each.start + each.length,
            }
            for at, each in enumerate(own)
        ]  # fmt: skip
        work: list[Row] = [
            {"name": "gemm", "start_ns": EPOCH_NS + since * MS, "end_ns": EPOCH_NS + until * MS}
            for since, until in work_ms[rank]
        ]
        host = []
        for at, each in enumerate(sorted((*calls, *work), key=lambda each: each["start_ns"])):
            each["launch_ns"] = EPOCH_NS - MS + at * 10 * US
            each["correlation"] = at + 1
            launched = {"start_ns": each["launch_ns"], "end_ns": each["launch_ns"] + 3 * US, "correlation": at + 1}
            host.append({"lane": 3, "kind": HOST_SPAN_KINDS.index("runtime"), "name": "cudaLaunchKernel", **launched})
        whole = [{"start_ns": EPOCH_NS - MS, "end_ns": EPOCH_NS + 260 * MS, "host_events": True}]
        lanes = [{"label": "7"}, {"label": "20"}, {"label": "24"}, {"kind": HOST, "label": "training"}]
        ranks[rank] = rank_timeline(rank, calls=calls, work=work, host=host, lanes=lanes, recordings=whole)
    return Run(world_size=2, ranks=ranks, groups=(PAIR,))


def test_what_a_receive_waits_for_is_no_transfer_on_the_critical_path() -> None:
    """The first stage computes for 133 ms, but while it sends for 8, the second one 19 ms more; then 5 all-reduces."""
    (path,) = analyze(_stages(0)).critical_path.steps
    assert path.parts == {"compute": 152 * MS, "transfer": 13 * MS}


def test_where_pairs_are_not_known_no_path_says_what_a_receive_waited_for() -> None:
    found = analyze(_stages(2 * MS))
    assert found.skew.pairs == 0
    assert not any(path.parts.get("transfer", 0) > 5 * MS for path in found.critical_path.steps)
