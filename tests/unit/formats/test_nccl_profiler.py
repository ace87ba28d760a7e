"""Plugins of NCCL's profiler interface: Inspector and JSON lines of events."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.errors import InputError
from overlapscope.ingest.formats.nccl_profiler import READER
from overlapscope.ingest.formats.nccl_profiler.reader import JsonObjects
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import UNKNOWN_RANK
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import mutations, odd_documents, reading_or_refusal


def read_text(tmp_path: Path, text: str) -> Reading:
    path = tmp_path / "dump"
    path.write_text(text)
    assert find_reader(read_head(path)) is READER
    return READER.read(path, ReadContext())


def rows_of(reading: Reading, table: str) -> list[dict[str, Any]]:
    tables = rows_of_sources(reading.facts)
    return tables[table].rows if table in tables else []


def calls_of(reading: Reading, rank: int) -> dict[str, list[object]]:
    (timeline,) = (each for each in reading.timelines if each.rank == rank)
    return spelled(timeline.collectives, timeline.names)


# --- real file ------------------------------------------------------------------------------------------------------

REAL = "nccl_profiler/phaz_trace_2762285_allreduce.jsonl"


def test_the_real_events_give_each_rank_s_call_and_its_device_time() -> None:
    path = shared_file(REAL)
    assert find_reader(read_head(path)) is READER
    reading = READER.read(path, ReadContext())
    assert reading.source.warnings == ()
    assert (reading.source.dropped, reading.source.events, reading.source.ranks) == (0, 287, (0, 1, 2, 3))
    assert reading.world_size == 4
    for rank in range(4):
        calls = calls_of(reading, rank)
        assert (calls["op"], calls["bytes"], calls["dtype"]) == (["all_reduce"], [33554432 * 4], ["float32"])
        known = [calls[name] for name in ("algorithm", "protocol", "channels", "seq")]
        assert known == [["RING"], ["SIMPLE"], [24], [0]]
        assert (calls["start_ns"], calls["end_ns"], calls["launch_ns"]) == ([None], [None], [None])


def test_the_real_device_times_are_those_of_the_driver_s_own_kernel_records() -> None:
    path = shared_file(REAL)
    reading = READER.read(path, ReadContext())
    kernels = sorted(
        1000 * event["duration"]
        for event in map(json.loads, path.read_text().splitlines())
        if event.get("recordType") == "cuptiActivity"
    )
    times = sorted(each["time_ns"] for each in rows_of(reading, "measurements"))
    assert len(times) == 4
    # CUPTI's kernel begins before its first channel reads the clock and ends after its last one did.
    assert all(0 <= kernel - time < 5_000 for kernel, time in zip(kernels, times, strict=True))
    for each in rows_of(reading, "measurements"):
        assert each["algbw_gbs"] == pytest.approx(each["bytes"] / each["time_ns"])
        assert each["busbw_gbs"] == pytest.approx(each["bytes"] / each["time_ns"] * 1.5)


def test_calls_without_computation_claim_no_exposed_communication() -> None:
    analysis = analyze(read_inputs([shared_file(REAL)]))
    assert [each.whole.exposed_comm_ns for each in analysis.ranks] == [None] * 4
    assert [(each.op, each.count) for each in analysis.collectives] == [("all_reduce", 1)]


# --- Inspector ------------------------------------------------------------------------------------------------------


def record(
    comm: str = "0xabc",
    rank: int = 2,
    ranks: int = 8,
    *,
    coll: str = "AllReduce",
    seq: int = 5,
    message: int = 1 << 20,
    time_us: int = 100,
    source: str = "kernel_gpu",
    **more: object,
) -> dict[str, Any]:
    shared = coll in ("AllGather", "ReduceScatter")
    algbw = message * (ranks if shared else 1) / 1e9 / (time_us / 1e6)
    factor = (ranks - 1) / ranks if shared else 2 * (ranks - 1) / ranks if coll == "AllReduce" else 1
    return {
        "header": {"id": comm, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.2", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1748030377748202, "hostname": "node-7", "pid": 1639453,
        },
        "coll_perf": {
            "coll": coll, "coll_algo": "RING", "coll_proto": "unknown", "coll_sn": seq,
            "coll_msg_size_bytes": message, "coll_exec_time_us": time_us, "coll_timing_source": source,
            "coll_algobw_gbs": algbw, "coll_busbw_gbs": algbw * factor, **more,
        },
    }  # fmt: skip


def read_records(tmp_path: Path, *records: dict[str, Any]) -> Reading:
    return read_text(tmp_path, "".join(json.dumps(each) + "\n" for each in records))


def test_inspector_records_give_calls_and_measurements(tmp_path: Path) -> None:
    scatter, gather = record(coll="ReduceScatter", seq=2, message=1000), record(coll="AllGather", seq=3)
    reading = read_records(tmp_path, record(seq=1), scatter, gather)
    calls = calls_of(reading, 2)
    assert calls["op"] == ["all_reduce", "reduce_scatter", "all_gather"]
    # Inspector counts one rank's share of all-gather and reduce-scatter; the project counts the whole buffer.
    assert calls["bytes"] == [1 << 20, 8000, 8 << 20]
    assert calls["seq"] == [1, 2, 3]
    assert (calls["group"], calls["group_size"]) == (["0xabc"] * 3, [8] * 3)
    assert (calls["algorithm"], calls["protocol"]) == (["RING"] * 3, [None] * 3)
    measured = rows_of(reading, "measurements")
    assert [each["time_ns"] for each in measured] == [100_000.0] * 3
    assert measured[1]["algbw_gbs"] == pytest.approx(0.08)
    assert measured[1]["busbw_gbs"] == pytest.approx(0.07)
    assert [(each["rank"], each["communicator"], each["seq"]) for each in measured] == [
        (2, "0xabc", 1 + at) for at in range(3)
    ]
    assert reading.source.warnings == ()
    (member,) = rows_of(reading, "members")
    assert (member["communicator"], member["member"], member["members"], member["rank"]) == ("0xabc", 2, 8, 2)
    assert (member["host"], member["process"], member["nodes"]) == ("node-7", 1639453, 1)
    assert size(reading.timelines[0].spans) == 0


def test_the_verbose_example_of_inspector_s_readme_agrees_with_itself(tmp_path: Path) -> None:
    # 8 ranks: 2 GiB a rank in 41,057 us are 418.44 GB/s, as the plugin's README prints.
    example = record(coll="ReduceScatter", message=2147483648, time_us=41057)
    example["coll_perf"] |= {"coll_algobw_gbs": 418.439467, "coll_busbw_gbs": 366.134533}
    trace = {"coll_start_ts": 1752867229235059, "coll_stop_ts": 1752867229235064, "kernel_events": []}
    events = [{"channel_id": channel} for channel in range(3)]
    example["coll_perf"] |= {"event_trace_ts": trace, "event_trace_sn": {"coll_start_sn": 1, "kernel_events": events}}
    reading = read_records(tmp_path, example)
    assert reading.source.warnings == ()
    calls = calls_of(reading, 2)
    assert calls["bytes"] == [8 * 2147483648]
    assert (calls["launch_ns"], calls["channels"]) == ([1752867229235059000], [3])


@pytest.mark.parametrize("layout", ["lines", "pretty", "array", "pretty array"])
def test_records_may_be_laid_out_in_any_way(layout: str, tmp_path: Path) -> None:
    records = [record(seq=seq, coll=coll) for seq, coll in enumerate(["AllReduce", "Broadcast", "AllGather"])]
    text = {
        "lines": "\n".join(map(json.dumps, records)),
        "pretty": "\n".join(json.dumps(each, indent=2) for each in records),
        "array": json.dumps(records),
        "pretty array": json.dumps(records, indent=1),
    }[layout]
    reading = read_text(tmp_path, text)
    assert calls_of(reading, 2)["op"] == ["all_reduce", "broadcast", "all_gather"]
    assert (reading.source.dropped, reading.source.truncated) == (0, False)


def test_times_of_the_host_are_left_out_and_counted(tmp_path: Path) -> None:
    timed = ("kernel_gpu", "kernel_cpu", "collective_cpu", "collective_cpu")
    reading = read_records(tmp_path, *(record(source=source) for source in timed))
    assert len(rows_of(reading, "measurements")) == 1
    assert len(calls_of(reading, 2)["op"]) == 4
    assert reading.source.warnings == (
        "3 operations were not timed on the device (collective_cpu: 2, kernel_cpu: 1); their times are left out",
    )


def test_operations_that_fell_out_of_the_ring_are_reported(tmp_path: Path) -> None:
    common = {key: value for key, value in record().items() if key != "coll_perf"}
    first, last = (
        {**common, "dump_stats": {"coll_records": 1, "coll_dropped_total": calls, "p2p_dropped_total": sends}}
        for calls, sends in ((10, 0), (4096, 4))
    )
    reading = read_records(tmp_path, first, record(), last)
    assert any("Inspector lost 4100 operations" in each for each in reading.source.warnings)
    assert reading.source.dropped == 0


def test_a_bandwidth_that_is_not_size_over_time_is_reported(tmp_path: Path) -> None:
    reading = read_records(tmp_path, record(coll_algobw_gbs=99.0))
    assert any("bandwidth of 1 operations" in each for each in reading.source.warnings)


def test_uneven_gathers_have_no_known_size(tmp_path: Path) -> None:
    reading = read_records(tmp_path, record(coll="AllGatherV", coll_algobw_gbs=0.0, coll_busbw_gbs=0.0))
    assert calls_of(reading, 2)["bytes"] == [None]


def test_sends_are_calls_too(tmp_path: Path) -> None:
    sent = record()
    perf = sent.pop("coll_perf")
    sent["p2p_perf"] = {key.replace("coll", "p2p"): value for key, value in perf.items()} | {"p2p": "Send"}
    assert calls_of(read_records(tmp_path, sent), 2)["op"] == ["send"]


@pytest.mark.parametrize(
    ("comms", "ranks"),
    [
        # The largest communicator is the world; the other's calls are this process's too.
        ([("0xw", 5, 8), ("0xt", 1, 2)], [5]),
        # Two as large: whose rank is it? Where both say the same, there is no question.
        ([("0xa", 3, 4), ("0xb", 3, 4)], [3]),
        ([("0xa", 3, 4), ("0xb", 1, 4)], [UNKNOWN_RANK]),
        # Threads of one process hold several ranks; those of a smaller communicator are not known.
        ([("0xw", 0, 8), ("0xw", 1, 8), ("0xt", 0, 2)], [UNKNOWN_RANK, 0, 1]),
    ],
)
def test_the_rank_in_the_world_is_taken_from_the_largest_communicator(
    comms: Sequence[tuple[str, int, int]], ranks: list[int], tmp_path: Path
) -> None:
    reading = read_records(tmp_path, *(record(*each) for each in comms))
    assert sorted(each.rank for each in reading.timelines) == sorted(ranks)
    assert sum(size(each.collectives) for each in reading.timelines) == len(comms)


def test_a_cut_last_record_costs_only_itself(tmp_path: Path) -> None:
    text = json.dumps(record(seq=1)) + "\n" + json.dumps(record(seq=2))[:-30]
    reading = read_text(tmp_path, text)
    assert reading.source.truncated
    assert (reading.source.dropped, calls_of(reading, 2)["seq"]) == (1, [1])


def test_a_damaged_record_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    lines = [json.dumps(record(seq=seq)) for seq in range(5)]
    lines[2] = lines[2][:200]
    reading = read_text(tmp_path, "\n".join(lines) + "\n")
    assert calls_of(reading, 2)["seq"] == [0, 1, 3, 4]
    assert (reading.source.dropped, reading.source.truncated) == (1, False)


def test_a_file_without_collectives_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(json.dumps(LIFECYCLE))
    assert READER.recognises(read_head(path))
    with pytest.raises(InputError, match="holds no collective"):
        READER.read(path, ReadContext())


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "nccl:all_reduce", "cat": "user_annotation", "ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]',
        '{"traceEvents": [{"name": "a", "cat": "COLL", "ph": "b"}]}',
        '[{"name": "a", "cat": "kernel", "ph": "b", "id": 1}]',
        '{"header": {"rank": 1}, "body": {}}',
        '{"type": "event", "name": "x"}',
        "[\n{}]\n",
        "",
    ],
)
def test_other_json_is_left_to_other_readers(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert not READER.recognises(read_head(path))


# --- JSON lines -----------------------------------------------------------------------------------------------------


GPU = 1770615435435805312
LIFECYCLE = {"type": "ProfilerLifecycle", "func": "ProfilerInit", "commId": 7, "rank": 0, "details": {"nranks": 4}}


def test_addresses_that_are_used_again_belong_to_the_latest_call(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [LIFECYCLE]
    for turn, (start, stop) in enumerate([(GPU, GPU + 1000), (GPU + 5000, GPU + 5400)]):
        details = {"func": "AllGather", "seq": turn, "count": 256, "dtype": "ncclInt8", "algo": "RING", "channels": 1}
        common, begin = {"recordType": "event", "commId": 7, "rank": 0}, {"pTimer": start}
        lines += [
            {**common, "type": "ncclProfileColl", "eventAddr": "0xc", "details": details},
            {"recordType": "state", "name": "KernelChStop", "eventAddr": "0xk", "pTimer": stop},
            *(
                {**common, "type": "ncclProfileKernelCh", "parentObj": parent, "eventAddr": "0xk", "details": begin}
                for parent in ("0xc", "0xother")
            ),
        ]
    reading = read_records(tmp_path, *lines)
    measured = rows_of(reading, "measurements")
    assert [each["time_ns"] for each in measured] == [1000.0, 400.0]
    assert [each["bytes"] for each in measured] == [1024, 1024]
    assert measured[0]["busbw_gbs"] == pytest.approx(1.024 * 0.75)


def test_a_call_without_clock_or_of_unknown_ranks_lacks_its_time_or_size(tmp_path: Path) -> None:
    details = {"func": "AllGather", "seq": 0, "count": 256, "dtype": "ncclInt8"}
    call = {"recordType": "event", "type": "ncclProfileColl", "commId": 7, "rank": 0, "eventAddr": "0xc"}
    reading = read_records(tmp_path, {**call, "details": details})
    assert (calls_of(reading, 0)["elements"], calls_of(reading, 0)["bytes"]) == ([None], [None])
    assert rows_of(reading, "measurements") == []
    assert any(each.startswith("1 of 1 calls have no device time") for each in reading.source.warnings)


# --- objects and hostile input --------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab"\\{}[],: \n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab{}", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    records=st.lists(st.dictionaries(st.text("abc", min_size=1), values, min_size=1, max_size=3), max_size=5),
    indent=st.sampled_from([None, 1, 2]),
    between=st.sampled_from(["\n", ",\n", "\n\n"]),
    array=st.booleans(),
)
def test_objects_are_found_however_they_are_laid_out(
    records: list[dict[str, Any]],
    indent: int | None,
    between: str,
    array: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = between.join(json.dumps(each, indent=indent) for each in records)
    path = tmp_path_factory.mktemp("objects") / "f"
    path.write_text(f"[{text}]" if array else text)
    objects = JsonObjects(ByteStream(path))
    assert list(objects) == records
    assert (objects.dropped, objects.truncated) == (0, False)


FILES = (
    [record(), record(coll="AllGather"), record(source="collective_cpu")],
    [LIFECYCLE, {"recordType": "event", "type": "ncclProfileColl", "commId": 7, "rank": 0, "eventAddr": "0xc",
                 "details": {"func": "Reduce"}}],
)  # fmt: skip


def as_lines(records: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


spoiled_files = st.one_of(
    *(odd_documents(records).map(as_lines) for records in FILES),
    *(mutations(as_lines(records)) for records in FILES),
    mutations(json.dumps(record(), indent=1).encode()),
)


@examples(300)
@given(content=spoiled_files)
def test_spoiled_dumps_give_a_result_or_one_error(content: bytes) -> None:
    reading = reading_or_refusal(READER, content)
    if reading is None:
        return
    for timeline in reading.timelines:
        calls = timeline.collectives
        assert all(value == NONE or value >= 0 for value in calls.bytes.tolist())
        assert all(value == NONE for value in calls.start_ns.tolist())
    for each in rows_of(reading, "measurements"):
        assert each["time_ns"] > 0
        assert math.isfinite(each["time_ns"])


@pytest.mark.slow
def test_braces_without_end_take_no_time(tmp_path: Path) -> None:
    for unit in ("{\n", '{"a": [\n', "}\n", '"{\n', "{" * 200 + "\n"):
        path = tmp_path / "f"
        path.write_text(unit * (400_000 // len(unit)))
        objects = JsonObjects(ByteStream(path))
        assert list(objects) == []
