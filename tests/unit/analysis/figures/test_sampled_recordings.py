"""Where most events of a rank are missing, nothing is said of idle time, and nothing is recommended."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise, analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import NO_CAUSES, SAMPLED
from overlapscope.report.text.analysis import render
from overlapscope.timeline.columns import take
from overlapscope.timeline.run import Run
from tests.support.graph_programs import Launch, Work, simulate

US = 1_000
LAUNCHES = 1_000


def sampled(kept: int = 200, *, numbered: int = 20) -> Run:
    """Return a rank with a full queue of kernels of 100 us, of which so many were recorded, each with its launch;
    `numbered` are the numbers that its process gives to calls for each launch."""
    run = simulate({0: [each for _ in range(LAUNCHES) for each in (Launch(0, 100 * US), Work(20 * US))]}).run
    timeline = run.ranks[0]
    there = np.random.default_rng(0).choice(np.unique(timeline.spans.correlation), kept, replace=False)
    spans = take(timeline.spans, np.flatnonzero(np.isin(timeline.spans.correlation, there)))
    host = take(timeline.host, np.flatnonzero(np.isin(timeline.host.correlation, there)))
    thinned = replace(
        timeline,
        spans=replace(spans, correlation=spans.correlation * numbered),
        host=replace(host, correlation=host.correlation * numbered),
    )
    return replace(run, ranks={0: thinned})


def test_a_sampled_recording_claims_no_idle_time_and_recommends_nothing() -> None:
    run = sampled()
    analysis = analyze_with_advice(run)
    assert analysis.ranks[0].no_causes_reason == SAMPLED
    (found,) = (each for each in analysis.findings if each.id == "sampled_recording")
    assert found.severity == "warning"
    assert found.evidence["calls"] == 200
    assert found.evidence["numbers"] == pytest.approx(20 * LAUNCHES, rel=0.02)
    assert "record whole" in found.title
    cost = analysis.throughput
    assert cost is not None
    assert cost.idle_fraction is cost.idle_gpu_hours_a_day is cost.exposed_gpu_hours_a_day is None
    assert cost.reasons["idle_gpu_hours_a_day"] == NO_CAUSES[SAMPLED]
    assert analysis.recommendations == []
    recommended, reasons = advise(run, analysis)
    assert recommended == []
    assert reasons == [f"nothing is recommended: {NO_CAUSES[SAMPLED]}; record whole"]
    shown = " ".join(render(analysis).split())
    assert "Idle at most" in shown
    assert "Most events of rank 0 are missing" in shown
    assert "GPU-hours" not in shown


def test_one_sampled_rank_of_two_leaves_the_rules_to_the_other() -> None:
    slow = [each for _ in range(LAUNCHES) for each in (Launch(0, 20 * US), Work(100 * US))]
    run = sampled()
    other = replace(simulate({0: slow}).run.ranks[0], rank=1)
    both = replace(run, ranks={**run.ranks, 1: other}, world_size=2)
    analysis = analyze_with_advice(both)
    assert [info.no_causes_reason for info in analysis.ranks] == [SAMPLED, None]
    assert analysis.headline.ranks == [1]
    assert analysis.headline.idle_ns == analysis.ranks[1].whole.idle_ns, "when the other one was idle is not known"
    shown = " ".join(render(analysis).split())
    assert "Most events of rank 0 are missing: the main figures are of the other ranks alone;" in shown
    assert "Idle at most" not in shown
    assert [each.id for each in analysis.recommendations] == ["launch_bound"]
    recommended, reasons = advise(both, analysis)
    assert [each.id for each in recommended] == ["launch_bound"]
    assert reasons == [
        "most events of rank 0 are missing, as the recording is sampled: rules read the other ranks, and no change is "
        "replayed; record whole"
    ]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (sampled(LAUNCHES), None),
        (sampled(LAUNCHES, numbered=200), None),
        (sampled(numbered=1), "unexplained_waits"),
        (sampled(50), "unexplained_waits"),
    ],
    ids=["whole", "whole, of a host that polls", "of a recorder that numbers what it records", "few calls"],
)
def test_others_are_not_called_sampled(run: Run, reason: str | None) -> None:
    analysis = analyze(run)
    assert analysis.ranks[0].no_causes_reason == reason
    assert not [each for each in analysis.findings if each.id == "sampled_recording"]
    assert analysis.throughput is not None
    assert analysis.throughput.idle_fraction is not None
