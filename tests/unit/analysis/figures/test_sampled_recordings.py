"""Where events of a rank are missing, most or any, nothing is said of idle time, and nothing is recommended."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise, analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import CUT_FILE, NO_CAUSES, SAMPLED
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.job_replay import job_replay
from overlapscope.analysis.graph.own_causes import own_causes
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
        "rank 0: most events are missing, as the recording is sampled; rules read the other ranks, and no change is "
        "replayed; record whole"
    ]


def cut(*ranks: int, basis: str = "trace") -> Run:
    """Return two ranks whose hosts launch slowly; the files of `ranks` end early."""
    slow = [each for _ in range(LAUNCHES) for each in (Launch(0, 20 * US), Work(100 * US))]
    timeline = simulate({0: slow}).run.ranks[0]
    marked = replace(timeline.recordings, truncated=np.ones(1, np.bool_))
    both = {rank: replace(timeline, rank=rank, basis=basis) for rank in range(2)}
    every = both | {rank: replace(both[rank], recordings=marked) for rank in ranks}
    return Run(world_size=2, ranks=every)


def test_of_a_file_that_ends_early_any_event_may_be_missing() -> None:
    run = cut(0, 1)
    analysis = analyze_with_advice(run)
    assert {info.no_causes_reason for info in analysis.ranks} == {CUT_FILE}
    cost = analysis.throughput
    assert cost is not None
    assert cost.idle_fraction is cost.exposed_fraction is cost.idle_gpu_hours_a_day is None
    assert advise(run, analysis) == ([], [f"nothing is recommended: {NO_CAUSES[CUT_FILE]}; record whole"])
    alone = replace(run, world_size=1, ranks={0: run.ranks[0]})
    assert analyze(alone).critical_path.reason == NO_CAUSES[CUT_FILE]
    shown = " ".join(render(analysis).split())
    assert "Events of ranks 0, 1 may be missing at any time, as the file ends early:" in shown
    assert f"what ran then is unknown because {NO_CAUSES[CUT_FILE]}." in shown
    assert "launch" not in shown


def test_of_a_cut_file_nothing_is_replayed_and_no_rank_is_worth_anything_with_host_events_or_without() -> None:
    run = cut(0, 1)
    together = match_and_align(run)
    assert job_replay(run, together) == NO_CAUSES[CUT_FILE]
    silent = {
        rank: replace(each, recordings=replace(each.recordings, host_events=np.zeros(1, np.bool_)))
        for rank, each in run.ranks.items()
    }
    assert {own_causes(each).reason for each in (*silent.values(), *run.ranks.values())} == {CUT_FILE}


def test_one_cut_file_of_two_leaves_figures_and_rules_to_the_other() -> None:
    analysis = analyze_with_advice(cut(0))
    assert [info.no_causes_reason for info in analysis.ranks] == [CUT_FILE, None]
    assert analysis.headline.ranks == [1]
    assert [each.id for each in analysis.recommendations] == ["launch_bound"]


def test_a_cut_log_lacks_only_what_came_later() -> None:
    assert not any(each.ends_early for each in cut(0, 1, basis="log").ranks.values())


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
