"""Steps of two kinds by their lengths, and single ones that communicate unusually, by hand."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.analysis.job_step.headline import Headline, StepOfJob, unusual_in_calls
from overlapscope.analysis.job_step.two_kinds import two_kinds

MS = 1_000_000


def head_of(lengths_ms: Sequence[float], exposed_ms: Sequence[float] = ()) -> Headline:
    exposed = exposed_ms or [each / 4 for each in lengths_ms]
    steps = [
        StepOfJob(
            step=step, step_ns=round(length * MS), exposed_comm_ns=round(comm * MS), overlapped_ns=0,
            compute_only_ns=round((length - comm) * MS), copy_only_ns=0, idle_ns=0, start_of_recording_ns=0,
            outside_ns=0,
        )
        for step, (length, comm) in enumerate(zip(lengths_ms, exposed, strict=True))
    ]  # fmt: skip
    return Headline(window="step", steps=len(steps), job_steps=steps, comm_ns=1)


@pytest.mark.parametrize(
    ("lengths_ms", "short", "long"),
    [
        ((40, 60, 40, 60), [0, 2], [1, 3]),
        ((60, 41, 40, 60, 42, 61), [1, 2, 4], [0, 3, 5]),
        ((40, 40, 40, 60, 40, 60), [0, 1, 2, 4], [3, 5]),
        ((40, 40, 40, 40, 40, 40, 60, 60), [0, 1, 2, 3, 4, 5], [6, 7]),
    ],
)
def test_steps_of_two_lengths_are_of_two_kinds(lengths_ms: Sequence[float], short: list[int], long: list[int]) -> None:
    kinds = two_kinds(head_of(lengths_ms))
    assert kinds is not None
    assert (kinds.short, kinds.long) == (short, long)
    assert kinds.short_ns == pytest.approx(sum(lengths_ms[at] for at in short) / len(short) * MS)
    assert kinds.long_ns == pytest.approx(sum(lengths_ms[at] for at in long) / len(long) * MS)


@pytest.mark.parametrize(
    "lengths_ms",
    [
        (40, 60, 40),  # too few
        (40, 40, 40, 60),  # a single long one is an outlier
        (40, 40, 40, 40, 40, 40, 40, 60, 60),  # as are few
        (40, 43, 40, 43),  # hardly apart
        (40, 50, 60, 70),  # they vary
        (40, 46, 54, 60),
        (40, 40, 40, 40),
    ],
)
def test_others_are_of_one_kind(lengths_ms: Sequence[float]) -> None:
    assert two_kinds(head_of(lengths_ms)) is None


@pytest.mark.parametrize(
    ("exposed_ms", "unusual"),
    [
        ((0.3, 7, 7, 7.2, 6.8), {0}),
        ((3.6, 7, 7, 7.2, 6.8), set()),
        ((7, 7, 14.5, 7), {2}),
        ((0.1, 0.6, 0.6, 0.6), set()),
        ((0.3, 7, 0.3, 7), set()),
    ],
    ids=["far less", "half", "twice", "little in all", "no usual one"],
)
def test_a_step_that_communicates_far_less_or_more_than_the_median_is_unusual(
    exposed_ms: Sequence[float], unusual: set[int]
) -> None:
    """Of steps of 40 ms: a fiftieth is 0.8 ms."""
    assert unusual_in_calls(head_of([40] * len(exposed_ms), exposed_ms)) == unusual


def test_a_step_that_is_cut_short_is_of_no_kind() -> None:
    head = head_of((60, 60, 60, 40, 40))
    assert two_kinds(head) is not None
    assert two_kinds(replace(head, causes_cut=[4])) is None


def test_where_only_some_steps_communicate_that_is_said_instead() -> None:
    assert two_kinds(head_of((40, 60, 40, 60), (0, 20, 0, 20))) is None
