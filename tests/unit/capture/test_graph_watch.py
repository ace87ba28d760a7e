"""Replayed CUDA graphs with a fake of `torch.cuda.CUDAGraph`: a step that replays one is not whole."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.hooks.compiled import GraphWatch  # noqa: E402 - behind the check for torch
from overlapscope.capture.records import StepRecord  # noqa: E402

pytestmark = pytest.mark.torch


class FakeGraph:
    replayed = 0

    def replay(self) -> str:
        self.replayed += 1
        return "done"


def test_a_replay_inside_a_step_marks_it_and_one_outside_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    before = FakeGraph.replay
    record: StepRecord | None = None
    watch = GraphWatch(lambda: record)
    watch.open()
    graph = FakeGraph()
    assert graph.replay() == "done"
    record = StepRecord(number=3, begin_ns=0, thread=0, observed=True)
    assert [graph.replay(), graph.replay()] == ["done", "done"]
    assert record.cut
    assert [name for name, _, _ in record.readings] == ["graph_replays"] * 2
    watch.close()
    assert FakeGraph.replay is before
    assert graph.replay() == "done"
    assert len(record.readings) == 2
    assert graph.replayed == 4
