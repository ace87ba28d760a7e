"""Shapes and types of gradients are kept once for all that have the same, and as if each had its own."""

import json
from typing import Any

import pytest

from overlapscope.ingest.build.kernel_names import may_describe_collective
from overlapscope.ingest.formats.kineto.events import EventCollector

NAME = "torch::autograd::AccumulateGrad"
ARGS: tuple[Any, ...] = (
    {"Input Dims": [[8, 4], []], "Input type": ["float", ""], "Sequence number": 1},
    {"Input type": ["float", ""], "Sequence number": 2, "Input Dims": [[8, 4], []]},
    {"Input Dims": [[8]], "Input type": ["c10::Half"]},
    {"Input Dims": "none", "Input type": 7},
    {"Sequence number": 3},
    {},
    None,
    [1],
)


def collected(args: tuple[Any, ...]) -> list[Any]:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": NAME, "pid": 1, "tid": 1, "ts": at, "dur": 1, "args": each}
        for at, each in enumerate(args)
    ]
    collector = EventCollector(may_describe_collective, tensors_of=NAME)
    assert collector.take(json.dumps(events).encode())
    kept = collector.columns().host_args
    return [kept[row] for row in range(len(args))]


@pytest.mark.parametrize("order", [1, -1])
def test_each_has_its_own_shapes_and_types(order: int) -> None:
    for stated, kept in zip(ARGS[::order], collected(ARGS[::order]), strict=True):
        known = stated if isinstance(stated, dict) else {}
        assert (kept.input_dims, kept.input_type) == (known.get("Input Dims"), known.get("Input type"))


def test_those_of_one_shape_share_one_value() -> None:
    kept = collected(ARGS)
    assert kept[0] is kept[1]
    assert len({id(each) for each in kept}) == 4


def test_others_keep_all_that_they_state() -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    collector = EventCollector(may_describe_collective, tensors_of=NAME)
    assert collector.take(json.dumps([event | {"args": {"Record function id": 5, "Input Dims": [[2]]}}]).encode())
    (kept,) = collector.columns().host_args.values()
    assert (kept.record_function_id, kept.input_dims) == (5, [[2]])
