"""A command builds the dependency graph of each rank once, whatever it asks of it."""

from collections import Counter
from pathlib import Path

import pytest

from overlapscope.advice.advise import advise, analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.building import build
from overlapscope.analysis.graph.building.build import RankNodes
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions
from tests.property.synthetic import Job, Layout, plant, simulate
from tests.property.synthetic.kineto import write_kineto


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """Return how often the nodes of each rank and recording were built."""
    counts: Counter[tuple[int, int]] = Counter()
    plain = build.rank_nodes

    def counted(timeline: RankTimeline, recording: int = 0) -> RankNodes:
        counts[timeline.rank, recording] += 1
        return plain(timeline, recording)

    monkeypatch.setattr(build, "rank_nodes", counted)
    return counts


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a job whose analysis asks for the causes of each rank, stragglers, paths and advice."""
    job = Job(layout=Layout(dp=2), seed=5, steps=5, layers=2, recorded=tuple(range(request.param)))
    planted = plant(job, "slow_compute", share=0.2, culprit=1, seed=5)
    folder: Path = tmp_path_factory.mktemp("traces")
    return read_inputs(write_kineto(simulate(planted), folder))


def test_analyze_builds_each_graph_once(run: Run, built: Counter[tuple[int, int]]) -> None:
    found = analyze_with_advice(run)
    assert found.critical_path.scope is not None
    assert found.ranks[0].no_causes_reason is None
    assert [each.removal_ns is not None for each in found.skew.stragglers] == [True] * (len(run.ranks) - 1)
    assert built == {(rank, 0): 1 for rank in run.ranks}


def test_advise_builds_each_graph_once(run: Run, built: Counter[tuple[int, int]]) -> None:
    cross_rank, graphs = match_and_align(run), BuiltGraphs(run)
    alone = summarize_ranks(run, graphs)
    analysis = analyze(run, cross_rank, None, alone, graphs)
    advise(run, analysis, cross_rank, (), None, alone, graphs)
    assert built == {(rank, 0): 1 for rank in run.ranks}


def test_whatif_builds_each_graph_once(run: Run, built: Counter[tuple[int, int]]) -> None:
    predict_recording(run, (), ReplayOptions(), search=False)
    assert built == {(rank, 0): 1 for rank in run.ranks}


def test_a_handed_on_graph_answers_as_one_built_for_the_question(run: Run) -> None:
    cross_rank, graphs = match_and_align(run), BuiltGraphs(run)
    alone = summarize_ranks(run, graphs)
    assert analyze(run, cross_rank, None, alone, graphs) == analyze(run, cross_rank, None, alone)
