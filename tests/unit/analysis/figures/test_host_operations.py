"""In which operation threads of a CPU run computed: against a raster that looks at each nanosecond, and by hand."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.per_rank import host_operations
from overlapscope.analysis.per_rank.host_operations import (
    OperationPieces,
    StepOperations,
    operation_pieces,
    operation_times,
    pieces_within,
    step_operations,
)
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.errors import HostEventsError
from overlapscope.report.text.analysis import render
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.report.text.idle_time import empty_ranges_text
from overlapscope.timeline.columns import ANNOTATION, COMM, COMPUTE, OPERATION, RUNTIME
from overlapscope.timeline.run import RankTimeline, Run
from tests.property.examples import examples
from tests.support.cpu_runs.cpu_steps import STEPS, US, Beside, Call, Mark, Op, cpu_run
from tests.support.rank_rows import rank_timeline

LANES, SLOT, SLOTS = 2, 16, 4
LAST = SLOT * SLOTS
NAMES = ("aten::mm", "aten::add", "aten::linear")


class Event(NamedTuple):
    """What a host did on a thread; `code` is the place of its name in NAMES."""

    lane: int
    start: int
    end: int
    code: int
    kind: int = OPERATION


class Work(NamedTuple):
    """A span of a thread."""

    lane: int
    start: int
    end: int
    kind: int = COMPUTE


@st.composite
def nested(draw: st.DrawFn, begin: int, end: int) -> list[Event]:
    """Operations of both threads inside a stretch of time: those of a thread lie inside each other or side by side.

    Some have no length, some the times of the one around them; and some events are no operations.
    """
    found: list[Event] = []

    def inside(lane: int, start: int, until: int, depth: int) -> None:
        at = start
        while at < until and draw(st.booleans()):
            own = draw(st.integers(at, until))
            ends = draw(st.integers(own, until))
            kind = draw(st.sampled_from((OPERATION, OPERATION, OPERATION, ANNOTATION, RUNTIME)))
            found.append(Event(lane, own, ends, draw(st.integers(0, len(NAMES) - 1)), kind))
            if depth < 3:
                inside(lane, own, ends, depth + 1)
            at = max(ends, at + 1)

    for lane in range(LANES):
        inside(lane, begin, end, 0)
    return found


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    """Spans that cover a part of both threads, in any order; some communicate."""
    moments = st.integers(0, LAST)
    spans = st.lists(st.tuples(st.integers(0, LANES - 1), moments, moments, st.sampled_from((COMPUTE, COMM))))
    return [Work(lane, min(a, b), max(a, b), kind) for lane, a, b, kind in draw(spans)]


def timeline_of(events: Sequence[Event], spans: Sequence[Work], *, has_device: bool = False) -> RankTimeline:
    return rank_timeline(
        names=NAMES,
        work=[
            {"lane": lane, "start_ns": start, "end_ns": end, "kind": kind, "name": "host operations"}
            for lane, start, end, kind in spans
        ],
        host=[
            {"lane": each.lane, "kind": each.kind, "name": NAMES[each.code], "start_ns": each.start,
             "end_ns": each.end}
            for each in events
        ],
        recordings=[{"start_ns": 0, "end_ns": LAST, "host_events": True}],
        has_device=has_device,
    )  # fmt: skip


Raster = dict[tuple[int, int], str]
"""Name of the operation by (thread, nanosecond); nothing where it computed in none."""


def by_raster(events: Sequence[Event], spans: Sequence[Work]) -> Raster:
    """Look at every nanosecond: the operation that started last and has not ended, of the same moment the shortest."""
    found = {}
    for lane in range(LANES):
        for moment in range(LAST):
            computes = any(
                each.lane == lane and each.kind == COMPUTE and each.start <= moment < each.end for each in spans
            )
            around = [
                (each.start, -each.end, row)
                for row, each in enumerate(events)
                if each.lane == lane and each.kind == OPERATION and each.start <= moment < each.end
            ]
            if computes and around:
                found[lane, moment] = NAMES[events[max(around)[-1]].code]
    return found


def raster_of(timeline: RankTimeline, pieces: OperationPieces | None) -> Raster:
    """Return the same of pieces; each nanosecond of a thread may be in one of them only."""
    found: Raster = {}
    if pieces is None:
        return found
    rows = (getattr(pieces, name).tolist() for name in ("lane", "name", "start_ns", "end_ns"))
    for lane, name, start, end in zip(*rows, strict=True):
        assert start < end
        for moment in range(start, end):
            assert (lane, moment) not in found
            found[lane, moment] = timeline.names[name]
    return found


@examples(100)
@given(nested(0, LAST), works())
def test_a_thread_is_in_the_operation_that_began_last_and_has_not_ended_where_it_computes(
    events: list[Event], spans: list[Work]
) -> None:
    timeline = timeline_of(events, spans)
    assert raster_of(timeline, operation_pieces(timeline)) == by_raster(events, spans)


def test_of_nested_operations_the_outer_one_has_what_the_inner_ones_leave() -> None:
    """By hand: a linear from 0 to 30 holds a product from 5 to 20, which holds an addition from 10 to 12; the thread
    computes from 2 to 25. Another thread adds meanwhile."""
    events = [Event(0, 0, 30, 2), Event(0, 5, 20, 0), Event(0, 10, 12, 1), Event(1, 0, 30, 1)]
    timeline = timeline_of(events, [Work(0, 2, 25), Work(1, 6, 8)])
    pieces = operation_pieces(timeline)
    assert pieces
    columns = (pieces.lane, pieces.name, pieces.start_ns, pieces.end_ns)
    assert [(lane, NAMES[code], a, b) for lane, code, a, b in zip(*(each.tolist() for each in columns), strict=True)] \
        == [
            (0, "aten::linear", 2, 5), (0, "aten::mm", 5, 10), (0, "aten::add", 10, 12), (0, "aten::mm", 12, 20),
            (0, "aten::linear", 20, 25), (1, "aten::add", 6, 8),
        ]  # fmt: skip


def test_it_is_not_known_with_a_device_or_without_host_events_or_without_compute() -> None:
    events, spans = [Event(0, 0, 9, 0)], [Work(0, 0, 9)]
    windows = [StepWindow(step=0, recording=0, window=(0, LAST), complete=True)]
    cpu = timeline_of(events, spans)
    unseen = replace(cpu, recordings=replace(cpu.recordings, host_events=np.zeros(1, np.bool_)))
    for known, timeline in (
        (True, cpu), (False, timeline_of(events, spans, has_device=True)), (False, unseen),
        (False, timeline_of(events, [Work(0, 0, 9, COMM)])),
    ):  # fmt: skip
        pieces = operation_pieces(timeline)
        assert (pieces is not None) is known
        if pieces:
            assert step_operations(timeline, pieces, windows) is not None
            assert step_operations(timeline, pieces, ()) is None


@examples(100)
@given(nested(0, LAST), works(), st.lists(st.tuples(st.integers(0, LANES), st.integers(0, LAST)), max_size=12))
def test_parts_inside_intervals_are_what_of_the_pieces_each_thread_did_there(
    events: list[Event], spans: list[Work], edges: list[tuple[int, int]]
) -> None:
    """Of a thread that no piece is of nothing is found."""
    timeline = timeline_of(events, [*spans, Work(0, 0, 1)])
    pieces = operation_pieces(timeline)
    assert pieces is not None
    inside = []
    for lane in range(LANES + 1):
        own = sorted({moment for of, moment in edges if of == lane})
        inside += [(lane, *each) for each in zip(own[::2], own[1::2], strict=False)]
    lanes, start, end = np.array(inside, np.int64).reshape(-1, 3).T
    expected = {
        at: name
        for at, name in raster_of(timeline, pieces).items()
        if any(at[0] == of and begin <= at[1] < until for of, begin, until in inside)
    }
    assert raster_of(timeline, pieces_within(pieces, lanes, start, end)) == expected


# --- steps ------------------------------------------------------------------------------------------------------------

ROLES = ("step", "cut", "empty", "none")
"""What a slot of time is: a complete step, one that was recorded in part, a step without a window, and none."""


@examples(100)
@given(
    st.tuples(*(nested(at * SLOT, (at + 1) * SLOT) for at in range(SLOTS))),
    works(),
    st.lists(st.sampled_from(ROLES), min_size=SLOTS, max_size=SLOTS),
)
def test_each_complete_step_has_what_it_spent_in_each_operation_and_the_calls_that_began_in_it(
    parts: tuple[list[Event], ...], spans: list[Work], roles: list[str]
) -> None:
    """Each operation lies inside one slot of time, which is a step or not."""
    events = [each for own in parts for each in own]
    timeline = timeline_of(events, spans)
    windows = [
        StepWindow(
            step=10 + at, recording=0, window=None if role == "empty" else (at * SLOT, (at + 1) * SLOT),
            complete=role != "cut",
        )
        for at, role in enumerate(roles)
        if role != "none"
    ]  # fmt: skip
    pieces = operation_pieces(timeline)
    steps = [at for at, role in enumerate(roles) if role == "step"]
    if not any(each.kind == COMPUTE for each in spans):
        assert pieces is None
        return
    assert pieces is not None
    by_moment = by_raster(events, spans)
    assert operation_times(timeline, pieces) == Counter(by_moment.values())
    found = step_operations(timeline, pieces, windows)
    if not steps:
        assert found is None
        return
    spent = Counter((name, moment // SLOT) for (_, moment), name in by_moment.items())
    began = Counter((NAMES[each.code], each.start // SLOT) for each in events if each.kind == OPERATION)
    assert found is not None
    assert found.steps == tuple(10 + at for at in steps)
    assert sorted(found.names) == sorted({name for name, at in spent if at in steps})
    assert found.own_ns.tolist() == [[spent[name, at] for at in steps] for name in found.names]
    # An operation without length at the end of a slot begins in the next one.
    assert found.calls.tolist() == [[began[name, at] for at in steps] for name in found.names]


def operations_of(timeline: RankTimeline, windows: Sequence[StepWindow]) -> StepOperations | None:
    pieces = operation_pieces(timeline)
    assert pieces
    return step_operations(timeline, pieces, windows)


def by_name(found: StepOperations | None) -> dict[str, tuple[list[int], list[int]]]:
    """Return the time and the calls of each name, step by step."""
    assert found
    return {name: (found.own_ns[row].tolist(), found.calls[row].tolist()) for row, name in enumerate(found.names)}


def test_an_operation_that_encloses_others_spends_what_they_leave_and_other_threads_count() -> None:
    """Each step, in us: a linear of 200 with a product of 50 in it, then an addition of 100, and one beside it."""
    run = cpu_run(
        lambda step, rank: [
            Mark("forward", 0, 400), Op("aten::linear", 0, 200), Op("aten::mm", 100, 150 + step),
            Op("aten::add", 200, 300), Beside("aten::add", 250, 290), Call(start=700, end=720),
        ]
    )  # fmt: skip
    found = by_name(operations_of(run.ranks[0], step_windows(run.ranks[0])))
    assert found == {
        "aten::linear": ([(150 - step) * US for step in range(STEPS)], [1] * STEPS),
        "aten::mm": ([(50 + step) * US for step in range(STEPS)], [1] * STEPS),
        "aten::add": ([140 * US] * STEPS, [2] * STEPS),
    }


@pytest.mark.parametrize(("inside_us", "said"), [(155, False), (50, True)])
def test_compute_in_ranges_of_autograd_without_an_operation_is_said_where_it_is_much(
    inside_us: int, said: bool
) -> None:
    """Of each step of 1,000 us a node of autograd takes 200, with a product of so many in it."""
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    run = cpu_run(
        lambda step, rank: [
            Op(node, 0, 200), Op("aten::mm", 0, inside_us), Call(start=700, end=720), Op("aten::add", 720, 1000)
        ]
    )  # fmt: skip
    found = analyze(run)
    assert [each.empty_ranges_ns for each in found.ranks] == [(200 - inside_us) * US] * 2
    one = replace(found, ranks=[found.ranks[0], replace(found.ranks[1], empty_ranges_ns=None)])
    assert empty_ranges_text(one) == empty_ranges_text(found), "of a rank of which it is not known nothing is taken"
    empty_ms = f"{(200 - inside_us) / 1000:.3f} ms"
    words = f"Of the compute, {empty_ms} a step are in ranges of autograd in which no operation runs"
    assert (words in " ".join(render(found).split())) is said
    assert (f"(no operation in it) {empty_ms}" in critical_path_text(found.critical_path)) is said


def test_an_operation_is_a_call_of_the_step_in_which_it_begins() -> None:
    """It begins 1 ns before the second step, and another at its first; in whatever order steps are given."""
    events = [Event(0, 3, 5, 0), Event(0, SLOT - 1, SLOT, 0), Event(0, SLOT, SLOT + 4, 0), Event(1, 2 * SLOT, LAST, 0)]
    windows = [StepWindow(step=at, recording=0, window=(at * SLOT, (at + 1) * SLOT), complete=True) for at in (0, 1)]
    timeline = timeline_of(events, [Work(0, 0, LAST)])
    for given_ in (windows, windows[::-1]):
        found = operations_of(timeline, given_)
        assert by_name(found) == {"aten::mm": ([3, 4], [2, 1])}
        assert found
        assert found.steps == (0, 1)


def test_a_rank_whose_host_events_cannot_be_read_has_no_operations_but_other_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = cpu_run(lambda step, rank: [Op("aten::mm", 0, 400), Call(start=700, end=720)])
    assert by_name(summarize_ranks(run)[0].operations) == {"aten::mm": ([400 * US] * STEPS, [1] * STEPS)}

    def damaged(*_: object) -> None:
        raise HostEventsError("it", "is damaged")

    monkeypatch.setattr(host_operations, "select_host_spans", damaged)
    own = summarize_ranks(run)[0]
    assert own.operations is None
    assert own.figures[0].compute_ns == STEPS * 400 * US
    one = Run(world_size=1, ranks={0: replace(run.ranks[0], has_device=True)})
    assert summarize_ranks(one)[0].operations is None
