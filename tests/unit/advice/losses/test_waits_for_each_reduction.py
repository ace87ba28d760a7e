"""Where DDP overlaps nothing, wait events say that backward waits for each reduction; without them launches and times
of calls say what keeps compute from running beside them."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.blocked_host import LOST_NS, blocking_calls
from overlapscope.advice.step_shape import (
    CUDA,
    LAST_FIRST,
    ONE_BUCKET,
    WAITS,
    launches_of,
    overlap_without_effect,
)
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans
from overlapscope.timeline.names import NameTable
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


def ddp(*waits: float, gap: float = 150) -> Run:
    """Return a host that is ahead, and launches three calls with compute between them that runs for `gap` us."""
    first, second = 400 + gap, 500 + 2 * gap
    buckets = {"size_bytes": 36 * MIB, "phase": "backward"}
    run = made(
        lambda _: [
            DDP,
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
    assert found.gain_high_ns == pytest.approx(300 * US, rel=0.01), "compute between, and what is exposed"


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


def test_calls_that_are_launched_at_once_and_follow_each_other_wait_for_the_first() -> None:
    assert fired(ddp(gap=1))["overlap_without_effect"].apply == {"ddp": LAST_FIRST}


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
