"""CUDA graphs with a fake of `torch.cuda.CUDAGraph`: a step that replays communication is not whole, others are."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.hooks.compiled import GraphWatch  # noqa: E402 - behind the check for torch
from overlapscope.capture.records import StepRecord  # noqa: E402

pytestmark = pytest.mark.torch


class FakeGraph:
    replayed = 0

    def capture_begin(self, pool: Any = None) -> None:
        if pool == "bad":
            raise RuntimeError("no such pool")

    def capture_end(self) -> None:
        pass

    def replay(self) -> str:
        self.replayed += 1
        return "done"


def step(number: int = 3) -> StepRecord:
    return StepRecord(number=number, begin_ns=0, thread=0, observed=True)


def test_g14_only_a_replay_that_may_communicate_cuts_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    before = dict(vars(FakeGraph))
    record: StepRecord | None = None
    listening = True
    watch = GraphWatch(lambda: record, SimpleNamespace(captures=0), lambda: listening)
    unseen, layer, reducing, aside = FakeGraph(), FakeGraph(), FakeGraph(), FakeGraph()
    unseen.capture_begin()
    unseen.capture_end()
    watch.open()
    layer.capture_begin()
    layer.capture_end()
    watch.communicates()  # between captures
    reducing.capture_begin()
    watch.communicates()
    reducing.capture_end()
    listening = False
    aside.capture_begin()
    aside.capture_end()
    reasons = {}
    for name, graph in {"unseen": unseen, "layer": layer, "reducing": reducing, "aside": aside}.items():
        assert graph.replay() == "done"
        record = step()
        assert [graph.replay(), graph.replay()] == ["done", "done"]
        assert [reading for reading, _, _ in record.readings] == ["graph_replays"] * 2
        reasons[name], record = record.cut, None
    assert reasons == {
        "unseen": "it replayed a CUDA graph that was captured unseen",
        "layer": None,
        "reducing": "it replayed a CUDA graph with collectives",
        "aside": "it replayed a CUDA graph that was captured unseen",
    }
    watch.close()
    assert {name: vars(FakeGraph)[name] for name in before} == before


def test_g23_captures_under_way_are_counted_also_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    clock = SimpleNamespace(captures=0)
    watch = GraphWatch(lambda: None, clock)
    watch.open()
    first, second = FakeGraph(), FakeGraph()
    first.capture_begin()
    second.capture_begin()
    assert clock.captures == 2
    second.capture_end()
    first.capture_end()
    assert clock.captures == 0
    with pytest.raises(RuntimeError):
        first.capture_begin(pool="bad")
    assert clock.captures == 0
    watch.close()
