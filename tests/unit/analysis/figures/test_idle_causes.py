"""Causes of idle time in an analysis: sums, shares of real traces, and what is said where the graph may not answer."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import NO_CAUSES
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import idle_text, render
from overlapscope.timeline.run import RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.unit.analysis.graph.graph_figures import graph_figures
from tests.unit.analysis.graph.test_any_trace import traces


def analyzed(source: str) -> Analysis:
    return analyze(read_inputs([shared_file(source)]))


SINGLE_RANKS = (
    "kineto/a100_ddp_rank0of2_collective_args.json.gz",
    "kineto/a100_rank3of8_six_steps.json.gz",
    "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
    "kineto/tracelens_b200_eager.json.gz",
    "kineto/v100_rank1of2_2020_allreduces.json.gz",
)


@pytest.mark.parametrize("source", SINGLE_RANKS)
def test_little_is_unknown_on_a_rank_recorded_alone(source: str) -> None:
    (info,) = analyzed(source).ranks
    assert info.no_causes_reason is None
    assert info.whole.causes.get("unknown", 0) <= 0.25 * (info.whole.exposed_comm_ns or 0)
    assert info.whole.idle_causes.get("unknown", 0) <= 0.15 * (info.whole.idle_ns or 0)


def test_a_recording_has_the_causes_that_its_graph_has() -> None:
    run = read_inputs([shared_file(SINGLE_RANKS[0])])
    found = graph_figures(run, match_and_align(run))
    assert found
    whole = analyze(run).ranks[0].whole
    assert whole.idle_causes == found.ranks[0].idle_causes
    assert whole.causes == found.ranks[0].exposed_causes


def test_the_headline_divides_its_idle_time() -> None:
    head = analyzed("kineto/megatron_tp8").headline
    assert sum(head.idle_causes.values()) == head.idle_ns
    assert head.idle_causes["launch_bound"] > 0.9 * (head.idle_ns or 0)


def test_a_sampled_trace_says_why_its_idle_time_is_unknown() -> None:
    found = analyzed("kineto/sampled_pair")
    for info in found.ranks:
        assert info.no_causes_reason == "unexplained_waits"
        assert info.whole.idle_causes == {"unknown": info.whole.idle_ns}
    assert idle_text(found).count(NO_CAUSES["unexplained_waits"]) == 1


def test_causes_of_calls_that_were_not_matched_are_said_to_hold_waiting() -> None:
    unmatched, uneven = "Not all calls could be matched across ranks", "How long all_to_all calls transfer is not known"
    for name, not_known in (("hot_experts_moe3", True), ("starved_tp2", False)):
        analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / name]))
        assert (analysis.headline.exposed_wait_ns is None) == not_known
        assert ("what the next compute waited for holds waiting for other ranks, too." in render(analysis)) == not_known
        assert (uneven in render(analysis)) == not_known, "all of its calls were matched"
        some = replace(analysis, skew=replace(analysis.skew, unmatched=1))
        assert (unmatched in render(some)) == not_known
        assert unmatched not in render(analysis)
        head = replace(analysis.headline, causes=analysis.headline.causes | {"unknown": 1})
        both = "what is unknown, and what the next compute waited for, may hold waiting for other ranks, too."
        assert (both in render(replace(analysis, headline=head))) == not_known


def test_the_calls_whose_transfers_are_not_known_are_named() -> None:
    analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / "hot_experts_moe3"]))
    rows = [replace(each, op="send") if each.op == "all_to_all" else each for each in analysis.collectives]
    shown = render(replace(analysis, collectives=rows))
    assert "How long send calls transfer is not known: what the next compute waited for holds waiting" in shown
    assert "all_to_all calls" not in shown


def test_that_the_host_was_not_recorded_is_said_once() -> None:
    shown = render(analyzed("rocprof/tracelens_rocprofv3_908_results.json.gz"))
    assert shown.count("Idle ") == 1
    (idle,) = (each for each in shown.split("\n\n") if each.startswith("Idle "))
    assert "what the host did was not recorded" in idle
    assert "No host events" not in idle


@settings(deadline=None, max_examples=60)
@given(traces())
def test_sums_are_exact_whatever_happens_in_a_trace(timeline: RankTimeline) -> None:
    for info in analyze(Run(world_size=1, ranks={0: timeline})).ranks:
        assert sum(info.whole.idle_causes.values()) == info.whole.idle_ns
        assert sum(info.whole.causes.values()) == info.whole.exposed_comm_ns
        assert min([0, *info.whole.idle_causes.values(), *info.whole.causes.values()]) == 0


def test_a_device_without_host_events_loads_no_graph_and_says_so() -> None:
    code = (
        "import sys; from overlapscope.timeline.run import Run; from tests.support.rank_rows import rank_timeline;"
        "from overlapscope.analysis.analyze import analyze; from overlapscope.report.text.analysis import idle_text;"
        "work = [{'name': 'k', 'start_ns': at, 'end_ns': at + 10} for at in (0, 50)];"
        "found = analyze(Run(world_size=1, ranks={0: rank_timeline(work=work)}));"
        "print(idle_text(found)); print(found.critical_path.reason);"
        "print('overlapscope.analysis.graph.building.build' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    assert lines[0].endswith(f"ms a recording: unknown because {NO_CAUSES['no_host_events']}.")
    assert lines[1:] == [NO_CAUSES["no_host_events"], "False"]
