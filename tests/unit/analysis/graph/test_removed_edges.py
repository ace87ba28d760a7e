"""Without any one kind of edge, at least one of the four tests of a graph fails on a real or a generated trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from overlapscope.analysis.graph.answers import SelfTest
from overlapscope.analysis.graph.bounds import step_bounds, whole_bounds
from overlapscope.analysis.graph.building import build, device_waits, host_calls
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.building.host_waits import HostWaits
from overlapscope.analysis.graph.model import LAUNCH
from overlapscope.analysis.graph.self_test import self_test
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import RankTimeline
from tests.conftest import shared_file
from tests.support.graph_programs import simulate
from tests.unit.analysis.graph.test_rules import polling

A100_RANK3 = "kineto/a100_rank3of8_six_steps.json.gz"


def _none(count: int) -> Any:
    return np.full(count, -1, np.int64)


def _no_waits(*arguments: Any) -> tuple[Any, HostWaits]:
    nothing = np.empty(0, np.int64)
    return _none(arguments[1].row.size), HostWaits(span=nothing, call=nothing, recorded=nothing.astype(np.bool_))


def _without_launches(spans: Any, calls: Any, *more: Any) -> Any:
    found = device_waits.device_waits(spans, calls, *more)
    kept = [each for each in found.edges if not each.kind.size or each.kind[0] != LAUNCH]
    return msgspec.structs.replace(found, edges=kept)


REMOVED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "synchronisations": (build, "host_waits", _no_waits),
    "hand-over": (host_calls, "hand_overs", lambda calls: _none(calls.row.size)),
    "events": (device_waits, "_ended_before", lambda spans, *_: _none(spans.lane.size)),
    "occupancy": (device_waits, "_is_full", lambda spans, ready, start: np.zeros(ready.size, np.bool_)),
    "launches": (build, "device_waits", _without_launches),
    "polls": (build, "polled_spans", lambda spans, calls, names: (_none(calls.row.size), _none(calls.row.size) >= 0)),
}
FAILS = {
    "synchronisations": "hidden_waits",
    "hand-over": "hidden_waits",
    "events": "unknown",
    "occupancy": "replay",
    "launches": "replay",
    "polls": "hidden_waits",
}


@contextmanager
def removed(kind: str) -> Iterator[None]:
    module, name, other = REMOVED[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, other)
        yield


def all_tests(timeline: RankTimeline) -> SelfTest:
    graph = rank_graph(timeline)
    window = whole_bounds(graph)
    assert window
    return self_test(graph, [window, *step_bounds(graph, {timeline.rank: timeline})])


@pytest.fixture(scope="module")
def six_steps() -> RankTimeline:
    (timeline,) = read_inputs([shared_file(A100_RANK3)]).ranks.values()
    return timeline


@pytest.mark.parametrize("kind", ["synchronisations", "hand-over", "events", "occupancy", "launches"])
def test_a_real_trace_fails_without_a_kind_of_edge(six_steps: RankTimeline, kind: str) -> None:
    assert all_tests(six_steps).holds
    with removed(kind):
        assert FAILS[kind] in all_tests(six_steps).failed


def test_a_polling_host_fails_without_polls() -> None:
    timeline = simulate({0: polling(20, 5)}).rank
    assert all_tests(timeline).holds
    with removed("polls"):
        assert FAILS["polls"] in all_tests(timeline).failed
