"""Overlap, or half of the bytes, saves what ends with the calls: not waiting, nor what the host or compute takes."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import Rule
from overlapscope.advice.calls.embedding_tail import embedding_tail
from overlapscope.advice.calls.repeated_broadcasts import repeated_broadcasts
from overlapscope.advice.calls.savings import (
    as_fast_beside,
    faster_beside_half_ns,
    moving_ns,
    saved_by_half_ns,
    saved_by_overlap_ns,
)
from overlapscope.advice.model_parallel import expert_parallel, tensor_parallel
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.per_rank.interference import Interference
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Item, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import fired, last_gradient

MIB = 1 << 20


def looked_at(run: Run, *, ranks: int = 2) -> RuleInput:
    known = replace(run, ranks={rank: each for rank, each in run.ranks.items() if rank < ranks})
    together = match_and_align(known)
    return RuleInput.of(known, analyze(known, together), together)


def times(start: float, end: float) -> Intervals:
    """Return this time, in us, of each step."""
    begin = EPOCH_NS + np.arange(STEPS) * STEP * US
    return union((begin + round(start * US), begin + round(end * US)))


def layers(*, first: float = 600, apart: float = 20, phases: Sequence[str | None] = (None, "backward")) -> list[Item]:
    """Return five calls in forward, of which the first one waits from a moment on, and five in backward, with compute
    between them."""
    items: list[Item] = [Kernel(start=0, end=100)]
    for at in range(10):
        begin, phase = (first if at == 0 else 700 + 28 * at), phases[at // 5]
        end = 720 + 28 * at
        items.append(Sent(start=begin, end=end, launch=50, group="t", phase=phase, size_bytes=4 * MIB))
        items.append(Kernel(start=end, end=end + 28 - apart, launch=51))
    return items


@pytest.mark.parametrize(("dimension", "rule"), [("tensor", tensor_parallel), ("expert", expert_parallel)])
def test_calls_of_which_members_were_not_recorded_are_held_to_wait_beyond_what_their_like_take(
    dimension: str, rule: Rule
) -> None:
    items = [replace(each, dimension=dimension) if isinstance(each, Sent) else each for each in layers()]
    given = looked_at(made(lambda _: items), ranks=1)
    rows = given.analysis.collectives
    assert given.united_ns(rows)[0] == (120 + 9 * 20) * US
    assert saved_by_overlap_ns(given, rows) == pytest.approx((1.25 * 20 + 9 * 20) * US)
    found = rule(given)
    assert found is not None
    assert found.gain_high_ns == (1.25 * 20 + 9 * 20) * US


@pytest.mark.parametrize(("dimension", "rule"), [("tensor", tensor_parallel), ("expert", expert_parallel)])
def test_no_more_is_said_to_be_exposed_than_the_headline_has(dimension: str, rule: Rule) -> None:
    """Where steps are uneven the mean, which calls are summed by, is more than the median."""
    items = [replace(each, dimension=dimension) if isinstance(each, Sent) else each for each in layers()]
    given = looked_at(made(lambda _: items))
    median = replace(given.figures, exposed_comm_ns=250 * US)
    whole, less = rule(given), rule(replace(given, figures=median))
    assert whole is not None
    assert less is not None
    assert ": 0.3 ms of a" in whole.title
    assert ": 0.25 ms of a" in less.title


@pytest.mark.parametrize(("other_until", "words"), [(900, ", 0.4 ms of it beside other calls"), (330, "")])
def test_exposed_time_of_calls_in_which_others_are_exposed_is_said(other_until: float, words: str) -> None:
    """Of 400 us of a call of tensor parallelism another one, of data parallelism, shares all, or 30."""
    items = [
        Kernel(start=0, end=300),
        Sent(start=300, end=700, group="t", dimension="tensor"),
        Sent(start=300, end=other_until, op="reduce_scatter", dimension="data"),
        Kernel(start=700, end=710, launch=250),
        Kernel(start=900, end=990),
    ]
    found = tensor_parallel(looked_at(made(lambda _: items)))
    assert found is not None
    assert f"are exposed (all_reduce){words}, each of a whole activation" in found.title


@pytest.mark.parametrize(
    ("cause", "saved"),
    [("dependency", True), ("tail", True), ("queued", True), ("unknown", True), ("behind_compute", False),
     ("behind_copy", False), ("host_not_ready", False), ("late_launch", False)],
)  # fmt: skip
def test_time_in_which_the_next_compute_waits_for_something_else_is_not_saved(cause: str, *, saved: bool) -> None:
    call = Sent(start=300, end=800, launch=250, size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=400), call, Kernel(start=800, end=990)]))
    named = {cause: times(400, 700), "slow_transfer": times(700, 800)}
    parts = {rank: replace(each, by_graph=named) for rank, each in given.parts.items()}
    given = replace(given, parts=parts)
    assert saved_by_overlap_ns(given, given.analysis.collectives) == (400 if saved else 100) * US


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_half_of_the_transfer_moves_the_ends_of_calls_that_stand_behind_each_other(seed: int) -> None:
    """Each was launched some time before it began; where it directly follows the one before, it stood behind that. No
    compute lies between those of a row: what waits for them begins as the last one ends."""
    drawn = np.random.default_rng(seed)
    took, gap = drawn.integers(10, 60, 8), drawn.integers(0, 2, 8) * 40
    ends = 100 + np.cumsum(took + gap)
    computed = int(drawn.integers(100, ends[-1]))
    waited = drawn.integers(1, 50, 8)
    calls = [
        Sent(start=int(end - each), end=int(end), launch=int(end - each - lead), phase="backward", size_bytes=MIB)
        for end, each, lead in zip(ends, took, waited, strict=True)
    ]
    given = looked_at(made(lambda _: [Kernel(start=0, end=computed, launch=999), *calls]))
    timeline, windows, parts = given.run.ranks[0], given.windows[0], given.parts[0]
    depends = replace(parts, by_graph={"dependency": times(0, STEP)})
    rows, transfer = np.arange(8 * STEPS), timeline.collectives.end_ns - timeline.collectives.start_ns
    found = saved_by_half_ns(replace(given, parts={0: depends, 1: depends}), timeline, windows, rows, transfer)

    earlier, rows_of = 0.0, [(0.0, 0.0, 0.0)]
    for at in range(8):
        stood = int(waited[at]) * US if at and gap[at] == 0 else 0
        earlier = took[at] * US / 2 + min(earlier, stood)
        exposed = max(int(ends[at]) - max(int(ends[at] - took[at]), computed), 0) * US
        if not stood:
            rows_of.append((0.0, 0.0, 0.0))
        rows_of[-1] = rows_of[-1][0] + min(earlier, exposed), rows_of[-1][1] + took[at] * US / 2, earlier
    assert found == pytest.approx(sum(map(min, rows_of)))


def last_reductions(*, launch: float = 100, computed: float) -> float:
    """Return what half of the bytes saves, in us a step, of two reductions of 200 us, the second one right after the
    first, from 400 to 800, all exposed but for 50 us until some moment, which are launched before the second one."""
    items = [
        Kernel(start=0, end=50, launch=1), Kernel(start=computed - 50, end=computed, launch=launch - 0.5),
        Sent(start=400, end=600, launch=90), Sent(start=600, end=800, launch=launch),
        Kernel(start=801, end=990, launch=launch + 1),
    ]  # fmt: skip
    given = looked_at(made(lambda _: items))
    parts = {rank: replace(each, by_graph={"dependency": times(0, STEP)}) for rank, each in given.parts.items()}
    rows = np.arange(2 * STEPS)
    each_ns = np.full(rows.size, 200 * US)
    return saved_by_half_ns(replace(given, parts=parts), given.run.ranks[0], given.windows[0], rows, each_ns) / US


def test_a_reduction_begins_no_earlier_than_compute_launched_before_it_ends() -> None:
    """The first one ends 100 us earlier; the second one lasts 100 us less, and may begin as its gradient is ready."""
    assert last_reductions(computed=200) == 200
    assert last_reductions(computed=570) == 130
    assert last_reductions(computed=650) == 200, "it did not wait for that: nor does any of its stream"


def test_what_waits_for_several_calls_begins_as_the_last_of_them_ends() -> None:
    """The second one was launched 10 us before it began: it ends 110 us earlier, though the first one saves 100 too."""
    assert last_reductions(launch=590, computed=200) == 110
    assert last_reductions(launch=590, computed=651) == 200, "compute after the first one waits for that alone"


def test_calls_on_several_streams_at_once_save_no_more_than_their_time() -> None:
    calls = [Sent(start=300, end=800, launch=250, size_bytes=36 * MIB) for _ in range(3)]
    given = looked_at(made(lambda _: [Kernel(start=0, end=300), *calls, Kernel(start=800, end=990)]))
    parts = {rank: replace(each, by_graph={"dependency": times(0, STEP)}) for rank, each in given.parts.items()}
    timeline = given.run.ranks[0]
    spans = timeline.spans
    streams = np.where(spans.collective == NONE, 0, 1 + spans.collective % 3).astype(spans.lane.dtype)
    apart = replace(timeline, spans=replace(spans, lane=streams))
    rows = np.arange(3 * STEPS)
    each_ns = np.full(rows.size, 500 * US)
    found = saved_by_half_ns(replace(given, parts=parts), apart, given.windows[0], rows, each_ns)
    assert found == 500 * US, "not three times 250"
    one = saved_by_half_ns(replace(given, parts=parts), apart, given.windows[0], rows[::3], each_ns[::3])
    assert one == 250 * US


@pytest.mark.parametrize("high", [None, 1.25])
def test_compute_beside_calls_is_slowed_for_half_as_long_where_that_was_measured(high: float | None) -> None:
    call = Sent(start=300, end=700, launch=250, size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=600), call, Kernel(start=800, end=990)]))
    rows = np.arange(STEPS)
    assert given.analysis.ranks[0].interference is None
    if high is not None:
        slowed = Interference(times=1.2, low=1.1, high=high, launches=9, compared_share=1.0, classes=[])
        ranks = [replace(each, interference=slowed) for each in given.analysis.ranks]
        given = replace(given, analysis=replace(given.analysis, ranks=ranks))
    found = faster_beside_half_ns(given, given.run.ranks[0], rows, np.full(STEPS, 200 * US))
    assert found == pytest.approx(0 if high is None else 100 / 2 * (1 - 1 / high) * US), "from 500 to 600 us"
    assert len(as_fast_beside(given)) == (high is None)
    alone = looked_at(made(lambda _: [Kernel(start=0, end=300), call, Kernel(start=800, end=990)]))
    assert as_fast_beside(alone) == [], "nothing is computed beside it"


@pytest.mark.parametrize(("group", "least"), [("g", 36), ("", 160)])
def test_half_of_the_bytes_halves_no_latency(group: str, least: float) -> None:
    """A call of 2 MiB takes 160 us, one of 20 MiB in its group 240: a byte takes at most 1.5 times as long as there."""
    calls = [
        Sent(start=100, end=260, launch=50, group=group, size_bytes=2 * MIB),
        Sent(start=300, end=540, launch=50, group=group, size_bytes=20 * MIB),
    ]
    timeline = made(lambda _: [Kernel(start=0, end=90), *calls]).ranks[0]
    if not group:
        without = np.full_like(timeline.collectives.group, -1)
        timeline = replace(timeline, collectives=replace(timeline.collectives, group=without))
    took = timeline.collectives.end_ns - timeline.collectives.start_ns
    assert moving_ns(timeline, np.arange(took.size), took).tolist() == [least * US, 240 * US] * STEPS


def test_what_is_exposed_of_a_last_bucket_is_said_beside_what_of_it_can_be_saved() -> None:
    given = looked_at(last_gradient([100, 120, 100, 900]))
    late = {"host_not_ready": times(700, 750), "dependency": times(750, 850)}
    parts = {rank: replace(each, by_graph=late) for rank, each in given.parts.items()}
    found = embedding_tail(replace(given, parts=parts))
    assert found is not None
    assert "0.15 ms of its all-reduce are exposed, of which 0.1 ms can be saved at most, and no bucket" in found.title
    assert (found.gain_high_ns, found.evidence["tail_ns"]) == (100 * US, 150 * US)


def test_all_reduces_of_one_size_before_backward_and_in_it_may_be_of_tensor_parallelism() -> None:
    found = fired(made(lambda _: layers(first=700)))["tensor_parallel"]
    assert found.title.startswith("Overlap all-reduces of one size in forward and backward (tensor parallelism?)")
    assert found.gain_high_ns == 10 * 20 * US
    assert "tensor_parallel" not in fired(made(lambda _: layers(first=700, phases=("backward", "backward"))))
    assert "tensor_parallel" not in fired(made(lambda _: layers(first=700, phases=(None, None))))
    after = made(lambda _: layers(first=700, phases=("backward", None)))
    assert "tensor_parallel" not in fired(after), "as gradients that are reduced after backward"


def test_of_a_giant_all_reduce_that_may_wait_for_ranks_that_were_not_recorded_this_is_said() -> None:
    def titled(ranks: int) -> str:
        run = made(lambda _: [Kernel(start=0, end=400), Sent(start=400, end=800, launch=250, size_bytes=2 << 30)])
        return fired(replace(run, ranks={rank: run.ranks[rank] for rank in range(ranks)}))["split_all_reduce"].title

    assert titled(2).endswith("0.4 ms of a 1 ms step are exposed")
    assert titled(1).endswith("0.4 ms of a 1 ms step are exposed, waiting included")


def broadcasting() -> Run:
    call = Sent(start=600, end=800, launch=250, op="broadcast")
    return made(lambda _: [Kernel(start=0, end=600), call, Kernel(start=800, end=990)])


@pytest.mark.parametrize(
    ("run", "rule"), [(broadcasting(), repeated_broadcasts), (last_gradient([100, 120, 100, 900]), embedding_tail)]
)
def test_neither_are_broadcasts_or_a_last_bucket_worth_time_that_the_host_takes_meanwhile(run: Run, rule: Rule) -> None:
    def because_of(cause: str) -> Recommendation | None:
        given = looked_at(run)
        parts = {rank: replace(each, by_graph={cause: times(0, STEP)}) for rank, each in given.parts.items()}
        return rule(replace(given, parts=parts))

    assert because_of("dependency") is not None
    assert because_of("host_not_ready") is None
