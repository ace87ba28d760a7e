"""What decided how long a step took: against graphs of known truth, what the graph says of changes, and real traces."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.graph.answers import CriticalPath, StepPath
from overlapscope.analysis.graph.building import build
from overlapscope.analysis.graph.model import OWN_NS
from overlapscope.analysis.graph.path_segments import Segments
from overlapscope.analysis.graph.step_paths import MOST_STEPS, FollowedPath, _in_ranges, _median, _summed, follow_paths
from overlapscope.analysis.graph.walk import PARTS
from overlapscope.analysis.per_rank.host_operations import operation_pieces
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import analysis as shown
from overlapscope.report.text.critical_path import critical_path_text, longest_loss_text
from overlapscope.timeline.columns import COMM, COMPUTE, OPERATION, HostSpans, Recordings, Steps, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.integration.jobs.dag_job import (
    COMPUTE_LANE,
    FIRST_COMM_LANE,
    Job,
    Kernel,
    changed,
    drawn,
    end_of,
    name,
    run_of,
    truth,
)
from tests.property.synthetic import Job as SyntheticJob
from tests.property.synthetic import Layout, plant
from tests.property.synthetic.evaluate_job_faults import analyzed
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.figures.test_exposed_causes import LANES, rank_of

MS = 1_000_000
TOO_CLOSE_NS = OWN_NS
"""What comes closer than this to having been the one that was waited for may be taken for it."""


def path_of(run: Run) -> CriticalPath:
    return analyze(run).critical_path


def only(found: CriticalPath) -> StepPath:
    (path,) = found.steps
    return path


def followed(run: Run) -> tuple[FollowedPath, ...]:
    windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
    return follow_paths(run, windows, match_and_align(run)).paths


class Piece(NamedTuple):
    """A segment of a path as one row, with its name."""

    part: str
    rank: int
    row: int
    start_ns: int
    end_ns: int
    name: str


def pieces(run: Run, path: FollowedPath) -> list[Piece]:
    found = []
    columns = [getattr(path.segments, name).tolist() for name in path.segments.__struct_fields__]
    for part, rank, row, code, start, end in zip(*columns, strict=True):
        found.append(Piece(PARTS[part], rank, row, start, end, run.ranks[rank].names[code] if code >= 0 else ""))
    return found


def by_name(run: Run, path: FollowedPath) -> dict[tuple[str, str], int]:
    """Return compute, transfers and copies by name; host and launches in sum."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for each in pieces(run, path):
        named = each.part not in ("host", "launch", "idle")
        sums[each.part, each.name if named else ""] += each.end_ns - each.start_ns
    return dict(sums)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(0, 1 << 32))
def test_the_path_is_that_of_the_graph_that_made_the_times(seed: int) -> None:
    job = drawn(seed)
    expected = truth(job)
    assume(expected.closest > TOO_CLOSE_NS)
    run = run_of(job)
    (path,) = followed(run)
    assert path.rank == expected.rank
    assert path.end_ns - path.start_ns == expected.end - expected.begin
    assert by_name(run, path) == expected.parts


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1 << 32))
def test_only_what_is_on_the_path_shortens_the_step(seed: int) -> None:
    job = drawn(seed)
    expected = truth(job)
    assume(expected.closest > TOO_CLOSE_NS)
    run = run_of(job)
    (path,) = followed(run)
    on_path = {(each.rank, each.row) for each in pieces(run, path) if each.part in ("compute", "transfer", "copy")}
    calls = {job.ranks[rank][row].call for rank, row in on_path} - {None}
    before = end_of(job)
    for rank, program in enumerate(job.ranks):
        for number, kernel in enumerate(program):
            start = int(run.ranks[rank].spans.start_ns[number]) - job.offsets[rank]
            if start - 1_700_000_000_000_000_000 < expected.begin:
                continue  # what was before the window is not asked
            on = (rank, number) in on_path or (kernel.call is not None and kernel.call in calls)
            assert end_of(changed(job, rank, number, -1_000)) == before - 1_000 * on


def kernel(ns: int, *, host: int = 10_000, lane: int = COMPUTE_LANE, **more: Any) -> Kernel:
    return Kernel(host_ns=host, lane=lane, kind=more.pop("kind", COMPUTE), ns=ns, **more)


def call(ns: int, number: int, *, host: int = 10_000, waits: tuple[int, ...] = ()) -> Kernel:
    return kernel(ns, host=host, lane=FIRST_COMM_LANE, kind=COMM, waits=waits, call=number)


def test_it_runs_through_the_rank_that_came_last() -> None:
    late = (kernel(5 * MS), call(1 * MS, 0, waits=(0,)), kernel(MS, waits=(1,)))
    early = (kernel(1 * MS), call(1 * MS, 0, waits=(0,)), kernel(2 * MS, waits=(1,)))
    path = only(path_of(run_of(Job(ranks=(late, early), members={0: (0, 1)}, offsets=(0, 3 * MS)))))
    assert path.rank == 1  # where the step ends
    assert path.parts == {"compute": 7 * MS, "transfer": MS}
    assert [(each.name, each.ns) for each in path.operations[:2]] == [(name(0, 0), 5 * MS), (name(1, 2), 2 * MS)]
    assert path.ranks == {"0": 5 * MS, "1": 3 * MS}


def test_within_one_rank_it_says_so() -> None:
    program = (kernel(MS), call(2 * MS, 0, waits=(0,)), kernel(MS, waits=(1,)))
    run = run_of(Job(ranks=(program, program), members={0: (0, 1)}))
    found = path_of(replace(run, ranks={0: run.ranks[0]}))
    assert (found.scope, found.reason) == ("rank", None)
    assert only(found).parts == {"compute": 2 * MS, "communication": 2 * MS}
    assert "not recorded" in critical_path_text(found)


def test_ranks_that_nothing_ties_together_have_none() -> None:
    program = (kernel(MS), call(2 * MS, 0, waits=(0,)))
    run = run_of(Job(ranks=(program, program), members={0: (0, 1)}))
    other = run.ranks[1]
    unknown = tuple("mystery" if each == "all_reduce" else each for each in other.names)
    found = path_of(replace(run, ranks={0: run.ranks[0], 1: replace(other, names=unknown)}))
    assert found.scope is None
    assert found.steps == []
    assert found.reason is not None
    assert "not paired" in found.reason
    assert found.reason in " ".join(critical_path_text(found).split())


@cache
def real(source: str) -> Analysis:
    path = ROOT / source if source.startswith("traces/") else shared_file(source)
    return overlapscope.load(path).analysis()


REAL = (
    "kineto/megatron_tp8",
    "kineto/a100_ddp_rank0of2_collective_args.json.gz",
    "kineto/a100_rank3of8_six_steps.json.gz",
    "kineto/kineto_tb_resnet50_nw0_pt1.8.pt.trace.json.gz",
    "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
    "kineto/tracelens_mi210_gpu_only.json.gz",
    "gloo_torch2.13",
    "traces/baseline",
    "traces/regressed",
)


@pytest.mark.parametrize("source", REAL)
def test_on_real_traces_all_adds_up_to_the_steps_window(source: str) -> None:
    analysis = real(source)
    found = analysis.critical_path
    numbers = {step.step for rank in analysis.ranks for step in rank.steps if step.complete} or {None}
    windows = dict(zip(sorted(numbers, key=lambda each: each or 0), analysis.headline.job_steps, strict=True))
    assert found.scope == ("ranks" if len(analysis.ranks) > 1 else "rank")
    (tested,) = found.self_tests
    assert [path.step for path in found.steps] == [step for step in windows if tested.answers(step, None)]
    assert len(found.steps) >= 2 * len(windows) / 3
    for path in found.steps:
        assert path.length_ns == windows[path.step].step_ns
        for part, (least, most) in path.bands.items():
            assert 0 <= least <= path.parts.get(part, 0) <= most <= path.length_ns
        assert sum(path.parts.values()) == sum(path.ranks.values()) == path.length_ns
        assert sum(each.ns for each in path.operations) <= path.length_ns
        assert all(each.count > 0 and each.ns > 0 for each in path.operations)


@pytest.mark.parametrize("source", REAL)
def test_the_text_fits_a_screen_and_shows_the_loss_of_the_step_whose_path_it_shows(source: str) -> None:
    analysis = real(source)
    text = shown.render(analysis)
    assert text.count("\n") <= 60
    found = analysis.critical_path
    if found.longest_loss:
        assert found.longest_loss.step == found.median_step
        assert longest_loss_text(found.longest_loss) in text
        lost = found.longest_loss.end_ns - found.longest_loss.start_ns
        path = next(each for each in found.steps if each.step == found.median_step)
        assert 0 < lost <= path.length_ns


def test_a_run_of_too_many_spans_for_one_graph_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MOST_NODES", 2)
    program = (kernel(MS), call(MS, 0, waits=(0,)), kernel(MS, waits=(1,)))
    found = path_of(run_of(Job(ranks=(program, program), members={0: (0, 1)})))
    assert found.reason
    assert "would not fit into memory" in found.reason
    assert not found.steps


def test_eight_ranks_of_megatron_are_held_by_the_host_that_ends_last_and_never_waits() -> None:
    """In the file, rank 0 launches its last kernel 12 us before that one begins, and in the 594 ms before it makes no
    call that waits for the device: nothing that others did could have made it end later."""
    path = only(real("kineto/megatron_tp8").critical_path)
    assert path.parts["host"] > 0.999 * (path.length_ns - path.parts["before_recording"])
    assert path.parts["before_recording"] == pytest.approx(35.4 * MS, abs=0.1 * MS)
    assert path.ranks == {"0": path.length_ns}
    ends = sorted(ns / MS for ns in path.own_chains_ns.values())
    text = " ".join(critical_path_text(real("kineto/megatron_tp8").critical_path).split())
    assert "The host of rank 0 waits for next to nothing, so" in text, "three short synchronisations"
    assert ends == pytest.approx([597.5, 603.4, 608.8, 611.9, 613.2, 613.2, 623.6, 630.7], abs=0.1)


def test_segments_follow_each_other_and_go_where_something_ran() -> None:
    run = read_inputs([ROOT / "traces" / "baseline"])
    for path in followed(run):
        at = path.start_ns
        for each in pieces(run, path):
            assert (each.start_ns, each.end_ns > each.start_ns) == (at, True)
            at = each.end_ns
            if each.rank == path.rank and each.part == "compute":
                spans = run.ranks[each.rank].spans
                assert spans.start_ns[each.row] <= each.start_ns
                assert each.end_ns <= spans.end_ns[each.row]
        assert at == path.end_ns


def test_the_text_shows_the_median_step() -> None:
    found = real("traces/baseline").critical_path
    lengths = sorted(path.length_ns for path in found.steps)
    path = next(each for each in found.steps if each.step == found.median_step)
    assert path.length_ns == lengths[(len(lengths) - 1) // 2]
    text = critical_path_text(found)
    assert f"step {path.step} (a typical step): {path.length_ns / 1e6:,.3f} ms" in text
    assert text.count("\n") == 3
    assert text.endswith("\n  transfer: all_reduce 4.020 ms"), "no line is broken inside an operation"


def in_steps(run: Run, number: Sequence[int]) -> Run:
    """Return a run of one rank with the step of each of its spans."""
    timeline = run.ranks[0]
    spans, step = timeline.spans, np.array(number)
    first = np.searchsorted(step, np.unique(step))
    starts = spans.launch_ns[first]
    ends = np.append(starts[1:], spans.launch_ns[-1] + 5_000)
    steps = make(Steps, first.size, recording=0, step=step[first], start_ns=starts, end_ns=ends)
    return replace(run, ranks={0: replace(timeline, steps=steps, spans=replace(spans, step=step))})


def test_of_many_steps_some_of_every_length_are_followed() -> None:
    run = run_of(Job(ranks=(tuple(kernel((1 + at % 7) * MS, host=5_000) for at in range(30)),)))
    found = path_of(in_steps(run, range(30)))
    assert (len(found.steps), found.left_out) == (MOST_STEPS, 30 - MOST_STEPS)
    assert {path.length_ns // MS for path in found.steps} == set(range(1, 8))


def test_a_step_that_is_odd_in_length_is_typical_of_nothing_even_where_it_is_the_median() -> None:
    silent = [kernel(ms * MS) for ms in (10, 50, 10)]  # as with gradient accumulation
    others = [each for at in range(3) for each in (call(MS, at, waits=(2 + 2 * at,)), kernel(100 * MS))]
    run = run_of(Job(ranks=((*silent, *others),), members=dict.fromkeys(range(3), (0,))))
    analysis = analyze(in_steps(run, (0, 1, 2, 3, 3, 4, 4, 5, 5)))
    assert [each.id for each in analysis.findings if each.id.startswith("odd")] == ["odd_step:window_ns:rank0:step1"]
    lengths = {path.step: round(path.length_ns / MS) for path in analysis.critical_path.steps}
    assert lengths == {0: 10, 1: 50, 2: 10, 3: 100, 4: 100, 5: 100}
    assert analysis.critical_path.median_step == 3


def test_a_step_that_is_cut_short_is_typical_of_nothing() -> None:
    """Each step computes for 1 ms once its host took 3: the window of the last one lacks what the next begins with."""
    run = in_steps(run_of(Job(ranks=((kernel(MS, host=3 * MS), kernel(MS, host=3 * MS)),))), (0, 1))
    steps = run.ranks[0].steps
    begin_ns = steps.start_ns - 3 * MS
    marked = replace(steps, start_ns=begin_ns, end_ns=np.append(begin_ns[1:], steps.end_ns[-1]))
    analysis = analyze(replace(run, ranks={0: replace(run.ranks[0], steps=marked)}))
    assert analysis.throughput is not None
    assert analysis.throughput.cut_short == [1]
    assert [round(path.length_ns / MS) for path in analysis.critical_path.steps] == [3, 1]
    assert analysis.critical_path.median_step == 0


def test_where_all_steps_are_odd_one_of_them_is_typical() -> None:
    run = in_steps(run_of(Job(ranks=(tuple(kernel(ms * MS) for ms in (1, 3, 2)),))), (0, 1, 2))
    windows = {0: step_windows(run.ranks[0])}
    for odd, typical in (({0, 1, 2}, 2), ({2}, 0), (set(), 2)):
        found = follow_paths(run, windows, match_and_align(run), odd=frozenset(odd))
        assert found.median_step == typical


@pytest.mark.parametrize("odd", [0, 14, 29])
def test_of_many_steps_a_typical_one_is_followed(odd: int) -> None:
    run = in_steps(run_of(Job(ranks=(tuple(kernel((1 + at) * MS) for at in range(30)),))), range(30))
    windows = {0: step_windows(run.ranks[0])}
    found = follow_paths(run, windows, match_and_align(run), odd=frozenset(range(30)) - {odd})
    assert found.median_step == odd


def cpu_run(*ranks: RankTimeline) -> Run:
    groups = (Group(name="0", size=2, ranks=(0, 1)),)
    return Run(world_size=2, ranks={each.rank: each for each in ranks}, groups=groups)


def test_on_cpus_it_runs_through_the_call_that_came_last_and_what_its_thread_did_before() -> None:
    early = rank_of(
        0, [(105 * MS, 305 * MS, 100 * MS)], [(0, 100 * MS, "host operations"), (310 * MS, 400 * MS, "host")]
    )
    late = rank_of(
        1, [(205 * MS, 305 * MS, 200 * MS)], [(0, 200 * MS, "host operations"), (310 * MS, 420 * MS, "host")]
    )
    path = only(path_of(cpu_run(early, late)))
    assert path.parts == {"compute": 310 * MS, "transfer": 100 * MS, "launch": 5 * MS, "host": 5 * MS}
    assert path.ranks == {"1": 420 * MS}


def test_on_cpus_a_late_rank_leads_over_to_its_thread() -> None:
    early = rank_of(0, [(105 * MS, 305 * MS, 100 * MS)], [(0, 100 * MS, "host"), (310 * MS, 450 * MS, "host")])
    late = rank_of(1, [(205 * MS, 305 * MS, 200 * MS)], [(0, 200 * MS, "host"), (310 * MS, 420 * MS, "host")])
    path = only(path_of(cpu_run(early, late)))
    assert path.ranks == {"0": 245 * MS, "1": 205 * MS}


def operating(timeline: RankTimeline, *operations: tuple[str, int, int], lane: int = LANES) -> RankTimeline:
    """Return the rank with operations (name, from, to in ms) of the thread that computes, or another one."""
    names = NameTable(timeline.names)
    rows = [
        {"recording": 0, "lane": lane, "kind": OPERATION, "name": name, "start_ns": start * MS, "end_ns": end * MS}
        for name, start, end in operations
    ]
    return replace(
        timeline, host=fact_table(HostSpans, rows, names), names=tuple(names.to_list()),
        recordings=replace(timeline.recordings, host_events=np.ones(1, np.bool_)),
    )  # fmt: skip


EARLY = rank_of(0, [(105 * MS, 305 * MS, 100 * MS)], [(0, 100 * MS, "host"), (310 * MS, 450 * MS, "host")])
LATE = rank_of(1, [(205 * MS, 305 * MS, 200 * MS)], [(0, 200 * MS, "host"), (310 * MS, 420 * MS, "host")])
"""Of the path 200 ms of compute are the late rank's, the first ones, and 140 the early one's, the last ones."""


def computed(path: StepPath) -> dict[str, tuple[int, int]]:
    """Return (ms, pieces) of each name on the path of which it computed."""
    return {each.name: (each.ns // MS, each.count) for each in path.operations if each.part == "compute"}


def test_on_cpus_it_names_the_innermost_operations_of_each_rank_that_it_runs_through() -> None:
    """The late rank's linear from 10 to 180 ms holds a product of 100 ms; the early one's first operation is not on the
    path, and one of its last ones in part."""
    early = operating(EARLY, ("aten::mm", 0, 100), ("aten::add", 300, 400))
    late = operating(LATE, ("aten::linear", 10, 180), ("aten::mm", 50, 150), ("aten::mul", 310, 420))
    path = only(path_of(cpu_run(early, late)))
    assert path.parts["compute"] == 340 * MS
    assert computed(path) == {"aten::mm": (100, 1), "aten::linear": (70, 2), "aten::add": (90, 1)}
    said = " ".join(critical_path_text(path_of(cpu_run(early, late))).split())
    assert "compute: aten::mm 100.000 ms, transfer: all_reduce 100.000 ms, compute: aten::add 90.000 ms" in said


def test_what_other_threads_of_a_host_did_meanwhile_is_not_on_the_path() -> None:
    late = operating(LATE, ("aten::mm", 0, 200), lane=LANES - 1)
    assert computed(only(path_of(cpu_run(operating(EARLY, ("aten::add", 0, 450)), late)))) == {"aten::add": (140, 1)}


def test_on_cpus_without_host_events_it_names_the_spans_that_stand_for_operations() -> None:
    assert computed(only(path_of(cpu_run(EARLY, LATE)))) == {"host": (340, 2)}


def test_a_device_s_path_names_its_kernels_whatever_operations_its_host_was_in() -> None:
    program = (kernel(MS), call(2 * MS, 0, waits=(0,)), kernel(MS, waits=(1,)))
    run = run_of(Job(ranks=(program, program), members={0: (0, 1)}))
    lane = int(run.ranks[0].spans.lane[0])
    seen = {rank: operating(each, ("aten::mm", 0, 10), lane=lane) for rank, each in run.ranks.items()}
    assert computed(only(path_of(replace(run, ranks=seen)))) == computed(only(path_of(run)))


def test_operations_lie_on_the_own_clock_of_their_rank() -> None:
    """Which is 7 ms ahead of the common one: the path runs through the rank from 20 to 60 ms, on its own clock."""
    timeline = operating(rank_of(0, [], [(0, 100 * MS, "host")]), ("aten::mm", 0, 40), ("aten::add", 40, 100))
    clocks = Clocks(offset_ns={0: 7.0 * MS})
    nothing = {name: np.zeros(1, np.int64) for name in Segments.__struct_fields__}
    edges = {"start_ns": np.array([13 * MS]), "end_ns": np.array([53 * MS])}
    path = FollowedPath(
        step=0, rank=0, start_ns=13 * MS, end_ns=53 * MS, before_ns=0, segments=Segments(**nothing | edges), bands={},
        own_chains_ns={},
    )  # fmt: skip
    run = Run(world_size=1, ranks={0: timeline})
    summed = _summed(run, path, clocks, {}, lambda rank: operation_pieces(run.ranks[rank]))
    assert PARTS[0] == "compute"
    assert computed(summed) == {"aten::mm": (20, 1), "aten::add": (20, 1)}


def test_of_a_recorded_cpu_run_it_names_operations_that_take_no_longer_than_it_computes() -> None:
    analysis = real("gloo_torch2.13")
    for path in analysis.critical_path.steps:
        operations = [each for each in path.operations if each.part == "compute"]
        assert 0.7 * path.parts["compute"] < sum(each.ns for each in operations) <= path.parts["compute"]
        assert {"aten::mm", "aten::addmm"} & {each.name for each in operations}
        assert "host operations" not in {each.name for each in operations}


def test_on_cpus_it_ends_on_the_rank_whose_step_ends_last_whatever_its_host_does_there() -> None:
    """As collecting garbage after its last operation."""
    early = rank_of(0, [(105 * MS, 305 * MS, 100 * MS)], [(0, 100 * MS, "host"), (310 * MS, 350 * MS, "host")])
    late = rank_of(1, [(205 * MS, 305 * MS, 200 * MS)], [(0, 200 * MS, "host"), (310 * MS, 420 * MS, "host")])
    ends = {"start_ns": 0, "end_ns": 600 * MS}
    early = replace(early, steps=make(Steps, 1, recording=0, step=0, **ends), recordings=make(Recordings, 1, **ends))
    path = only(path_of(cpu_run(early, late)))
    assert (path.rank, path.length_ns) == (0, 600 * MS)
    assert path.ranks == {"0": 395 * MS, "1": 205 * MS}
    assert path.parts["host"] == 255 * MS


def test_on_cpus_it_does_not_end_on_a_rank_that_waits_in_a_call_at_the_end_of_its_step() -> None:
    """As for the result of what another rank evaluates."""
    evaluates = rank_of(0, [(300 * MS, 301 * MS, 300 * MS)], [(0, 300 * MS, "host")])
    waits = rank_of(1, [(100 * MS, 320 * MS, 100 * MS)], [(0, 100 * MS, "host")])
    ends = {"start_ns": 0, "end_ns": 321 * MS}
    waits = replace(waits, steps=make(Steps, 1, recording=0, step=0, **ends), recordings=make(Recordings, 1, **ends))
    path = only(path_of(cpu_run(evaluates, waits)))
    assert path.ranks["0"] >= 300 * MS


@pytest.mark.parametrize(("communication", "known"), [(0.05, True), (0.2, False)])
def test_on_which_ranks_it_lies_is_not_said_where_much_of_it_may_be_waiting(
    communication: float, *, known: bool
) -> None:
    found = real("traces/baseline").critical_path
    path = next(each for each in found.steps if each.step == found.median_step)
    parts = {"compute": path.length_ns - int(communication * path.length_ns)}
    parts["communication"] = path.length_ns - parts["compute"]
    text = critical_path_text(replace(found, steps=[replace(path, parts=parts, bands={})]))
    assert ("; on rank" in text) is known
    assert ("its ranks are not given" in text) is not known


def test_communication_hidden_under_compute_is_not_on_the_path() -> None:
    busy = [(0, 500 * MS, "host")]
    found = path_of(cpu_run(*(rank_of(rank, [(105 * MS, 305 * MS, 100 * MS)], busy) for rank in (0, 1))))
    assert only(found).parts == {"compute": 500 * MS}


@pytest.mark.slow
def test_a_rank_that_waits_for_its_device_and_then_loads_data_computed_most_of_the_time() -> None:
    """A step of the job lasts from the start of the others to that of the next step on rank 3, which loads twice in
    it."""
    job = plant(SyntheticJob(layout=Layout(dp=4), steps=5), "data_loading", share=0.15, culprit=3)
    steps = analyzed(job).critical_path.steps
    assert len(steps) == 5
    for path in steps[1:-1]:
        assert path.parts["compute"] + path.parts["transfer"] > 0.65 * path.length_ns
        assert path.ranks["3"] > 0.8 * path.length_ns
        loads = next(each for each in path.operations if each.part == "host")
        assert (loads.name, loads.count) == ("aten::copy_", 2)
        assert loads.ns == pytest.approx(2 * job.fault.load_ns, rel=0.15)


def test_bands_are_shares_of_the_path_also_where_a_wait_is_recorded_later_than_its_end() -> None:
    nothing = {name: np.zeros(1, np.int64) for name in Segments.__struct_fields__}
    segments = Segments(**nothing | {"end_ns": np.array([100]), "name": np.array([-1])})
    path = FollowedPath(
        step=1, rank=0, start_ns=0, end_ns=100, before_ns=0, segments=segments, own_chains_ns={},
        bands={"compute": (40, 120), "host": (-20, 10)},
    )  # fmt: skip
    run = Run(world_size=1, ranks={0: rank_of(0, [], [])})
    assert _summed(run, path, Clocks(), {}, lambda _: None).bands == {"compute": (40, 100), "host": (0, 10)}


def test_gaps_beside_other_work_of_the_device_are_named_apart_from_idle_time() -> None:
    """Of gaps from 60 to 70 and from 90 to 100 a call runs beside 8, until 68."""
    nothing = {name: np.zeros(4, np.int64) for name in Segments.__struct_fields__}
    compute, idle = PARTS.index("compute"), PARTS.index("idle")
    segments = Segments(**nothing | {
        "part": np.array([compute, idle, compute, idle], np.int8), "name": np.full(4, -1),
        "start_ns": np.array([0, 60, 70, 90]), "end_ns": np.array([60, 70, 90, 100]),
    })  # fmt: skip
    path = FollowedPath(
        step=1, rank=0, start_ns=0, end_ns=100, before_ns=0, segments=segments, own_chains_ns={},
        bands={"idle": (15, 26)},
    )  # fmt: skip
    device = rank_of(0, [(40, 68, 0)], [(0, 60, "gemm"), (70, 90, "gemm")], has_device=True)
    run = Run(world_size=1, ranks={0: device})
    summed = _summed(run, path, Clocks(), {}, lambda _: None)
    assert (summed.parts["idle"], summed.gaps_beside_work_ns) == (20, 8)
    said = " ".join(critical_path_text(CriticalPath(scope="rank", median_step=1, steps=[summed])).split())
    assert "compute 80.0 %, idle 7.0 to 18.0 %, gaps between kernels, other work beside them 8.0 %" in said
    on_host = replace(run, ranks={0: replace(device, has_device=False)})
    assert _summed(on_host, path, Clocks(), {}, lambda _: None).gaps_beside_work_ns == 0


@pytest.mark.parametrize(
    ("before", "odd", "typical"),
    [
        pytest.param((0, 0, 0), set(), 2, id="of median length"),
        pytest.param((0, 60, 0), set(), 1, id="most of it lies before the recording"),
        pytest.param((0, 2, 0), set(), 2, id="little of it does"),
        pytest.param((0, 3, 0), set(), 1, id="some of it does"),
        pytest.param((0, 60, 0), {1, 3}, 2, id="no other is typical"),
    ],
)
def test_a_typical_step_lies_in_the_recording(before: tuple[int, ...], odd: set[int], typical: int) -> None:
    nothing: Any = None
    paths = [
        FollowedPath(
            step=step, rank=0, start_ns=0, end_ns=length, before_ns=ahead, segments=nothing, bands={}, own_chains_ns={}
        )
        for step, length, ahead in zip((1, 2, 3), (90, 100, 110), before, strict=True)
    ]
    assert _median(paths, frozenset(odd), 100).step == typical


@pytest.mark.parametrize(("until_ms", "named"), [(9, "enumerate(DataLoader)"), (4, "gemm")])
def test_the_host_of_a_device_is_in_the_range_of_the_thread_that_marks_steps(until_ms: int, named: str) -> None:
    """Its stream says nothing of its thread; a range that does not cover half of the time names nothing."""
    timeline = rank_timeline(
        work=[{"kind": COMPUTE, "name": "gemm", "start_ns": 10 * MS, "end_ns": 12 * MS}],
        steps=[{"step": 0, "start_ns": 0, "end_ns": 12 * MS}],
        annotations=[
            {"lane": 2, "name": "ProfilerStep#0", "start_ns": 0, "end_ns": 12 * MS},
            {"lane": 2, "name": "enumerate(DataLoader)", "start_ns": 1 * MS, "end_ns": until_ms * MS},
        ],
    )
    host = make(
        Segments, 1, part=PARTS.index("host"), row=0, name=timeline.names.index("gemm"), start_ns=0, end_ns=10 * MS
    )
    name, ranged = _in_ranges(timeline, host, Clocks(offset_ns={0: 0.0}))
    assert (timeline.names[name[0]], bool(ranged[0])) == (named, named != "gemm")
