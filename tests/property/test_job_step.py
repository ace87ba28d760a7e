"""The step of the job and the headline, against counting single nanoseconds; other clocks and orders change nothing."""

from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.job_step.headline import PARTS, Headline, headline
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.run import Run
from tests.property.examples import examples
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.unit.analysis.cross_rank.test_across_ranks import moved

WAITING, EXPOSED, TAIL = "peer_compute", "dependency", "tail"
"""Three causes of exposed communication."""
KINDS = {"overlapped_ns": "overlapped_ns", WAITING: "exposed_comm_ns", EXPOSED: "exposed_comm_ns",
         TAIL: "exposed_comm_ns", "compute_only_ns": "compute_only_ns", "copy_only_ns": "copy_only_ns",
         "idle_ns": "idle_ns"}  # fmt: skip
"""What a rank does in a nanosecond, and the part of its window that this is."""
STEPS = 3


class Made(NamedTuple):
    """A step of one rank on the clock of the job: its start, and what it does in each nanosecond."""

    start: int
    does: tuple[str, ...]
    begun: int
    """When the rank's first span began."""


def steps_of_a_rank() -> st.SearchStrategy[list[Made]]:
    """Draw steps that follow each other; the recording began before or within the first."""
    does = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12).map(tuple)
    return st.builds(_in_a_row, st.integers(-8, 8), st.lists(does, min_size=STEPS, max_size=STEPS), st.integers(0, 14))


def _in_a_row(start: int, steps: Sequence[tuple[str, ...]], before: int) -> list[Made]:
    made = []
    begun = start + len(steps[0]) - min(before, len(steps[0]) + 12)
    for does in steps:
        made.append(Made(start, does, begun))
        start += len(does)
    return made


JOBS = st.lists(steps_of_a_rank(), min_size=1, max_size=4)


def found(
    ranks: Mapping[int, Sequence[Made]], offset_ns: Mapping[int, int], *, aligned: bool = True, clock_set: bool = False
) -> Headline:
    """Return the headline of ranks whose clocks are so far ahead."""
    windows = {}
    for rank, steps in ranks.items():
        ahead = offset_ns[rank]
        spans = [(each.start + ahead, each.start + ahead + len(each.does)) for each in steps]
        whole = breakdown([does for each in steps for does in each.does])
        windows[rank] = RankWindows(
            steps=[
                (StepWindow(step=at, recording=0, window=window, complete=True), breakdown(each.does))
                for at, (window, each) in enumerate(zip(spans, steps, strict=True))
            ],
            whole=whole,
            recordings=[(steps[0].begun + ahead, max(spans[-1][1], steps[0].begun + ahead))],
        )
    clocks = Clocks(offset_ns=dict(offset_ns), tied=dict.fromkeys(ranks, 0) if aligned else {})
    return headline(windows, CrossRank(clocks=clocks, clock_set=clock_set))


def breakdown(does: Sequence[str]) -> Breakdown:
    counts = {part: sum(KINDS[each] == part for each in does) for part in PARTS[:5]}
    return Breakdown(
        window_ns=len(does),
        comm_ns=counts["overlapped_ns"] + counts["exposed_comm_ns"],
        compute_ns=counts["overlapped_ns"] + counts["compute_only_ns"],
        exposed_wait_ns=does.count(WAITING),
        causes={cause: does.count(cause) for cause in (WAITING, EXPOSED, TAIL) if cause in does},
        **counts,
    )


def by_hand(ranks: Mapping[int, Sequence[Made]], step: int) -> dict[int, dict[str, int]]:
    """Count for each rank what it does in every nanosecond of the job's step."""
    own = {rank: steps[step] for rank, steps in ranks.items()}
    first = min(each.start for each in own.values())
    last = max(each.start + len(each.does) for each in own.values())
    counts = {rank: dict.fromkeys(PARTS, 0) for rank in own}
    for now in range(first, last):
        for rank, each in own.items():
            inside = each.start <= now < each.start + len(each.does)
            lacks = "start_of_recording_ns" if now < each.begun else "outside_ns"
            counts[rank][KINDS[each.does[now - each.start]] if inside else lacks] += 1
    return counts


def touching(ranks: Mapping[int, Sequence[Made]], step: int) -> bool:
    """Return whether every nanosecond of the job's step lies in some rank's window."""
    own = [steps[step] for steps in ranks.values()]
    covered = {now for each in own for now in range(each.start, each.start + len(each.does))}
    return len(covered) == max(covered) - min(covered) + 1


def test_where_every_other_step_is_long_what_they_expose_is_not_left_out() -> None:
    short, long = (*["compute_only_ns"] * 9, EXPOSED), (*["compute_only_ns"] * 9, EXPOSED, *[TAIL] * 30)
    head = found({0: _in_a_row(0, [short, long] * 4, 12)}, {0: 0})
    assert head.exposed_comm_ns == 16
    assert head.causes[TAIL] == 15


@pytest.mark.parametrize(("longer", "causes"), [(40, {EXPOSED: 2}), (1, {EXPOSED: 2, TAIL: 0})])
def test_what_one_long_step_exposed_is_no_cause_of_what_the_others_did(longer: int, causes: dict[str, int]) -> None:
    usual = (*["compute_only_ns"] * 10, EXPOSED, EXPOSED)
    steps = _in_a_row(0, [usual, (*usual, *[TAIL] * longer), usual, usual, usual], 12)
    head = found({0: steps}, {0: 0})
    assert head.exposed_comm_ns == 2
    assert head.causes == {cause: ns for cause, ns in causes.items() if ns}


@pytest.mark.parametrize(
    ("late", "steps", "pace"),
    [
        pytest.param(30, 4, 100, id="one rank begins and ends 30 ns after the other"),
        pytest.param(2, 4, 100, id="2 ns: 2 % of the step"),
        pytest.param(1, 4, None, id="less than 1 %"),
        pytest.param(0, 4, None, id="together"),
        pytest.param(30, 3, None, id="two times between two begins"),
    ],
)
def test_the_pace_of_a_job_whose_ranks_overlap_in_steps_is_the_time_between_begins(
    late: int, steps: int, pace: int | None
) -> None:
    own = [(*["compute_only_ns"] * 99, EXPOSED)] * steps
    head = found({0: _in_a_row(0, own, 12), 1: _in_a_row(late, own, 12)}, {0: 5, 1: 0})
    assert head.step_ns == 100 + late
    assert head.pace_ns == pace


@pytest.mark.parametrize(
    ("lengths", "pace"),
    [
        pytest.param([100, 100, 104, 104], 100, id="much alike"),
        pytest.param([100, 100, 140, 140, 140], None, id="it slows down: two paces"),
        pytest.param([100, 100, 100, 100, 300], 100, id="the last, whose end nobody waits for, has no part"),
    ],
)
def test_a_pace_is_that_of_like_steps_and_compared_with_the_same_steps(lengths: list[int], pace: int | None) -> None:
    own = [(*["compute_only_ns"] * (length - 1), EXPOSED) for length in lengths]
    assert found({0: _in_a_row(0, own, 12), 1: _in_a_row(30, own, 12)}, {0: 5, 1: 0}).pace_ns == pace
    together = found({0: _in_a_row(0, own, 12), 1: _in_a_row(0, own, 12)}, {0: 5, 1: 0})
    assert together.pace_ns is None


@pytest.mark.parametrize(("slow", "pace"), [(102, 100), (103, None), (118, None)])
def test_a_job_has_no_pace_where_one_rank_runs_ahead_of_another_ever_more(slow: int, pace: int | None) -> None:
    """Rank 0 takes 100 ns a step until it waits for rank 1 in the last one: the job's begins are its own."""
    slows = [(*["compute_only_ns"] * (slow - 1), EXPOSED)] * 4
    runs = [(*["compute_only_ns"] * 99, EXPOSED)] * 3
    last = (*["compute_only_ns"] * 99, *[WAITING] * (4 * slow - 400 + 1))
    head = found({0: _in_a_row(0, [*runs, last], 12), 1: _in_a_row(2, slows, 12)}, {0: 5, 1: 0})
    assert head.pace_ns == pace


@examples(300)
@given(made=JOBS, ahead=st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4))
def test_the_step_of_the_job_is_every_nanosecond_of_it(made: list[list[Made]], ahead: list[int]) -> None:
    ranks = dict(enumerate(made))
    assume(all(each.begun <= each.start + len(each.does) for steps in made for each in steps))
    assume(all(touching(ranks, step) for step in range(STEPS)))
    head = found(ranks, {rank: ahead[rank] for rank in ranks})
    assert (head.window, head.steps_by, head.steps, head.ranks) == ("step", "job_step", STEPS, sorted(ranks))
    counts = [by_hand(ranks, step) for step in range(STEPS)]
    for step, shown in enumerate(head.job_steps):
        sums = {name: sum(each[name] for each in counts[step].values()) for name in PARTS}
        assert all(sum(each.values()) == shown.step_ns for each in counts[step].values())
        assert sum(getattr(shown, name) for name in PARTS) == shown.step_ns
        lacks = {name: sums[name] / len(ranks) - getattr(shown, name) for name in PARTS}
        raised, not_raised = ([each % 1 for each in lacks.values() if (each < 0) == up] for up in (True, False))
        assert all(-1 < each < 1 for each in lacks.values())
        assert min(raised, default=1.0) >= max(not_raised, default=0.0) - 1e-9, "the largest remainders are rounded up"
    assert head.step_ns == round(median(each.step_ns for each in head.job_steps))
    communicates = any(each["overlapped_ns"] + each["exposed_comm_ns"] for step in counts for each in step.values())
    for name in PARTS:
        if communicates or name not in ("overlapped_ns", "exposed_comm_ns"):
            means = [sum(each[name] for each in step.values()) / len(ranks) for step in counts]
            assert getattr(head, name) == round(median(means)), name
        else:
            assert getattr(head, name) is None
    if communicates:
        shares = [sum(each["exposed_comm_ns"] for each in step.values()) / len(ranks) for step in counts]
        lengths = [each.step_ns for each in head.job_steps]
        assert head.exposed_fraction == pytest.approx(median(a / b for a, b in zip(shares, lengths, strict=True)))
    assert sum(head.causes.values()) == (head.exposed_comm_ns or 0)
    assert head.causes.get(WAITING, 0) == (head.exposed_wait_ns or 0)
    waits = [sum(steps[step].does.count(WAITING) for steps in made) / len(made) for step in range(STEPS)]
    if communicates and min(comm_of_steps(counts)) == 0 and sum(shares):
        shared = median([each * sum(waits) / sum(shares) for each in shares])
        assert head.exposed_wait_ns == pytest.approx(shared, abs=0.5 + 1e-6), "rounded, of a quotient of floats"
    else:
        assert head.exposed_wait_ns == (round(median(waits)) if communicates else None)


def comm_of_steps(counts: Sequence[Mapping[int, Mapping[str, int]]]) -> list[int]:
    """Return how long all ranks communicate in each step of the job."""
    return [sum(each["overlapped_ns"] + each["exposed_comm_ns"] for each in step.values()) for step in counts]


@pytest.mark.slow
@examples(200)
@given(made=JOBS, ahead=st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4), order=st.randoms())
def test_other_clocks_and_another_order_of_ranks_change_nothing(
    made: list[list[Made]], ahead: list[int], order: Random
) -> None:
    ranks = dict(enumerate(made))
    here = found(ranks, dict.fromkeys(ranks, 0))
    others = {rank: ahead[rank] for rank in ranks}
    assert found(ranks, others) == here
    mixed = list(made)
    order.shuffle(mixed)
    assert found(dict(enumerate(mixed)), others) == here


@given(made=JOBS)
@example(made=[[Made(0, ("idle_ns",) * 2, 0)] * STEPS, [Made(5, ("idle_ns",) * 3, 5)] * STEPS])
def test_clocks_that_cannot_be_aligned_and_windows_apart_give_the_longest_window(made: list[list[Made]]) -> None:
    ranks = dict(enumerate(made))
    apart = not all(touching(ranks, step) for step in range(STEPS))
    head = found(ranks, dict.fromkeys(ranks, 0), aligned=apart)
    if len(ranks) == 1:
        assert head.steps_by == "job_step"
    else:
        assert (head.steps_by, head.longest_because) == ("longest_window", "apart" if apart else "clocks")
        assert found(ranks, dict.fromkeys(ranks, 0), clock_set=True) == found(
            ranks, dict.fromkeys(ranks, 0), aligned=False
        )
    longest = [max(len(steps[step].does) for steps in made) for step in range(STEPS)]
    assert [each.step_ns for each in head.job_steps] == longest
    assert all(sum(getattr(each, name) for name in PARTS) == each.step_ns for each in head.job_steps)


@pytest.fixture(scope="module", params=[Layout(dp=3), Layout(tp=2, pp=2)], ids=["data", "pipeline"])
def recorded(request: pytest.FixtureRequest) -> Run:
    return run_of(simulate(Job(layout=request.param, steps=4, layers=2, seed=5)))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_whose_clock_is_set_otherwise_has_the_same_headline(recorded: Run, rank: int) -> None:
    before, after = analyze(recorded).headline, analyze(moved(recorded, rank, 7_000_000_123)).headline
    assert before.steps_by == "job_step"
    assert close(before, after)


def test_ranks_in_another_order_have_the_same_headline(recorded: Run) -> None:
    turned = replace(recorded, ranks=dict(reversed(recorded.ranks.items())))
    before, after = analyze(recorded).headline, analyze(turned).headline
    assert close(before, replace(after, ranks=sorted(after.ranks)))


def close(one: Headline, other: Headline) -> bool:
    """Return whether two headlines are the same to 2 ns, to which clocks are aligned."""
    left, right = asdict(one), asdict(other)
    steps = zip(left.pop("job_steps"), right.pop("job_steps"), strict=True)
    return _alike(left, right) and all(_alike(asdict(a), asdict(b)) for a, b in steps)


def _alike(left: dict[str, object], right: dict[str, object]) -> bool:
    return all(
        left[name] == pytest.approx(right[name], abs=2 if name.endswith("_ns") else 1e-6)
        if isinstance(left[name], int | float)
        else left[name] == right[name] or name == "causes"
        for name in left
    )
