"""What held a late rank, by what was noted of its host: constructed jobs whose one late rank has one note more."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.result import Straggler
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import COMPUTE, NONE, OPERATION, Annotations, HostSpans, Telemetry, concat, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.stragglers.test_stragglers import CULPRIT, KERNELS, MS, RANKS, STEP_NS, STEPS, accused, job

Reading = tuple[str, int, int, float]
"""(name, time, step, value)"""


def with_readings(run: Run, of: Mapping[int, Sequence[Reading]], **recorded: Any) -> Run:
    """Return the run with readings of some ranks in place of theirs."""
    ranks = dict(run.ranks)
    for rank, readings in of.items():
        names = NameTable(ranks[rank].names)
        rows = [dict(zip(("name", "time_ns", "step", "value"), each, strict=True)) for each in readings]
        ranks[rank] = replace(
            ranks[rank],
            telemetry=fact_table(Telemetry, rows, names),
            names=tuple(names.to_list()),
            recorded={"settings": {"host": "node1"}, **recorded},
        )
    return replace(run, ranks=ranks)


def each_step(name: str, value: float) -> list[Reading]:
    return [(name, (step + 1) * STEP_NS, step, value) for step in range(STEPS)]


def only(found: Sequence[Straggler]) -> Straggler:
    assert [each.rank for each in found] == [CULPRIT]
    return found[0]


def test_allocator_retries_in_the_late_steps_are_what_held_it() -> None:
    run = with_readings(job(fault="host"), {CULPRIT: each_step("allocator_retries", 2)})
    assert only(accused(run)).held_by == "allocator"
    everybody = {rank: each_step("allocator_retries", 2) for rank in range(RANKS)}
    assert only(accused(with_readings(job(fault="host"), everybody))).held_by == "host"


def test_a_control_groups_limit_is_throttling() -> None:
    run = with_readings(job(fault="host"), {CULPRIT: each_step("cpu_throttled_us", 25_000)})
    assert only(accused(run)).held_by == "throttled"
    assert (
        only(accused(with_readings(job(fault="host"), {CULPRIT: each_step("cpu_throttled_us", 900)}))).held_by == "host"
    )


@pytest.mark.parametrize(
    ("clock", "reasons", "held_by"),
    [
        pytest.param(1100, 0x40, "throttled", id="hot"),
        pytest.param(1100, None, "throttled", id="a lower clock, reasons unread"),
        pytest.param(1100, 0x1, "slower_compute", id="a lower clock for no reason of need"),
        pytest.param(1750, 0x40, "slower_compute", id="as fast as its peers"),
        pytest.param(1690, 0x40, "slower_compute", id="slower by far more than its clock is"),
    ],
)
def test_a_device_whose_clock_is_held_down_is_throttled(clock: float, reasons: int | None, held_by: str) -> None:
    readings = {rank: each_step("gpu0.sm_clock_mhz", 1755) for rank in range(RANKS)}
    readings[CULPRIT] = each_step("gpu0.sm_clock_mhz", clock)
    if reasons is not None:
        readings[CULPRIT] += each_step("gpu0.throttle_reasons", reasons)
    found = only(accused(with_readings(job(fault="slower_compute"), readings)))
    assert found.held_by == held_by
    assert ("sm_clock_mhz" in found.evidence) == (held_by == "throttled")


def test_a_collection_while_data_were_loaded_is_the_collectors() -> None:
    pauses = [(name, at, at // STEP_NS, 30.0 * MS) for name in ("gc_pause_ns", "between_steps_ns") for at in late_at()]
    found = only(accused(with_readings(job(fault="host"), {CULPRIT: pauses})))
    assert found.held_by == "garbage_collector"
    assert found.evidence["garbage_collector_ns"] == STEPS_LATE * 30 * MS


def test_what_all_ranks_pause_for_holds_nobody_up() -> None:
    pauses = {rank: [("between_steps_ns", at, at // STEP_NS, 30.0 * MS) for at in late_at()] for rank in range(RANKS)}
    assert only(accused(with_readings(job(fault="host"), pauses))).held_by == "host"


def late_at() -> list[int]:
    """Return when the culprit's pauses end, in the job's own making."""
    return [step * STEP_NS + 30 * MS for step in range(STEPS)]


STEPS_LATE = STEPS
"""Before the first call, the stretch begins with the recording."""


@pytest.mark.parametrize("name", ["data", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"])
def test_a_range_that_fetches_data_tells_a_slow_loader_without_telemetry(name: str) -> None:
    run = job(fault="host")
    culprit = run.ranks[CULPRIT]
    names = NameTable(list(culprit.names))
    ends = np.array(late_at())
    ranges = make(
        Annotations, ends.size, recording=0, lane=0, name=names.code(name), start_ns=ends - 30 * MS, end_ns=ends
    )
    fetched = replace(culprit, annotations=ranges, names=tuple(names.to_list()))
    assert only(accused(replace(run, ranks={**run.ranks, CULPRIT: fetched}))).held_by == "data_loading"


def test_names_of_ranges_that_fetch_data() -> None:
    fetching = (
        "data",
        "Data Loading",
        "dataloader",
        "get_batch",
        "load_data",
        "next(batch)",
        "data_wait",
        "load",
        "Loader",
    )
    other = ("data_parallel", "batch_norm", "database", "forward", "metadata", "batched_send", "update", "load_state")
    notes = [{"name": name, "lane": 2, "start_ns": at, "end_ns": at + 1} for at, name in enumerate((*fetching, *other))]
    timeline = rank_timeline(annotations=notes, has_device=False)
    table = timeline.annotations
    loading = loads_data(timeline, table.name, table.start_ns, table.end_ns)
    assert loading.tolist() == [True] * len(fetching) + [False] * len(other)


@pytest.mark.parametrize(
    ("name", "has_device", "work", "is_loading"),
    [
        pytest.param("data", False, None, True, id="a host does nothing else in it"),
        pytest.param("batch", False, (10, 40), True, id="it computes a little in it"),
        pytest.param("batch", False, (10, 70), False, id="it mostly computes in it, as in a whole iteration"),
        pytest.param("enumerate(DataLoader)#0", False, (10, 70), True, id="torch's own range"),
        pytest.param("batch", True, (90, 99), False, id="compute is launched in it"),
        pytest.param("forward", False, None, False, id="another name"),
    ],
)
def test_a_range_of_a_bare_name_is_loading_where_nothing_else_is_done_in_it(
    name: str, *, has_device: bool, work: tuple[int, int] | None, is_loading: bool
) -> None:
    rows = [] if work is None else [{"start_ns": work[0], "end_ns": work[1], "launch_ns": 50, "name": "gemm"}]
    note = {"name": name, "lane": 2, "start_ns": 0, "end_ns": 100}
    timeline = rank_timeline(work=rows, annotations=[note], has_device=has_device)
    notes = timeline.annotations
    assert loads_data(timeline, notes.name, notes.start_ns, notes.end_ns).tolist() == [is_loading]


def running(*, asleep: int | None, works_more: int | None = None) -> dict[int, list[Reading]]:
    """Return the training thread's time on a core, at the beginning of each step and when its computation is done."""
    found: dict[int, list[Reading]] = {}
    for rank in range(RANKS):
        ran = 0.0
        rows: list[Reading] = []
        for step in range(STEPS):
            rows.append(("thread_cpu_ns", step * STEP_NS, step, ran))
            ran += 40 * MS + (30 * MS if rank == works_more else 0)
            rows.append(
                ("thread_cpu_ns", step * STEP_NS + (70 if rank in (asleep, works_more) else 40) * MS, step, ran)
            )
        found[rank] = rows
    return found


def of_events(run: Run) -> Run:
    def phase(timeline: RankTimeline) -> RankTimeline:
        return replace(timeline, basis="events", has_device=False)

    return replace(run, ranks={rank: phase(timeline) for rank, timeline in run.ranks.items()})


def test_a_phase_in_which_the_thread_stood_off_its_core_is_the_hosts() -> None:
    found = only(accused(with_readings(of_events(job(fault="slower_compute")), running(asleep=CULPRIT))))
    assert found.held_by == "host"
    assert found.evidence["off_core_more_ns"] > 10 * MS * STEPS


def test_a_host_that_ran_longer_where_no_operation_computes_is_the_hosts() -> None:
    """As in Python that logs, between two operations of which a trace records all."""
    found = only(accused(with_readings(of_events(job(fault="host")), running(asleep=None, works_more=CULPRIT))))
    assert found.held_by == "host"
    assert found.evidence["on_core_more_ns"] > 10 * MS * STEPS


def test_a_phase_in_which_the_thread_ran_longer_is_more_work_on_one_host() -> None:
    run = with_readings(of_events(job(fault="slower_compute")), running(asleep=None, works_more=CULPRIT))
    assert only(accused(run)).held_by == "more_work"
    elsewhere = replace(run.ranks[0], recorded={"settings": {"host": "node2"}})
    assert only(accused(replace(run, ranks={**run.ranks, 0: elsewhere}))).held_by == "longer_compute"


@pytest.mark.parametrize(("more", "held_by"), [(0, "longer_compute"), (1, "more_work")])
def test_as_many_operations_as_its_peers_are_no_more_work(more: int, held_by: str) -> None:
    """A core may be slower, or an operation larger: the time that a thread ran does not tell which."""
    run = with_readings(of_events(job(fault="slower_compute")), running(asleep=None, works_more=CULPRIT))
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = NameTable(list(timeline.names))
        count = 5 + (more if rank == CULPRIT else 0)
        starts = np.arange(count) * MS
        host = make(
            HostSpans, count, recording=0, lane=0, kind=OPERATION, name=names.code("aten::mm"), start_ns=starts,
            end_ns=starts + 1, correlation=NONE,
        )  # fmt: skip
        recordings = replace(timeline.recordings, host_events=np.ones_like(timeline.recordings.host_events))
        ranks[rank] = replace(timeline, recordings=recordings, host=host, names=tuple(names.to_list()))
    assert only(accused(replace(run, ranks=ranks))).held_by == held_by


def with_operations(run: Run, *, of: Collection[int] = range(RANKS), later: int = 0) -> Run:
    """Return a CPU run whose hosts ran an operation for each piece of compute, and more of them `later` than that."""
    ranks = {}
    for rank, timeline in run.ranks.items():
        names, spans = NameTable(list(timeline.names)), timeline.spans
        rows = np.flatnonzero(spans.kind == COMPUTE)
        starts = np.concatenate([spans.start_ns[rows], STEPS * STEP_NS + np.arange(later if rank == CULPRIT else 0)])
        ends = np.concatenate([spans.end_ns[rows], starts[rows.size :] + 1])
        host = make(
            HostSpans, starts.size, recording=0, lane=0, kind=OPERATION, name=names.code("aten::mm"), start_ns=starts,
            end_ns=ends, correlation=NONE,
        )  # fmt: skip
        seen = replace(timeline.recordings, host_events=np.full_like(timeline.recordings.host_events, rank in of))
        ranks[rank] = replace(
            timeline, has_device=False, recordings=seen, host=host, names=tuple(names.to_list()), basis="events"
        )
    return replace(run, ranks=ranks)


def test_operations_that_only_the_late_rank_ran_are_more_work() -> None:
    found = only(accused(with_operations(job(fault="more_work"))))
    assert (found.held_by, found.evidence["host_op"]) == ("more_work", "aten::mm")
    extra = 16 - KERNELS
    assert found.evidence["operations_more"] == extra * STEPS
    assert found.evidence["operations_more_ns"] == pytest.approx(extra * STEPS * 4 * MS, rel=0.1)
    assert found.evidence["operations_more_ns"] <= found.evidence["computed_more_ns"]


def test_more_operations_of_several_names_are_more_work_and_nested_ones_count_once() -> None:
    """As where one rank evaluates: no name alone has half of what it computed longer."""
    run = with_operations(job(fault="more_work"))
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = NameTable(list(timeline.names))
        codes = np.array([names.code(name) for name in ("aten::mm", "aten::gelu", "aten::add", "aten::mul")])
        named = replace(timeline.host, name=codes[np.arange(timeline.host.name.size) % codes.size])
        inner = replace(named, name=np.full_like(named.name, names.code("aten::inner")), start_ns=named.end_ns - 1)
        ranks[rank] = replace(timeline, host=concat([named, inner]), names=tuple(names.to_list()))
    found = only(accused(replace(run, ranks=ranks)))
    extra = 16 - KERNELS
    assert (found.held_by, found.evidence["operation_names"]) == ("more_work", 4)
    assert found.evidence["operations_more"] == extra * STEPS
    assert found.evidence["operations_more_ns"] == pytest.approx(extra * STEPS * 4 * MS, rel=0.1)


@pytest.mark.parametrize(("culprit", "peers", "more"), [(30, 0, 30), (30, 20, None), (0, 30, None)])
def test_the_range_in_which_a_late_rank_spent_what_made_it_late_is_named(
    culprit: int, peers: int, more: int | None
) -> None:
    """Ranges before each call, of which those of the late rank are longer, or those of its peers are as long."""
    run = job(fault="host")
    ranks = {}
    for rank, timeline in run.ranks.items():
        names, ends = NameTable(list(timeline.names)), np.array(late_at())
        lasted = (culprit if rank == CULPRIT else peers) * MS
        ranges = make(
            Annotations, ends.size, recording=0, lane=0, name=names.code("validate 1"), start_ns=ends - lasted,
            end_ns=ends,
        )  # fmt: skip
        ranks[rank] = replace(timeline, annotations=ranges, names=tuple(names.to_list()))
    found = only(accused(replace(run, ranks=ranks)))
    if more is None:
        assert "range" not in found.evidence
    else:
        assert (found.evidence["range"], found.evidence["range_more_ns"]) == ("validate #", more * MS * STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        pytest.param("slower_compute", {}, id="as many"),
        pytest.param("slower_compute", {"later": 100}, id="more of them where nobody waited"),
        pytest.param("more_work", {"of": (CULPRIT,)}, id="peers without host events"),
        pytest.param("more_work", {"of": set(range(RANKS)) - {CULPRIT}}, id="itself without host events"),
    ],
)
def test_else_it_is_not_known_why_a_host_computed_longer(fault: str, changes: Any) -> None:
    found = only(accused(with_operations(job(fault=fault), **changes)))
    assert found.held_by == "longer_compute"
    assert "host_op" not in found.evidence


def test_short_operations_more_do_not_explain_a_rank_that_is_slower_as_well() -> None:
    run = with_operations(job(fault="slower_compute"))
    culprit = run.ranks[CULPRIT]
    short = replace(culprit.host, end_ns=culprit.host.start_ns + 1000)
    twice = replace(culprit, host=concat([culprit.host, short]))
    assert only(accused(replace(run, ranks={**run.ranks, CULPRIT: twice}))).held_by == "longer_compute"


MIXED = [0.2] * 8 + [4, 4]


@pytest.mark.parametrize(
    ("usual_ms", "own_ms", "held_by"),
    [
        pytest.param(MIXED, [*MIXED, 12, 12], "more_work", id="two long copies more"),
        pytest.param(MIXED, [0.2] * 10 + [16, 16], "longer_compute", id="two short ones more, and slower ones"),
        pytest.param([16] * 4, [20] * 4 + [0.1], "longer_compute", id="a short one more on a slower core"),
    ],
)
def test_long_operations_more_beside_many_short_ones_of_their_name_are_more_work(
    monkeypatch: pytest.MonkeyPatch, usual_ms: list[float], own_ms: list[float], held_by: str
) -> None:
    """As copies of a buffer beside those of single values."""

    def mixed(_: np.random.Generator, rank: int, __: str | None) -> list[int]:
        return [round(each * MS) for each in (own_ms if rank == CULPRIT else usual_ms)]

    monkeypatch.setattr("tests.unit.analysis.stragglers.test_stragglers.sorted_kernels", mixed)
    found = only(accused(with_operations(job())))
    assert found.held_by == held_by
    if held_by == "more_work":
        assert found.evidence["operations_more"] == 2 * STEPS
        assert found.evidence["operations_more_ns"] == 24 * STEPS * MS


def test_more_work_in_each_of_two_steps_is_no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("test_stragglers", "test_host_cause"):
        monkeypatch.setattr(f"tests.unit.analysis.stragglers.{module}.STEPS", 2)
    run = with_readings(of_events(job(fault="slower_compute")), running(asleep=None, works_more=CULPRIT))
    assert only(accused(run)).held_by == "more_work"


def waiting(run: Run, of: Mapping[int, int]) -> Run:
    """Return the run with ranks that waited so many milliseconds for a core before each call."""
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = NameTable(list(timeline.names))
        table = timeline.telemetry
        rise = np.where(np.arange(table.value.size) % 2, of.get(rank, 0) * MS, 0)
        queued = replace(
            table, name=np.full_like(table.name, names.code("thread_queue_ns")), value=np.cumsum(rise) * 1.0
        )
        ranks[rank] = replace(timeline, telemetry=concat([table, queued]), names=tuple(names.to_list()))
    return replace(run, ranks=ranks)


def test_a_rank_that_waited_for_a_core_as_others_did_is_not_named_and_the_cores_are() -> None:
    waits = {CULPRIT: 30, 0: 10, 1: 10, 3: 10}
    run = waiting(with_readings(of_events(job(fault="slower_compute")), running(asleep=CULPRIT)), waits)
    found = analyze(run)
    assert found.skew.stragglers == []
    assert "shared_cores" in [each.id for each in found.findings]
    # Of the 100 ms of compute in a step of the path the culprit waited for 30.
    assert all(each.waited_for_core_ns > 0 for each in found.critical_path.steps)


def test_a_rank_that_alone_waited_for_its_core_is_named_for_that() -> None:
    run = waiting(with_readings(of_events(job(fault="slower_compute")), running(asleep=CULPRIT)), {CULPRIT: 20})
    found = analyze(run)
    assert [(each.rank, each.held_by) for each in found.skew.stragglers] == [(CULPRIT, "busy_core")]
    assert "shared_cores" in [each.id for each in found.findings]


@pytest.mark.parametrize(
    ("own", "missing", "named"),
    [
        pytest.param(True, 0, True, id="cores of their own"),
        pytest.param(False, 0, False, id="shared cores"),
        pytest.param(True, 1, False, id="a missing rank may use them"),
    ],
)
def test_ranks_that_wait_for_cores_of_their_own_are_named_and_those_that_share_them_are_not(
    own: bool, missing: int, named: bool
) -> None:
    waits = {CULPRIT: 30, 0: 10, 1: 10, 3: 10}
    run = waiting(with_readings(of_events(job(fault="slower_compute")), running(asleep=CULPRIT)), waits)
    ranks = {
        rank: replace(
            each, recorded={**each.recorded, "settings": {"host": "one", "cores": [rank if own else rank % 2]}}
        )
        for rank, each in run.ranks.items()
    }
    found = accused(replace(run, ranks=ranks, world_size=RANKS + missing))
    assert [(each.rank, each.held_by) for each in found] == [(CULPRIT, "busy_core")] * named


def test_a_rank_that_ran_no_longer_in_all_had_no_more_work() -> None:
    """Its peers are read at the beginning of a step alone: a line from there to the next puts work into their waits."""
    readings = {
        rank: [(name, at, step, 1.7 * value) for name, at, step, value in rows][:: 1 if rank == CULPRIT else 2]
        for rank, rows in running(asleep=CULPRIT).items()
    }
    run = waiting(with_readings(of_events(job(fault="slower_compute")), readings), {CULPRIT: 8})
    assert only(accused(run)).held_by == "busy_core"


def test_more_work_is_named_though_most_of_its_time_was_waiting_for_a_core() -> None:
    """Six milliseconds of work more, slowed more than fourfold by others on the cores."""
    readings = running(asleep=CULPRIT)
    readings[CULPRIT] = [(name, at, step, 0.25 * value) for name, at, step, value in readings[CULPRIT]]
    for rank in set(range(RANKS)) - {CULPRIT}:
        readings[rank] = [(name, at, step, 0.1 * value) for name, at, step, value in readings[rank]]
    run = waiting(with_readings(of_events(job(fault="slower_compute")), readings), {0: 20, 1: 20, 3: 20, CULPRIT: 35})
    assert only(accused(run)).held_by == "more_work"


def test_a_rank_that_mostly_waited_for_a_core_had_no_more_work_where_its_peers_did_not_wait() -> None:
    """It ran some milliseconds longer, but is late by what it alone waited."""
    readings = running(asleep=CULPRIT)
    readings[CULPRIT] = [(name, at, step, 0.25 * value) for name, at, step, value in readings[CULPRIT]]
    for rank in set(range(RANKS)) - {CULPRIT}:
        readings[rank] = [(name, at, step, 0.1 * value) for name, at, step, value in readings[rank]]
    run = waiting(with_readings(of_events(job(fault="slower_compute")), readings), {CULPRIT: 35})
    assert only(accused(run)).held_by == "busy_core"


def test_a_recording_that_costs_as_much_as_it_shows_says_so() -> None:
    cost = {"overhead": {"median_ns": 20.0 * MS, "low_ns": 15.0 * MS, "high_ns": 25.0 * MS}}
    assert only(accused(with_readings(job(fault="host"), {CULPRIT: []}, **cost))).evidence["recording_may_explain"]
    cheap = {"overhead": {"median_ns": 0.2 * MS, "low_ns": 0.1 * MS, "high_ns": 0.3 * MS}}
    found = only(accused(with_readings(job(fault="host"), {CULPRIT: []}, **cheap)))
    assert not found.evidence["recording_may_explain"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_readings_that_are_no_numbers_tell_nothing(value: float) -> None:
    readings = [(name, NONE if at == 3 else at * MS, NONE, value) for at in range(5) for name in ("gc_pause_ns", "x")]
    assert only(accused(with_readings(job(fault="host"), {CULPRIT: readings}))).held_by == "host"
