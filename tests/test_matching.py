"""Which calls are the same: sends with receives, uneven all-to-all, several groups at once, ranks that are missing.

The oracle is plain Python over the frames a user sees.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import overlapscope
from overlapscope.analysis.across import across
from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.columns import NONE, Annotations, Collectives, Lanes, Recordings, Spans, Steps, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests import kineto_writer as kineto
from tests.builders import EPOCH_NS
from tests.conftest import ROOT, shared_file
from tests.kineto_writer import MS, US


@dataclass(frozen=True, kw_only=True)
class Call:
    op: str = "all_to_all"
    start: int = 0
    length: int = MS
    group: str = "g"
    size: int = NONE
    volume: int = 1000
    received: int = NONE
    peer: int = NONE
    seq: int = NONE
    step: int = NONE
    dimension: str | None = None


def job(calls: dict[int, list[Call]], groups: tuple[Group, ...] = (), **more: Any) -> Run:
    ranks = {}
    for rank, own in calls.items():
        names = NameTable()
        table = make(
            Collectives, len(own), recording=0,
            op=[names.code(c.op) for c in own], group=[names.code(c.group) for c in own], dtype=names.code("bfloat16"),
            dimension=[names.code(c.dimension) if c.dimension else -1 for c in own],
            group_size=[c.size for c in own], bytes=[c.volume for c in own], received_bytes=[c.received for c in own],
            peer=[c.peer for c in own], seq=[c.seq for c in own], step=[c.step for c in own],
            start_ns=[EPOCH_NS + c.start for c in own], end_ns=[EPOCH_NS + c.start + c.length for c in own],
        )  # fmt: skip
        ranks[rank] = RankTimeline(
            rank=rank, basis="trace", has_device=True, names=tuple(names.to_list()), collectives=table,
            recordings=make(Recordings, 1, source=-1, start_ns=EPOCH_NS, end_ns=EPOCH_NS + 10**12),
            spans=make(Spans, 0), steps=make(Steps, 0), lanes=make(Lanes, 0), annotations=make(Annotations, 0),
        )  # fmt: skip
    return Run(**{"world_size": max(calls) + 1, "ranks": ranks, "groups": groups, **more})


PAIR = Group(name="g", size=2, ranks=(0, 1))


@pytest.mark.parametrize("numbered", [True, False])
def test_uneven_all_to_all_is_matched_but_tells_no_transfer(numbered):
    """A dispatch of tokens: every rank sends as much, and gets what it gets."""

    def calls(rank):
        return [
            Call(start=k * 10 * MS, received=500 + 1000 * ((rank + k) % 2), seq=k if numbered else NONE)
            for k in range(6)
        ]

    analysis = analyze(job({0: calls(0), 1: calls(1)}, (PAIR,)))
    assert (analysis.skew.matched, analysis.skew.unmatched) == (6, 0)
    assert {row.estimate for row in analysis.collectives} == {"upper_bound"}
    assert analysis.skew.ranks == []


def test_even_all_to_all_beside_uneven_keeps_its_transfer():
    def calls(rank):
        even = [Call(start=k * 10 * MS, received=1000, seq=k) for k in range(6)]
        return [*even, Call(start=70 * MS, volume=900, received=[100, 1700][rank], seq=6)]

    found = across(job({0: calls(0), 1: calls(1)}, (PAIR,)))
    assert [(block.bytes, block.calls) for block in found.matching.blocks] == [(1000, 6)]
    assert [(block.bytes, block.calls) for block in found.matching.uneven] == [(None, 1)]


def test_different_numbers_of_uneven_calls_are_not_paired_by_order():
    found = across(job({0: [Call(volume=5), Call(start=9 * MS)], 1: [Call(volume=7)]}, (PAIR,)))
    assert found.matched == 0
    assert "sampled or cut" in found.matching.reasons[0]


def test_groups_of_one_name_on_other_ranks_are_kept_apart():
    def calls(start):
        return [Call(op="all_reduce", start=start + k * 10 * MS, size=2) for k in range(5)]

    runs = {0: calls(0), 1: calls(0), 2: calls(3 * MS), 3: calls(3 * MS)}
    found = across(job(runs, (PAIR,)))
    assert [block.ranks for block in found.matching.blocks] == [(0, 1), (2, 3)]
    nameless = across(job(runs))
    assert nameless.matched == 0
    assert nameless.matching.unmatched == 20
    assert "which they are was not recorded" in nameless.matching.reasons[0]


def test_a_rank_is_in_several_groups_at_once():
    """Two by two ranks: rows reduce activations, columns reduce gradients, all at interleaved times."""
    rows, columns = {"r0": (0, 1), "r1": (2, 3)}, {"c0": (0, 2), "c1": (1, 3)}
    groups = tuple(Group(name=name, size=2, ranks=ranks) for name, ranks in (rows | columns).items())
    calls: dict[int, list[Call]] = {}
    for rank in range(4):
        mine = [group.name for group in groups if group.ranks and rank in group.ranks]
        calls[rank] = [
            Call(op="all_reduce", group=name, start=(k * 4 + at) * 10 * MS, size=2)
            for k in range(5)
            for at, name in enumerate(mine)
        ]
    found = across(job(calls, groups))
    assert found.matched == 20
    assert {(block.group, block.ranks) for block in found.matching.blocks} == set((rows | columns).items())


def test_few_of_many_ranks_give_bounds_and_say_so():
    eight = Group(name="g", size=8, ranks=tuple(range(8)))
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=8) for k in range(5)]
    analysis = analyze(job({0: calls, 1: calls}, (eight,), world_size=8))
    assert analysis.skew.matched == 5
    assert [row.estimate for row in analysis.collectives] == ["upper_bound"]
    said = [finding for finding in analysis.findings if finding.id == "few_ranks_recorded"]
    assert "2 of 8 members of group g" in said[0].title


# --- point to point -------------------------------------------------------------------------------------------------


def pipeline(ranks: int, messages: int) -> dict[int, list[Call]]:
    """Give a line of ranks that pass messages on and get gradients back."""
    calls: dict[int, list[Call]] = {rank: [] for rank in range(ranks)}
    for k in range(messages):
        for rank in range(ranks - 1):
            at = (k * ranks + rank) * 20 * MS
            calls[rank].append(Call(op="send", peer=rank + 1, start=at, length=MS, volume=1000 + k))
            calls[rank + 1].append(Call(op="recv", peer=rank, start=at - 5 * MS, length=6 * MS, volume=1000 + k))
            calls[rank + 1].append(Call(op="send", peer=rank, start=at + 10 * MS, length=MS, volume=7))
            calls[rank].append(Call(op="recv", peer=rank + 1, start=at + 8 * MS, length=3 * MS, volume=7))
    return calls


def pairs_by_hand(run: Run) -> Counter[tuple[int, int, int, int]]:
    """Pair sends and receives by place between two ranks: (sender, receiver, its row, the other's row)."""
    queues: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for rank, timeline in run.ranks.items():
        table = timeline.collectives
        for row in sorted(range(len(table.op)), key=lambda row: int(table.start_ns[row])):
            op, peer = timeline.names[table.op[row]], int(table.peer[row])
            if op == "send":
                queues[rank, peer][0].append(row)
            elif op == "recv":
                queues[peer, rank][1].append(row)
    return Counter(
        (*way, sent, got) for way, (sends, recvs) in queues.items() for sent, got in zip(sends, recvs, strict=True)
    )


def test_sends_are_paired_with_their_receives():
    run = job(pipeline(4, 5))
    found = across(run).pairs
    assert (found.matched, found.unmatched, found.reasons) == (30, 0, ())
    mine = Counter(
        (each.sender, each.receiver, sent, got)
        for each in found.pairs
        for sent, got in zip(each.send_rows.tolist(), each.recv_rows.tolist(), strict=True)
    )
    assert mine == pairs_by_hand(run)
    assert analyze(run).skew.pairs == 30


def test_a_group_of_two_tells_the_peer():
    calls = pipeline(2, 3)
    bare = {rank: [replace(call, peer=NONE) for call in own] for rank, own in calls.items()}
    assert across(job(bare, (PAIR,))).pairs.matched == 6
    nobody = across(job(bare)).pairs
    assert (nobody.matched, nobody.unmatched) == (0, 12)
    assert "with whom" in nobody.reasons[0]


def test_messages_that_cannot_be_the_same_are_not_paired():
    calls = pipeline(2, 4)
    cut = across(job({0: calls[0], 1: calls[1][2:]})).pairs
    assert cut.matched == 0
    assert "cut or sampled" in cut.reasons[0]
    other = {0: calls[0], 1: [replace(call, volume=call.volume + 1) for call in calls[1]]}
    assert "differ in size" in across(job(other)).pairs.reasons[0]
    alone = across(job({0: calls[0], 2: [Call(op="barrier")]})).pairs
    assert "not recorded" in alone.reasons[0]


def test_receives_that_end_before_their_sends_begin_are_other_messages():
    shared = [Call(op="all_reduce", start=1000 * MS + k * 10 * MS, size=2) for k in range(5)]
    sends = [Call(op="send", peer=1, start=k * 10 * MS) for k in range(1, 9)]
    recvs = [Call(op="recv", peer=0, start=k * 10 * MS) for k in range(8)]
    found = across(job({0: [*sends, *shared], 1: [*recvs, *shared]}, (PAIR,)))
    assert found.matched == 5
    assert found.pairs.matched == 0
    assert "before their sends" in found.pairs.reasons[0]


def test_a_trace_says_with_whom_and_what_came_back(tmp_path):
    def events(name, number, **told):
        args = {**kineto.collective_args(name, elements=1024, out_elements=2048, seq=number), **told}
        at = number * 5 * MS
        return [
            kineto.record_param_comms(at, 30 * US, args=args),
            kineto.launch(at + 10 * US, 100 + number, thread=kineto.BACKWARD),
            kineto.kernel("ncclDevKernel_SendRecv(x)", at + MS, MS, stream=20, correlation=100 + number, args=args),
        ]

    path = tmp_path / "rank0.pt.trace.json"
    listed = [
        *events("send", 1, **{"Dst Rank": 3}),
        *events("recv", 2, **{"Src Rank": "1"}),
        *events("all_to_allv", 3),
    ]
    path.write_bytes(kineto.write(listed, metadata=kineto.distributed(0, 4)))
    table = overlapscope.load(path).table("collectives", 0).sort_values("seq")
    assert table.op.tolist() == ["send", "recv", "all_to_all"]
    assert table.peer.fillna(-1).tolist() == [3, 1, -1]
    assert table.received_bytes.fillna(-1).tolist() == [-1, -1, 8192]


def test_a_cpu_run_says_with_whom_and_what_came_back_and_its_callers_thread_still_computes(tmp_path):
    """As torch 2.13 over gloo writes it: a caller runs its messages on its own thread, collectives on another."""
    shape = {"Input Dims": [[[256]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    own = {"Input Dims": [[256]], "Input type": ["float"]}
    swapped = {"Input Dims": [[300], [100]], "Input type": ["float", "float"]}
    events = [
        kineto.op("aten::mm", 0, 10 * MS),
        kineto.op("c10d::send", 11 * MS, MS, args={**shape, "Concrete Inputs": ["", "", "1", "0"]}),
        kineto.annotation("gloo:send", 11 * MS + 500 * US, 2 * MS, args=own),
        kineto.op("c10d::recv_", 15 * MS, MS, args={**shape, "Concrete Inputs": ["", "", "2", "0"]}),
        kineto.annotation("gloo:recv", 15 * MS + 100 * US, 4 * MS, args=own),
        kineto.op("aten::mm", 20 * MS, 10 * MS),
        kineto.op("c10d::alltoall_base_", 31 * MS, MS, args=swapped),
        kineto.annotation(
            "gloo:all_to_all", 32 * MS, 5 * MS, thread=77, args={"Input Dims": [[100]], "Input type": ["float"]}
        ),
    ]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(kineto.write(events, metadata=kineto.distributed(0, 4, backend="gloo")))
    run = overlapscope.load(path)
    table = run.table("collectives", 0).sort_values("start_ns")
    assert table.op.tolist() == ["send", "recv", "all_to_all"]
    assert table.peer.fillna(-1).tolist() == [1, 2, -1]
    assert table.received_bytes.fillna(-1).tolist() == [-1, -1, 1200]
    assert table.bytes.tolist() == [1024, 1024, 400]
    whole = run.analysis().ranks[0].whole
    assert (whole.compute_ns, whole.comm_ns, whole.overlapped_ns) == (20 * MS, 11 * MS, 0)


# --- real traces ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "kineto/megatron_tp8",
        "gloo_torch2.13",
        "nsys/nsysai_mfu_2gpu_before.sqlite",
        "ascend/msinsight_text_level0",
        ROOT / "traces/baseline",
    ],
)
def test_real_calls_are_paired_as_plain_loops_pair_them(source):
    loaded = overlapscope.load(shared_file(source) if isinstance(source, str) else source)
    expected: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for rank in loaded.ranks:
        frame = loaded.table("collectives", rank).reset_index().sort_values("start_ns", kind="stable")
        symmetric = frame[frame.op.isin(["all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"])]
        seen: Counter[Any] = Counter()
        for row in symmetric.itertuples():
            kind = (row.group if row.group == row.group else None, row.op, str(row.bytes))
            expected[(*kind, seen[kind])].append((rank, row.index))
            seen[kind] += 1
    mine = {
        tuple(zip(block.ranks, column, strict=True))
        for block in across(loaded.run).matching.blocks
        for column in np.transpose(block.rows).tolist()
    }
    assert mine == {tuple(sorted(members)) for members in expected.values()}
