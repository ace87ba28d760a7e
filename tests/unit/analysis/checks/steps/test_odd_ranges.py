"""Ranges in which one step alone spends long are named; those of all steps, short and frameworks' ones are not."""

from collections.abc import Callable, Collection

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.columns import COMM, NONE
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Call, Mark, Op, cpu_run
from tests.support.step_cases import Item, Kernel, Range, Sent, made


def run(lasts: Callable[[int, int], float], name: str = "data") -> Run:
    """Return two ranks that are in a range for so many us of each step, by its number and the rank."""

    def step(number: int, rank: int) -> list[Op | Call]:
        us = lasts(number, rank)
        return [Op("aten::mm", 400, 600), Call(start=610, end=700), *([Mark(name, 5, 5 + us)] if us else [])]

    return cpu_run(step)


def in_two_threads(*, marked: bool) -> Run:
    """Return two ranks of which one thread, that of the marks of steps if they are `marked`, is in `own` for 200 us of
    step 2 and in none of the others; and another thread in `other` for 300 us of step 3."""

    def step(number: int, _: int) -> list[Op | Call]:
        marks = [Mark(f"ProfilerStep#{number}", 0, 1000)] * marked
        own, other = [Mark("own", 5, 205)] * (number == 2), [Mark("other", 5, 305)] * (number == 3)
        return [Op("aten::mm", 400, 600), Call(start=610, end=700), *marks, *own, *other]

    job = cpu_run(step)
    ranks = {}
    for rank, each in job.ranks.items():
        notes = each.annotations
        moved = rows_named(notes.name, each.names, "other".__eq__)
        ranks[rank] = replace(each, annotations=replace(notes, lane=np.where(moved, 0, notes.lane)))
    return replace(job, ranks=ranks)


def titles(job: Run) -> list[str]:
    return [each.title for each in analyze(job).findings if each.id.startswith("odd_range")]


def test_a_range_that_one_step_alone_spends_long_in_is_named_with_step_and_rank() -> None:
    assert titles(run(lambda step, rank: 300 if (step, rank) == (3, 1) else 2)) == [
        "step 3 alone is in data for 0.300 ms (rank 1), in no other step for more than 0.002 ms"
    ]


def test_ranks_that_do_so_in_the_same_step_are_named_together() -> None:
    assert titles(run(lambda step, rank: (step == 2) * (200 + rank), "evaluation")) == [
        "step 2 alone is in evaluation for 0.201 ms (ranks 0, 1), in no other step"
    ]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        pytest.param(run(lambda step, _: 80 if step == 2 else 8), True, id="8 % of a step, ten times the others"),
        pytest.param(run(lambda step, _: 79 if step == 2 else 2), False, id="less of a step"),
        pytest.param(run(lambda step, _: 80 if step == 2 else 9), False, id="less than ten times"),
        pytest.param(run(lambda step, _: 300 if step in (2, 4) else 2), False, id="two steps"),
        pytest.param(run(lambda step, _: 300 * (step == 2), "Optimizer.step#SGD.step"), False, id="the optimizer"),
    ],
)
def test_what_is_short_or_in_several_steps_is_not_named(job: Run, *, named: bool) -> None:
    assert bool(titles(job)) == named


@pytest.mark.parametrize(("of_peer", "named"), [(0, True), (100, True), (149, True), (150, False)])
def test_a_range_that_a_peer_spends_as_long_in_at_other_steps_is_no_event_of_one(of_peer: int, *, named: bool) -> None:
    """By hand: rank 1 spends 300 us in step 3 alone; half of that, in two other steps of rank 0, is as long."""
    job = run(lambda step, rank: (300 if step == 3 else 2) if rank else of_peer if step in (1, 2) else 2)
    assert bool(titles(job)) == named


def test_only_ranges_of_the_thread_that_marks_the_steps_count() -> None:
    """As of a loader, which is in no step."""
    own = "step 2 alone is in own for 0.200 ms (ranks 0, 1), in no other step"
    assert titles(in_two_threads(marked=True)) == [own]


def test_those_of_all_threads_count_where_no_thread_marks_them() -> None:
    found = titles(in_two_threads(marked=False))
    assert [each.split(" for ")[0] for each in found] == ["step 2 alone is in own", "step 3 alone is in other"]


def test_with_a_device_it_is_the_host_that_is_in_ranges() -> None:
    """The device computes all the time."""

    def step(number: int, idle_us: int = 0) -> list[Kernel | Sent | Range]:
        odd = Range(name="checkpoint", start=5, end=305 if number == 4 else 7)
        return [Kernel(start=0, end=200), Kernel(start=200 + idle_us, end=990), Sent(start=100, end=200), odd]

    said = "step 4 alone is in checkpoint for 0.300 ms (ranks 0, 1), in no other step for more than 0.002 ms; "
    assert titles(made(step)) == [f"{said}no device is idle meanwhile"]
    assert titles(made(lambda number: step(number, 40))) == [f"{said}meanwhile a device is idle for up to 0.040 ms"]


def test_nothing_is_said_of_a_device_of_which_little_was_recorded_meanwhile() -> None:
    """What was launched before the recording began may run at first without being in it, and so at its end."""

    def step(number: int, odd: int, seen: Collection[int]) -> list[Kernel | Sent | Range]:
        own = Range(name="checkpoint", start=5, end=305 if number == odd else 7)
        work = [Kernel(start=0, end=200), Sent(start=200, end=400), Kernel(start=440, end=990)]
        return [*(work if number in seen else ()), own]

    def found(odd: int, *seen: int) -> list[tuple[str, str]]:
        analysis = analyze(made(lambda number: step(number, odd, seen)))
        return [(each.severity, each.title.rpartition("; ")[2]) for each in analysis.findings
                if each.id.startswith("odd_range")]  # fmt: skip

    unknown = ("info", "what the device did meanwhile was not recorded")
    assert found(1, 2, 3, 4, 5) == [unknown]
    assert found(4, 0, 1, 2, 3) == [unknown]
    assert found(2, 0, 1, 3, 4, 5) == [("warning", "meanwhile a device is idle for up to 0.300 ms")]


@pytest.mark.parametrize(
    ("launched", "idle_us"),
    [
        pytest.param(
            False, 40, id="of a stream that begins with a call launched before the recording nothing is known"
        ),
        pytest.param(True, 240, id="a call launched in the recording was not preceded by another one"),
    ],
)
def test_what_ran_before_the_first_call_of_a_stream_may_not_have_been_recorded(launched: bool, idle_us: int) -> None:
    """In the first step the device computes for 100 us, sends from 300 us on, and does nothing for 40 us more."""

    def step(number: int) -> list[Kernel | Sent | Range]:
        odd = Range(name="checkpoint", start=5, end=805 if number == 0 else 7)
        return [Kernel(start=0, end=100), Sent(start=300, end=500), Kernel(start=540, end=990), odd]

    run = made(step)
    ranks = {}
    for rank, each in run.ranks.items():
        spans = each.spans
        first = (spans.kind == COMM) & (spans.step == 0)
        unknown = first & (not launched)
        ranks[rank] = replace(each, spans=replace(spans, launch_ns=np.where(unknown, NONE, spans.launch_ns)))
    (title,) = titles(replace(run, ranks=ranks))
    assert title.endswith(f"meanwhile a device is idle for up to 0.{idle_us:03d} ms")


def two_steps_late(number: int, late_us: float, us: float) -> list[Kernel | Sent | Range]:
    """Return a step that is launched as it begins, and runs so much later; step 3 is first in a range for so long."""
    odd = Range(name="checkpoint", start=5, end=5 + us if number == 3 else 7)
    launch = us + 6 if number == 3 else 10
    return [Kernel(start=late_us, end=late_us + 900, launch=launch), odd]


def of(number: int, job: Run) -> list[tuple[str, str]]:
    """Return severity and end of the finding on this step."""
    return [(each.severity, each.title.rpartition("; ")[2]) for each in analyze(job).findings
            if each.id == f"odd_range:step{number}"]  # fmt: skip


def test_a_host_that_leads_through_all_of_a_range_loses_nothing() -> None:
    """What it launched before runs until after the range, though the first step was launched before the recording."""
    job = made(lambda number: two_steps_late(number, 1900, 300))
    assert of(3, job) == [("info", "nothing is lost: as it ends the host still leads its device by 1.495 ms")]
    late = made(lambda number: two_steps_late(number, 1900, 300)[number < 3 :])
    assert of(3, late) == [("info", "probably nothing is lost: what it launches next waits 1.594 ms for the device")]
    soon = made(lambda number: two_steps_late(number, 500, 300)[number < 3 :])
    assert of(3, soon) == [("info", "what the device did meanwhile was not recorded")]
    behind = made(lambda number: two_steps_late(number, 340, 330))
    assert of(3, behind) == [("warning", "meanwhile a device is idle for up to 0.095 ms")]


def test_a_range_that_launches_work_costs_the_device_time_whoever_leads() -> None:
    """Of work of its own nothing says that it was lost for nothing, though the host leads through all of it."""

    def launching(number: int) -> list[Item]:
        own = [Kernel(start=1900 + 900, end=1900 + 990, launch=100)] if number == 3 else []
        return [*two_steps_late(number, 1900, 300), *own]

    assert not any("nothing is lost" in title for _, title in of(3, made(launching)))


def test_notes_on_ranges_that_cost_nothing_come_last() -> None:
    found = analyze(made(lambda number: two_steps_late(number, 1900, 300))).findings
    assert found[-1].id == "odd_range:step3"
