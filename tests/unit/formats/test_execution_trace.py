"""Execution traces: PyTorch's own, Chakra's, and how they join a timed trace of the same rank."""

import contextlib
import gzip
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope
from overlapscope.errors import InputError
from overlapscope.ingest.build.call_timeline import LoggedCall, call_timeline
from overlapscope.ingest.formats import execution_trace
from overlapscope.ingest.merge.join_dumps import join_execution_trace
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import reading_or_refusal, spoiled
from tests.support.writers.kineto import (
    BACKWARD,
    MS,
    US,
    collective_args,
    distributed,
    kernel,
    launch,
    record_param_comms,
)
from tests.support.writers.kineto import write as write_kineto

COLUMNS = ("op", "group", "group_size", "seq", "dtype", "elements", "bytes", "record_function_id")
GROUPS = [
    {"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl", "ranks": ranks, "group_size": size}
    for name, description, ranks, size in (("0", "default_pg", [], 4), ("3", "mesh_tp", [2, 3], 2))
]


def tensor(elements: int, item: int = 4) -> list[Any]:
    return [101, 102, 0, elements, item, "cuda:2"]


def attribute(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "value": value}


def new_node(
    number: int,
    name: str,
    *,
    rf_id: int,
    values: Sequence[Any] = (),
    types: Sequence[str] = (),
    more: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A node of schemas 1.0.2 and later."""
    nothing = [[]] * len(values)
    return {
        "id": number, "name": name, "ctrl_deps": 2,
        "inputs": {"values": list(values), "shapes": nothing, "types": list(types), "strides": nothing},
        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
        "attrs": [attribute("rf_id", "uint64", rf_id), attribute("seq_id", "int64", -1), *more],
    }  # fmt: skip


def comms(
    number: int,
    rf_id: int,
    name: str,
    *,
    elements: tuple[int, int],
    dtype: str = "BFloat16",
    group: tuple[str, str] = ("0", "default_pg"),
    size: int = 4,
    seq: Any = 7,
    rank: int = 2,
) -> dict[str, Any]:
    """`record_param_comms` as torch 2.4 and later write it."""
    values = [[tensor(elements[0])], [seq, False], list(group), rank, name, [], [], 0, 1, size]
    texts = {"collective_name": name, "dtype": dtype, "pg_name": group[0], "pg_desc": group[1]}
    numbers = {"in_msg_nelems": elements[0], "out_msg_nelems": elements[1], "pg_size": size}
    more = [attribute(key, "string", text) for key, text in texts.items()]
    more += [attribute(key, "uint64", count) for key, count in numbers.items()]
    types = ["GenericList[Tensor(c10::BFloat16)]"]
    return new_node(number, "record_param_comms", rf_id=rf_id, values=values, types=types, more=more)


def old_node(number: int, name: str, *, rf_id: int, inputs: list[Any], types: list[str]) -> dict[str, Any]:
    """A node of schema 1.0.1."""
    return {
        "name": name, "id": number, "rf_id": rf_id, "parent": 2, "fw_parent": 0, "seq_id": -1,
        "scope": 0, "tid": 1, "fw_tid": 0,
        "op_schema": "", "inputs": inputs, "input_shapes": [[]], "input_types": types,
        "outputs": [], "output_shapes": [], "output_types": [],
    }  # fmt: skip


def trace(nodes: list[dict[str, Any]], schema: str = "1.1.1-chakra.0.0.4") -> bytes:
    begin = {"schema": schema, "pid": 5, "time": "2026-01-01", "start_ts": 9}
    return json.dumps({**begin, "nodes": nodes, "finish_ts": 10}).encode()


def placed(tmp_path: Path, content: bytes, name: str = "et.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def read(path: Path) -> Reading:
    reader = find_reader(read_head(path))
    assert reader is not None
    return reader.read(path, ReadContext())


def calls_of(timeline: RankTimeline) -> list[tuple[Any, ...]]:
    attributes = spelled(timeline.collectives, timeline.names)
    return list(zip(*(attributes[column] for column in COLUMNS), strict=True))


INIT = new_node(3, "## process_group:init ##", rf_id=1, values=[json.dumps(GROUPS)], types=["String"])
NEW = [
    new_node(2, "[pytorch|profiler|execution_trace|thread]", rf_id=0),
    INIT,
    # Nodes are written when they end: the outer one last.
    comms(8, 31, "_allgather_base", elements=(500, 1000), group=("3", "mesh_tp"), size=2, seq=4, rank=0),
    comms(6, 21, "allreduce", elements=(4096, 4096)),
    new_node(5, "c10d::allreduce_", rf_id=20, values=[[tensor(4096)]], types=["GenericList[Tensor(c10::BFloat16)]"]),
    comms(9, 41, "wait", elements=(0, 0), dtype="Byte", size=1),
    comms(10, 42, "init", elements=(0, 0)),
    comms(11, 43, "_coalesced", elements=(0, 0)),
    comms(12, 44, "barrier", elements=(1, 1)),
    comms(13, 45, "_reduce_scatter_base", elements=(2000, 1000), dtype="Float"),
    new_node(14, "aten::mm", rf_id=46),
]


def test_collectives_are_read_in_the_order_of_their_calls(tmp_path: Path) -> None:
    path = placed(tmp_path, trace(NEW))
    reading = read(path)
    assert calls_of(reading.timelines[0]) == [
        ("all_reduce", "0", 4, 7, "bfloat16", 4096, 8192, 21),
        ("all_gather", "3", 2, 4, "bfloat16", 1000, 2000, 31),
        ("barrier", "0", 4, 7, None, None, None, 44),
        ("reduce_scatter", "0", 4, 7, "float32", 2000, 8000, 45),
    ]
    timeline = reading.timelines[0]
    assert (timeline.basis, timeline.rank, timeline.has_device) == ("log", 2, False)
    assert [(g.name, g.description, g.size, g.ranks) for g in reading.groups] == [
        ("0", "default_pg", 4, (0, 1, 2, 3)),
        ("3", "mesh_tp", 2, (2, 3)),
    ]
    assert reading.world_size == 4
    run = overlapscope.load(path)
    assert run.analysis().ranks[0].whole.window_ns is None
    assert {row.transfer_ns_median for row in run.analysis().collectives} == {None}


def test_the_flat_schema_is_read_by_position(tmp_path: Path) -> None:
    def recorded(rf_id: int, *inputs: Any, types: Sequence[str] = ("Int",)) -> dict[str, Any]:
        return old_node(rf_id, "record_param_comms", rf_id=rf_id, inputs=list(inputs), types=list(types))

    reduced = ["GenericList[Tensor(float)]", "Int", "Int", "Int", "String"]
    nodes = [
        old_node(2, "[pytorch|profiler|execution_graph|thread]", rf_id=0, inputs=[], types=[]),
        # torch 2.0 to 2.3: the group is a pointer, the last input its size.
        recorded(11, [tensor(300)], 5, 94837498, 1, "allreduce", [], [], 8, types=reduced),
        recorded(12, [tensor(300), tensor(12)], 6, 94837498, 1, "allgather", [], [], 8, types=reduced),
        # Without tensors everything stands one place further left.
        recorded(13, 7, 94837498, 1, "barrier", [], [], 8),
        recorded(14, 7, 94837498, 1, "wait", [], [], 8),
    ]
    reading = read(placed(tmp_path, trace(nodes, "1.0.1")))
    assert calls_of(reading.timelines[0]) == [
        ("all_reduce", None, 8, 5, "float32", 300, 1200, 11),
        ("all_gather", None, 8, 6, "float32", 312 * 8, 312 * 32, 12),
        ("barrier", None, 8, 7, None, None, None, 13),
    ]
    assert reading.timelines[0].rank == -1


def test_sends_keep_no_sequence_number_of_collectives(tmp_path: Path) -> None:
    node = comms(4, 11, "send", elements=(64, 0))
    node["inputs"]["values"][1] = [3, True]
    assert calls_of(read(placed(tmp_path, trace([node]))).timelines[0]) == [
        ("send", "0", 4, None, "bfloat16", 64, 128, 11)
    ]


def test_gloo_is_read_from_the_operations_that_enter_it(tmp_path: Path) -> None:
    init = new_node(3, "## process_group:init ##", rf_id=1, values=[json.dumps([GROUPS[0]])], types=["String"])
    floats = "GenericList[Tensor(float)]"
    gathered = [[[tensor(8)] * 4], [tensor(8)], "<Object>", False, -1]
    nodes = [
        init,
        new_node(9, "c10d::allgather_", rf_id=8, values=gathered, types=[f"GenericList[{floats}]", floats]),
        new_node(5, "c10d::allreduce_", rf_id=4, values=[[tensor(100)], "<Object>"], types=[floats]),
        new_node(6, "c10d::barrier", rf_id=5, values=[tensor(1), "<Object>"], types=["Tensor(unsigned char)"]),
    ]
    assert calls_of(read(placed(tmp_path, trace(nodes))).timelines[0]) == [
        ("all_reduce", "0", 4, None, "float32", 100, 400, 4),
        ("barrier", "0", 4, None, None, None, None, 5),
        ("all_gather", "0", 4, None, "float32", 32, 128, 8),
    ]


def test_a_list_of_groups_that_is_no_json_costs_only_itself(tmp_path: Path) -> None:
    cut = new_node(4, "## process_group:init ##", rf_id=1, values=["[{"], types=["String"])
    assert read(placed(tmp_path, trace([cut, *NEW]))).groups == read(placed(tmp_path, trace(NEW))).groups


@pytest.mark.parametrize("keep", [0.4, 0.7, 0.95])
def test_a_cut_trace_keeps_every_whole_node(tmp_path: Path, keep: float) -> None:
    text = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 5, "nodes": NEW}, indent=1).encode()
    cut = text[: int(len(text) * keep)]
    reading = read(placed(tmp_path, gzip.compress(cut), "et.json.gz"))
    whole = []
    at, decoder = cut.index(b"[") + 1, json.JSONDecoder()
    with contextlib.suppress(ValueError):
        while True:
            node, end = decoder.raw_decode(cut[at:].decode().lstrip())
            whole.append(node["name"])
            at += len(cut[at:]) - len(cut[at:].lstrip()) + end
            at = cut.index(b",", at) + 1
    assert reading.source.truncated
    assert reading.source.events == len(whole)
    assert any("ends in the middle" in warning for warning in reading.source.warnings)


# --- many nodes -----------------------------------------------------------------------------------------------------

MANY = {
    "operations": (new_node(14, "aten::mm", rf_id=46), 0),
    "collectives": (comms(6, 21, "allreduce", elements=(4096, 4096)), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("node", "decodings"), MANY.values(), ids=MANY.keys())
def test_no_node_is_decoded_twice_and_only_collectives_are_decoded_whole(
    node: dict[str, Any], decodings: int, tmp_path: Path
) -> None:
    """Beside the one decoding of the file: a collective's attributes and inputs, and nothing of other nodes."""
    path = placed(tmp_path, trace([node] * 1000))
    called: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, function: called.update([function.__name__] if event == "c_call" else ()))
    try:
        reading = execution_trace.READER.read(path, ReadContext())
    finally:
        sys.setprofile(None)
    assert reading.source.events == 1000
    assert decodings * 1000 < called["decode"] < decodings * 1000 + 10


def seconds_to_read(path: Path, content: bytes) -> float:
    """Return the shortest of three readings, in time of this process alone."""
    path.write_bytes(content)
    taken = []
    for _ in range(3):
        begun = time.process_time()
        execution_trace.READER.read(path, ReadContext())
        taken.append(time.process_time() - begun)
    return min(taken)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [b"]}", b',{"id'], ids=["whole", "cut"])
def test_the_time_to_read_grows_as_the_number_of_nodes_does(tail: bytes, tmp_path: Path) -> None:
    begin, node = b'{"schema": "1.1.1", "nodes": [', b'{"name": "record_param_comms"}'
    few, many = (
        seconds_to_read(tmp_path / "et.json", begin + b",".join([node] * count) + tail) for count in (25_000, 100_000)
    )
    assert many < 10 * few, "four times as many nodes take four times as long; in quadratic time, sixteen times"


# --- joining --------------------------------------------------------------------------------------------------------


def timed(tmp_path: Path, args: dict[str, object]) -> RankTimeline:
    """A trace with one all-reduce kernel whose record has the given arguments."""
    events = [
        launch(1 * MS, 5, thread=BACKWARD),
        kernel("ampere_sgemm", 1 * MS, MS),
        record_param_comms(1 * MS - 10 * US, 100 * US, args=args),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2 * MS, MS, stream=20, correlation=5),
    ]
    return read(placed(tmp_path, write_kineto(events, metadata=distributed(0)), "kineto.json")).timelines[0]


def test_kineto_keeps_the_record_function_id(tmp_path: Path) -> None:
    assert timed(tmp_path, {"Record function id": 21}).collectives.record_function_id.tolist() == [21]
    missing = timed(tmp_path, {"Record function id": 0}).collectives.record_function_id.tolist()
    assert missing == timed(tmp_path, {}).collectives.record_function_id.tolist()
    assert missing != [0]


KNOWN = collective_args(elements=4096, dtype="BFloat16", group="0", ranks=range(4)) | {"Record function id": 21}


@pytest.mark.parametrize(
    ("args", "known"),
    [
        ({"Record function id": 21}, (None, None, None, "bfloat16", None, None)),
        (KNOWN, ("0", 4, None, "bfloat16", 4096, 8192)),
    ],
    ids=["the kernel's type", "all but the number"],
)
def test_a_log_fills_what_a_trace_does_not_know(
    args: dict[str, object], known: tuple[object, ...], tmp_path: Path
) -> None:
    trace_of = timed(tmp_path, args)
    assert calls_of(trace_of)[0][1:7] == known
    joined = join_execution_trace(trace_of, read(placed(tmp_path, trace(NEW))).timelines[0])
    assert calls_of(joined) == [("all_reduce", "0", 4, 7, "bfloat16", 4096, 8192, 21)]
    assert joined.collectives.start_ns.tolist() == trace_of.collectives.start_ns.tolist()
    assert joined.spans is trace_of.spans
    assert [joined.names[code] for code in joined.spans.name.tolist()] == [
        trace_of.names[code] for code in trace_of.spans.name.tolist()
    ]


@pytest.mark.parametrize(
    "wrong", [{"op": "all_gather"}, {"dtype": "float32"}, {"elements": 4095}, {"group": "9"}, {"group_size": 8}]
)
def test_a_contradiction_refuses_the_whole_log(tmp_path: Path, wrong: dict[str, Any]) -> None:
    trace_of = timed(tmp_path, KNOWN)
    right = {"op": "all_reduce", "group": "0", "group_size": 4, "dtype": "bfloat16", "elements": 4096}
    log = call_timeline([LoggedCall(record_function_id=21, **(right | wrong))], "et.json")
    with pytest.raises(InputError, match=f"{next(iter(wrong))}.* here and .* there"):
        join_execution_trace(trace_of, log)


def test_a_groups_ranks_behind_its_name_contradict_nothing(tmp_path: Path) -> None:
    args = collective_args(elements=4096, group="0 [0, 1]") | {"Record function id": 21}
    trace_of = timed(tmp_path, args)
    log = call_timeline([LoggedCall(op="all_reduce", group="0", seq=5, record_function_id=21)], "et.json")
    joined = join_execution_trace(trace_of, log)
    assert calls_of(joined)[0][1:4] == ("0 [0, 1]", 2, 5)
    other = call_timeline([LoggedCall(op="all_reduce", group="0 [2, 3]", record_function_id=21)], "et.json")
    with pytest.raises(InputError):
        join_execution_trace(trace_of, other)


def test_an_id_that_stands_twice_tells_nothing(tmp_path: Path) -> None:
    trace_of = timed(tmp_path, {"Record function id": 21})
    log = call_timeline([LoggedCall(op="all_reduce", seq=n, record_function_id=21) for n in (1, 2)], "et.json")
    assert join_execution_trace(trace_of, log) is trace_of
    none = call_timeline([LoggedCall(op="all_reduce", seq=1)], "et.json")
    assert join_execution_trace(trace_of, none) is trace_of


ids = st.lists(st.none() | st.integers(1, 6), max_size=8)


@given(ids, ids, st.data())
def test_joining_is_a_lookup_by_unique_id(
    ours: list[int | None], theirs: list[int | None], data: st.DataObject
) -> None:
    known = [data.draw(st.none() | st.integers(0, 3)) for _ in ours]
    attributes = [data.draw(st.none() | st.integers(0, 3)) for _ in theirs]
    here, log = (
        call_timeline([LoggedCall(op=op, seq=k, record_function_id=i) for i, k in zip(id_, seq, strict=True)], op)
        for op, id_, seq in (("unknown", ours, known), ("reduce", theirs, attributes))
    )
    expected: list[tuple[str, int | None]] | None = []
    for i, k in zip(ours, known, strict=True):
        unique = i is not None and ours.count(i) == 1 and theirs.count(i) == 1
        other = attributes[theirs.index(i)] if unique else None
        if k is not None and other is not None and k != other:
            expected = None
            break
        assert expected is not None
        expected.append(("reduce" if unique else "unknown", other if k is None else k))
    if expected is None:
        with pytest.raises(InputError):
            join_execution_trace(here, log)
    else:
        joined = calls_of(join_execution_trace(here, log))
        assert [(call[0], call[3]) for call in joined] == expected


def test_only_execution_traces_are_taken_for_such() -> None:
    for pattern in (
        "kineto/*.gz",
        "nccl_log/*",
        "horovod/*",
        "flight_recorder/*/*",
        "nsys/*",
        "ascend/*/*/*",
        "topo/*",
    ):
        for path in sorted(shared_file(".").glob(pattern)):
            if path.is_file():
                assert not execution_trace.recognises(read_head(path)), path


# --- broken input ---------------------------------------------------------------------------------------------------

OLD = old_node(4, "record_param_comms", rf_id=1, inputs=[[tensor(3)], 5, 9, 1, "allreduce", [], [], 8], types=["x"])


@pytest.mark.slow
@examples(150)
@given(data=st.data())
@pytest.mark.parametrize("content", [trace(NEW), trace([OLD])], ids=["new", "old"])
def test_damage_ends_in_a_reading_or_an_input_error(content: bytes, data: st.DataObject) -> None:
    reading = reading_or_refusal(execution_trace.READER, data.draw(spoiled(content)))
    if reading is not None:
        calls = reading.timelines[0].collectives
        for column in ("elements", "bytes", "group_size", "seq", "record_function_id"):
            values = getattr(calls, column)
            assert ((values == NONE) | (values >= 0)).all()


def test_wrong_types_everywhere_cost_only_what_they_stand_for(tmp_path: Path) -> None:
    for odd in (None, True, -1, 1.5, 2**70, "x", [], {}, [[]], [None], {"a": 1}):
        for place in ("id", "name", "inputs", "attrs"):
            nodes = [dict(each) for each in NEW]
            nodes[3] = nodes[3] | {place: odd}
            calls = calls_of(read(placed(tmp_path, trace(nodes))).timelines[0])
            assert ("all_gather", "3", 2, 4, "bfloat16", 1000, 2000, 31) in calls


RECORD = """
import sys, torch, torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

folder = sys.argv[1]
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
observer = ExecutionTraceObserver()
observer.register_callback(f"{folder}/et.json")
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as recording:
    for elements in (10, 200, 3000):
        dist.all_reduce(torch.ones(elements))
    dist.broadcast(torch.ones(7, dtype=torch.float64), 0)
recording.export_chrome_trace(f"{folder}/kineto.json")
observer.unregister_callback()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_real_pair_of_traces_agrees_on_every_call(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", RECORD, str(tmp_path)], check=True, capture_output=True)
    log = read(tmp_path / "et.json").timelines[0]
    trace_of = read(tmp_path / "kineto.json").timelines[0]
    expected = [("all_reduce", "float32", size, 4 * size) for size in (10, 200, 3000)] + [
        ("broadcast", "float64", 7, 56)
    ]
    assert [(call[0], *call[4:7]) for call in calls_of(log)] == expected
    ids = log.collectives.record_function_id.tolist()
    assert len(set(ids)) == 4
    assert trace_of.collectives.record_function_id.tolist() == ids
    bare = replace(
        trace_of.collectives, elements=log.collectives.elements * 0 + NONE, bytes=log.collectives.bytes * 0 + NONE
    )
    joined = join_execution_trace(replace(trace_of, collectives=bare), log)
    assert joined.collectives.bytes.tolist() == [each[-1] for each in expected]
