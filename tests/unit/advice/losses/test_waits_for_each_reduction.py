"""Where DDP overlaps nothing, wait events say that backward waits for each reduction; without them launches and times
of calls say what keeps compute from running beside them."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.blocked_host import LOST_NS, blocking_calls
from overlapscope.advice.losses.gradient_passes import (
    after_first_gradient_ns,
    backward_waits_ns,
    beside_backward_ns,
)
from overlapscope.advice.losses.own_calls import OF_OTHERS, of_gradients
from overlapscope.advice.step_shape import (
    CUDA,
    OF_UNNAMED,
    ONE_BUCKET,
    WAITS,
    launches_of,
    overlap_without_effect,
)
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import UNNAMED
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_exposed_calls import looked_at

MIB = 1 << 20
DDP = Range(name="DistributedDataParallel.forward", start=1, end=2)


def with_waits(timeline: RankTimeline, moments: tuple[float, ...]) -> RankTimeline:
    """Return a rank whose host makes a stream wait for an event at these times of each step, in us."""
    table = NameTable(timeline.names)
    at = [EPOCH_NS + round((step * STEP + us) * US) for step in range(STEPS) for us in moments]
    rows = [
        {"recording": 0, "lane": 2, "kind": RUNTIME, "name": "cudaStreamWaitEvent", "start_ns": ns, "end_ns": ns + 100}
        for ns in at
    ]
    host = fact_table(HostSpans, rows, table)
    return replace(timeline, names=tuple(table.to_list()), host=host)


def ddp(*waits: float, gap: float = 150, forward: Range = DDP, optimizer: Range | None = None) -> Run:
    """Return a host that is ahead, and launches three calls with compute between them that runs for `gap` us."""
    first, second = 400 + gap, 500 + 2 * gap
    buckets = {"size_bytes": 36 * MIB, "phase": "backward"}
    run = made(
        lambda _: [
            forward,
            *([optimizer] if optimizer else []),
            Kernel(start=0, end=300, launch=5),
            Sent(start=300, end=400, launch=10, **buckets),  # type: ignore[arg-type]
            Kernel(start=400, end=first, launch=14),
            Sent(start=first, end=first + 100, launch=20, **buckets),  # type: ignore[arg-type]
            Kernel(start=first + 100, end=second, launch=24),
            Sent(start=second, end=second + 100, launch=30, **buckets),  # type: ignore[arg-type]
            Kernel(start=second + 100, end=990, launch=34),
        ]
    )
    return replace(run, ranks={rank: with_waits(each, waits) for rank, each in run.ranks.items()})


def test_backward_that_is_made_to_wait_for_each_reduction_is_to_wait_once() -> None:
    found = fired(ddp(12, 22, 32))["overlap_without_effect"]
    assert found.title == (
        "Wait once for gradients, before the optimizer: backward waits for each reduction, and of 0.3 ms of "
        "communication a step 0 ms are overlapped"
    )
    assert found.apply == {"ddp": WAITS}
    assert found.gain_high_ns == pytest.approx(200 * US, rel=0.01), "of 300 exposed; nothing is left beside the last"


def test_the_gain_is_at_most_the_compute_between_the_calls() -> None:
    found = fired(ddp(12, 22, 32, gap=50))["overlap_without_effect"]
    assert found.gain_high_ns == pytest.approx(100 * US, rel=0.01)


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param((), id="no waits"),
        pytest.param((9, 19, 29), id="of the streams of calls, before each"),
        pytest.param((32, 33), id="once, after the last call"),
    ],
)
def test_other_waits_say_that_streams_run_one_after_the_other(waits: tuple[float, ...]) -> None:
    found = fired(ddp(*waits))["overlap_without_effect"]
    assert found.title.startswith("Nothing overlaps: ")
    assert found.apply == {"environment": f"unset {CUDA[1]}  # one queue serialises streams"}, "no call waits for data"


def unnamed(run: Run) -> Run:
    """Return what is known of calls by their kernels alone: no operation, size or phase."""

    def own(timeline: RankTimeline) -> RankTimeline:
        names, calls = (*timeline.names, UNNAMED), timeline.collectives
        op, phase = np.full_like(calls.op, len(names) - 1), np.full_like(calls.phase, -1)
        unknown = replace(calls, op=op, phase=phase, bytes=np.full_like(calls.bytes, NONE))
        return replace(timeline, names=names, collectives=unknown)

    return replace(run, ranks={rank: own(each) for rank, each in run.ranks.items()})


OPTIMIZER = Range(name="Optimizer.step#AdamW.step", start=33, end=36)


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        pytest.param({"optimizer": OPTIMIZER}, True, id="between forward and the optimizer"),
        pytest.param({}, False, id="no optimizer is known"),
        pytest.param(
            {"optimizer": OPTIMIZER, "forward": Range(name=DDP.name, start=1, end=11)},
            False,
            id="forward makes some, too",
        ),
        pytest.param({"optimizer": Range(name=OPTIMIZER.name, start=3, end=4)}, False, id="after the optimizer"),
    ],
)
def test_calls_known_by_kernels_alone_are_of_gradients_between_forwards_and_optimizers(
    more: dict[str, Range], *, is_said: bool
) -> None:
    run = unnamed(ddp(12, 22, 32, **more))  # type: ignore[arg-type]
    found = fired(run).get("overlap_without_effect")
    assert (found is not None) == is_said
    assert backward_waits_ns(looked_at(run)) == (pytest.approx(200 * US, rel=0.01) if is_said else 0)
    if found is not None:
        assert found.apply == {"ddp": WAITS}
        assert found.gain_high_ns == pytest.approx(200 * US, rel=0.01), "of 300 exposed, as where calls have names"
        assert OF_UNNAMED in found.assumed


def cut(run: Run) -> Run:
    """Return what a recording keeps that lacks the launch of its last call, and those after it."""

    def own(timeline: RankTimeline) -> RankTimeline:
        calls, spans = timeline.collectives, timeline.spans
        last = np.arange(calls.op.size) == calls.op.size - 1
        known = np.where(last, NONE, calls.launch_ns)
        launched = np.where(spans.launch_ns > known.max(), NONE, spans.launch_ns)
        return replace(timeline, collectives=replace(calls, launch_ns=known), spans=replace(spans, launch_ns=launched))

    return replace(run, ranks={rank: own(each) for rank, each in run.ranks.items()})


def test_a_call_after_which_no_launch_is_known_says_nothing_of_waits() -> None:
    assert fired(cut(ddp(12, 22, 32)))["overlap_without_effect"].apply == {"ddp": WAITS}


def test_calls_that_are_launched_at_once_had_their_gradients_at_once() -> None:
    """DDP sends buckets in the order in which gradients were ready in its first step."""
    assert "overlap_without_effect" not in fired(ddp(gap=1))


def passes(*, gap: float) -> Run:
    """Return steps of two passes of backward, each with two calls that `gap` us of compute lie between, and with an
    optimizer for which a stream is made to wait after the second call."""

    def one(at: float, launch: float) -> list[Kernel | Sent | Range]:
        buckets = {"size_bytes": 36 * MIB, "phase": "backward"}
        second = at + 250 + gap
        return [
            Kernel(start=at, end=at + 200, launch=launch + 1),
            Sent(start=at + 200, end=at + 250, launch=launch + 2, **buckets),  # type: ignore[arg-type]
            *[Kernel(start=at + 250, end=second, launch=launch + 3)] * (gap > 0),
            Sent(start=second, end=second + 50, launch=launch + 4, **buckets),  # type: ignore[arg-type]
            Range(name="Optimizer.step#Adam.step", start=launch + 6, end=launch + 8),
            Kernel(start=second + 50, end=second + 60, launch=launch + 7),
        ]

    run = made(lambda _: [DDP, *one(0, 10), *one(500, 30)])
    waits = [at + after for at in (10, 30) for after in ((2.5, 4.5) if gap else (4.5,))]
    return replace(run, ranks={rank: with_waits(each, tuple(waits)) for rank, each in run.ranks.items()})


def test_reductions_of_a_pass_at_its_end_do_not_wait_for_those_of_the_next() -> None:
    """Forward and backward of the second pass lie between the second call and the third, but need what the optimizer
    makes of the first two."""
    run = passes(gap=0)
    assert "overlap_without_effect" not in fired(run)
    given = looked_at(run)
    assert (backward_waits_ns(given), beside_backward_ns(given)) == (0, 0)
    assert of_gradients(given, "dependency") == OF_OTHERS["dependency"], "and not to begin them during backward"


def test_the_gain_of_one_wait_is_that_of_each_pass() -> None:
    found = fired(passes(gap=60))["overlap_without_effect"]
    assert found.apply == {"ddp": WAITS}
    assert found.gain_high_ns == pytest.approx(2 * 50 * US, rel=0.01), "the first call of each pass, beside 60 us"


STORED = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@pytest.mark.parametrize(
    ("ready", "left_us"),
    [
        pytest.param((12, 24), 150, id="before the second kernel was launched"),
        pytest.param((22, 24), None, id="when backward had launched all"),
        pytest.param((), 200, id="not known"),
    ],
)
def test_one_bucket_can_go_beside_what_follows_the_first_gradient(ready: tuple[float, ...], left_us: int) -> None:
    stored = [Range(name=STORED, start=at, end=at + 2) for at in ready]
    kernels = [Kernel(start=0, end=300, launch=10), Kernel(start=300, end=450, launch=20)]
    call = Sent(start=450, end=650, launch=25, size_bytes=36 * MIB, phase="backward")
    found = fired(made(lambda _: [DDP, *stored, *kernels, call, Kernel(start=650, end=990, launch=30)]))
    assert (advised := found.get("overlap_without_effect")) is None or advised.apply == {"ddp": ONE_BUCKET}
    assert (advised and advised.gain_high_ns) == (left_us and pytest.approx(left_us * US, rel=0.01))


def test_a_compiled_graph_stores_gradients_only_when_it_ends() -> None:
    stored = [Range(name=STORED, start=24, end=26), Range(name="CompiledFunctionBackward", start=9, end=23)]
    call = Sent(start=450, end=650, launch=25, size_bytes=36 * MIB, phase="backward")
    work = [Kernel(start=0, end=450, launch=10), call, Kernel(start=650, end=990, launch=30)]
    assert after_first_gradient_ns(looked_at(made(lambda _: [DDP, *stored, *work]))) == np.inf
    assert after_first_gradient_ns(looked_at(made(lambda _: [DDP, stored[0], *work]))) == 0


@pytest.mark.parametrize("unknown", [slice(-1, None), slice(None)], ids=["the last call", "all calls"])
def test_calls_that_never_ended_say_only_when_they_were_launched(unknown: slice) -> None:
    timeline = ddp(gap=1).ranks[0]
    calls = timeline.collectives
    start, end = calls.start_ns.copy(), calls.end_ns.copy()
    start[unknown] = end[unknown] = NONE
    never = replace(timeline, collectives=replace(calls, start_ns=start, end_ns=end))
    assert launches_of(never, STEP * US).together


@pytest.mark.parametrize(("sized", "said"), [(True, ONE_BUCKET), (False, None)], ids=["one call", "no sizes"])
def test_that_all_gradients_are_in_one_bucket_is_said_of_calls_with_sizes_alone(*, sized: bool, said: str) -> None:
    call = Sent(start=500, end=900, launch=490, size_bytes=36 * MIB, phase="backward")
    run = made(lambda _: [DDP, Kernel(start=0, end=500), call, Kernel(start=900, end=990)])
    if not sized:
        unsized = {
            rank: replace(each, collectives=replace(each.collectives, bytes=np.full_like(each.collectives.bytes, NONE)))
            for rank, each in run.ranks.items()
        }
        run = replace(run, ranks=unsized)
    assert fired(run)["overlap_without_effect"].apply.get("ddp") == said


@pytest.mark.parametrize(
    ("waited_us", "tail_us", "by_waits"),
    [
        pytest.param(30, 250, True, id="most of what is before the last call, a fiftieth of a step"),
        pytest.param(24, 250, False, id="less than half of it"),
        pytest.param(15, 280, False, id="less than a fiftieth of a step"),
    ],
)
def test_where_hosts_wait_for_most_of_these_calls_their_waits_are_named(
    waited_us: int, tail_us: int, *, by_waits: bool
) -> None:
    """300 us of each step of 1,000 are exposed."""
    given = looked_at(ddp())
    causes = {"host_waited": waited_us * US, "tail": tail_us * US}
    given = replace(given, figures=replace(given.figures, causes=causes))
    assert (overlap_without_effect(given) is None) == by_waits
    waits = blocking_calls(given)
    assert (waits is not None) == (waited_us >= 20), "also below a twentieth of a step"
    if waits is not None:
        idle_ns = given.figures.idle_ns or 0
        assert waits.gain_high_ns == waited_us * US + waits.evidence["blocking_ns"]
        assert waits.evidence[LOST_NS] == (300 - tail_us) * US + idle_ns
