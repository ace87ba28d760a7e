"""The export for Perfetto: read back with plain json, against the columns and the analysis."""

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.common.cause_table import cause_label
from overlapscope.cli.main import main
from overlapscope.loaded_run import LoadedRun
from overlapscope.report.perfetto.events import MOST_TRACKS, EventWriter, Slices, nested
from overlapscope.report.perfetto.export import ExportSelection, PerfettoTrace
from overlapscope.report.perfetto.tracks import launching_calls
from overlapscope.timeline.columns import COMM, NONE, OPERATION, RUNTIME, HostSpans, Telemetry, make
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import Run
from tests.conftest import ROOT, shared_file
from tests.integration.jobs.dag_job import Job, Kernel, run_of
from tests.support.builders import full_timeline
from tests.support.commands import stdout_of
from tests.support.writers.kineto import MS, distributed, training, write
from tests.unit.analysis.cross_rank.test_across_ranks import moved

BASELINE = ROOT / "traces" / "baseline"


def document(run: Run, **choice: Any) -> dict[str, Any]:
    text = "".join(PerfettoTrace(run=run, choice=ExportSelection(**choice), version="0").pieces())
    decoded: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return decoded


def ns(value: Any) -> int:
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)


class Read:
    """An export as another program sees it: tracks by name, of processes by name, in nanoseconds since the base."""

    def __init__(self, exported: dict[str, Any]) -> None:
        self.base = exported["otherData"]["base_time_ns"]
        self.offsets = exported["otherData"]["clock_offset_ns"]
        self.slices: dict[tuple[str, str], list[tuple[int, int, str, dict[str, Any]]]] = defaultdict(list)
        self.leaves: dict[int, tuple[str, str, int]] = {}
        self.arrives: dict[int, tuple[str, str, int]] = {}
        self.counters: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        processes: dict[int, str] = {}
        threads: dict[tuple[int, int], str] = {}
        numbers: set[tuple[str, int]] = set()
        open_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        last_start: dict[tuple[int, int], int] = {}
        begun: dict[tuple[int, str, int], tuple[int, str, dict[str, Any]]] = {}
        self.events = len(exported["traceEvents"])
        for event in exported["traceEvents"]:
            pid = event["pid"]
            assert isinstance(pid, int)
            assert pid > 0
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    assert pid not in processes
                    processes[pid] = event["args"]["name"]
                elif event["name"] == "thread_name":
                    assert event["tid"] not in {tid for _, tid in threads}  # Perfetto tells threads by tid alone
                    threads[pid, event["tid"]] = event["args"]["name"]
                continue
            assert isinstance(event["name"], str)
            start = ns(event["ts"])
            assert start >= 0
            if event["ph"] == "C":
                assert np.isfinite(float(event["args"]["value"]))
                self.counters[processes[pid], event["name"]].append((start, float(event["args"]["value"])))
                continue
            if event["ph"] in "sf":
                assert (event["ph"], event["id"]) not in numbers
                numbers.add((event["ph"], event["id"]))
                assert event["ph"] == "s" or event["bp"] == "e"
                place = (pid, event["tid"])
                assert start == last_start[place], "an arrow is bound to the slice before it"
                if event["cat"] == "launch":  # those between ranks: test_rank_flows.py
                    ends = self.leaves if event["ph"] == "s" else self.arrives
                    ends[event["id"]] = processes[pid], threads[place], start
                continue
            args = event.get("args", {})
            assert isinstance(args, dict)
            if event["ph"] in "be":
                key = (pid, event["cat"], event["id"])
                if event["ph"] == "b":
                    assert key not in begun
                    begun[key] = start, event["name"], args
                else:
                    since, name, known = begun.pop(key)
                    self.slices[processes[pid], "beside"].append((since, start, name, known))
                continue
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            place = (pid, event["tid"])
            end = start + ns(event["dur"])
            assert end >= start
            assert start >= last_start.get(place, 0)  # Perfetto sorts them all; other viewers like them so
            last_start[place] = start
            around = open_ends[place]
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1], "a slice overlaps another of its track in part"
            around.append(end)
            self.slices[processes[pid], threads[place]].append((start, end, event["name"], args))
        assert not begun

    def of(self, process: str, track: str) -> list[tuple[int, int, str, dict[str, Any]]]:
        return self.slices[process, track]


REAL = ("kineto/megatron_tp8", "kineto/a100_ddp_rank0of2_collective_args.json.gz", "gloo_torch2.13", "traces/regressed")


@cache
def exported(source: str) -> tuple[LoadedRun, Read]:
    loaded = overlapscope.load(ROOT / source if source.startswith("traces") else shared_file(source))
    return loaded, Read(document(loaded.run))


@pytest.mark.parametrize("source", REAL)
def test_every_span_is_there_at_its_time(source: str) -> None:
    loaded, read = exported(source)
    for rank, timeline in loaded.run.ranks.items():
        host = select_host_spans(timeline.host, (OPERATION, RUNTIME))
        offset = read.offsets.get(str(rank), 0)
        expected = sorted(
            (start - offset - read.base, end - offset - read.base, timeline.names[code])
            for table in (timeline.spans, timeline.annotations, host)
            for start, end, code in zip(
                table.start_ns.tolist(), table.end_ns.tolist(), table.name.tolist(), strict=True
            )
        )
        found = sorted(
            (start, end, name)
            for (process, track), slices in read.slices.items()
            if process == f"rank {rank}" and track not in ("steps", "why exposed")
            for start, end, name, _ in slices
        )
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine == theirs or (abs(mine[0] - theirs[0]) <= 1 and abs(mine[1] - theirs[1]) <= 1)


@pytest.mark.parametrize("source", REAL)
def test_an_arrow_leads_from_each_recorded_launch_to_its_span(source: str) -> None:
    loaded, read = exported(source)
    assert read.leaves.keys() == read.arrives.keys()
    for rank, timeline in loaded.run.ranks.items():
        spans = timeline.spans
        host = select_host_spans(timeline.host, (OPERATION, RUNTIME))
        calls = set(zip(host.start_ns.tolist(), host.correlation.tolist(), strict=True))
        launched = zip(spans.start_ns.tolist(), spans.launch_ns.tolist(), spans.correlation.tolist(), strict=True)
        expected = sorted(
            (launch, start) for start, launch, number in launched if (launch, number) in calls and number >= 0
        )
        offset = read.offsets.get(str(rank), 0) + read.base
        found = sorted(
            (read.leaves[each][2] + offset, start + offset)
            for each, (process, _, start) in read.arrives.items()
            if process == f"rank {rank}"
        )
        assert len(found) == len(expected)
        assert all(
            abs(a - b) <= 1 for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)
        )
        assert not expected or all(track.startswith("operations of ") for _, track, _ in read.leaves.values())
    if source.startswith("kineto"):
        assert len(read.arrives) > 100


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(NONE, 4)), max_size=12),
    st.lists(st.tuples(st.integers(NONE, 5), st.integers(NONE, 5)), max_size=12),
)
def test_a_launch_is_found_among_calls_of_one_time(
    calls: list[tuple[int, int]], launches: list[tuple[int, int]]
) -> None:
    columns = {"start_ns": [start for start, _ in calls], "correlation": [number for _, number in calls]}
    launch, number = np.array(launches, np.int64).reshape(-1, 2).T
    found = launching_calls(make(HostSpans, len(calls), **columns), number, launch)
    for row, asked in zip(found.tolist(), launches, strict=True):
        there = NONE not in asked and asked in calls
        assert (row != NONE) == there
        assert not there or calls[row] == asked


@pytest.mark.slow
@pytest.mark.parametrize("source", REAL)
def test_causes_and_paths_add_up_as_the_analysis_says(source: str) -> None:
    loaded, read = exported(source)
    analysis = loaded.analysis()
    for info in analysis.ranks:
        causes = read.of(f"rank {info.rank}", "why exposed")
        steps = {name: (start, end, args) for start, end, name, args in read.of(f"rank {info.rank}", "steps")}
        for step in info.steps:
            if step.window_ns is None:
                continue
            begin, until, args = steps[f"step {step.step}"]
            assert until - begin == step.window_ns
            assert args["exposed_comm_ns"] == step.exposed_comm_ns
            sums: Counter[str] = Counter()
            for start, end, name, known in causes:
                assert name == cause_label(known["cause"], on_cpu=not analysis.run.has_device)
                sums[known["cause"]] += max(0, min(end, until) - max(start, begin))
            assert {name: total for name, total in sums.items() if total} == step.causes
    parts: dict[Any, Counter[str]] = defaultdict(Counter)
    for track in ("critical path", "critical path of every other step"):
        for start, end, _, args in read.of("critical path", track):
            parts[args["step"]][args["part"]] += end - start
    assert {step: dict(each) for step, each in parts.items()} == {
        path.step: path.parts for path in analysis.critical_path.steps
    }


def test_collectives_tell_what_is_known_of_them() -> None:
    loaded = overlapscope.load(BASELINE)
    read = Read(document(loaded.run))
    run, calls = loaded.run, 0
    for rank, timeline in run.ranks.items():
        for (process, track), slices in read.slices.items():
            if process != f"rank {rank}" or track.startswith(("annotations", "operations")):
                continue
            for start, end, name, args in slices:
                if name.startswith("gloo:"):
                    calls += 1
                    assert args["transfer_ns"] + args["wait_ns"] == end - start
                    assert args["op"] == "all_reduce"
                    assert args["bytes"] > 0
                    assert 0 <= args["exposed_ns"] <= end - start
                    assert ("cause" in args) == (args["exposed_ns"] > 0)
        total = sum(
            args.get("exposed_ns", 0)
            for (process, track), slices in read.slices.items()
            if process == f"rank {rank}" and track not in ("steps", "why exposed")
            for *_, args in slices
        )
        assert total == sum(end - start for start, end, *_ in read.of(f"rank {rank}", "why exposed"))
        assert timeline.collectives.op.size
    assert calls == sum(timeline.collectives.op.size for timeline in run.ranks.values())


def test_chosen_ranks_and_steps_alone_are_written() -> None:
    loaded = overlapscope.load(BASELINE)
    read = Read(document(loaded.run, ranks=frozenset({1}), steps=frozenset({5, 6})))
    assert {process for process, _ in read.slices} == {"critical path", "rank 1"}
    assert [name for *_, name, _ in read.of("rank 1", "steps")] == ["step 5", "step 6"]
    tracks = [track for process, track in read.slices if process == "critical path"]
    assert {args["step"] for track in tracks for *_, args in read.of("critical path", track)} == {5, 6}
    (info,) = (each for each in loaded.analysis().ranks if each.rank == 1)
    expected = sum(step.exposed_comm_ns or 0 for step in info.steps if step.step in (5, 6))
    assert sum(end - start for start, end, *_ in read.of("rank 1", "why exposed")) == expected
    steps = read.of("rank 1", "steps")
    first, last = steps[0][0], steps[-1][1]
    for (process, _), slices in read.slices.items():
        for start, end, _, args in slices if process == "rank 1" else ():
            assert (start <= last and end >= first) or args.get("step") in (5, 6)


def test_telemetry_becomes_counters() -> None:
    timeline = full_timeline()
    readings = make(
        Telemetry, 3, time_ns=[timeline.spans.start_ns[0] + at for at in range(3)], name=[0, 0, 1],
        value=[1.5, float("nan"), 2.0],
    )  # fmt: skip
    run = Run(world_size=1, ranks={0: replace(timeline, telemetry=readings)})
    read = Read(document(run))
    first = int(timeline.spans.start_ns[0]) - read.base
    assert read.counters == {
        ("rank 0", timeline.names[0]): [(first, 1.5)],
        ("rank 0", timeline.names[1]): [(first + 2, 2.0)],
    }


def test_names_are_escaped_and_missing_ones_are_no_obstacle() -> None:
    timeline = full_timeline(tag='"}],\n\x00\ud800</script>\u2028')
    read = Read(document(Run(world_size=1, ranks={0: timeline})))
    named = {name for slices in read.slices.values() for *_, name, _ in slices}
    assert timeline.names[int(timeline.spans.name[0])] in named
    assert "unnamed" in named
    assert NONE in timeline.spans.launch_ns


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)


@given(pairs)
def test_slices_of_one_track_nest_and_none_is_lost(drawn: list[tuple[int, int]]) -> None:
    ordered = sorted(((start, start + length) for start, length in drawn), key=lambda each: (each[0], -each[1]))
    start, end = (np.array([each[at] for each in ordered], np.int64) for at in (0, 1))
    tracks, rest = nested(start, end)
    assert sorted([row for rows in tracks for row in rows.tolist()] + rest.tolist()) == list(range(len(ordered)))
    for rows in tracks:
        for at, one in enumerate(rows.tolist()):
            for other in rows.tolist()[at + 1 :]:
                apart = ordered[one][1] <= ordered[other][0]
                assert apart or ordered[other][1] <= ordered[one][1]


def test_what_overlaps_too_deeply_is_written_beside() -> None:
    many = MOST_TRACKS + 5
    start = np.arange(many, dtype=np.int64)
    shown = Slices(
        track="t", start_ns=start, end_ns=start + 1000, category=lambda row: "c", name=lambda row: f"slice {row}"
    )
    writer = EventWriter(base_ns=0)
    text = writer.process(1, "p") + "".join(writer.slices(1, shown))
    head = {"base_time_ns": 0, "clock_offset_ns": {}}
    read = Read({"otherData": head, "traceEvents": json.loads("[" + text[1:] + "]", parse_float=Decimal)})
    assert len(read.of("p", "beside")) == 5
    assert sum(map(len, read.slices.values())) == many
    assert writer.events == read.events


def test_a_path_that_begins_on_a_rank_left_out_has_no_negative_times() -> None:
    program = tuple(Kernel(host_ns=10_000, lane=0, kind=0, ns=100_000) for _ in range(3))
    call = Kernel(host_ns=10_000, lane=2, kind=1, ns=50_000, waits=(2,), call=0)
    run = run_of(Job(ranks=((*program, call), (call.__class__(host_ns=5_000_000, lane=0, kind=0, ns=900_000), replace(
        call, waits=(0,)))), members={0: (0, 1)}, offsets=(0, -7_000_000)))  # fmt: skip
    assert Read(document(run, ranks=frozenset({1}))).slices


@pytest.mark.slow
def test_the_command_writes_once_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    printed = stdout_of(capsys, "export", BASELINE, "-o", plain)
    assert "2 ranks" in printed
    assert "ui.perfetto.dev" in printed
    summary = json.loads(stdout_of(capsys, "export", BASELINE, "--format", "perfetto", "-o", packed, "--json"))
    assert (summary["schema"], summary["ranks"], summary["bytes"]) == (
        "overlapscope.export/1",
        [0, 1],
        packed.stat().st_size,
    )
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    read = Read(json.loads(plain.read_bytes(), parse_float=Decimal))
    assert (summary["events"], summary["base_time_ns"]) == (read.events, read.base)
    before = plain.read_bytes()
    assert main(["export", str(BASELINE), "--ranks", "0", "-o", str(plain)]) == 2
    assert plain.read_bytes() == before
    assert main(["export", str(BASELINE), "--ranks", "0", "--steps", "3-5,7", "-o", str(plain), "-f"]) == 0
    assert len(plain.read_bytes()) < len(before)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "a.json.gz"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--ranks", "7"), "it has 0, 1"),
        (("--ranks", "0-"), "such as 0-3,6"),
        (("--ranks", "1-0"), "smaller number first"),
        (("--steps", "100-200"), "it has 3, 4, 5, 6, 7, 8"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(
    options: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(BASELINE), *options, "-o", str(tmp_path / "out.json")]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_not_replaced() -> None:
    assert main(["export", str(BASELINE), "-f", "-o", "/dev/null"]) == 2


def test_a_clock_that_drifts_is_set_right() -> None:
    calls = tuple(Kernel(host_ns=1000 * MS, lane=2, kind=COMM, ns=5 * MS, call=at) for at in range(60))
    run = moved(run_of(Job(ranks=(calls, calls), members=dict.fromkeys(range(60), (0, 1)))), 1, 70 * MS, 30e-6)
    read = Read(document(run))
    starts: dict[str, list[int]] = defaultdict(list)
    for (process, track), slices in read.slices.items():
        if process.startswith("rank") and track not in ("steps", "why exposed") and "operations" not in track:
            starts[process] += [start for start, *_ in slices]
    assert len(starts["rank 0"]) == len(starts["rank 1"]) == 60
    apart = np.abs(np.array(sorted(starts["rank 0"])) - np.array(sorted(starts["rank 1"])))
    assert apart.max() < 1_000  # they were 70 ms apart at first, and 1.8 ms more at the end


def test_a_log_without_times_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = shared_file("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log")
    assert main(["export", str(log), "-o", str(tmp_path / "a.json")]) == 3
    assert "nothing to show" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export.json", "export.json.gz"])
def test_an_export_is_not_taken_for_a_recording(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    assert main(["export", str(BASELINE), "-o", str(path)]) == 0
    assert main(["analyze", str(path)]) == 3
    assert "was written by `overlapscope export`" in capsys.readouterr().err
    (tmp_path / "rank0.json").write_bytes(write(training(), metadata=distributed(0)))
    capsys.readouterr()
    analysis = json.loads(stdout_of(capsys, "analyze", tmp_path, "--json"))
    assert analysis["run"]["ranks"] == [0]
