"""Host spans and recorded synchronisations of Kineto traces, counted from the raw JSON by code of its own."""

import gzip
import pickle
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.build import host_spans
from overlapscope.ingest.build.host_spans import in_order
from overlapscope.ingest.formats.kineto.events import LONG_FRAME_US
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import HOST_SPAN_KINDS, NONE, SYNC_KINDS, size
from overlapscope.timeline.run import RankTimeline
from tests.conftest import ROOT, shared_file
from tests.support.writers.kineto import (
    COMM_STREAM,
    COMPUTE_STREAM,
    DIALECTS,
    MAIN,
    MS,
    PROCESS,
    TORCH_2024,
    US,
    Dialect,
    Event,
    assemble,
    distributed,
    event_texts,
    launch,
    op,
    sync,
    training,
    write,
    write_job,
)

KIND_OF = {
    "cpu_op": "operation", "Operator": "operation", "user_annotation": "annotation", "cuda_runtime": "runtime",
    "cuda_driver": "runtime", "Runtime": "runtime", "overhead": "overhead", "python_function": "python",
}  # fmt: skip
SAMPLES = [
    "kineto/a100_ddp_rank0of2_collective_args.json.gz",
    "kineto/a100_rank3of8_six_steps.json.gz",
    "kineto/kineto_tb_resnet50_nw0_pt1.8.pt.trace.json.gz",
    "kineto/megatron_tp8/megatron_kineto_3.json.gz",
    "kineto/sampled_pair/sampled_rank-1.json.gz",
    "kineto/tracelens_b200_eager.json.gz",
    "kineto/tracelens_mi210_gpu_only.json.gz",
    "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
    "kineto/v100_rank1of2_2020_allreduces.json.gz",
]
Totals = dict[tuple[str, str, str, str], list[int]]


@cache
def sample(name: str) -> RankTimeline:
    return only(shared_file(name))


def only(path: Path) -> RankTimeline:
    """Return the one rank of a trace."""
    (timeline,) = read_inputs([path], ReadOptions(ranks={"": 0}) if "mi210" in path.name else None).ranks.values()
    return timeline


def texts(timeline: RankTimeline, codes: Any) -> list[str | None]:
    return [timeline.name(code) for code in codes.tolist()]


def raw_totals(path: Path) -> Totals:
    """Return (count, sum of durations in ns) of the raw host events by kind, process, thread and name."""
    with gzip.open(path) as file:
        content = msgspec.json.decode(file.read())
    totals: Totals = {}
    for event in content["traceEvents"] if isinstance(content, dict) else content:
        kind = KIND_OF.get(event.get("cat"))
        if event.get("ph") != "X" or kind is None:
            continue
        if kind == "python" and not event["name"].startswith("nn.Module: "):
            if event["dur"] < LONG_FRAME_US:
                continue
            kind = "function"
        if event["cat"] == "Operator" and event["name"].startswith(("ProfilerStep#", "Optimizer.", "enumerate(Data")):
            kind = "annotation"
        name = re.sub(" at 0x[0-9a-f]+", "", event["name"]) if kind == "function" else event["name"]
        key = (kind, str(event["pid"]), str(event["tid"]), name)
        entry = totals.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += max(round(event["dur"] * 1000), 0)
    return totals


def our_totals(timeline: RankTimeline) -> Totals:
    host, lanes = timeline.host, timeline.lanes
    rows = zip(
        [HOST_SPAN_KINDS[kind] for kind in host.kind.tolist()],
        texts(timeline, lanes.process[host.lane]),
        texts(timeline, lanes.label[host.lane]),
        texts(timeline, host.name),
        (host.end_ns - host.start_ns).tolist(),
        strict=True,
    )
    totals: Totals = {}
    for kind, process, thread, name, duration in rows:
        entry = totals.setdefault((kind, str(process), str(thread), str(name)), [0, 0])
        entry[0] += 1
        entry[1] += duration
    return totals


@pytest.mark.parametrize("name", SAMPLES)
def test_host_spans_of_real_traces_have_count_and_time_of_the_raw_events(name: str) -> None:
    timeline = sample(name)
    assert timeline.has_host_events
    assert our_totals(timeline) == raw_totals(shared_file(name))
    assert size(timeline.host) > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_host_spans_of_a_cpu_run_are_those_of_its_trace(rank: int) -> None:
    (path,) = (ROOT / "traces" / "baseline" / f"rank_{rank:05d}").glob("*.json.gz")
    assert our_totals(only(path)) == raw_totals(path)


@pytest.mark.parametrize("name", SAMPLES)
def test_launches_of_spans_are_begins_of_runtime_calls_with_their_correlation(name: str) -> None:
    timeline = sample(name)
    spans, host = timeline.spans, timeline.host
    called = set(zip(host.correlation.tolist(), host.start_ns.tolist(), strict=True))
    launched = spans.launch_ns != NONE
    pairs = zip(spans.correlation[launched].tolist(), spans.launch_ns[launched].tolist(), strict=True)
    assert not [pair for pair in pairs if pair not in called]


@pytest.mark.parametrize("name", SAMPLES)
def test_each_thread_is_in_order_and_parents_come_first(name: str) -> None:
    host = sample(name).host
    keys = list(zip(host.lane.tolist(), host.start_ns.tolist(), (-host.end_ns).tolist(), strict=True))
    assert keys == sorted(keys)


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 4)), max_size=30)


@given(rows)
def test_the_order_is_that_of_sorting_by_thread_start_and_length(given_rows: list[tuple[int, int, int]]) -> None:
    lane, start, length = np.array(given_rows, np.int64).reshape(-1, 3).T
    number = np.arange(lane.size)
    found = in_order(
        lane=lane, kind=lane.astype(np.int8), name=number.astype(np.int32), start_ns=start, end_ns=start + length,
        correlation=number,
    )  # fmt: skip
    wanted = sorted(range(lane.size), key=lambda row: (lane[row], start[row], -length[row], row))
    assert found.correlation.tolist() == wanted
    assert found.lane.tolist() == lane[wanted].tolist()
    assert (found.end_ns - found.start_ns).tolist() == length[wanted].tolist()


def load(folder: Path, events: list[Event], dialect: Dialect = TORCH_2024) -> RankTimeline:
    path = folder / "rank0.json"
    path.write_bytes(write(events, dialect, metadata=distributed(0)))
    return only(path)


def began(timeline: RankTimeline, times: Any) -> list[int]:
    """Return times since the recording began."""
    return (times - int(timeline.recordings.start_ns[0])).tolist()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_kinds_and_threads_are_the_same_in_every_dialect(tmp_path: Path, dialect: Dialect) -> None:
    timeline = load(tmp_path, training(steps=2), dialect)
    host = timeline.host
    counted = Counter(HOST_SPAN_KINDS[kind] for kind in host.kind.tolist())
    old = dialect.name == "torch 1.8"  # it files all annotations but its own under operations
    assert counted == {"runtime": 10, "operation": 8 if old else 6, "annotation": 2 if old else 4}
    runtime = host.kind == HOST_SPAN_KINDS.index("runtime")
    assert sorted(host.correlation[runtime].tolist()) == sorted(timeline.spans.correlation.tolist())
    assert (host.correlation[~runtime] == NONE).all()


def test_threads_of_several_processes_with_one_number_are_apart(tmp_path: Path) -> None:
    other = op("aten::add", 400 * US, 7 * US)
    other = Event(**{name: getattr(other, name) for name in Event.__struct_fields__} | {"process": PROCESS + 1})
    timeline = load(tmp_path, [*training(), other, launch(410 * US, 9_999, process=PROCESS + 1, thread=MAIN)])
    host, lanes = timeline.host, timeline.lanes
    of_thread = [lane for lane, text in enumerate(texts(timeline, lanes.label)) if text == str(MAIN)]
    assert sorted(timeline.name(int(lanes.process[lane])) or "" for lane in of_thread) == [
        str(PROCESS), str(PROCESS + 1),
    ]  # fmt: skip
    found = {timeline.name(int(lanes.process[lane])): (host.lane == lane).sum() for lane in of_thread}
    assert found[str(PROCESS + 1)] == 2


def test_a_trace_without_host_events_says_so(tmp_path: Path) -> None:
    timeline = load(tmp_path, [each for each in training() if each.sort in ("kernel", "gpu_memcpy", "gpu_memset")])
    assert not timeline.has_host_events
    assert size(timeline.host) == 0
    assert timeline.num_spans > 0


def test_damaged_host_events_cost_only_themselves(tmp_path: Path) -> None:
    events = event_texts(training())
    whole = load(tmp_path, training())
    calls = [at for at, text in enumerate(events) if b'"cuda_runtime"' in text]
    events[calls[0]] = events[calls[0]].replace(b'"dur":', b'"dur":"x", "was":')
    events[calls[1]] = events[calls[1]][:-9]
    events[calls[2]] = events[calls[2]].replace(b'"correlation": 402', b'"correlation": "many"')
    path = tmp_path / "rank0.json"
    path.write_bytes(assemble(events, metadata=distributed(0)))
    run = read_inputs([path])
    damaged, source = run.ranks[0], run.sources[0]
    lost = size(whole.host) - size(damaged.host)
    assert lost == source.dropped
    assert 0 < lost <= 3


def test_reading_a_trace_makes_no_host_spans_and_other_processes_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    making = host_spans.in_order
    monkeypatch.setattr(host_spans, "in_order", lambda **columns: (made.append(1), making(**columns))[1])
    run = read_inputs([write_job(tmp_path / "job", 2)])
    sent = pickle.loads(pickle.dumps(run.ranks[0], protocol=5))
    assert not made
    assert our_totals(sent) == our_totals(run.ranks[0])
    assert size(run.ranks[0].host) == len(run.ranks[0].host.name) > 0
    assert len(made) == 2  # once in each process


# --- synchronisations -------------------------------------------------------------------------------------------------


def recorded_event(stream: int, correlation: int) -> dict[str, int]:
    return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": correlation, "wait_on_cuda_event_id": 5}


SYNCS = [
    sync("Stream Sync", 9 * MS, 1 * MS, 74, COMPUTE_STREAM),
    sync("Stream Wait Event", 1 * MS, 2 * US, 71, COMM_STREAM, **recorded_event(COMPUTE_STREAM, 70)),
    sync("Event Sync", 2 * MS, 1 * MS, 73, -1, **recorded_event(COMM_STREAM, 72)),
    sync("Event Sync", 5 * MS, 3 * US, 75, -1, **recorded_event(-1, -1)),
    sync("Event Sync", 6 * MS, 1 * US, 76, -1, **recorded_event(COMM_STREAM, 72)),
    sync("Context Sync", 12 * MS, 1 * MS, 77, -1),
    sync("Stream Wait Event", 13 * MS, 1 * US, 78, 99, **recorded_event(COMPUTE_STREAM, 70)),
    sync("Unknown", 14 * MS, 1 * US, 79, 3),
]


def test_synchronisations_say_who_waits_for_what(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    query = launch(6 * MS, 76, name="cudaEventQuery")
    path.write_bytes(write([*training(), *SYNCS, query], metadata=distributed(0)))
    run = read_inputs([path])
    timeline = run.ranks[0]
    syncs = timeline.syncs

    def stream(lane: int) -> tuple[str | None, str | None] | None:
        if lane == NONE:
            return None
        assert timeline.lanes.kind[lane] == 0
        return timeline.name(int(timeline.lanes.process[lane])), timeline.name(int(timeline.lanes.label[lane]))

    compute, comm, unused = (("0", str(each)) for each in (COMPUTE_STREAM, COMM_STREAM, 99))
    found = list(
        zip(
            [SYNC_KINDS[kind] for kind in syncs.kind.tolist()],
            syncs.correlation.tolist(),
            map(stream, syncs.lane.tolist()),
            map(stream, syncs.awaited_lane.tolist()),
            [None if each == NONE else each for each in syncs.awaited_correlation.tolist()],
            began(timeline, syncs.start_ns),
            (syncs.end_ns - syncs.start_ns).tolist(),
            strict=True,
        )
    )
    assert found == [
        ("stream_wait_event", 71, comm, compute, 70, 1 * MS, 2 * US),
        ("event", 73, None, comm, 72, 2 * MS, 1 * MS),
        ("event", 75, None, None, None, 5 * MS, 3 * US),
        ("stream", 74, None, compute, None, 9 * MS, 1 * MS),
        ("context", 77, None, None, None, 12 * MS, 1 * MS),
        ("stream_wait_event", 78, unused, compute, 70, 13 * MS, 1 * US),
    ]
    assert any("cuda_sync (1)" in warning for warning in run.sources[0].warnings)
    assert timeline.num_spans == load(tmp_path, training()).num_spans


def test_synchronisations_of_nonsense_are_refused_or_left_out(tmp_path: Path) -> None:
    odd: list[object] = [None, "x", -1, 2**63, 1.5, [1], True]
    events = [
        Event(sort="cuda_sync", name="Event Sync", start_ns=at * US, duration_ns=1 * US, process=0, thread=7, args=args)
        for at, value in enumerate(odd)
        for args in (
            {"cuda_sync_kind": value, "stream": 7, "correlation": 1, "device": 0},
            {"cuda_sync_kind": "Event Sync", "stream": value, "correlation": value, "device": value,
             "wait_on_stream": value, "wait_on_cuda_event_record_corr_id": value},
        )
    ]  # fmt: skip
    timeline = load(tmp_path, [*training(), *events])
    assert size(timeline.syncs) == len(odd)
    assert timeline.num_spans == load(tmp_path, training()).num_spans
