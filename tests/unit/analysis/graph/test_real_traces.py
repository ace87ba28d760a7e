"""The graphs of real traces: what the four tests say, and figures that were found independently."""

from functools import cache
from itertools import pairwise

import pytest

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.answers import REPLAY, REPLAY_WITHIN
from overlapscope.analysis.graph.bounds import step_bounds, whole_bounds
from overlapscope.analysis.graph.building.build import run_graph
from overlapscope.analysis.graph.chains import chain_of_span, span_of_moment
from overlapscope.analysis.graph.idle import IDLE_CAUSES, idle_pieces
from overlapscope.analysis.graph.model import Graph
from overlapscope.analysis.graph.removal import RunGraph, answering_graph, programs_of, removal
from overlapscope.analysis.graph.scenarios import aligned_starts, outcome, own_chain_ends
from overlapscope.analysis.graph.walk import binding_edges
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from tests.conftest import shared_file
from tests.unit.analysis.graph.graph_figures import GraphFigures, causes_within, graph_figures

TRACES = {
    "megatron_tp8": "kineto/megatron_tp8",
    "a100_ddp": "kineto/a100_ddp_rank0of2_collective_args.json.gz",
    "a100_rank3of8": "kineto/a100_rank3of8_six_steps.json.gz",
    "v100_2020": "kineto/v100_rank1of2_2020_allreduces.json.gz",
    "mi300": "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
    "b200": "kineto/tracelens_b200_eager.json.gz",
    "mi210": "kineto/tracelens_mi210_gpu_only.json.gz",
    "resnet50": "kineto/kineto_tb_resnet50_nw0_pt1.8.pt.trace.json.gz",
    "sampled_pair": "kineto/sampled_pair",
}


@cache
def run_of(name: str) -> Run:
    return read_inputs([shared_file(TRACES[name])])


@cache
def figures_of(name: str) -> GraphFigures:
    run = run_of(name)
    found = graph_figures(run, match_and_align(run))
    assert found
    return found


@cache
def graph_of(name: str) -> Graph:
    return run_graph(run_of(name), match_and_align(run_of(name)))


def share(part_ns: int, whole_ns: int) -> int:
    return round(100 * part_ns / whole_ns)


@pytest.mark.parametrize("name", [name for name in TRACES if name not in ("mi300", "sampled_pair")])
def test_all_tests_hold(name: str) -> None:
    tested = figures_of(name).self_test
    assert tested.holds
    assert all(abs(each.error) <= REPLAY_WITHIN for each in tested.windows)
    assert tested.unknown_share <= 0.001
    assert tested.unexplained_share == 0
    assert tested.hidden_wait_share <= 0.06


def test_the_last_step_of_mi300_loses_its_answers_and_no_other() -> None:
    tested = figures_of("mi300").self_test
    assert tested.failed == (REPLAY,)
    assert [each.step for each in tested.windows if abs(each.error) > REPLAY_WITHIN] == [17]
    assert tested.answers(15, 0)
    assert tested.answers(None, None)
    assert not tested.answers(17, 0)
    assert figures_of("mi300").path


def test_a_sampled_trace_gets_no_path_and_no_scenarios_though_it_replays() -> None:
    found = figures_of("sampled_pair")
    assert abs(found.self_test.windows[0].error) < REPLAY_WITHIN
    assert found.self_test.unexplained_share > 0.3
    assert found.self_test.failed == ("unknown",)
    assert found.path is None
    assert found.scenarios is None


PATHS = {
    "megatron_tp8": {"host": 94, "before_recording": 6},
    "a100_ddp": {"host": 100},
    "a100_rank3of8": {"host": 59, "compute": 22, "communication": 17, "copy": 1},
    "v100_2020": {"host": 100},
    "mi300": {"compute": 11, "communication": 83, "copy": 3, "before_recording": 3},
    "b200": {"host": 100},
    "mi210": {"host": 47, "compute": 52},
    "resnet50": {"host": 94, "copy": 1, "before_recording": 5},
}


@pytest.mark.parametrize("name", PATHS)
def test_the_path_consists_of(name: str) -> None:
    path = figures_of(name).path
    assert path
    assert sum(path.parts_ns.values()) == path.length_ns
    for part, (least, most) in path.bands_ns.items():
        expected = PATHS[name].get(part, 0)
        assert least - 0.01 * path.length_ns <= expected / 100 * path.length_ns <= most + 0.01 * path.length_ns


IDLE: dict[str, tuple[int, dict[str, int]]] = {
    # idle time in us; shares of its causes in percent
    "megatron_tp8": (222_514, {"launch_bound": 99}),
    "a100_ddp": (503_051, {"launch_bound": 94, "launch_latency": 6}),
    "a100_rank3of8": (76_007, {"launch_bound": 67, "launch_latency": 17, "device_wait": 11, "drained": 3}),
    "v100_2020": (732_352, {"launch_bound": 82, "launch_latency": 15, "device_wait": 3}),
    "mi300": (2_566, {"start_of_recording": 84, "device_wait": 16}),
    "b200": (72_891, {"launch_bound": 89, "launch_latency": 10}),
    "mi210": (636, {"launch_bound": 70, "launch_latency": 28}),
    "resnet50": (274_446, {"blocked_host": 67, "launch_bound": 23, "device_wait": 5, "launch_latency": 4}),
}


@pytest.mark.parametrize("name", IDLE)
def test_idle_time_has_these_causes(name: str) -> None:
    rank = figures_of(name).ranks[0]
    idle_us, shares = IDLE[name]
    assert sum(rank.idle_causes.values()) == rank.idle_ns
    assert round(rank.idle_ns / 1e3) == idle_us
    for cause, percent in shares.items():
        assert abs(share(rank.idle_causes[cause], rank.idle_ns) - percent) <= 1
    assert "unknown" not in rank.idle_causes


@pytest.mark.parametrize("name", TRACES)
def test_idle_and_exposed_time_are_covered_exactly(name: str) -> None:
    for rank in figures_of(name).ranks:
        assert sum(rank.idle_causes.values()) == rank.idle_ns
        assert sum(rank.exposed_causes.values()) == rank.exposed_ns
        assert sum(rank.launch_bound_ns.values()) == rank.idle_causes.get("launch_bound", 0)
        assert sum(rank.blocked_by_ns.values()) == rank.idle_causes.get("blocked_host", 0)
        assert sum(rank.drained_by_ns.values()) == rank.idle_causes.get("drained", 0)


def test_causes_of_steps_are_parts_of_those_of_the_recording() -> None:
    run, graph = run_of("a100_rank3of8"), graph_of("a100_rank3of8")
    (part,), time = graph.ranks, graph.nodes.time_ns
    pieces = idle_pieces(graph, part, run.ranks[3], binding_edges(graph))
    whole = figures_of("a100_rank3of8").ranks[0].idle_causes
    first, last = int(time.min()), int(time.max())
    cuts = [first, *sorted(int(time[each.start].min()) for each in step_bounds(graph, run.ranks)), last]
    parts = [causes_within(pieces, IDLE_CAUSES, begin, end) for begin, end in pairwise(cuts)]
    assert len(parts) > 5
    for cause, taken in whole.items():
        assert sum(each.get(cause, 0) for each in parts) == taken


def test_loading_data_is_named() -> None:
    blocked = figures_of("resnet50").ranks[0].blocked_by_ns
    assert next(iter(blocked)) == "data_loading"


def test_where_the_host_is_not_ready_taking_communication_away_gains_nothing() -> None:
    found = figures_of("a100_ddp")
    (rank,) = found.ranks
    behind = sum(rank.exposed_causes.get(cause, 0) for cause in ("host_not_ready", "behind_copy", "behind_compute"))
    assert round(rank.exposed_ns / 1e5) == 396
    assert behind > 0.8 * rank.exposed_ns
    assert found.scenarios
    assert found.scenarios["no_communication"].gain_ns < 1_000


def test_compute_that_follows_at_once_depends_on_the_call() -> None:
    (rank,) = figures_of("mi300").ranks
    assert rank.exposed_causes["dependency"] > 0.8 * rank.exposed_ns
    (rank,) = figures_of("b200").ranks  # its calls run on the compute stream
    assert share(rank.exposed_causes["dependency"], rank.exposed_ns) == 99
    first = figures_of("megatron_tp8").ranks[0]
    assert share(first.exposed_causes["dependency"], first.exposed_ns) == 98


@pytest.mark.parametrize("name", [name for name in TRACES if name != "sampled_pair"])
def test_little_of_what_is_exposed_is_unknown_and_none_was_launched_late(name: str) -> None:
    for rank in figures_of(name).ranks:
        assert rank.exposed_causes.get("unknown", 0) <= 0.04 * rank.exposed_ns
        assert "late_launch" not in rank.exposed_causes


SCENARIOS = {
    # no communication, pauses capped at 3 ms; milliseconds
    "megatron_tp8": (630.8, 289.0),
    "a100_ddp": (660.6, 587.7),
    "a100_rank3of8": (439.3, 464.6),
    "v100_2020": (1733.0, 1721.5),
    "mi300": (48.5, 86.6),
    "b200": (84.5, 84.5),
    "resnet50": (928.0, 748.3),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_take(name: str) -> None:
    scenarios = figures_of(name).scenarios
    assert scenarios
    found = [scenarios[each].kept_ns / 1e6 for each in ("no_communication", "pauses_capped_3ms")]
    assert found == pytest.approx(SCENARIOS[name], abs=0.1)
    for each in scenarios.values():
        assert each.dropped_ns <= each.kept_ns <= each.recorded_ns


def test_recordings_of_megatron_begin_apart_and_no_rank_is_a_straggler() -> None:
    run, graph = run_of("megatron_tp8"), graph_of("megatron_tp8")
    window = whole_bounds(graph)
    assert window
    time = graph.nodes.time_ns
    first = int(time[window.start].min())
    assert window.length_ns(time) / 1e6 == pytest.approx(630.765, rel=1e-5)
    begins = {part.rank: int(time[part.first : part.first + part.nodes].min()) for part in graph.ranks}
    assert (begins[0] - min(begins.values())) / 1e6 == pytest.approx(35.5, abs=0.1)
    ends = sorted((end - first) / 1e6 for end in own_chain_ends(graph).values())
    assert ends == pytest.approx([597.6, 603.4, 608.9, 612.0, 613.3, 613.3, 623.7, 630.8], abs=0.1)
    aligned = aligned_starts(graph)
    together = outcome(graph, window, aligned).kept_ns
    assert together / 1e6 == pytest.approx(613.3, rel=0.005)
    whole, programs = answering_graph(run, match_and_align(run)), programs_of(run.ranks)
    assert isinstance(whole, RunGraph)
    for rank in run.ranks:
        found = removal(whole.replayed, [rank], programs)
        assert found
        assert found.aligned_ns == together
        assert found.low_ns <= found.gain_ns <= found.high_ns < 0.03 * together


def test_a_chain_leads_from_rank_to_rank_and_back_through_the_host() -> None:
    run, graph = run_of("megatron_tp8"), graph_of("megatron_tp8")
    moment = int(graph.nodes.time_ns.min()) + 400_000_000
    row = span_of_moment(graph, 3, moment)
    assert row is not None
    chain = chain_of_span(graph, run.ranks, 3, row)
    assert len({link.rank for link in chain}) > 1
    assert {"transfer", "launch", "host"} <= {link.kind for link in chain}
    for later, earlier in pairwise(chain):
        assert earlier.end_ns == later.start_ns
