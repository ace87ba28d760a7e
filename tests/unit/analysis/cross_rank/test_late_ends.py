"""A link is busy until the last member has a call; members that had it before go on meanwhile."""

import numpy as np
import pytest

from overlapscope.whatif.replay.graph import Busy, Call, Graph, LateEnd, MutualSlowdown, graph_job
from overlapscope.whatif.replay.replay import Launch, Wait, replay
from overlapscope.whatif.step_graph.graph_calls import RankStepCalls, step_calls


def call(**changes: object) -> Call:
    given: dict[str, object] = {
        "op": "all_gather", "bytes": 1, "dtype": None, "group": "0", "ranks": (0, 1), "group_size": 2, "own_ns": 10.0,
        "recorded_ns": 10.0, "beside": 0.0, "stream": "0", "link": "0", "late_ns": {1: 5.0},
    }  # fmt: skip
    return Call(**{**given, **changes})  # type: ignore[arg-type]


def ended(link_time: float, late_share: float) -> tuple[float, float]:
    """Rank 0 has a call after 10, rank 1 sees it 5 later; each computes for 1 then."""
    first, rest = (Launch(0), Wait(0)), (Busy(ns=1.0, beside_ns=0.0),)
    programmes = {0: (*first, *rest), 1: (*first, LateEnd(ns=5.0, collective=0), *rest)}
    graph = Graph(calls=(call(),), programmes=programmes, measured_ns=16.0, width=2)
    done = replay(graph_job(graph, MutualSlowdown(), transfer_time=link_time, late_share=late_share))
    return done.ended_ns[0], done.ended_ns[1]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_as_recorded_every_share_gives_what_was_seen(share: float) -> None:
    assert ended(1.0, share) == pytest.approx((11, 16))


def test_what_is_the_links_goes_with_it_and_what_is_not_stays() -> None:
    assert ended(2.0, 1.0) == pytest.approx((21, 31))
    assert ended(2.0, 0.5) == pytest.approx((21, 20 + 5 + 2.5 + 1))
    assert ended(2.0, 0.0) == pytest.approx((21, 26))


def test_the_link_is_taken_until_the_last_has_it() -> None:
    """Rank 0 has the first after 10 and launches the second, alone on the link only when rank 1 has the first at 15."""
    calls = (call(), call(ranks=(0,), own_ns=5.0, recorded_ns=5.0, late_ns={}))
    programmes = {0: (Launch(0), Wait(0), Launch(1), Wait(1)), 1: (Launch(0), Wait(0))}
    graph = Graph(calls=calls, programmes=programmes, measured_ns=20.0, width=2)
    # From 10 on both go at half pace: 5 left of each.
    assert replay(graph_job(graph, MutualSlowdown(), late_share=1.0)).ended_ns == pytest.approx({0: 20, 1: 20})
    assert replay(graph_job(graph, MutualSlowdown(), late_share=0.0)).ended_ns == pytest.approx({0: 15, 1: 10})


def seen(launch: list[int], end: list[int]) -> RankStepCalls:
    count = len(launch)
    return RankStepCalls(
        zero_ns=0, window=(0, 1000), rows=np.arange(count), call=np.arange(count), launch_ns=np.array(launch),
        begin_ns=np.array(launch), end_ns=np.array(end), message=np.zeros(count, np.bool_),
    )  # fmt: skip


def test_threads_tell_who_saw_a_call_end_late_and_devices_end_together() -> None:
    """The first begins with its last member at 40: rank 1 has it at 100, rank 0 at 130; the second ends at once."""
    both = {0: seen([40, 200], [130, 260]), 1: seen([10, 210], [100, 260])}
    on_host = step_calls(both, on_host=True)
    assert on_host.begun_ns.tolist() == [40, 210]
    assert on_host.done_ns.tolist() == [100, 260]
    assert on_host.last_ns.tolist() == [130, 260]
    assert on_host.late_ns == [{0: 30.0}, {}]
    on_device = step_calls(both, on_host=False)
    assert on_device.last_ns.tolist() == on_device.done_ns.tolist()
    assert on_device.late_ns == [{}, {}]
