"""Who held the others up, and what held it: constructed jobs of four ranks with one planted fault, and healthy ones."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.late_ranks import without_taking_turns
from overlapscope.analysis.result import Straggler
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, NONE, Steps, Telemetry, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import shared_file
from tests.support.builders import flip_bit
from tests.support.overlapping_calls import Met
from tests.support.overlapping_calls import job as job_of_calls
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
RANKS, STEPS, KERNELS, STEP_NS = 4, 20, 10, 100 * MS
CULPRIT = 2


def job(
    seed: int = 0, *, fault: str | None = None, pause_ms: Sequence[int] = (30,), copies_ms: Sequence[int] = ()
) -> Run:
    """Return a job whose ranks compute ten kernels a step, then meet in an all-reduce; the fault is the culprit's.

    Of a host it is a pause, of `pause_ms` step by step; its device makes copies in each step, after that.
    """
    rng = np.random.default_rng(seed)
    compute = [[sorted_kernels(rng, rank, fault) for rank in range(RANKS)] for _ in range(STEPS)]
    ranks: dict[int, list[tuple[int, int, int, int]]] = {rank: [] for rank in range(RANKS)}
    pauses: list[tuple[int, int]] = []
    for step in range(STEPS):
        begin = step * STEP_NS
        arrived = {}
        for rank in range(RANKS):
            now = begin
            if rank == CULPRIT and fault in ("host", "between_steps_ns", "gc_pause_ns"):
                paused = pause_ms[step % len(pause_ms)] * MS
                now += paused
                pauses.append((now, paused))
            for length in copies_ms if rank == CULPRIT else ():
                ranks[rank].append((COPY, now, now + length * MS, step))
                now += length * MS
            for length in compute[step][rank]:
                ranks[rank].append((COMPUTE, now, now + length, step))
                now += length
            arrived[rank] = now
        end = max(arrived.values()) + 5 * MS
        for rank in range(RANKS):
            ranks[rank].append((COMM, arrived[rank], end, step))
    return Run(
        world_size=RANKS,
        ranks={
            rank: timeline(rank, spans, pauses if rank == CULPRIT else [], fault or "") for rank, spans in ranks.items()
        },
        groups=(Group(name="0", size=RANKS, ranks=tuple(range(RANKS))),),
    )


def sorted_kernels(rng: np.random.Generator, rank: int, fault: str | None) -> list[int]:
    culprit = rank == CULPRIT
    factor = 1.6 if culprit and fault == "slower_compute" else 1.0
    number = 16 if culprit and fault == "more_work" else KERNELS
    return [int(max(1, each)) for each in rng.normal(4 * MS * factor, 0.3 * MS, number)]


def timeline(
    rank: int, spans: list[tuple[int, int, int, int]], pauses: list[tuple[int, int]], reading: str
) -> RankTimeline:
    rows = [
        {"kind": kind, "start_ns": start, "end_ns": end, "launch_ns": start, "step": step}
        for kind, start, end, step in spans
    ]
    call = {"op": "all_reduce", "group": "0", "dtype": "float32", "bytes": 1 << 20, "group_size": RANKS}
    return rank_timeline(
        rank,
        calls=[{**call, **row, "seq": row["step"]} for row in rows if row["kind"] == COMM],
        work=[{**row, "name": "gemm" if row["kind"] == COMPUTE else "Memcpy"} for row in rows if row["kind"] != COMM],
        steps=[{"step": at, "start_ns": at * STEP_NS, "end_ns": (at + 1) * STEP_NS} for at in range(STEPS)],
        telemetry=[{"time_ns": at, "step": 0, "name": reading, "value": length} for at, length in pauses],
        recordings=[{"start_ns": 0, "end_ns": max(row["end_ns"] for row in rows)}],
    )


def accused(run: Run) -> list[Straggler]:
    return analyze(run).skew.stragglers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "held_by"),
    [
        ("host", "host"),
        ("between_steps_ns", "data_loading"),
        ("gc_pause_ns", "garbage_collector"),
        ("more_work", "more_work"),
        ("slower_compute", "slower_compute"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_culprit_and_what_held_it_are_named(fault: str, held_by: str, seed: int) -> None:
    found = accused(job(seed, fault=fault))
    assert [(each.rank, each.held_by) for each in found] == [(CULPRIT, held_by)]
    assert found[0].blame_ns > STEPS * 15 * MS


@pytest.mark.parametrize(
    ("pause_ms", "copies_ms", "held_by"),
    [
        pytest.param(0, (10, 20), "copies", id="copies alone"),
        pytest.param(10, (20,), "copies", id="mostly copies"),
        pytest.param(20, (10,), "host", id="mostly its host"),
    ],
)
def test_copies_of_a_device_are_not_its_idle_time(pause_ms: int, copies_ms: Sequence[int], held_by: str) -> None:
    (found,) = accused(job(fault="host", pause_ms=(pause_ms,), copies_ms=copies_ms))
    assert (found.rank, found.held_by) == (CULPRIT, held_by)
    for name, expected in (("copied_more_ns", sum(copies_ms)), ("idle_more_ns", pause_ms)):
        assert found.evidence[name] == pytest.approx(STEPS * expected * MS, abs=STEPS * 3 * MS)
    assert (found.evidence.get("before_first_launch_ns") is None) == (held_by != "host")


@pytest.mark.parametrize(
    ("grids", "held_by"),
    [
        pytest.param(lambda length, at: 300 + at, "longer_compute", id="another one at each launch"),
        pytest.param(lambda length, at: length // 10_000, "more_work", id="others, as much larger as they take longer"),
        pytest.param(lambda length, at: 100 + at % KERNELS, "slower_compute", id="those of layers, in each step"),
        pytest.param(lambda length, at: 160 if length > 5 * MS else 100, "more_work", id="larger ones"),
    ],
)
def test_grids_that_are_others_in_each_step_do_not_tell_more_work_from_slower_compute(
    grids: Callable[[int, int], int], held_by: str
) -> None:
    run = job(fault="slower_compute")
    ranks = {}
    for rank, each in run.ranks.items():
        computes, lengths = each.spans.kind == COMPUTE, each.spans.end_ns - each.spans.start_ns
        blocks = np.full_like(each.spans.blocks, NONE)
        blocks[computes] = [grids(length, at) for at, length in enumerate(lengths[computes].tolist())]
        ranks[rank] = replace(each, spans=replace(each.spans, blocks=blocks))
    assert [(each.rank, each.held_by) for each in accused(replace(run, ranks=ranks))] == [(CULPRIT, held_by)]


@pytest.mark.slow
@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("optimizer", ["slower", "as long", "few"])
def test_a_device_whose_optimizer_takes_longer_by_as_much_is_slower(optimizer: str, *, larger: bool) -> None:
    """Grids do not measure the work here, or are larger where a kernel takes longer."""
    held_by = "slower_compute" if optimizer == "slower" else "more_work" if larger else "longer_compute"
    run, name, ranks = job(fault="slower_compute"), "void multi_tensor_apply_kernel<Adam>(...)", {}
    for rank, each in run.ranks.items():
        rows = np.flatnonzero(each.spans.kind == COMPUTE)
        lengths = (each.spans.end_ns - each.spans.start_ns)[rows]
        blocks, names, ends = (column.copy() for column in (each.spans.blocks, each.spans.name, each.spans.end_ns))
        blocks[rows] = np.where(lengths > 5 * MS, 160, 100) if larger else 300 + np.arange(rows.size)
        last = rows[KERNELS - 1 :: KERNELS][: 2 if optimizer == "few" else None]
        names[last] = len(each.names)
        if optimizer == "as long":
            ends[last] = each.spans.start_ns[last] + 4 * MS
        spans = replace(each.spans, blocks=blocks, name=names, end_ns=ends)
        ranks[rank] = replace(each, spans=spans, names=(*each.names, name))
    (found,) = accused(replace(run, ranks=ranks))
    assert (found.rank, found.held_by) == (CULPRIT, held_by)
    if optimizer == "slower":
        assert found.evidence["slowness"] == found.evidence["optimizer_times"] == pytest.approx(1.6, rel=0.05)


@pytest.mark.parametrize(("onset", "since"), [(12, 12), (0, None)])
def test_since_which_step_a_device_is_slower_is_said_where_it_was_not_before(onset: int, since: int | None) -> None:
    run = job(fault="slower_compute")
    usual, culprit = run.ranks[0].spans, run.ranks[CULPRIT]
    spans = culprit.spans
    before = np.flatnonzero((spans.kind == COMPUTE) & (spans.step < onset))
    theirs = np.flatnonzero((usual.kind == COMPUTE) & (usual.step < onset))
    ends = spans.end_ns.copy()
    ends[before] = spans.start_ns[before] + (usual.end_ns - usual.start_ns)[theirs]
    calls = np.flatnonzero((spans.kind == COMM) & (spans.step < onset))
    starts = spans.start_ns.copy()
    starts[calls] = usual.start_ns[np.flatnonzero((usual.kind == COMM) & (usual.step < onset))]
    table = culprit.collectives
    first = table.start_ns.copy()
    first[table.step < onset] = starts[calls]
    slow = replace(
        culprit, spans=replace(spans, start_ns=starts, end_ns=ends), collectives=replace(table, start_ns=first)
    )
    (found,) = accused(replace(run, ranks={**run.ranks, CULPRIT: slow}))
    assert (found.rank, found.evidence.get("since_step")) == (CULPRIT, since)
    assert found.since == ("" if since is None else ", since step 12")
    if since:
        assert found.evidence["times_since"] == pytest.approx(1.6, rel=0.03)


@pytest.mark.parametrize(
    ("pause_ms", "named"),
    [
        pytest.param((45, 2, 2, 2, 2, 2, 0, 0), [], id="one long pause and some short ones"),
        pytest.param((45, *(15,) * 7), [CULPRIT], id="one in each step"),
        pytest.param((45, 45, 2, 2, 2, 2, 0, 0), [CULPRIT], id="two long pauses"),
    ],
)
def test_one_event_is_no_straggler(
    pause_ms: tuple[int, ...], named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.analysis.stragglers.test_stragglers.STEPS", 8)
    assert [each.rank for each in accused(job(fault="host", pause_ms=pause_ms))] == named


def test_one_event_hides_no_rank_that_is_late_in_every_step() -> None:
    """The event makes the recording longer, of which the other delays are a smaller share then."""
    run = job(fault="host", pause_ms=(25,))
    for each in (run, with_event(run, 12_000 * MS)):
        assert [late.rank for late in accused(each)] == [CULPRIT]


def test_delays_of_no_step_are_no_single_event() -> None:
    run = job(fault="more_work")
    ranks = {}
    for rank, timeline in run.ranks.items():
        calls = timeline.collectives
        ranks[rank] = replace(timeline, collectives=replace(calls, step=np.full_like(calls.step, NONE)))
    assert [each.rank for each in accused(replace(run, ranks=ranks))] == [CULPRIT]


def with_event(run: Run, lasts_ns: int) -> Run:
    """Return the run with the culprit late by so much to its first call; all that follows is later by it."""
    cut_ns = int(run.ranks[CULPRIT].collectives.start_ns.min())
    ranks = {}
    for rank, timeline in run.ranks.items():
        moved = {}
        for name in ("spans", "collectives", "steps", "recordings"):
            table = getattr(timeline, name)
            starts = np.where(table.start_ns >= cut_ns, table.start_ns + lasts_ns, table.start_ns)
            ends = np.where(table.end_ns > cut_ns, table.end_ns + lasts_ns, table.end_ns)
            moved[name] = replace(table, start_ns=starts, end_ns=ends)
        ranks[rank] = replace(timeline, **moved)
    return replace(run, ranks=ranks)


@pytest.mark.parametrize("fault", ["more_work", "slower_compute"])
def test_without_kernels_it_is_not_known_why_compute_took_longer(fault: str) -> None:
    """Compute of a CPU run is a union of host operations: neither its pieces nor their lengths can be compared."""
    run = job(fault=fault)
    on_cpu = replace(run, ranks={rank: replace(each, has_device=False) for rank, each in run.ranks.items()})
    assert [(each.rank, each.held_by) for each in accused(on_cpu)] == [(CULPRIT, "longer_compute")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("longer_ms", "named"), [((16, 16, 16), True), ((0, 48, 0), False), ((4, 40, 4), True), ((1, 46, 1), False)]
)
def test_one_long_pause_without_kernels_is_no_lasting_compute(
    monkeypatch: pytest.MonkeyPatch, longer_ms: tuple[int, ...], named: bool
) -> None:
    # Over three steps the culprit computes 1.4 times as long: in each of them, or in one operation that lost its core.
    # A step takes 40 ms: 4 more are a tenth.
    monkeypatch.setattr("tests.unit.analysis.stragglers.test_stragglers.STEPS", 3)
    run = job()
    late = run.ranks[CULPRIT]
    rows = np.flatnonzero(late.spans.kind == COMPUTE)
    moved = np.array(longer_ms) * MS
    comm = late.spans.kind == COMM
    longer = np.zeros(comm.size, np.int64)
    for step in range(3):
        of_step = rows[late.spans.step[rows] == step]
        longer[of_step[late.spans.start_ns[of_step].argmax()]] = moved[step]
    spans = replace(
        late.spans,
        start_ns=late.spans.start_ns + np.where(comm, moved[late.spans.step], 0),
        end_ns=late.spans.end_ns + longer + np.where(comm, moved[late.spans.step], 0),
    )
    calls = replace(
        late.collectives,
        start_ns=late.collectives.start_ns + moved[late.collectives.step],
        launch_ns=late.collectives.launch_ns + moved[late.collectives.step],
        end_ns=late.collectives.end_ns + moved[late.collectives.step],
    )
    ranks = {CULPRIT: replace(late, spans=spans, collectives=calls)}
    for rank in set(run.ranks) - set(ranks):
        own = run.ranks[rank]
        waits = np.where(own.spans.kind == COMM, moved[own.spans.step], 0)
        ranks[rank] = replace(
            own,
            spans=replace(own.spans, end_ns=own.spans.end_ns + waits),
            collectives=replace(own.collectives, end_ns=own.collectives.end_ns + moved[own.collectives.step]),
        )
    on_cpu = {rank: replace(ranks[rank], has_device=False) for rank in sorted(ranks)}
    expected = [CULPRIT] if named else []
    assert [each.rank for each in accused(replace(run, ranks=on_cpu))] == expected
    unmarked = next(rank for rank in on_cpu if rank != CULPRIT)  # the steps of the others are known all the same
    on_cpu[unmarked] = replace(on_cpu[unmarked], steps=make(Steps, 0))
    assert [each.rank for each in accused(replace(run, ranks=on_cpu))] == expected


def test_a_rank_of_a_light_stage_computes_longer_than_its_peers_though_not_than_the_other_stage() -> None:
    stages = {"light": (0, 1, 2), "heavy": (3, 4, 5)}
    took = {rank: 60 if rank == 1 else 40 if rank < 3 else 120 for rank in range(6)}  # milliseconds of each step
    calls = {
        rank: [
            Met(start=200 * step + took[rank], end=200 * step + max(took[each] for each in ranks) + 5, group=stage)
            for step in range(2)
        ]
        for stage, ranks in stages.items()
        for rank in ranks
    }
    computes = {rank: [(200.0 * step, 200.0 * step + took[rank]) for step in range(2)] for rank in range(6)}
    run = job_of_calls(calls, stages, lasts=400, step=200, computes=computes, has_device=False)
    assert [(each.rank, each.held_by) for each in accused(run)] == [(1, "longer_compute")]


@pytest.mark.parametrize(
    ("pause_ms", "steps", "named"),
    [
        ((30,), 3, True),
        ((30, 28, 31), 3, True),
        ((60, 20, 35), 3, False),
        pytest.param((60, 40, 35, 45), 4, False, id="chance makes four of these, too"),
        ((30,), 2, False),
        pytest.param((8,), 3, False, id="no longer than turns on a core"),
        ((30, 30, 0, 30, 0), 5, True),
    ],
)
def test_a_rank_that_is_late_by_as_much_in_three_steps_is_not_so_by_chance(
    monkeypatch: pytest.MonkeyPatch, pause_ms: tuple[int, ...], steps: int, named: bool
) -> None:
    """Of two ranks one is late in all of three steps in a quarter of all jobs; by as much each time, hardly ever."""
    for name, value in (("RANKS", 2), ("CULPRIT", 1), ("STEPS", steps)):
        monkeypatch.setattr(f"tests.unit.analysis.stragglers.test_stragglers.{name}", value)
    found = accused(job(fault="host", pause_ms=pause_ms))
    assert [(each.rank, each.held_by) for each in found] == [(1, "host")] * named


@pytest.mark.parametrize(
    ("pause_ms", "steps", "named"),
    [
        pytest.param((60, 20, 35), 3, True, id="each time, now longer, now shorter"),
        pytest.param((60, 20, 35), 2, False, id="in two steps"),
        pytest.param((60, *[0] * 11), 12, False, id="once; in other steps it is late by noise"),
    ],
)
def test_a_rank_that_is_late_each_time_for_what_was_recorded_of_it_is_not_so_by_chance(
    monkeypatch: pytest.MonkeyPatch, pause_ms: tuple[int, ...], steps: int, *, named: bool
) -> None:
    """However long it collects garbage each time: its peer does not."""
    for name, value in (("RANKS", 2), ("CULPRIT", 1), ("STEPS", steps)):
        monkeypatch.setattr(f"tests.unit.analysis.stragglers.test_stragglers.{name}", value)
    found = accused(job(fault="gc_pause_ns", pause_ms=pause_ms))
    assert [(each.rank, each.held_by) for each in found] == [(1, "garbage_collector")] * named


def test_ranks_that_collect_garbage_in_turn_are_late_by_chance() -> None:
    """Each did so more than its peer wherever it was late."""
    steps = 12
    calls: dict[int, list[Met]] = {0: [], 1: []}
    notes: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for step in range(steps):
        for rank in (0, 1):
            pause = 40 if step % 2 == rank else 0
            calls[rank].append(Met(start=step * 100 + 30 + pause, end=step * 100 + 80))
            if pause:
                at = (step * 100 + 20 + pause) * MS
                notes[rank].append({"time_ns": at, "step": step, "name": "gc_pause_ns", "value": pause * MS})
    run = job_of_calls(calls, {"all": (0, 1)}, lasts=steps * 100, step=100, has_device=False)
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = NameTable(timeline.names)
        ranks[rank] = replace(
            timeline, telemetry=fact_table(Telemetry, notes[rank], names), names=tuple(names.to_list())
        )
    assert accused(replace(run, ranks=ranks)) == []


@pytest.mark.parametrize(("pause_ms", "named"), [((30,), True), ((30, 12, 45, 20), False)])
def test_a_rank_that_pauses_as_long_in_each_step_is_named_however_late_it_is(
    monkeypatch: pytest.MonkeyPatch, pause_ms: tuple[int, ...], *, named: bool
) -> None:
    """It computes longer, too, by up to 24 ms, in one step more than in another."""
    here, calls, usual = "tests.unit.analysis.stragglers.test_stragglers", count(), sorted_kernels

    def longer_each_step(rng: np.random.Generator, rank: int, fault: str | None) -> list[int]:
        step = next(calls) // 2
        return [*usual(rng, rank, fault), *([8 * MS] * step if rank == 1 else [])]

    for name, value in (("RANKS", 2), ("CULPRIT", 1), ("STEPS", 4), ("sorted_kernels", longer_each_step)):
        monkeypatch.setattr(f"{here}.{name}", value)
    assert [each.rank for each in accused(job(fault="host", pause_ms=pause_ms))] == [1] * named


@pytest.mark.slow
def test_healthy_ranks_are_not_accused() -> None:
    assert sum(bool(accused(job(seed))) for seed in range(40)) == 0


@pytest.mark.slow
def test_a_rank_without_which_the_recording_is_as_long_is_no_straggler() -> None:
    """Two ranks of megatron_tp8 have nearly all blame; its hosts share two cores, and each is late in turn."""
    analysis = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    assert max(each.blame_ns for each in analysis.skew.ranks) > 150 * MS
    assert analysis.skew.stragglers == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_bit, lambda file: file.write_bytes(file.read_bytes()[:-20])])
def test_no_host_is_accused_where_the_record_of_one_is_damaged(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    save_run(read_inputs([shared_file("kineto/megatron_tp8")]), tmp_path / "run", version="0")
    damage(tmp_path / "run" / "rank_00003" / "host.parquet")
    analysis = analyze_with_advice(load_run(tmp_path / "run"))
    assert analysis.skew.stragglers == []
    assert not [each.title for each in analysis.recommendations if each.title.startswith("Look at rank")]


@pytest.mark.parametrize("fault", ["host", "slower_compute"])
def test_beside_a_damaged_record_of_a_host_slow_compute_is_still_named(fault: str) -> None:
    run = job(fault=fault)
    ranks = {rank: replace(each, host_damaged=rank == 0) for rank, each in run.ranks.items()}
    assert [each.rank for each in accused(replace(run, ranks=ranks))] == ([CULPRIT] if fault != "host" else [])


@pytest.mark.parametrize("source", ["gloo_torch2.13"])
def test_an_undisturbed_job_has_no_straggler(source: str) -> None:
    assert accused(read_inputs([shared_file(source)])) == []


@pytest.mark.parametrize(
    ("held_by", "own_wait", "device", "kept"),
    [
        pytest.param("more_work", 24, False, True, id="it waits for others for less"),
        pytest.param("more_work", 25, False, False, id="ranks with different roles, in turn"),
        pytest.param("longer_compute", 60, False, False, id="the same, where shapes are not known"),
        pytest.param("garbage_collector", 60, False, True, id="what it does is its own"),
        pytest.param("more_work", 60, True, True, id="with a device a replay says what it is worth"),
    ],
)
def test_a_rank_that_waits_for_those_that_wait_for_it_is_none(
    held_by: str, own_wait: int, device: bool, kept: bool
) -> None:
    """The others wait for 80 and 100 ms."""
    run = job(fault=None)
    run = replace(run, ranks={rank: replace(each, has_device=device) for rank, each in run.ranks.items()})
    waits = {0: own_wait * MS, 1: 100 * MS, 2: 80 * MS}
    held = [Straggler(rank=0, held_by=held_by, blame_ns=180 * MS, evidence={})]
    assert without_taking_turns(held, waits, run) == held * kept
