"""A pause that lies in a range which one step alone has is what the host does there; what others wait is its cost."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.checks.hosts.host_pauses import delays_all
from overlapscope.analysis.result import Recommendation
from tests.unit.analysis.pauses.pausing import MS, advice, named, pause, run

SAMPLES = "## samples ##"


def paused_once(in_others: float | None, during: str | None = SAMPLES) -> Recommendation:
    """Return what is said of a job of which rank 0 pauses for 20 ms in one of three steps, and rank 1 waits for it;
    the same range takes so many ms in its other steps."""
    others = {} if in_others is None else {3: in_others}
    job = run(lambda step, rank: {} if rank else {3: 20.0} if step == 1 else others, during=during)
    for rank, timeline in job.ranks.items():
        steps, notes = timeline.steps, timeline.annotations
        names = (*timeline.names, *(f"ProfilerStep#{step}" for step in steps.step.tolist()))
        marks = replace(
            notes, recording=steps.recording, lane=np.full(steps.step.size, 2), start_ns=steps.start_ns,
            end_ns=steps.end_ns, name=np.arange(len(timeline.names), len(names)),
        )  # fmt: skip
        both = {each: np.append(getattr(notes, each), getattr(marks, each)) for each in notes.__struct_fields__}
        job.ranks[rank] = replace(timeline, names=names, annotations=replace(notes, **both))  # type: ignore[index]
    return advice(job)["host_pauses"]


def test_what_one_step_alone_does_is_to_be_done_less_often_or_elsewhere() -> None:
    found = paused_once(None)
    assert found.title.startswith(f"Do {SAMPLES} less often, or off the host of rank 0: it pauses for ")
    first, then, *_ = found.apply["python"].splitlines()
    assert first.startswith(f"# {SAMPLES} takes 20 ms of the 21 ms of the pause: in fewer steps, or in another process")
    assert then.startswith("# else: gc.collect()"), "garbage collection comes after"
    assert (found.gain_high_ns, found.bound_from) == (found.loss_ns, "loss"), "rank 1 waits for all of it"
    assert found.loss_ns == pytest.approx(20 * MS, rel=0.1)
    assert found.per == "recording"


@pytest.mark.parametrize(("in_others", "during"), [(1.0, SAMPLES), (None, None)], ids=["other steps, too", "no range"])
def test_without_such_a_range_it_is_not_known_what_stops_a_host(in_others: float | None, during: str | None) -> None:
    found = paused_once(in_others, during)
    assert found.title.startswith("Find what stops the host of rank 0")
    assert found.apply["python"].startswith("gc.collect()")


@pytest.mark.parametrize(
    ("pauses", "ranks", "all_lose"),
    [
        ([(7, 0, 20, 10)], 2, True),
        ([(7, 0, 20, 9)], 2, False),  # it was ahead by the rest, perhaps
        ([(7, 0, 20, 0), (7, 1, 20, 0)], 2, True),
        ([(7, 0, 20, 0), (8, 1, 20, 0)], 2, False),
        ([(7, 0, 20, 0)], 1, True),
    ],
    ids=["waited for", "hardly waited for", "both at once", "in turn", "alone"],
)
def test_pauses_cost_what_others_wait_or_all_idle(
    pauses: Sequence[tuple[int, int, int, int]], ranks: int, *, all_lose: bool
) -> None:
    """By step, rank, idle time and what others wait, in ms."""
    job = run(lambda *_: {}, ranks=ranks)
    found = [
        replace(pause("aten::relu"), **dict(zip(("step", "rank", "idle_ns", "waited_ns"), each, strict=True)))
        for each in pauses
    ]
    assert delays_all(job, found, 7) is all_lose
    assert not delays_all(job, found, None), "before the first kernel of a step"


@pytest.mark.slow
def test_pauses_of_more_ranks_than_are_listed_cost_all_of_them() -> None:
    """17 ranks pause at once, of which 16 are listed."""
    (found,) = named(run(lambda *_: {3: 20.0}, ranks=17))
    evidence = found.evidence
    assert (len(evidence["ranks"]), len(evidence["pauses"])) == (17, 16)
    assert evidence["delays_all"]
    assert evidence["steps"] == [7, 8, 9]
    assert evidence["steps_idle_ns"] == pytest.approx([20 * MS] * 3, rel=0.1)


def test_what_all_ranks_lose_is_said_as_a_cost() -> None:
    found = advice(run(lambda *_: {3: 20.0}))["host_pauses"]
    assert found.loss_ns == pytest.approx(20 * MS, rel=0.1)
    assert (found.gain_high_ns, found.bound_from) == (found.loss_ns, "loss")
