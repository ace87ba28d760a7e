"""Causes of idle time in an analysis: sums, shares of real traces, and what is said where the graph may not answer."""

import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import IDLE_CAUSES, NO_CAUSES, WAITED_FOR_CORE
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph import idle
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import MAY_WAIT_FOR_CORE, UNKNOWN, _with_rest
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import render
from overlapscope.report.text.idle_time import idle_text
from overlapscope.timeline.run import RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.support.builders import EPOCH_NS
from tests.support.cpu_runs.cpu_steps import STEP, STEPS, US, Call, Item, Mark, Op, cpu_run
from tests.unit.analysis.figures.test_exposed_causes import waiting_for_cores
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


@pytest.mark.slow
def test_the_headline_divides_its_idle_time() -> None:
    head = analyzed("kineto/megatron_tp8").headline
    assert sum(head.idle_causes.values()) == head.idle_ns
    assert head.idle_causes["launch_bound"] > 0.9 * (head.idle_ns or 0)


def test_a_sampled_trace_says_why_its_idle_time_is_unknown() -> None:
    found = analyzed("kineto/sampled_pair")
    for info in found.ranks:
        assert info.no_causes_reason == "sampled"
        assert info.whole.idle_causes == {"unknown": info.whole.idle_ns}
    assert idle_text(found).count(NO_CAUSES["sampled"]) == 1
    assert found.skew.reasons == [NO_CAUSES["sampled"]]


@pytest.mark.slow
def test_causes_of_calls_that_were_not_matched_are_said_to_hold_waiting() -> None:
    unmatched, uneven = "Not all calls could be matched across ranks", "How long all_to_all calls transfer is not known"
    for name, not_known in (("hot_experts_moe3", True), ("starved_tp2", False)):
        analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / name]))
        assert (analysis.headline.exposed_wait_ns is None) == not_known
        holds = "what the next compute waited for holds waiting for other ranks, too."
        assert (holds in " ".join(render(analysis).split())) == not_known
        assert (uneven in render(analysis)) == not_known, "all of its calls were matched"
        some = replace(analysis, skew=replace(analysis.skew, unmatched=1))
        assert (unmatched in render(some)) == not_known
        assert unmatched not in render(analysis)
        # Most calls are matched, of members of which some were not recorded: that is the reason.
        ranks = [replace(each, blame_estimate="upper_bound") for each in analysis.skew.ranks]
        for missing, why in (([1], "were not recorded"), ([], "were perhaps not recorded")):
            lacking = replace(some, skew=replace(some.skew, ranks=ranks), run=replace(some.run, missing_ranks=missing))
            lacking = replace(lacking, run=replace(lacking.run, world_size=None))
            assert (f"Members of groups {why}, and calls may wait for these" in render(lacking)) == not_known
            assert unmatched not in render(lacking)
            few = replace(lacking, skew=replace(lacking.skew, unmatched=lacking.skew.matched + 1))
            assert (unmatched in render(few)) == not_known
        head = replace(analysis.headline, causes=analysis.headline.causes | {"unknown": 1})
        both = "what is unknown, and what the next compute waited for, may hold waiting for other ranks, too."
        assert (both in " ".join(render(replace(analysis, headline=head)).split())) == not_known


def test_the_calls_whose_transfers_are_not_known_are_named() -> None:
    analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / "hot_experts_moe3"]))
    rows = [replace(each, op="send") if each.op == "all_to_all" else each for each in analysis.collectives]
    shown = " ".join(render(replace(analysis, collectives=rows)).split())
    assert "How long send calls transfer is not known (" in shown
    assert " ms): what the next compute waited for holds waiting" in shown
    assert "all_to_all calls" not in shown


def test_what_only_the_optimizer_follows_may_be_waiting_too_where_calls_are_not_split() -> None:
    analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / "hot_experts_moe3"]))
    assert analysis.headline.exposed_comm_ns
    only = {"tail": analysis.headline.exposed_comm_ns}
    ranks = [replace(each, unsplit_causes=each.whole.causes) for each in analysis.ranks]
    head = replace(analysis.headline, causes=only)
    shown = " ".join(render(replace(analysis, headline=head, ranks=ranks)).split())
    assert "only the optimizer follows, or recording ends (or waiting)" in shown
    assert "what no other compute than the optimizer's follows holds waiting for other ranks, too." in shown


def test_only_causes_of_calls_that_are_not_split_may_be_waiting_and_it_is_said_how_much_that_is() -> None:
    """Of two causes one has split calls alone; of the other one half is in calls of tensor parallelism that are not."""
    analysis = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / "hot_experts_moe3"]))
    exposed_ns = analysis.headline.exposed_comm_ns or 0
    causes = {"dependency": exposed_ns // 2, "tail": exposed_ns - exposed_ns // 2}
    ranks = [
        replace(
            each,
            whole=replace(each.whole, causes=causes),
            steps=[replace(step, causes=causes) for step in each.steps],
            unsplit_causes={"dependency": causes["dependency"] // 2, "tail": 1},
        )
        for each in analysis.ranks
    ]
    split = replace(analysis.collectives[0], op="all_reduce", dimension="data", estimate="matched", exposed_ns=1)
    bounded = replace(split, op="all_gather", dimension="tensor", estimate="upper_bound")
    head = replace(analysis.headline, causes=causes)
    given = replace(analysis, headline=head, ranks=ranks, collectives=[split, bounded])
    shown = " ".join(render(given).split())
    assert "the next compute waited for it, or for other ranks" in shown
    assert "only the optimizer follows, or recording ends (or waiting)" not in shown
    some = f"{exposed_ns / 4e6:,.3f} of {exposed_ns / 1e6:,.3f} ms"
    assert f"How long all_gather calls of tensor parallelism transfer is not known ({some}): what the next" in shown
    older = replace(given, ranks=[replace(each, unsplit_causes=None) for each in ranks])
    assert "only the optimizer follows, or recording ends (or waiting)" in " ".join(render(older).split())


def test_that_the_host_was_not_recorded_is_said_once() -> None:
    shown = render(analyzed("rocprof/tracelens_rocprofv3_908_results.json.gz"))
    assert shown.count("Idle ") == 1
    (idle,) = (each for each in shown.split("\n\n") if each.startswith("Idle "))
    assert "what the host did was not recorded" in idle
    assert "No host events" not in idle


@pytest.mark.slow
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
        "from overlapscope.analysis.analyze import analyze; from overlapscope.report.text.idle_time import idle_text;"
        "work = [{'name': 'k', 'start_ns': at, 'end_ns': at + 10} for at in (0, 50)];"
        "found = analyze(Run(world_size=1, ranks={0: rank_timeline(work=work)}));"
        "print(idle_text(found)); print(found.critical_path.reason);"
        "print('overlapscope.analysis.graph.building.build' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    assert lines[0].endswith(f"ms a recording: unknown because {NO_CAUSES['no_host_events']}.")
    assert lines[1:] == [NO_CAUSES["no_host_events"], "False"]


# --- waiting for a core -----------------------------------------------------------------------------------------------

BY_GRAPH = tuple(name for name in IDLE_CAUSES if name not in (WAITED_FOR_CORE, UNKNOWN))
LENGTH = STEP * US


@given(st.lists(st.sampled_from(BY_GRAPH), unique=True), st.data())
def test_causes_add_up_to_idle_time_and_no_call_gives_any_of_its_to_waiting_for_a_core(
    names: list[str], data: st.DataObject
) -> None:
    """Whatever was known, and however long the host waited: also for longer than could be, and to the nanosecond."""
    most = data.draw(st.sampled_from((3, 20, 10**12)))
    causes = {name: data.draw(st.integers(0, most)) for name in names}
    unknown, waited = data.draw(st.integers(0, most)), data.draw(st.integers(0, 3 * most))
    idle_ns = sum(causes.values()) + unknown
    found = _with_rest(idle_ns, causes, waited)
    before = {**causes, UNKNOWN: unknown}
    may_be = {name: ns for name, ns in before.items() if name in MAY_WAIT_FOR_CORE}
    assert sum(found.values()) == idle_ns
    assert min(found.values(), default=1) > 0
    for_core = min(waited, idle_ns) * sum(may_be.values()) // max(idle_ns, 1)  # evenly over all idle time
    assert found.get(WAITED_FOR_CORE, 0) == for_core
    for name, ns in before.items():
        left = found.get(name, 0)
        if name not in may_be:
            assert left == ns
        else:  # in proportion
            share = for_core / max(sum(may_be.values()), 1)
            assert abs(ns - left - share * ns) <= len(may_be) * (1 + 1e-9 * ns)


def test_no_graph_says_that_a_host_waited_for_a_core() -> None:
    """The system's account does; a graph numbers its own causes as before."""
    assert WAITED_FOR_CORE in IDLE_CAUSES
    assert tuple(name for name in IDLE_CAUSES if name != WAITED_FOR_CORE) == idle.IDLE_CAUSES
    assert idle.IDLE_CAUSES[idle.DRAINED] == "drained"
    assert idle.IDLE_CAUSES[idle.UNKNOWN] == UNKNOWN
    assert not {"blocked_host", "drained", "device_wait", WAITED_FOR_CORE} & {*MAY_WAIT_FOR_CORE}


COMPUTED: tuple[Item, ...] = (Op("aten::mm", 0, 300), Call(start=700, end=720), Op("aten::add", 720, 900))
"""In each step of 1,000 us: 480 of compute, 20 of communication, and 500 idle."""
LOADING = Mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 400, 500)


def accounted(waited_us: float | None, *, more: tuple[Item, ...] = (), ranks: int = 1) -> Run:
    """Return a CPU run whose threads waited so long for a core in each step; None of which that was not read."""
    run = cpu_run(lambda step, rank: [*COMPUTED, *more], ranks=ranks)
    if waited_us is None:
        return run
    readings = [(EPOCH_NS + step * LENGTH, round(step * waited_us * US)) for step in range(STEPS + 1)]
    return replace(run, ranks={rank: waiting_for_cores(each, *readings) for rank, each in run.ranks.items()})


@pytest.mark.parametrize("ranks", [1, 2])
def test_idle_time_in_which_the_system_counted_waiting_for_a_core_has_that_cause(ranks: int) -> None:
    """Of 98 us of waiting 50 lie in the idle time, as that is 500 of 980 us outside of communication."""
    analysis = analyze(accounted(98, ranks=ranks))
    for info in analysis.ranks:
        for step in info.steps:
            assert step.idle_ns == 500 * US
            assert step.idle_causes[WAITED_FOR_CORE] == pytest.approx(50 * US, abs=2)
            assert sum(step.idle_causes.values()) == step.idle_ns
    head = analysis.headline
    assert head.idle_causes[WAITED_FOR_CORE] == pytest.approx(50 * US, abs=2)
    assert sum(head.idle_causes.values()) == head.idle_ns
    assert "the host waited for a core 0.050 ms (10.0 %)" in idle_text(analysis)


def test_without_that_account_or_waiting_or_with_a_device_it_has_not() -> None:
    device = accounted(98)
    device = replace(device, ranks={0: replace(device.ranks[0], has_device=True)})
    for run in (accounted(None), accounted(0), device):
        analysis = analyze(run)
        assert all(WAITED_FOR_CORE not in step.idle_causes for step in analysis.ranks[0].steps)
        assert "waited for a core" not in idle_text(analysis)


@pytest.mark.parametrize("waited_us", [98, 490, 980])
def test_the_time_in_which_a_host_loads_data_stays_the_loaders(waited_us: float) -> None:
    for step in analyze(accounted(waited_us, more=(LOADING,))).ranks[0].steps:
        assert step.idle_causes["blocked_host"] == 100 * US
        assert 0 < step.idle_causes[WAITED_FOR_CORE] <= 400 * US
        assert sum(step.idle_causes.values()) == step.idle_ns


reading = st.tuples(st.integers(0, STEPS * LENGTH), st.integers(0, STEPS * LENGTH))


@cache
def plain(*, loads: bool) -> tuple[RankTimeline, list[Breakdown]]:
    """Return the rank without an account, and its figures: of the whole, and step by step."""
    run = accounted(None, more=(LOADING,) if loads else ())
    return run.ranks[0], summarize_ranks(run)[0].figures


@given(st.lists(reading, max_size=6), st.booleans())
def test_sums_are_exact_and_calls_keep_their_time_whatever_the_account_says(
    readings: list[tuple[int, int]], loads: bool
) -> None:
    """Also where the counter falls, or rises by more than the time that passed."""
    timeline, before = plain(loads=loads)
    own = waiting_for_cores(timeline, *((EPOCH_NS + at, value) for at, value in readings))
    figures = summarize_ranks(Run(world_size=1, ranks={0: own}))[0].figures
    for found, known in zip(figures, before, strict=True):
        assert found.idle_ns == known.idle_ns == sum(found.idle_causes.values())
        assert min(found.idle_causes.values()) > 0
        for cause in known.idle_causes.keys() - {*MAY_WAIT_FOR_CORE}:
            assert found.idle_causes[cause] == known.idle_causes[cause]
