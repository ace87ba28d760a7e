"""What stands beside waiting for late ranks, and what is said of launches and pauses of hosts."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice import advise as advice
from overlapscope.advice.advise import advise, by_rules
from overlapscope.advice.job_kind import job_kind
from overlapscope.advice.losses.blocked_host import instead_of
from overlapscope.advice.losses.host_time import worth_naming
from overlapscope.advice.losses.replayed_losses import with_replayed_gains
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.answers import CriticalPath, Link, StepPath
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.timeline.columns import COMM, OPERATION, HostSpans, concat, make, take
from overlapscope.timeline.run import Run
from tests.support.graph_programs import CopyBack, Launch, Operation, Sync, Work, simulate
from tests.support.step_cases import Kernel, Sent
from tests.unit.advice.losses.test_replayed_losses import with_ranges
from tests.unit.advice.test_advice_rules import always, beginning_earlier, fired, one_by_one

US = 1_000
STEPS = 12
STEP_US = 1_000


def waiting_in_turn() -> Recommendation:
    """Return what is said where two ranks are late in turn."""
    run = always(Sent(start=100, end=200), Kernel(start=210, end=STEP_US - 10))
    ranks = {
        rank: beginning_earlier(each, np.where(each.collectives.step % 2 != rank, 270 * US, 0))
        for rank, each in run.ranks.items()
    }
    return fired(replace(run, ranks=ranks))["late_rank"]


def beside_waiting(
    monkeypatch: pytest.MonkeyPatch, run: Run, host: float, held_by: str | None = None
) -> dict[str, Recommendation]:
    """Return what is said of a run where ranks wait, besides, and hosts take this share of the critical path."""
    together = match_and_align(run)
    path = StepPath(
        step=1, rank=0, length_ns=1_000, parts={"host": round(1_000 * host)}, ranks={"0": 1_000}, operations=[]
    )
    analysis = replace(analyze(run, together), critical_path=CriticalPath(median_step=1, steps=[path]))
    late = waiting_in_turn()
    late = replace(late, title="Waiting", evidence={**late.evidence, "held_by": held_by})
    monkeypatch.setattr(advice, "late_rank", lambda *_: late)
    return {each.id: each for each in by_rules(run, analysis, together)}


@pytest.mark.slow
@pytest.mark.parametrize(("held_by", "certain"), [(None, False), ("host", False), ("slower_compute", True)])
def test_gradients_one_by_one_are_said_beside_waiting_which_then_may_have_a_setting(
    monkeypatch: pytest.MonkeyPatch, held_by: str | None, *, certain: bool
) -> None:
    """Where none is said, it is certain that none shortens it of a rank that computes longer alone."""
    found = beside_waiting(monkeypatch, one_by_one(60), 0.1, held_by)
    assert {"late_rank", "flatten_gradients"} <= found.keys()
    assert found["late_rank"].title == "Waiting"
    usual = beside_waiting(monkeypatch, always(Kernel(start=0, end=STEP_US - 10)), 0.1, held_by)
    assert ("no setting of communication shortens" in usual["late_rank"].title) is certain


@pytest.mark.parametrize(
    ("host", "held_by", "said"),
    [
        pytest.param(0.9, None, False, id="launches decide"),
        pytest.param(0.4, None, True, id="compute decides"),
        pytest.param(0.9, "host", True, id="one rank is late"),
    ],
)
def test_waiting_for_whoever_launches_last_is_no_loss_of_its_own(
    monkeypatch: pytest.MonkeyPatch, host: float, held_by: str | None, said: bool
) -> None:
    found = beside_waiting(monkeypatch, one_by_one(60), host, held_by)
    assert "flatten_gradients" in found
    assert ("late_rank" in found) is said


def test_ranks_that_are_late_in_turn_are_told_to_compare_steps() -> None:
    look = waiting_in_turn().apply
    assert "what differs from step to step (batches, clocks, power, other processes)" in look["look"]
    assert "more steps show" not in look["look"]
    assert "PERFORMANCE,CLOCK,POWER" in look["nvidia"]


# --- launches and pauses -----------------------------------------------------------------------------------------


def repeated(*step: Operation) -> list[Operation]:
    return [Launch(0, 100 * US), *[each for _ in range(STEPS) for each in step]]


def by_finding(run: Run, *, named: bool) -> dict[str, Recommendation]:
    """Return what is recommended with, or without, the finding that names the pauses of hosts."""
    together = match_and_align(run)
    analysis = analyze(run, together)
    said = [each for each in analysis.findings if named or each.id != "host_pauses"]
    return {each.id: each for each in by_rules(run, replace(analysis, findings=said), together)}


def test_only_pauses_of_3_ms_are_called_so_and_need_no_fewer_launches() -> None:
    slow = fired(simulate({0: repeated(Work(1_000 * US), Launch(0, 300 * US))}).run)["launch_bound"]
    assert slow.title.startswith("Late launches")
    assert "between calls 0.2 ms or more apart" in slow.title
    assert "reduce-overhead" in slow.apply["torch"]
    assert slow.evidence["long_pauses_ns"] == 0
    paused = by_finding(simulate({0: repeated(Work(4_000 * US), Launch(0, 300 * US))}).run, named=False)["launch_bound"]
    assert paused.title.startswith("Pauses of the host: ")
    assert list(paused.apply) == ["host"], "no graph shortens a pause"
    assert paused.evidence["long_pauses_ns"] == paused.evidence["pauses_ns"] > 0


@pytest.mark.parametrize(
    ("range_", "lasts_us", "work"),
    [("torch.save", 3_100, "checkpoint"), ("torch.save", 2_000, None), ("pack", 3_100, None)],
    ids=["nearly all", "a part", "another name"],
)
def test_pauses_in_a_checkpoint_are_to_be_written_beside_training(range_: str, lasts_us: int, work: str | None) -> None:
    """The device idles for 3.1 of 4 ms."""
    run = simulate({0: repeated(Work(4_000 * US), Launch(0, 900 * US))}).run
    begins = run.ranks[0].spans.launch_ns[:-1] + 850 * US
    found = by_finding(with_ranges(run, range_, begins, lasts_us * US), named=False)["launch_bound"]
    assert found.evidence["work"] == work
    assert found.title.startswith("Take the writing of checkpoints off the host, or") is (work is not None)
    assert ("async_save" in str(found.apply)) is (work is not None)
    assert ("host" in found.apply) is (work is None), "cores of its own do not help to write"


WAITED: Final = [Launch(0, 8_000 * US), Sync(), Work(5_000 * US)]
OTHER_WAITS: Final = [Launch(0, 4_000 * US), Sync(), Work(2_500 * US)] * 2
COPIED: Final = CopyBack(0, 5 * US)
"""A copy that blocks: as a batch from pageable memory."""


@pytest.mark.parametrize(
    ("step", "named"),
    [
        pytest.param(WAITED, True, id="why is not known"),
        pytest.param([*WAITED, COPIED], False, id="a batch may be fetched"),
        pytest.param([*WAITED, COPIED, *OTHER_WAITS], True, id="other waits cost, too"),
    ],
)
def test_waits_before_pauses_that_come_anyway_are_not_said_to_idle_the_device(
    step: list[Operation], *, named: bool
) -> None:
    run = simulate({0: repeated(*step)}).run
    together = match_and_align(run)
    analysis = analyze(run, together)
    (pauses,) = [each for each in analysis.findings if each.id == "host_pauses"]
    assert pauses.evidence["wait_or_not"] is (COPIED in step)
    found = by_rules(run, analysis, together)
    by_replay = with_replayed_gains(found, run, together, BuiltGraphs(run), summarize_ranks(run))
    for all_ in (found, by_replay):
        ids = {each.id for each in all_}
        assert "host_pauses" in ids
        assert ("blocking_calls" in ids) is named


@pytest.mark.parametrize(("lasts_us", "words"), [(650, "in log_metrics"), (400, "55.5 % of that in log_metrics")])
def test_late_launches_name_the_range_in_which_the_host_works_meanwhile(lasts_us: int, words: str) -> None:
    run = simulate({0: repeated(Work(1_000 * US), Launch(0, 300 * US))}).run
    begins = run.ranks[0].spans.launch_ns[:-1] + 300 * US
    named = with_ranges(run, "log_metrics", begins, lasts_us * US)
    assert fired(named)["launch_bound"].title.endswith(f"between calls 0.2 ms or more apart, {words}")


def test_pauses_that_are_a_finding_are_not_said_again_as_launches() -> None:
    run = simulate({0: repeated(Work(4_000 * US), Launch(0, 300 * US))}).run
    assert "launch_bound" in by_finding(run, named=False)
    found = by_finding(run, named=True)
    assert "host_pauses" in found
    assert "launch_bound" not in found


def test_a_rank_that_has_most_of_the_idle_time_is_named_with_its_own() -> None:
    kernel = Launch(0, 300 * US)
    late, alike = repeated(Work(500 * US), kernel), repeated(Work(500 * US), kernel)
    soon = [Launch(0, 100 * US), *[kernel] * STEPS, Work(500 * US * STEPS)]
    found = fired(simulate({0: soon, 1: late}).run)["launch_bound"]
    own_ms = (found.evidence["pauses_ns"] + found.evidence["launch_rate_ns"]) * 2 / 1e6
    assert f"the device of rank 1 waits {own_ms:.3g} ms for launches (in the mean of all ranks it is" in found.title
    assert "the device waits" in fired(simulate({0: alike, 1: late}).run)["launch_bound"].title


# --- waits for the device ----------------------------------------------------------------------------------------


def in_operation(run: Run, name: str, by_ns: int = 1) -> Run:
    """Return a run whose calls that wait are made by an operation of this name, longer by so much at both ends."""
    timeline = run.ranks[0]
    host = timeline.host
    waits = [code for code, each in enumerate(timeline.names) if "Synchronize" in each]
    own = take(host, np.isin(host.name, waits))
    around = make(
        HostSpans, own.start_ns.size, recording=own.recording, lane=own.lane, start_ns=own.start_ns - by_ns,
        end_ns=own.end_ns + by_ns, kind=np.full(own.start_ns.size, OPERATION, np.int8),
        name=np.full(own.start_ns.size, len(timeline.names), np.int32),
    )  # fmt: skip
    rows = concat([host, around])
    rows = take(rows, np.lexsort((-rows.end_ns, rows.start_ns, rows.lane)))
    return replace(run, ranks={0: replace(timeline, host=rows, names=(*timeline.names, name))})


def ahead(path: Sequence[Operation], *operations: str) -> Recommendation:
    """Return what is said of a path whose waits are in these operations, the innermost first."""
    run = simulate({0: list(path)}).run
    for by_ns, each in enumerate(operations, 1):
        run = in_operation(run, each, by_ns)
    together = match_and_align(run)
    return next(each for each in advise(run, analyze(run, together), together)[0] if each.id == "blocking_calls")


def short_waits() -> list[Operation]:
    """Return steps of a long wait, and short ones by two calls in turn, which are not charged with it: what all cost
    together is seen by replay alone."""
    kernel, small = Launch(0, 3_000 * US), [Work(40 * US), Launch(0, 5 * US)]
    return repeated(kernel, Sync(), *[each for at in range(20) for each in (*small, (Sync(0), Sync())[at % 2])])


@pytest.mark.parametrize(
    ("operation", "named", "code"),
    [
        ("aten::_local_scalar_dense", ", for .item() or the like)", "total += loss.detach()"),
        ("aten::nonzero", ", for nonzero() or the like)", "torch.where(mask"),
        ("aten::copy_", "Synchronize)", "pin_memory()"),
        (None, "Synchronize)", "# no torch.cuda.synchronize()"),
    ],
)
def test_what_a_host_waits_for_decides_what_to_write_instead(operation: str | None, named: str, code: str) -> None:
    """By replay alone, as in many short waits, and by the time that waits take."""
    for path in (short_waits(), repeated(Launch(0, 1_000 * US), Sync(), Work(300 * US))):
        found = ahead(path, *([] if operation is None else [operation]))
        assert ("its launches are late because" in found.title) is (path == short_waits())
        assert named in found.title
        assert code in found.apply["torch"]
        assert ("synchronize()" in found.apply["torch"]) is (operation is None)
        assert found.published == []


@pytest.mark.parametrize(
    ("around", "inside", "code"),
    [
        ("aten::nonzero", "aten::_local_scalar_dense", "torch.where(mask"),
        ("aten::index", "aten::item", "torch.where(mask"),
        ("aten::linear", "aten::item", "total += loss.detach()"),
        ("aten::index", "aten::copy_", "pin_memory()"),
    ],
)
def test_a_number_that_is_read_for_a_size_is_that_size(around: str, inside: str, code: str) -> None:
    """By time that waits take, and by replay alone."""
    for path in (repeated(Launch(0, 1_000 * US), Sync(), Work(300 * US)), short_waits()):
        assert code in ahead(path, inside, around).apply["torch"].splitlines()[0]


def test_calls_with_next_to_nothing_of_a_loss_are_not_named() -> None:
    step = [Launch(0, 1_000 * US), Sync(), Work(300 * US), Launch(0, 20 * US), Sync(0), Work(10 * US)]
    found = fired(simulate({0: repeated(*step)}).run)["blocking_calls"]
    assert "(cudaDeviceSynchronize)" in found.title
    assert "cudaStreamSynchronize" in found.evidence["calls"]
    assert worth_naming({"a": 94, "b": 5, "c": 1}) == ["a", "b"]


def test_a_rank_that_waits_far_more_than_the_mean_is_named_with_its_own() -> None:
    kernel, work = Launch(0, 1_000 * US), Work(400 * US)
    waits, runs = repeated(kernel, Sync(), work), [*repeated(kernel), *[work] * STEPS]
    assert " on rank 1) because " in fired(simulate({0: runs, 1: waits}).run)["blocking_calls"].title
    assert " on rank " not in fired(simulate({0: waits, 1: waits}).run)["blocking_calls"].title


@pytest.mark.parametrize(
    ("copy", "launch", "lines"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "cudaLaunchKernel", ["x = x.pin_memory()", "# no torch"]),
        ("Memcpy DtoH (Device -> Pinned)", "cudaLaunchKernel", ["# no torch"]),
        ("Memcpy DtoH", "cudaGraphLaunch_v10000", ["x = x.pin_memory()", "# launch the next graph before"]),
        ("a kernel", "cudaGraphLaunch_v10000", ["x = x.pin_memory()", "# no torch"]),
    ],
)
def test_the_copy_that_is_waited_for_and_the_launch_after_it_decide_what_to_write_instead(
    copy: str, launch: str, lines: list[str]
) -> None:
    chain = [
        Link(rank=0, kind=kind, known="recorded", what=what, start_ns=0, end_ns=1)
        for kind, what in (("launch", launch), ("host", launch), ("sync", copy))
    ]
    shown = ShownBy(rank=0, start_ns=0, end_ns=1, chain=chain)
    waits = [("cudaEventSynchronize", None), ("cudaMemcpyAsync", None)]
    *found, last = instead_of(job_kind(always(Kernel(start=0, end=10))), waits, shown)["torch"].splitlines()
    assert [each[: len(line)] for each, line in zip(found, lines, strict=True)] == lines
    assert "set_sync_debug_mode" in last


@pytest.mark.parametrize("memory", ["Pageable", "Pinned"])
def test_whether_memory_is_pinned_is_decided_for_each_call(memory: str) -> None:
    """The longest wait is for a copy to pinned memory, by another call."""
    sync, copy = ("cudaStreamSynchronize", None), ("cudaMemcpyAsync", None)
    to_pinned = "Memcpy DtoH (Device -> Pinned)"
    link = Link(rank=0, kind="sync", known="recorded", what=to_pinned, start_ns=0, end_ns=1)
    shown = ShownBy(rank=0, start_ns=0, end_ns=1, chain=[link])
    awaited = {sync: to_pinned, copy: f"Memcpy HtoD ({memory} -> Device)"}
    job = job_kind(always(Kernel(start=0, end=10)))
    code = instead_of(job, [sync, copy], shown, awaited=awaited)["torch"]
    assert ("pin_memory" in code) == (memory == "Pageable")


def test_what_launches_show_is_not_shown_again_for_waits() -> None:
    found = ahead(short_waits())
    assert "its launches are late because" in found.title
    assert found.shown_by is None


def test_a_server_is_to_schedule_ahead_of_its_tokens() -> None:
    path = [Launch(0, 100 * US, name="vllm::rms_norm_kernel"), *repeated(Launch(0, 1_000 * US), Sync(), Work(300 * US))]
    found = ahead(path)
    assert list(found.apply) == ["serving"]
    assert "--async-scheduling" in found.apply["serving"]
    assert "not needed at once" not in " ".join(found.assumed)


@pytest.mark.parametrize("world_size", [2, 4])
def test_no_gain_is_called_a_bound_while_ranks_are_missing(world_size: int) -> None:
    program = [
        each
        for at in range(STEPS)
        for each in (Work(400 * US), Launch(0, 100 * US), Launch(1, kind=COMM, name="nccl:all_reduce", call=f"c{at}"))
    ]
    sent = {f"c{at}": 20 * US for at in range(STEPS)}
    run = replace(simulate({0: program, 1: program}, sent).run, world_size=world_size)
    together = match_and_align(run)
    analysis = analyze(run, together)
    for every in (by_rules(run, analysis, together), advise(run, analysis, together)[0]):
        (found,) = (each for each in every if each.id == "launch_bound")
        assert any("upper bound" in each for each in found.assumed) is (world_size == 2)
        assert any("lose as much" in each for each in found.assumed) is (world_size == 4)
