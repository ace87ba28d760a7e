"""The summary at the end of a recording."""

import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.job_step.headline import FewSteps
from overlapscope.analysis.mean_step import with_mean_step
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.report.text.summary import CaptureSummary, render
from tests.conftest import ROOT


def rank(exposed_ns: float, hidden_ns: float) -> CaptureSummary:
    return CaptureSummary(
        rank=0,
        host="here",
        steps=4,
        step_ns=10e6,
        exposed_ns=exposed_ns,
        hidden_ns=hidden_ns,
        idle_ns=0.0,
        exposed_fraction=exposed_ns / 10e6,
    )


def test_exposed_comes_in_milliseconds_then_as_a_share() -> None:
    summary = render([rank(2e6, 1e6)], 1, "runs/a", "trace", [])
    assert "exposed         2.000 ms   20.0 % of the step" in summary
    assert summary.splitlines()[-1] == "next: overlapscope analyze runs/a"


def test_figures_of_the_last_part_alone_say_so() -> None:
    both = [replace(rank(2e6, 1e6), of_last_part=True), replace(rank(2e6, 1e6), rank=1)]
    assert "Medians of 4 steps of the last part of the recording" in render(both[:1], 1, "runs/a", "events", [])
    assert "last part of the recording, means over 2 ranks" in render(both, 2, "runs/a", "events", [])
    assert "last part" not in render(both[1:], 1, "runs/a", "events", [])


def test_a_run_without_communication_says_so_and_no_figure() -> None:
    summary = render([rank(0.0, 0.0)], 1, "runs/a", "trace", [])
    assert "no communication was recorded" in summary
    assert "n/a" in summary
    assert "overlapped" not in summary
    assert "%" not in summary


def test_r6_a_cost_that_the_noise_hides_is_not_measurable_and_one_below_it_is_stated() -> None:
    for low, high in ((-0.8e6, 1e6), (-5.4e6, -0.1e6)):
        costly = {"overhead_ns": (low + high) / 2, "overhead_low_ns": low, "overhead_high_ns": high}
        assert "not measurable" in render([replace(rank(2e6, 1e6), **costly)], 1, "runs/a", "events", [])
    unknown = dict.fromkeys(("overhead_ns", "overhead_low_ns", "overhead_high_ns"))
    few = render([replace(rank(2e6, 1e6), **unknown)], 1, "runs/a", "events", [])
    assert "not measurable (needs 17 steps after warm-up, and some that are not recorded)" in few
    known = {"overhead_ns": 0.1e6, "overhead_low_ns": -0.1e6, "overhead_high_ns": 0.3e6}
    assert "capture         0.100 ms a step" in render([replace(rank(2e6, 1e6), **known)], 1, "runs/a", "events", [])


def test_exposed_time_that_is_not_determined_is_stated_with_its_bounds() -> None:
    ranks = [replace(rank(2e6, 1e6), exposed_between_ns=(1e6, 4e6)), replace(rank(2e6, 1e6), rank=1)]
    lines = render(ranks, 2, "runs/a", "events", []).splitlines()
    assert lines[3] == "    not determined: between 1.500 and 3.000 ms"
    for known in (rank(2e6, 1e6), replace(rank(2e6, 1e6), exposed_between_ns=(1.99e6, 2e6))):
        assert "not determined" not in render([known], 1, "r", "events", [])


def test_the_bounds_hold_the_headline_where_ranks_are_measured_step_by_step() -> None:
    known = replace(rank(3e6, 1e6), exposed_between_ns=(2e6, 4e6))
    analysis = overlapscope.load(ROOT / "traces" / "baseline").analysis()
    head = replace(analysis.headline, window="step", exposed_comm_ns=5e6)
    lines = render([known], 1, "runs/a", "events", [], replace(analysis, headline=head)).splitlines()
    assert "5.000 ms" in lines[2]
    assert lines[3] == "    not determined: between 4.000 and 6.000 ms"


def test_steps_that_are_not_whole_are_counted_with_their_reason() -> None:
    ranks = [replace(rank(2e6, 1e6), cut_steps={"the end of a collective is not known": 2}) for _ in range(2)]
    assert "  ! 4 steps not whole: the end of a collective is not known" in render(ranks, 2, "r", "events", [])


def test_where_few_steps_communicate_the_means_are_stated_not_that_nothing_was_recorded() -> None:
    few = FewSteps(communicate=2, steps=8, step_ns=200e6, exposed_comm_ns=100e6, overlapped_ns=1e6)
    apart = [replace(rank(0.0, 0.0), few=few), replace(rank(0.0, 0.0), rank=1)]
    (exposed, overlapped) = render(apart, 2, "runs/a", "events", []).splitlines()[2:4]
    assert exposed.split("ms   ")[0].split() == ["exposed", "50.000"]
    assert exposed.endswith("in the mean, of 200.000 ms: 2 of 8 steps communicate, the median step does not")
    assert overlapped.split() == ["overlapped", "0.500", "ms", "in", "the", "mean"]

    analysis = overlapscope.load(ROOT / "traces" / "baseline").analysis()
    steps = [replace(each, exposed_comm_ns=0, overlapped_ns=0) for each in analysis.headline.job_steps]
    steps[0] = replace(steps[0], exposed_comm_ns=6_000_000)
    head = replace(analysis.headline, exposed_comm_ns=0, overlapped_ns=0, comm_ns=0, job_steps=steps)
    together = with_mean_step(replace(analysis, headline=head))
    step, exposed, *_ = render([rank(0.0, 0.0)], 1, "runs/a", "events", [], together).splitlines()[1:]
    assert step.endswith("Means of 6 steps, means over 2 ranks: 1 of 6 steps communicate")
    assert exposed.split()[:2] == ["exposed", "1.000"]


def waiting_longest(analysis: Analysis, rank: int | None) -> Analysis:
    """Return the analysis with one rank that alone waited, or none."""
    return replace(
        analysis,
        ranks=[
            replace(each, whole=replace(each.whole, causes={"peer_host": 1_000 * (each.rank == rank)}))
            for each in analysis.ranks
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blame_ms", "words"),
    [
        ((303, 271, 118), "for several ranks in turn"),
        ((303, 71, 118), "mostly for rank 0, and whether by chance is not known"),
        ((759, 758), "for several ranks in turn"),
        ((0, 590, 410), "for several ranks in turn"),
        ((0, 610, 390), "mostly for rank 1, and whether by chance is not known"),
        ((0, 0, 0), ""),
    ],
)
def test_a_rank_is_named_as_waited_for_only_with_most_of_the_blame(blame_ms: tuple[int, ...], words: str) -> None:
    analysis = waiting_longest(overlapscope.load(ROOT / "traces" / "baseline").analysis(), rank=None)
    of = analysis.skew.ranks[0]
    ranks = [replace(of, rank=at, blame_ns=ms * 1_000_000) for at, ms in enumerate(blame_ms)]

    def waiting(held: list[Straggler]) -> str:
        skew = replace(analysis.skew, ranks=ranks, stragglers=held)
        lines = render([rank(2e6, 1e6)], 1, "runs/a", "events", [], replace(analysis, skew=skew)).splitlines()
        return next(line for line in lines if line.startswith("  waiting")).split("of the exposed time")[1]

    assert waiting([]) == (f", {words}" if words else "")
    if "rank 1" in words:
        still = Finding(id="standing_still", severity="warning", title="", evidence={"ranks": [1]}, known_from="trace")
        paused = replace(analysis, findings=[still])
        analysis, before = paused, analysis
        assert waiting([]) == ", mostly for rank 1, whose host stands still"
        analysis = before
        analysis = waiting_longest(analysis, rank=1)
        assert waiting([]) == ", for several ranks in turn: rank 1 came last most often, and waited longest itself"
    assert waiting([Straggler(rank=2, held_by="host", blame_ns=1, evidence={})]) == "; straggler: rank 2"
    both = Straggler(rank=2, held_by="host", blame_ns=1, late_with=[1], evidence={})
    assert waiting([both]) == "; stragglers: ranks 1, 2"
