"""Of exposed calls nothing is advised that is in effect, or helps nothing: averages of parameters, gradients
that go beside backward."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.exposed_calls import (
    average_parameters,
    go_beside_backward,
    one_bandwidth_gbs,
    range_after_optimizer,
    run_on_in_rows,
)
from overlapscope.advice.losses.exposed_remedies import INSTEAD, instead
from overlapscope.advice.losses.gradient_passes import backward_waits_ns
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.losses.own_calls import (
    AFTER_OPTIMIZER,
    AVERAGES,
    BESIDE_BACKWARD,
    LAST_BUCKET,
    OF_HOROVOD,
    OF_OTHERS,
    RUN_ON,
    WAITS_FOR_EACH,
)
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made

MIB = 1 << 20


def looked_at(run: Run) -> RuleInput:
    together = match_and_align(run)
    return RuleInput.of(run, analyze(run, together), together)


def queue(*calls: Sent) -> list[Item]:
    """Return a step whose compute ends at 300 us, and goes on when all calls have ended."""
    return [Kernel(start=0, end=300), *calls, Kernel(start=max(each.end for each in calls), end=990, launch=60)]


def in_a_row(count: int, gap: float = 2, **more: object) -> list[Sent]:
    """Return calls of 100 us, launched together."""
    begin = [200 + at * (100 + gap) for at in range(count)]
    return [Sent(start=at, end=at + 100, launch=50, **more) for at in begin]  # type: ignore[arg-type]


def averaging(
    every: int, *more: Item, after: bool = True, size_bytes: int = 36 * MIB, compute_launched: float | None = None
) -> Run:
    """Return a job whose optimizer's range lies before, or after, the launch of all-reduces of every n-th step."""
    optimizer = Range(name="Optimizer.step#AdamW.step", start=50 if after else 70, end=60 if after else 80)
    calls = [Sent(start=600, end=950, launch=65, size_bytes=size_bytes)]
    compute = Kernel(start=0, end=600, launch=compute_launched)
    return made(lambda step: [compute, optimizer, *more, *(calls if step % every == 1 % every else [])])


def test_calls_that_follow_the_optimizer_in_some_steps_average_parameters() -> None:
    assert average_parameters(looked_at(averaging(2)))
    assert not average_parameters(looked_at(averaging(1))), "in every step, as parameters are gathered"
    assert not average_parameters(looked_at(averaging(2, after=False))), "gradients, of every second step"
    for cause in ("dependency", "tail", "queued"):
        assert instead(looked_at(averaging(2)), cause) == AVERAGES


OUTER = Range(name="outer_step", start=62, end=68)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(averaging(1), AFTER_OPTIMIZER, id="in each step"),
        pytest.param(averaging(1, OUTER), AFTER_OPTIMIZER.replace("calls", "calls in outer_step"), id="in a range"),
        pytest.param(averaging(2, OUTER), AVERAGES.replace("calls", "calls in outer_step"), id="in some steps"),
        pytest.param(averaging(1, size_bytes=64), None, id="a loss"),
        pytest.param(averaging(1, after=False), None, id="gradients"),
        pytest.param(averaging(1, Range(name="Optimizer.step#SGD.step", start=70, end=75)), None, id="between two"),
        pytest.param(averaging(2, compute_launched=61), None, id="the marks of steps begin after backward"),
    ],
)
def test_large_reductions_after_the_last_optimizer_of_a_step_are_no_gradients_of_it(run: Run, said: str | None) -> None:
    for cause in ("dependency", "tail"):
        found = instead(looked_at(run), cause)
        assert found == said if said else "follow the optimizer" not in found


@pytest.mark.parametrize(("to_one", "said"), [("reduce", True), ("gather", False)])
def test_what_is_reduced_to_one_rank_after_the_optimizer_and_sent_back_is_no_gradient(
    to_one: str, *, said: bool
) -> None:
    def step(_: int) -> list[Item]:
        return [
            Kernel(start=0, end=600, launch=1),
            Range(name="Optimizer.step#AdamW.step", start=50, end=60),
            Sent(start=600, end=700, launch=65, op=to_one, size_bytes=MIB),
            Sent(start=700, end=900, launch=70, op="broadcast", size_bytes=MIB),
            Kernel(start=900, end=990, launch=80),
        ]

    assert (instead(looked_at(made(step)), "dependency") == AFTER_OPTIMIZER) == said


def test_the_range_is_named_that_launches_most_of_the_exposed_time_of_these_reductions() -> None:
    """A sum of 64 bytes in a longer range is none of them; of two that are, the one counts that is exposed longer."""

    def step(_: int) -> list[Item]:
        ranges = [("outer_step", 62, 68), ("average_loss", 70, 74), ("log_metrics", 76, 600)]
        return [
            Kernel(start=0, end=600, launch=1),
            Range(name="Optimizer.step#AdamW.step", start=50, end=60),
            *(Range(name=name, start=start, end=end) for name, start, end in ranges),
            Sent(start=600, end=640, launch=72, size_bytes=MIB),
            Sent(start=640, end=900, launch=65, size_bytes=MIB),
            Sent(start=900, end=950, launch=300, size_bytes=64),
        ]

    assert range_after_optimizer(looked_at(made(step)), averages=False) == "outer_step"


def launched_by(timeline: RankTimeline, thread: int, other: str) -> RankTimeline:
    """Return a rank whose calls a thread launches, with the range of this name on another one, of a lower number."""
    spans, notes = timeline.spans, timeline.annotations
    number = np.arange(spans.start_ns.size)
    rows = [
        {"recording": 0, "lane": thread, "kind": RUNTIME, "name": None, "start_ns": at, "end_ns": at + 1,
         "correlation": correlation}
        for at, correlation in sorted(zip(spans.launch_ns.tolist(), number.tolist(), strict=True))
    ]  # fmt: skip
    lane = np.where(notes.name == timeline.names.index(other), thread - 1, thread)
    return replace(
        timeline,
        host=fact_table(HostSpans, rows, NameTable(timeline.names)),
        spans=replace(spans, correlation=number),
        annotations=replace(notes, lane=lane),
    )


@pytest.mark.parametrize(("other", "said"), [("heartbeat", "outer_step"), ("outer_step", "heartbeat")])
def test_the_range_is_of_the_thread_that_launches(other: str, said: str) -> None:
    run = averaging(1, OUTER, Range(name="heartbeat", start=61, end=90))
    ranks = {rank: launched_by(each, 2, other) for rank, each in run.ranks.items()}
    assert range_after_optimizer(looked_at(replace(run, ranks=ranks)), averages=False) == said


def test_without_the_thread_that_launches_no_range_of_several_threads_is_named() -> None:
    run = averaging(1, OUTER, Range(name="heartbeat", start=61, end=90))
    ranks = {rank: launched_by(each, 2, "heartbeat") for rank, each in run.ranks.items()}
    unseen = {rank: replace(each, host=run.ranks[rank].host) for rank, each in ranks.items()}
    assert range_after_optimizer(looked_at(replace(run, ranks=unseen)), averages=False) is None


@pytest.mark.parametrize(
    ("phase", "start", "beside"), [("backward", 300, True), ("backward", 600, False), (None, 300, False)]
)
def test_buckets_during_backward_are_not_advised_where_reductions_begin_there_beside_compute(
    phase: str | None, start: float, *, beside: bool
) -> None:
    call = Sent(start=start, end=800, launch=250, phase=phase, size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=600), call, Kernel(start=800, end=990)]))
    assert go_beside_backward(given) == beside
    for cause, already in BESIDE_BACKWARD.items():
        assert instead(given, cause) == (already.format(rest=LAST_BUCKET) if beside else INSTEAD[cause])
        assert "in buckets" not in already


def rows_beside_compute(
    *, number: int = 3, since: float = 0, computes: float = 450, gap: float = 1, phase: str | None = None
) -> list[Item]:
    """Return a step in which compute begins with a row of calls of 200 us each, the last of which run on after it."""
    calls = in_a_row(number, 100 + gap, phase=phase, size_bytes=36 * MIB)
    long = [replace(each, end=each.start + 200) for each in calls]
    return [Kernel(start=since, end=computes), *long, Kernel(start=long[-1].end, end=990, launch=60)]


@pytest.mark.parametrize(
    ("other", "in_rows"),
    [
        pytest.param({}, True, id="rows"),
        pytest.param({"number": 1, "computes": 300}, False, id="one call"),
        pytest.param({"number": 2, "gap": 50, "computes": 350}, False, id="calls apart"),
        pytest.param({"computes": 200}, False, id="none beside compute"),
        pytest.param({"computes": 250}, False, id="nearly none"),
        pytest.param({"since": 210}, False, id="the first begins before compute"),
        pytest.param({"phase": "forward"}, False, id="in a phase"),
    ],
)
def test_rows_of_reductions_that_run_on_after_compute_are_in_buckets_already(
    other: dict[str, Any], *, in_rows: bool
) -> None:
    given = looked_at(made(lambda _: rows_beside_compute(**other)))
    assert run_on_in_rows(given) == in_rows
    for cause in BESIDE_BACKWARD:
        assert instead(given, cause) == (RUN_ON if in_rows else INSTEAD[cause])
    assert "if these are gradients" in RUN_ON


def waiting_for_each(*, first_phase: str | None = "backward", op: str = "reduce_scatter", end: float = 900) -> Run:
    """Return a job whose backward waits for each of two calls, with 200 us of compute between them."""
    more = {"op": op, "size_bytes": 36 * MIB}
    return made(
        lambda _: [
            Kernel(start=0, end=300),
            Sent(start=300, end=400, launch=100, phase=first_phase, **more),  # type: ignore[arg-type]
            Kernel(start=400, end=600, launch=101),
            Sent(start=600, end=end, launch=102, phase="backward", **more),  # type: ignore[arg-type]
            Kernel(start=900, end=990, launch=103),
        ]
    )


def test_backward_that_waits_for_each_reduction_is_told_to_wait_once() -> None:
    given = looked_at(waiting_for_each(end=700))
    assert backward_waits_ns(given) == 100 * US, "beside the last of both nothing is left to run"
    assert instead(given, "dependency") == WAITS_FOR_EACH.format(most="0.1 ms")
    assert not backward_waits_ns(looked_at(waiting_for_each(first_phase="forward"))), "as tensor parallelism reduces"
    assert not backward_waits_ns(looked_at(waiting_for_each(op="all_gather")))
    beside = made(lambda _: [Kernel(start=0, end=350), Sent(start=300, end=400, phase="backward", size_bytes=36 * MIB)])
    assert not backward_waits_ns(looked_at(beside))


def test_horovod_reduces_beside_backward_without_a_phase() -> None:
    call = Sent(start=300, end=800, launch=250, size_bytes=36 * MIB)
    copy = Kernel(start=0, end=600, name="void horovod::common::batched_memcpy_k<0>")
    given = looked_at(made(lambda _: [copy, call, Kernel(start=800, end=990)]))
    assert go_beside_backward(given)
    assert {instead(given, cause) for cause in BESIDE_BACKWARD} == {OF_HOROVOD}


@pytest.mark.parametrize(
    ("sizes", "computes", "one"),
    [
        pytest.param((36, 72), 200, True, id="twice the bytes in twice the time"),
        pytest.param((36, 36), 200, False, id="all of one size"),
        pytest.param((36, 200), 200, False, id="at other speeds"),
        pytest.param((36, 72), 850, False, id="compute takes longer"),
    ],
)  # fmt: skip
def test_fewer_bytes_are_advised_where_transfer_at_one_bandwidth_takes_most_of_a_step(
    sizes: tuple[int, int], computes: float, *, one: bool
) -> None:
    calls = [
        Sent(start=at, end=at + took, launch=50, op="reduce_scatter", size_bytes=size * MIB)
        for at, took, size in ((200, 500 / 2, sizes[0]), (451, 500, sizes[1]))
    ]  # fmt: skip
    given = looked_at(made(lambda _: [Kernel(start=0, end=computes), *calls]))
    found = one_bandwidth_gbs(given)
    assert (found is not None) == one
    if one:
        assert found == pytest.approx(36 * MIB / 2 / 250_000, rel=0.02)
        assert instead(given, "tail").startswith("# transfer takes longer than compute")
    loss = largest_loss(given, [])
    assert loss
    assert ("; transfer takes longer than compute (0.2 ms)" in loss.title) == one


@pytest.mark.parametrize(("op", "gradients"), [("all_to_all", False), ("all_reduce", True)])
def test_nothing_is_advised_about_gradients_where_other_calls_are_exposed(op: str, *, gradients: bool) -> None:
    """As the exchange of experts, beside buckets of gradients that are overlapped."""
    exchange = Sent(start=650, end=950, launch=600, op=op, group="h", size_bytes=36 * MIB)
    given = looked_at(
        made(
            lambda _: [
                Range(name="DistributedDataParallel.forward", start=0, end=50), Kernel(start=0, end=640),
                Sent(start=100, end=400, launch=90, phase="backward", size_bytes=36 * MIB),
                exchange, Kernel(start=951, end=990, launch=60),
            ]
        )
    )  # fmt: skip
    assert ("gradients" in instead(given, "dependency")) == gradients


@pytest.mark.parametrize("calls", [1, 2])
def test_of_gradients_that_fsdp_reduces_in_backward_nothing_is_advised(calls: int) -> None:
    given = looked_at(made(lambda _: queue(*in_a_row(calls, op="reduce_scatter", size_bytes=36 * MIB))))
    sharded = replace(given, job=replace(given.job, frameworks=("fsdp2",)))
    for cause in BESIDE_BACKWARD:
        assert instead(given, cause) == (INSTEAD[cause] if calls == 1 else RUN_ON), "two run on in a row"
        assert instead(sharded, cause) == OF_OTHERS[cause]


def test_16_bits_are_not_advised_of_a_last_bucket_that_is_sent_in_them() -> None:
    call = Sent(start=300, end=800, launch=250, phase="backward", size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=600), call, Kernel(start=800, end=990)]))
    rows = [replace(row, dtype="bfloat16") for row in given.analysis.collectives]
    narrow = replace(given, analysis=replace(given.analysis, collectives=rows))
    assert ("16 bits" in instead(given, "tail"), "16 bits" in instead(narrow, "tail")) == (True, False)


@pytest.mark.parametrize("group", ["g", "not known"])
def test_exposed_time_of_calls_is_a_mean_over_all_ranks_of_what_some_ranks_make(group: str) -> None:
    one, other = made(lambda _: queue(*in_a_row(2))), made(lambda _: [Kernel(start=0, end=990)])
    run = replace(one, ranks={0: one.ranks[0], 1: other.ranks[1]}, groups=() if group != "g" else one.groups)
    given = looked_at(run)
    whole = sum(each.exposed_comm_ns or 0 for rank in given.analysis.ranks for each in rank.steps if each.complete)
    assert given.exposed_ns(given.analysis.collectives) == pytest.approx(whole / len(run.ranks) / given.steps, rel=0.01)


def test_calls_whose_group_has_its_size_from_matching_count_for_those_that_make_them() -> None:
    """Ranks 0 and 1 make calls of group g, all three of h; sizes of groups were not recorded."""
    of_all = Sent(start=500, end=900, launch=60, group="h", size_bytes=2 * MIB)
    both = made(lambda _: queue(Sent(start=300, end=500, launch=50), of_all))
    ranks = {**both.ranks, 2: replace(made(lambda _: queue(of_all)).ranks[1], rank=2)}
    bare = {
        rank: replace(each, collectives=replace(each.collectives, group_size=np.full(each.collectives.op.size, NONE)))
        for rank, each in ranks.items()
    }
    groups = [replace(both.groups[0], name=name, ranks=own) for name, own in (("g", (0, 1)), ("h", (0, 1, 2)))]
    given = looked_at(replace(both, ranks=bare, groups=tuple(groups), world_size=3))
    (row,) = (each for each in given.analysis.collectives if each.group == "g")
    assert row.group_size == 2
    assert given.exposed_ns([row]) == pytest.approx((row.exposed_ns or 0) * 2 / 3 / given.steps)


def test_exposed_time_of_calls_is_at_most_that_of_the_steps() -> None:
    given = looked_at(made(lambda _: queue(*in_a_row(2))))
    (row,) = given.analysis.collectives
    assert given.exposed_ns([row]) > 0
    behind_steps = replace(row, exposed_ns=3 * (row.exposed_ns or 0))
    assert given.exposed_ns([behind_steps]) == pytest.approx(given.exposed_ns([row]))


@pytest.mark.parametrize(("us", "named"), [(5, ""), (30, ", reduce_scatter")])
def test_operations_with_next_to_none_of_the_exposed_time_are_not_named(us: int, named: str) -> None:
    step = [
        Kernel(start=0, end=100), Sent(start=100, end=300, op="all_gather"), Kernel(start=300, end=400),
        Sent(start=400, end=600), Kernel(start=600, end=700), Sent(start=700, end=700 + us, op="reduce_scatter"),
        Kernel(start=750, end=990),
    ]  # fmt: skip
    found = largest_loss(looked_at(made(lambda _: step)), [])
    assert found is not None
    assert f" are exposed communication (all_gather, all_reduce{named})" in found.title


def test_nothing_overlaps_with_what_was_not_recorded() -> None:
    """Before a rank's first span, and outside its window."""
    given = looked_at(made(lambda _: queue(*in_a_row(2))))
    free = given.besides_ns(given.step_ns)
    assert free == given.step_ns - (given.figures.comm_ns or 0)
    less = replace(given.figures, start_of_recording_ns=20 * US, outside_ns=3 * US)
    assert replace(given, figures=less).besides_ns(given.step_ns) == free - 23 * US
