"""What a step of a chain is worth: as a plain replay of the whole graph without it."""

from pathlib import Path

import numpy as np
import pytest

from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.analysis.graph.gains import shortening_gains
from overlapscope.analysis.graph.model import ARRIVE, BEGINS, POLL, RUN_COMM, SYNC, TRANSFER, Graph
from overlapscope.ingest.read_run import read_inputs
from tests.conftest import ROOT, shared_file

NEVER = -(10**18)
SAMPLES = ("traces/regressed", "kineto/megatron_tp8", "nsys/nsysai_mfu_2gpu_before.sqlite")


@pytest.fixture(scope="module", params=SAMPLES)
def graph(request: pytest.FixtureRequest) -> Graph:
    place: Path = ROOT / request.param if request.param.startswith("traces/") else shared_file(request.param)
    run = read_inputs([place])
    return RunChains(run).graph(min(run.ranks), 0)


def by_hand(graph: Graph, rows: list[int]) -> int:
    """Return how much earlier the recording ends without some edges: node after node, with Python's numbers."""
    edges, nodes = graph.edges, graph.nodes
    lags, own = edges.lag_ns.tolist(), nodes.own_ns.tolist()
    before, node, kind = edges.before.tolist(), edges.node.tolist(), edges.kind.tolist()
    leading: dict[int, list[int]] = {}
    for row, to in enumerate(node):
        leading.setdefault(to, []).append(row)
    gone = set(rows)
    arrivals = {before[row] for row in rows if kind[row] == TRANSFER}
    gone |= {row for row in range(len(node)) if kind[row] == TRANSFER and before[row] in arrivals}
    ends = {node[row] for row in gone if kind[row] == TRANSFER}
    gone |= {row for row in range(len(node)) if kind[row] == RUN_COMM and node[row] in ends}
    value = nodes.time_ns.tolist()
    for at in graph.order.tolist():
        if at not in leading:
            continue
        changed = [row for row in leading[at] if row in gone]
        arrived = []
        for row in leading[at]:
            waits = kind[row] in (SYNC, POLL, ARRIVE) and len(leading[at]) > 1
            arrived.append((NEVER if waits else value[before[row]]) if row in gone else value[before[row]] + lags[row])
        value[at] = max(arrived) + (0 if changed and nodes.gap[at] != BEGINS else own[at])
    whole = whole_bounds(graph)
    assert whole is not None
    return int(nodes.time_ns[whole.end].max()) - max(value[at] for at in whole.end.tolist())


def test_a_step_is_worth_what_a_replay_of_everything_without_it_says(graph: Graph) -> None:
    random = np.random.default_rng(7)
    longest = np.argsort(-graph.edges.lag_ns)[:400]
    some = [np.array([row]) for row in random.choice(longest, 6, replace=False).tolist()]
    for kind in (TRANSFER, ARRIVE, SYNC):
        own = np.flatnonzero(graph.edges.kind == kind)
        some += [np.array([row]) for row in random.choice(own, min(2, own.size), replace=False).tolist()]
    some += [np.sort(random.choice(longest, 3, replace=False))]
    found = shortening_gains(graph, some, most_edges=10**9)
    assert found == [max(by_hand(graph, rows.tolist()), 0) for rows in some]
    assert any(found)


def test_nothing_is_gained_without_nothing_and_not_known_beyond_the_limit(graph: Graph) -> None:
    rows = np.argsort(-graph.edges.lag_ns)[:1]
    assert shortening_gains(graph, [np.empty(0, np.int64)]) == [None]
    assert shortening_gains(graph, [rows], most_edges=0) == [None]
    first, again = shortening_gains(graph, [rows, rows])
    assert first == again is not None
