"""Interference: made factors are found again within their intervals, and what cannot be compared says why."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.per_rank.interference import Estimate, Interference, interference
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import interference_text
from overlapscope.timeline.columns import COMPUTE, NONE, Spans, concat, make
from overlapscope.timeline.intervals import EMPTY, Intervals, WindowSets, union
from tests.conftest import shared_file
from tests.property.synthetic.interference import Slowed, draw, spans_of
from tests.support.step_cases import STEP, Kernel, made

US = 1_000
MS = 1_000_000
KERNELS = 6
LAUNCHES = 8
JOBS = 40


def value(found: Estimate) -> Interference:
    assert isinstance(found.value, Interference), found.value
    return found.value


def recorded(truth: float, *, steps: int, moves: bool, seed: int = 3, extra: bool = False) -> tuple[Spans, Intervals]:
    """Steps of kernels with a shape for each launch; a transfer covers some launches, others in each step."""
    drawn = random.Random(seed)
    shape = {(kernel, launch): drawn.randint(12_000, 90_000) for kernel in range(KERNELS) for launch in range(LAUNCHES)}
    rows: list[tuple[int, int, int, int]] = []
    transfers = []
    now = 0
    for step in range(steps):
        covered = drawn.randrange(KERNELS * LAUNCHES // 2) if moves else KERNELS
        begun = now
        for place, (kernel, launch) in enumerate((k, n) for n in range(LAUNCHES) for k in range(KERNELS)):
            beside = covered <= place < covered + KERNELS * LAUNCHES // 2
            if place == covered:
                begun = now
            took = round(shape[kernel, launch] * (truth if beside else 1.0) * drawn.uniform(0.99, 1.01))
            rows.append((step, kernel, now, now + took))
            now += took
            if place == covered + KERNELS * LAUNCHES // 2 - 1:
                transfers.append((begun, now))
        if extra and step == 1:  # one step launches a kernel more often, in front of all others: other work
            rows += [(step, 0, begun - 10, begun)]
    table = np.array(rows)
    spans = make(
        Spans, len(rows), kind=np.full(len(rows), COMPUTE), step=table[:, 0], name=table[:, 1],
        start_ns=table[:, 2], end_ns=table[:, 3],
    )  # fmt: skip
    starts, ends = np.array(transfers, np.int64).T
    return spans, union((starts, ends))


@pytest.mark.parametrize("truth", [1.0, 1.3, 1.9])
@pytest.mark.parametrize("extra", [False, True])
def test_a_made_factor_is_found_again_whatever_the_shapes(truth: float, extra: bool) -> None:
    found = value(interference(*recorded(truth, steps=6, moves=True, extra=extra)))
    assert found.times == pytest.approx(truth, rel=0.02)
    assert found.low - 0.02 <= truth <= found.high + 0.02
    assert found.compared_share > 0.3


def test_launches_beside_other_communication_are_not_free_of_it() -> None:
    spans, every = recorded(1.3, steps=12, moves=True)
    own, other = (Intervals(every.starts[first::2], every.ends[first::2]) for first in (0, 1))
    assert value(interference(spans, own, other=other)).times == pytest.approx(1.3, rel=0.02)
    assert interference(spans, own).value == "never_both", "free of it, launches seem to differ from step to step"


@pytest.mark.slow
@pytest.mark.parametrize("times", [None, 1.0])
def test_the_interval_covers_the_known_factor_of_generated_jobs(times: float | None) -> None:
    jobs = [draw(seed, times) for seed in range(5_000, 5_000 + JOBS)]
    found = [(job.times, interference(spans_of(job)[0]).value) for job in jobs]
    known = [(truth, each) for truth, each in found if isinstance(each, Interference)]
    assert len(known) >= 0.7 * JOBS
    assert {each for _, each in found if isinstance(each, str)} <= {"too_few", "never_both"}
    assert sum(each.low <= truth <= each.high for truth, each in known) >= 0.85 * len(known)
    assert np.median([each.high - each.low for _, each in known]) < 0.05
    assert abs(np.mean([each.times / truth - 1 for truth, each in known])) < 0.01


@pytest.mark.slow
def test_the_interval_covers_the_mean_of_transfers_that_slow_compute_unequally() -> None:
    """What runs beside one transfer is slowed together: so many launches are not as many observations."""
    covered = known = 0
    for seed in range(5_000, 5_000 + JOBS):
        job = replace(draw(seed, 1.4), unlike=0.4)
        spans, lost_ns = spans_of(job)
        estimate = interference(spans)
        if isinstance(estimate.value, Interference):
            ((_, low, high),) = (each or (0, 0, 0) for each in estimate.within(WindowSets.of([[(0, 10**12)]])))
            known += 1
            covered += low <= lost_ns <= high
    assert known >= 0.9 * JOBS
    assert covered >= 0.85 * known


@pytest.mark.slow
def test_in_steps_that_overlap_alike_repeated_layers_stand_for_each_other() -> None:
    jobs = [replace(draw(seed), jitter=0.0) for seed in range(5_000, 5_000 + JOBS)]
    found = [(job.times, interference(spans_of(job)[0]).value) for job in jobs]
    known = [(truth, each) for truth, each in found if isinstance(each, Interference)]
    assert len(known) >= 0.7 * JOBS
    assert sum(each.low <= truth <= each.high for truth, each in known) >= 0.85 * len(known)
    assert np.median([each.high - each.low for _, each in known]) < 0.15


def test_the_time_lost_is_that_of_the_generated_job() -> None:
    job = Slowed(seed=5, times=1.4, steps=6)
    spans, lost_ns = spans_of(job)
    found = interference(spans)
    middle, end = int(spans.end_ns[spans.step == 2].max()), int(spans.end_ns.max())
    parts = found.within(WindowSets.of([[(0, end)], [(0, middle)], [(middle, end)], []]))
    whole, first, second, none = [each or (0, 0, 0) for each in parts]
    assert whole[0] == pytest.approx(lost_ns, rel=0.05)
    assert whole[1] < whole[0] < whole[2] < 1.2 * lost_ns
    assert abs(first[0] + second[0] - whole[0]) <= 1
    assert none == (0, 0, 0)


def launches(lasts: Sequence[Sequence[float]], beside: Sequence[Sequence[bool]]) -> tuple[Spans, Intervals]:
    """Return kernels by step, each of a name of its own, in us, and communication just as long as chosen ones."""
    rows, moved, now = [], [], 0
    for step, (own, near) in enumerate(zip(lasts, beside, strict=True)):
        for name, (took, is_near) in enumerate(zip(own, near, strict=True)):
            end = now + round(took * US)
            rows.append((step, name, now, end))
            moved += [(now, end)] if is_near else []
            now = end + 100
    table, at = np.array(rows).T, np.array(moved, np.int64).reshape(-1, 2).T
    spans = make(Spans, len(rows), kind=COMPUTE, step=table[0], name=table[1], start_ns=table[2], end_ns=table[3],
                 launch_ns=NONE, blocks=NONE)  # fmt: skip
    return spans, union((at[0], at[1]))


def test_each_class_of_duration_has_its_own_factor_weighted_by_its_time_beside_communication() -> None:
    # Six kernels of 4 us take twice as long, six of 20 us half as long again; two more of 200 us are never compared.
    free = [4.0] * 6 + [20.0] * 6 + [200.0] * 2
    slow = [8.0] * 6 + [30.0] * 6 + [200.0] * 2
    near, far = [True] * 12 + [False] * 2, [False] * 14
    found = interference(*launches([free, slow, free, free], [far, near, far, far]))
    short, long = value(found).classes
    assert (short.from_ns, short.until_ns, short.times, short.beside_ns) == (0, 10 * US, 2.0, 48 * US)
    assert (long.from_ns, long.until_ns, long.times, long.beside_ns) == (10 * US, None, 1.5, 180 * US)
    assert found.within(WindowSets.of([[(0, 10**9)]])) == [(84 * US, 84 * US, 84 * US)]
    assert value(found).times == pytest.approx(228 / 144)


def test_a_launch_with_other_compute_beside_it_is_not_compared() -> None:
    spans, moved = recorded(1.5, steps=4, moves=True)
    other = make(Spans, 1, kind=COMPUTE, step=0, name=99, lane=1, start_ns=0, end_ns=int(spans.end_ns.max()))
    assert value(interference(spans, moved)).launches > 5
    assert interference(concat([spans, other]), moved).value == "never_both"


def test_launches_of_another_grid_or_stream_are_not_the_same() -> None:
    spans, moved = recorded(1.5, steps=4, moves=True)
    for column in ("blocks", "lane"):
        assert interference(replace(spans, **{column: spans.step}), moved).value == "never_both"


def layers(kernels: Sequence[float]) -> tuple[Spans, Intervals]:
    """Return a step of 13 alike layers; every third has communication beside it, and takes 1.25 times as long."""
    beside = [layer % 3 == 1 for layer in range(13)]
    spans, moved = launches([[took * (1.25 if near else 1.0) for near in beside for took in kernels]],
                            [[near for near in beside for _ in kernels]])  # fmt: skip
    return replace(spans, name=(spans.name % len(kernels)).astype(np.int32)), moved


def test_repeated_layers_stand_for_each_other_in_a_single_step() -> None:
    assert value(interference(*layers([12.0, 20.0, 30.0, 50.0, 90.0]))).times == pytest.approx(1.25, abs=0.001)
    assert interference(*layers([12.0, 20.0, 30.0])).value == "too_few"


def test_kernels_of_one_name_that_differ_are_told_apart_by_their_neighbours_on_the_stream() -> None:
    """Matrix products of a layer have one name and grid, and differ in how long they take."""
    spans, moved = layers([12.0, 20.0, 30.0, 60.0, 40.0, 90.0, 25.0])
    products = replace(spans, name=np.where(spans.name % 2 == 1, 1, spans.name).astype(np.int32))
    found = value(interference(products, moved))
    assert found.times == pytest.approx(1.25, abs=0.001)
    assert found.launches == 7
    beside_another = np.arange(spans.name.size) % 7 % 2 == 1  # products follow each other on a stream of their own
    apart = replace(products, lane=beside_another.astype(products.lane.dtype))
    assert interference(apart, moved).value == "too_few"


def passes(
    order: Sequence[Sequence[int]], factors: Sequence[float], beside: Sequence[bool], steps: int
) -> tuple[Spans, Intervals]:
    """Return steps of passes over kernels, in us: of pass i those of `order[i]`, of kernel k 20 + 3 k us times
    `factors[i]`, with communication beside all of it or none."""
    lasts = [(20.0 + 3 * k) * factor for own, factor in zip(order, factors, strict=True) for k in own]
    near = [each for own, each in zip(order, beside, strict=True) for _ in own]
    spans, moved = launches([lasts] * steps, [near] * steps)
    return replace(spans, name=np.array([k for own in order for k in own] * steps, np.int32)), moved


FORWARD = [*range(10)] * 4
BACKWARD = FORWARD[::-1]
OWN = [*range(10, 40)] * 2
"""Kernels of backward alone."""


@pytest.mark.parametrize(("steps", "times"), [(1, 2.0), (4, 2.0), (4, 1.05)])
def test_backward_beside_communication_is_not_compared_with_forward(steps: int, times: float) -> None:
    # The kernels of backward have the names and grids of forward, and take longer: other work, no interference.
    found = interference(*passes([FORWARD, BACKWARD], [1.0, times], [False, True], steps))
    assert found.value == "never_both"


def test_forward_that_backward_recomputes_is_not_compared_where_backward_itself_is_always_beside_communication() -> (
    None
):
    # Its caches hold other data then: it takes longer, or shorter, for that.
    found = interference(*passes([FORWARD, FORWARD + OWN], [1.0, 0.9], [False, True], 4))
    assert found.value == "never_both"


@pytest.mark.parametrize("steps", [2, 4])
def test_the_last_of_two_micro_batches_beside_communication_is_compared_with_the_first(steps: int) -> None:
    batch = [*FORWARD, *BACKWARD, *OWN]
    found = interference(*passes([batch, batch], [1.0, 1.15], [False, True], steps))
    if steps < 3:  # a change that so few steps repeat may be any
        assert found.value == "never_both"
    else:
        assert value(found).times == pytest.approx(1.15, abs=0.001)


def test_a_kernel_whose_work_differs_from_step_to_step_is_not_compared() -> None:
    """Attention takes longer in some steps, on documents that are longer; then no rank waits beside it."""
    products, factors = [50.0] * 20, [1.0, 1.3, 1.0, 1.35, 1.05, 1.25]
    beside = [True, False, True, False, False, True]
    lasts = [[(1.07 if near else 1.0) * each for each in (*products, *[80.0 * work] * 20)]
             for work, near in zip(factors, beside, strict=True)]  # fmt: skip
    spans, moved = launches(lasts, [[near] * 40 for near in beside])
    found = value(interference(replace(spans, name=(spans.name >= 20).astype(np.int32)), moved))
    assert found.times == pytest.approx(1.07, abs=0.001)
    assert found.launches == 20


def test_steps_that_overlap_alike_say_nothing() -> None:
    assert interference(*recorded(1.5, steps=6, moves=False)).value == "never_both"


def test_what_is_missing_is_said() -> None:
    spans, moved = recorded(1.5, steps=4, moves=True)
    assert interference(spans, EMPTY).value == "not_beside"
    assert interference(make(Spans, 0), EMPTY).value == "not_beside"
    assert interference(spans, moved, has_kernels=False).value == "no_kernels"
    assert interference(spans).value == "not_beside"
    assert interference(*recorded(1.5, steps=2, moves=True)).value == "never_both"


def test_a_sampled_recording_says_nothing() -> None:
    run = read_inputs([shared_file("kineto/sampled_pair")])
    assert [each.no_interference_reason for each in analyze(run).ranks] == ["never_both", "never_both"]


@pytest.mark.parametrize(
    ("low_ns", "shown"),
    [
        (5 * MS, "takes 1.25 times as long beside communication: 10.000 ms a step (90 %: 5.000 to 20.000)."),
        (3 * MS, "takes longer beside communication, by how much is not known: at most 20.000 ms a step (90 %)."),
    ],
)
def test_where_the_interval_is_wide_only_its_upper_end_is_shown(low_ns: int, shown: str) -> None:
    known = {"interference_ns": 10 * MS, "interference_low_ns": low_ns, "interference_high_ns": 20 * MS}
    estimate = Interference(times=1.25, low=1.1, high=1.4, launches=100, compared_share=1.0, classes=[])
    analysis = analyze(made(lambda _: (Kernel(start=0, end=STEP - 10),)))
    info, *_ = analysis.ranks
    steps = [replace(each, **known) for each in info.steps]
    info = replace(info, whole=replace(info.whole, **known), steps=steps, interference=estimate)
    head = replace(analysis.headline, step_ns=100 * MS, window="step", ranks=[info.rank])
    assert interference_text(replace(analysis, ranks=[info], headline=head)) == f"Compute {shown}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100_ddp_rank0of2_collective_args.json.gz", "a100_rank3of8_six_steps.json.gz"])
def test_short_kernels_are_slowed_more_than_long_ones(name: str) -> None:
    run = read_inputs([shared_file(f"kineto/{name}")])
    analysis = analyze(run)
    (info,) = analysis.ranks
    assert info.interference
    short, *long = info.interference.classes
    assert 1.4 < short.times < 2
    assert all(each.times < 1.3 for each in long)
    assert info.whole.interference_ns == pytest.approx(
        sum(each.beside_ns * (1 - 1 / each.times) for each in info.interference.classes), abs=1
    )
    steps = [each.interference_ns or 0 for each in info.steps]
    assert 0 < sum(steps) <= 1.001 * (info.whole.interference_ns or 0)
    assert "times as long beside communication" in interference_text(analysis) or max(steps) < 0.011 * (
        analysis.headline.step_ns or 0
    )
