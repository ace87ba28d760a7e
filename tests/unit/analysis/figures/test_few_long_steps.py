"""A single long step among others that are alike is none of what the shares of causes are of; GPU-hours are of all."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.losses.host_time import host_time
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.job_step.headline import Headline, StepOfJob, left_out
from overlapscope.analysis.result import Analysis
from overlapscope.report.text.idle_time import idle_text
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Sent, made

LATER = 900
LONG = 2


def of_steps(*lengths: int, outside: Sequence[int] = ()) -> Headline:
    return Headline(
        job_steps=[
            StepOfJob(
                step=at, step_ns=ns, overlapped_ns=0, exposed_comm_ns=0, compute_only_ns=ns - own, copy_only_ns=0,
                idle_ns=0, start_of_recording_ns=0, outside_ns=own,
            )
            for at, (ns, own) in enumerate(zip(lengths, outside or [0] * len(lengths), strict=True))
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "out"),
    [
        ((100, 100, 150), {2}),
        ((100, 150), set()),  # of two nobody knows which is usual
        ((100, 109, 500, 100), {2}),
        ((100, 112, 500, 100), set()),  # the others are unlike
        ((100, 500, 500, 100), set()),
        ((100, 112, 500, 100, 100), {2}),  # a fifth
        ((100, 500, 500, 100, 100), set()),
        ((), set()),
    ],
)
def test_few_long_steps_are_left_out(lengths: Sequence[int], out: set[int]) -> None:
    assert left_out(of_steps(*lengths)) == out


@pytest.mark.parametrize(
    ("lengths", "outside", "out"),
    [
        # One of four ranks pauses for 400: three are outside of its step, and it is outside of the next one of theirs.
        ((100, 500, 500, 100, 100), (0, 300, 100, 0, 0), {1, 2}),
        ((100, 500, 500, 100, 100), (0, 200, 100, 0, 0), set()),  # 300 of 800: not the same time
        ((100, 500, 100, 500, 100), (0, 300, 0, 100, 0), set()),  # two events
        ((100, 500, 500, 100), (0, 300, 100, 0), set()),  # nobody knows which two are usual
        ((100, 500, 500, 100, 112), (0, 300, 100, 0, 0), set()),  # the others are unlike
        ((100, 500, 500, 100, 100), (40, 340, 140, 40, 40), {1, 2}),  # ranks begin 40 apart besides
    ],
)
def test_a_pause_of_one_rank_and_the_wait_for_it_in_the_next_step_are_one_exception(
    lengths: Sequence[int], outside: Sequence[int], out: set[int]
) -> None:
    assert left_out(of_steps(*lengths, outside=outside)) == out


def one_long(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return four steps in which compute waits for a call; one has a call more, which takes longer than its like."""
    monkeypatch.setattr("tests.support.step_cases.STEPS", 4)

    def step(number: int) -> list[Kernel | Sent]:
        by = LATER * (number > LONG)
        usual = [Kernel(start=0, end=500), Sent(start=500, end=700), Kernel(start=700, end=990)]
        late = [Sent(start=990, end=1500)] if number == LONG else []
        return [
            replace(each, start=each.start + by, end=each.end + by, launch=each.start + by - 1)
            for each in (*usual, *late)
        ]

    return made(step)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Analysis:
    return analyze_with_advice(one_long(monkeypatch))


def test_its_causes_are_none_of_a_median_step(found: Analysis) -> None:
    head = found.headline
    assert [each.step_ns // US for each in head.job_steps][:3] == [1000, 1000, 1000 + LATER]
    assert left_out(head) == {LONG}
    assert head.causes == {"unknown": head.exposed_comm_ns}


def test_gpu_hours_are_of_its_causes_too_(found: Analysis) -> None:
    cost = found.throughput
    assert cost is not None
    assert cost.exposed_causes_gpu_hours_a_day.keys() == {"unknown", "slow_transfer"}
    assert sum(cost.exposed_causes_gpu_hours_a_day.values()) == pytest.approx(cost.exposed_gpu_hours_a_day)
    assert "GPU-hours" not in idle_text(found), "those of all steps are not shared as in the usual ones"


def test_its_pauses_are_none_of_what_a_host_costs_in_a_median_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device idles for 399 us because of its host, 20 times as long as that of the others."""
    run = one_long(monkeypatch)
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    assert given.is_usual(0).tolist() == [True, True, False, True]
    assert given.idle_ns == 2 * 20 * US
    host = host_time(given, "launch_rate", "pause")
    assert host.by_kind == {"launch_rate": 9 * US, "pause": 0}
    assert host.shown_by is not None
    assert host.shown_by.end_ns - host.shown_by.start_ns == 9 * US
