"""Which calls are the same: sends with receives, uneven all-to-all, several groups at once, ranks that are missing.

The oracle is plain Python over the frames a user sees.
"""

import re
from collections import Counter, defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.matching.match import MAX_REASONS, match
from overlapscope.loaded_run import LoadedRun
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import fill_group_columns, with_dimensions
from overlapscope.timeline.run import Group, Run
from tests.conftest import ROOT, shared_file
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.support.writers import kineto
from tests.support.writers.kineto import MS, US


class Call(msgspec.Struct, frozen=True, kw_only=True):
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
    def row(call: Call) -> dict[str, Any]:
        times = {"start_ns": EPOCH_NS + call.start, "end_ns": EPOCH_NS + call.start + call.length}
        sizes = {"group_size": call.size, "bytes": call.volume, "received_bytes": call.received}
        return {**msgspec.structs.asdict(call), **times, **sizes, "dtype": "bfloat16"}

    whole = [{"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + 10**12}]
    ranks = {
        rank: rank_timeline(rank, spans=(), recordings=whole, collectives=[row(each) for each in own])
        for rank, own in calls.items()
    }
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
    assert (analysis.skew.matched, analysis.skew.unmatched, analysis.skew.uneven) == (6, 0, 6)
    assert {row.estimate for row in analysis.collectives} == {"upper_bound"}
    assert analysis.skew.ranks == []


def test_even_all_to_all_beside_uneven_keeps_its_transfer():
    def calls(rank):
        even = [Call(start=k * 10 * MS, received=1000, seq=k) for k in range(6)]
        return [*even, Call(start=70 * MS, volume=900, received=[100, 1700][rank], seq=6)]

    found = match_and_align(job({0: calls(0), 1: calls(1)}, (PAIR,)))
    assert [(block.bytes, block.calls) for block in found.matching.blocks] == [(1000, 6)]
    assert [(block.bytes, block.calls) for block in found.matching.uneven] == [(None, 1)]


def test_different_numbers_of_uneven_calls_are_not_paired_by_order():
    found = match_and_align(job({0: [Call(volume=5), Call(start=9 * MS)], 1: [Call(volume=7)]}, (PAIR,)))
    assert found.matched == 0
    assert "sampled or cut" in found.matching.reasons[0]


def test_groups_of_one_name_on_other_ranks_are_kept_apart():
    def calls(start):
        return [Call(op="all_reduce", start=start + k * 10 * MS, size=2) for k in range(5)]

    runs = {0: calls(0), 1: calls(0), 2: calls(3 * MS), 3: calls(3 * MS)}
    found = match_and_align(job(runs, (PAIR,)))
    assert [block.ranks for block in found.matching.blocks] == [(0, 1), (2, 3)]
    nameless = match_and_align(job(runs))
    assert nameless.matched == 0
    assert nameless.matching.unmatched == 20
    assert nameless.matching.reasons == (
        "group g: 4 ranks made these calls, in groups of 2: which ranks are in which group was not recorded, so they "
        "are not paired",
    )


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
    found = match_and_align(job(calls, groups))
    assert found.matched == 20
    assert {(block.group, block.ranks) for block in found.matching.blocks} == set((rows | columns).items())


def regular(group: str = "g", *, count: int = 5) -> list[Call]:
    return [Call(op="all_reduce", group=group, start=k * 10 * MS, size=2) for k in range(count)]


def test_calls_of_groups_recorded_on_one_rank_are_counted_and_one_reason_stands_for_all():
    alone, *other = (Group(name=name, size=2, ranks=(0, 7)) for name in "xy")
    found = match(job({0: [*regular("x"), *regular()], 1: regular()}, (alone, PAIR), world_size=8))
    assert ([block.group for block in found.blocks], found.unmatched) == (["g"], 5)
    assert found.reasons == ("group x: it was recorded on rank 0 only; their calls are not paired",)
    found = match(job({0: [*regular("x"), *regular("y"), *regular()], 1: regular()}, (alone, *other, PAIR)))
    assert found.unmatched == 10
    assert found.reasons == (
        "group x: it was recorded on rank 0 only, and 1 more groups on one rank each; their calls are not paired",
    )


@pytest.mark.parametrize("groups", [2, MAX_REASONS // 2, MAX_REASONS])
def test_every_group_has_its_two_reasons_up_to_a_limit(groups: int) -> None:
    pairs = tuple(replace(PAIR, name=str(at)) for at in range(groups))
    calls = {rank: [call for pair in pairs for call in regular(pair.name, count=5 + rank)] for rank in (0, 1)}
    found = match(job(calls, pairs))
    assert found.unmatched == 11 * groups
    assert [reason.partition(":")[0] for reason in found.reasons[:MAX_REASONS]] == [
        f"group {at // 2}" for at in range(min(2 * groups, MAX_REASONS))
    ]
    more = 2 * groups - MAX_REASONS
    assert found.reasons[MAX_REASONS:] == ((f"{more} more such reasons",) if more > 0 else ())


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_equal_counts_whose_ends_disagree_are_not_paired(op: str) -> None:
    starts = [[at * 100 + (at * 37 % 90) * rank for at in range(20)] for rank in (0, 1)]
    calls = {
        rank: [Call(op=op, start=at * MS, length=5 * MS, received=1000 + rank * (op == "all_to_all")) for at in own]
        for rank, own in enumerate(starts)
    }
    calls[2] = regular("x")
    found = match_and_align(job(calls, (PAIR, Group(name="x", size=2, ranks=(2, 7))))).matching
    assert (found.blocks, found.uneven, found.unmatched) == ((), (), 40 + 5)
    _, said = found.reasons
    assert re.fullmatch(
        rf"group g: 20 {op} of (1000 bytes|unknown size) on ranks 0, 1 are not paired by order: their ends are "
        r"[1-8]\d\.\d ms apart, so they may not be the same calls",
        said,
    )
    assert ("unknown size" in said) == (op == "all_to_all")


def test_a_group_as_large_as_the_job_has_every_rank_as_a_member() -> None:
    assert [block.whole for block in match(job({0: regular(), 1: regular()})).blocks] == [True]
    assert [block.whole for block in match(job({0: regular(), 1: regular()}, world_size=3)).blocks] == [False]


def test_few_of_many_ranks_give_bounds_and_say_so():
    eight = Group(name="g", size=8, ranks=tuple(range(8)))
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=8) for k in range(5)]
    analysis = analyze(job({0: calls, 1: calls}, (eight,), world_size=8))
    assert analysis.skew.matched == 5
    assert [row.estimate for row in analysis.collectives] == ["upper_bound"]
    said = [finding for finding in analysis.findings if finding.id == "few_ranks_recorded"]
    assert "2 of 8 members of group g" in said[0].title
    assert "transfer times, leads and what others waited for a rank are upper bounds" in said[0].title


# --- point to point -------------------------------------------------------------------------------------------------


def pipeline(ranks: int, messages: int) -> dict[int, list[Call]]:
    """Return a line of ranks that pass messages on and get gradients back."""
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
    found = match_and_align(run).pairs
    assert (found.matched, found.unmatched, found.reasons) == (30, 0, ())
    mine = Counter(
        (each.sender, each.receiver, sent, got)
        for each in found.pairs
        for sent, got in zip(each.send_rows.tolist(), each.recv_rows.tolist(), strict=True)
    )
    assert mine == pairs_by_hand(run)
    assert analyze(run).skew.pairs == 30


@pytest.mark.parametrize(
    ("leaves_us", "ways", "known"),
    [
        pytest.param(5, ("send", "recv"), True, id="both ways end together"),
        pytest.param(500, ("send", "recv"), False, id="senders leave before their data are received"),
        pytest.param(5, ("send",), False, id="one way may as well be a clock that is apart"),
    ],
)
def test_messages_both_ways_show_the_clocks_of_devices(leaves_us: int, ways: tuple[str, ...], known: bool) -> None:
    """Rank 1's clock is 3 ms ahead; a sender ends so long before its receiver."""
    calls: dict[int, list[Call]] = {0: [], 1: []}
    for k in range(8):
        for way, at in zip(ways, (10 * k * MS, (10 * k + 5) * MS), strict=False):
            of_zero, of_one = (way, "recv" if way == "send" else "send")
            length = {"send": MS, "recv": MS + leaves_us * US}
            calls[0].append(Call(op=of_zero, peer=1, start=at, length=length[of_zero]))
            calls[1].append(Call(op=of_one, peer=0, start=at + 3 * MS, length=length[of_one]))
    found = match_and_align(job(calls, (PAIR,)))
    assert found.pairs.matched == 8 * len(ways)
    offsets = found.clocks.offset_ns
    assert bool(offsets) == known
    if known:
        assert offsets[1] - offsets[0] == pytest.approx(3 * MS, abs=5 * US)


@pytest.mark.parametrize("order", [("g", "other"), ("other", "g")])
def test_each_group_of_messages_shows_itself_whether_they_end_together(order: tuple[str, str]) -> None:
    """In the other group senders leave before their data are received, which says nothing of clocks."""
    calls: dict[int, list[Call]] = {0: [], 1: []}
    for group in order:
        extra = 5 * US if group == "g" else 500 * US
        for k in range(8):
            at = 20 * k * MS + (10 * MS if group == "g" else 0)
            calls[0].append(Call(op="send", group=group, peer=1, start=at))
            calls[1].append(Call(op="recv", group=group, peer=0, start=at + 3 * MS, length=MS + extra))
            calls[1].append(Call(op="send", group=group, peer=0, start=at + 8 * MS))
            calls[0].append(Call(op="recv", group=group, peer=1, start=at + 5 * MS, length=MS + extra))
    groups = tuple(Group(name=each, size=2, ranks=(0, 1)) for each in order)
    offsets = match_and_align(job(calls, groups)).clocks.offset_ns
    assert offsets[1] - offsets[0] == pytest.approx(3 * MS, abs=5 * US)


def test_a_group_of_two_tells_the_peer():
    calls = pipeline(2, 3)
    bare = {rank: [replace(call, peer=NONE) for call in own] for rank, own in calls.items()}
    assert match_and_align(job(bare, (PAIR,))).pairs.matched == 6
    nobody = match_and_align(job(bare)).pairs
    assert (nobody.matched, nobody.unmatched) == (0, 12)
    assert "does not say with which rank its send calls are" in nobody.reasons[0]


def test_messages_that_cannot_be_the_same_are_not_paired():
    calls = pipeline(2, 4)
    cut = match_and_align(job({0: calls[0], 1: calls[1][2:]})).pairs
    assert cut.matched == 0
    assert "cut or sampled" in cut.reasons[0]
    other = {0: calls[0], 1: [replace(call, volume=call.volume + 1) for call in calls[1]]}
    assert "differ in size" in match_and_align(job(other)).pairs.reasons[0]
    alone = match_and_align(job({0: calls[0], 2: [Call(op="barrier")]})).pairs
    assert "not recorded" in alone.reasons[0]
    strange = match_and_align(job({0: calls[0], 1: calls[1][2:]}, (Group(name="g", size=2, ranks=(0, 5)),))).pairs
    assert strange.reasons == ("group g: the peers of some of its calls are not its members: not paired",)


def test_receives_that_end_before_their_sends_begin_are_other_messages():
    shared = [Call(op="all_reduce", start=1000 * MS + k * 10 * MS, size=2) for k in range(5)]
    sends = [Call(op="send", peer=1, start=k * 10 * MS) for k in range(1, 9)]
    recvs = [Call(op="recv", peer=0, start=k * 10 * MS) for k in range(8)]
    found = match_and_align(job({0: [*sends, *shared], 1: [*recvs, *shared]}, (PAIR,)))
    assert found.matched == 5
    assert found.pairs.matched == 0
    assert "before their sends" in found.pairs.reasons[0]


def test_a_trace_says_with_whom_and_what_came_back(tmp_path):
    def events(name, number, **more):
        args = {**kineto.collective_args(name, elements=1024, out_elements=2048, seq=number), **more}
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


def test_what_a_caller_does_while_its_send_is_in_flight_is_compute(tmp_path):
    """As torch's pipelining over gloo: the range of an `isend` ends where it is waited for, at 30 ms."""
    own = {"Input Dims": [[256]], "Input type": ["float"]}
    events = [
        kineto.op("aten::mm", 0, 10 * MS),
        kineto.op("c10d::send", 11 * MS, MS),
        kineto.annotation("gloo:send", 11 * MS + 500 * US, 18 * MS + 500 * US, args=own),
        kineto.op("aten::mm", 13 * MS, 10 * MS),
        kineto.op("c10d::recv_", 24 * MS, 5 * MS),
        kineto.annotation("gloo:recv", 24 * MS + 100 * US, 5 * MS, args=own),
        kineto.op("aten::mm", 31 * MS, 10 * MS),
    ]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(kineto.write(events, metadata=kineto.distributed(0, 4, backend="gloo")))
    whole = overlapscope.load(path).analysis().ranks[0].whole
    assert (whole.compute_ns, whole.overlapped_ns) == (30 * MS, 10 * MS)
    assert whole.exposed_comm_ns == 8 * MS + 500 * US


# --- real traces ----------------------------------------------------------------------------------------------------


REAL = [
    "kineto/megatron_tp8",
    "gloo_torch2.13",
    "nsys/nsysai_mfu_2gpu_before.sqlite",
    "ascend/msinsight_text_level0",
    ROOT / "traces/baseline",
]


def loaded(source: Any) -> LoadedRun:
    return overlapscope.load(shared_file(source) if isinstance(source, str) else source)


def paired_by_hand(run: LoadedRun) -> set[tuple[tuple[int, int], ...]]:
    """Return the calls that are one as tuples of (rank, row), by their place within group, operation and size."""
    found: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for rank in run.ranks:
        frame = run.table("collectives", rank).reset_index().sort_values("start_ns", kind="stable")
        symmetric = frame[frame.op.isin(["all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"])]
        seen: Counter[Any] = Counter()
        for row in symmetric.itertuples():
            kind = (row.group if row.group == row.group else None, row.op, str(row.bytes))
            found[(*kind, seen[kind])].append((rank, row.index))
            seen[kind] += 1
    return {tuple(sorted(members)) for members in found.values()}


def paired(run: Run) -> set[tuple[tuple[int, int], ...]]:
    return {
        tuple(zip(block.ranks, column, strict=True))
        for block in match_and_align(run).matching.blocks
        for column in np.transpose(block.rows).tolist()
    }


def without(run: Run, rank: int, rows: set[int], *, numbered: bool = True) -> Run:
    """Return the run with these calls of a rank lost, and without numbers if not `numbered`."""
    ranks = {}
    for each, stored in run.ranks.items():
        timeline = stored.at_hand()
        table = timeline.collectives
        lost = np.isin(np.arange(table.op.size), sorted(rows) if each == rank else [])
        seq = table.seq if numbered else np.full(table.op.size, NONE)
        calls = replace(table, start_ns=np.where(lost, NONE, table.start_ns), seq=seq)
        ranks[each] = replace(timeline, collectives=calls)
    return replace(run, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("source", REAL)
def test_real_calls_are_paired_as_plain_loops_pair_them(source):
    run = loaded(source)
    assert paired(run.run) == paired_by_hand(run)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("source", REAL)
def test_a_recording_that_was_cut_costs_its_lost_calls_alone(source, numbered):
    """Lost at the end or at the beginning, a third: the others are paired as without them; no call gets a wrong one."""
    run = loaded(source)
    whole = paired_by_hand(run)
    victim = run.ranks[-1]
    table = run.run.ranks[victim].collectives
    mine = sorted((row for call in whole for rank, row in call if rank == victim), key=lambda row: table.end_ns[row])
    by_number = numbered and all((each.collectives.seq != NONE).all() for each in run.run.ranks.values())
    for lost in (set(mine[len(mine) * 2 // 3 :]), set(mine[: len(mine) // 3])):
        cut = without(run.run, victim, lost, numbered=numbered)
        found = paired(cut)
        left = {tuple(each for each in call if each[0] != victim or each[1] not in lost) for call in whole}
        alone = {tuple(each for each in call if each[0] != victim) for call in whole}
        expected, abstained = ({call for call in calls if len(call) > 1} for calls in (left, alone))
        assert found == expected or (not by_number and found == abstained)
        said = " ".join(match_and_align(cut).matching.reasons)
        assert f"rank {victim}" in said or f"on rank {run.ranks[0]} only" in said


@pytest.mark.slow
def test_cut_recordings_without_numbers_are_paired_where_the_ends_tell_their_place():
    run = loaded("kineto/megatron_tp8").run
    rows = np.argsort(run.ranks[5].collectives.start_ns)
    for lost in (set(rows[23:].tolist()), set(rows[:40].tolist())):
        found = match_and_align(without(run, 5, lost, numbered=False))
        assert found.matched == 84
        assert found.matching.unmatched == 0
        assert {block.ranks for block in found.matching.blocks} == {tuple(range(8)), (0, 1, 2, 3, 4, 6, 7)}


def test_of_calls_that_start_together_the_one_that_ended_first_came_first():
    """A coarse clock shows some calls as taking no time: the row where they stand in a table tells nothing."""
    calls = [
        Call(op="all_reduce", start=k * 50 * MS, length=length, size=2) for k in range(9) for length in (0, 5 * MS)
    ]
    (block,) = match_and_align(job({0: calls, 1: calls[::-1]}, (PAIR,))).matching.blocks
    assert block.calls == 18
    assert (block.end_ns[0] == block.end_ns[1]).all()


def test_where_every_step_is_like_the_next_a_cut_recording_without_numbers_is_left_out():
    regular = [Call(op="all_reduce", start=k * 100 * MS, length=5 * MS, size=3) for k in range(40)]
    three = Group(name="g", size=3, ranks=(0, 1, 2))
    for left in (regular[:30], regular[10:], regular[:3]):
        found = match_and_align(job({0: regular, 1: regular, 2: left}, (three,)))
        assert [(block.ranks, block.calls) for block in found.matching.blocks] == [((0, 1), 40)]
        assert found.matching.unmatched == len(left)
        assert "the calls of rank 2 could not be placed" in found.matching.reasons[0]


def test_a_sampled_recording_is_no_cut_one():
    """Every second call of a rank is in order, but not next to each other."""
    random = np.random.default_rng(7)
    starts = np.cumsum(random.integers(50 * MS, 150 * MS, 40)).tolist()
    calls = [Call(op="all_reduce", start=start, length=5 * MS, size=3) for start in starts]
    three = Group(name="g", size=3, ranks=(0, 1, 2))
    found = match_and_align(job({0: calls, 1: calls, 2: calls[::2]}, (three,)))
    assert [(block.ranks, block.calls) for block in found.matching.blocks] == [((0, 1), 40)]
    assert found.matching.unmatched == 20
    cut = match_and_align(job({0: calls, 1: calls, 2: calls[7:]}, (three,)))
    assert cut.matching.unmatched == 0
    assert {(block.ranks, block.calls) for block in cut.matching.blocks} == {((0, 1, 2), 33), ((0, 1), 7)}


def test_a_member_that_recorded_nothing_of_a_group_costs_no_more_than_one_that_is_missing():
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=3, seq=k) for k in range(5)]
    three = Group(name="g", size=3, ranks=(0, 1, 2))
    found = match_and_align(job({0: calls, 1: calls, 2: [Call(op="send", group="other")]}, (three,)))
    assert (found.matched, found.matching.unmatched) == (5, 0)
    assert [block.whole for block in found.matching.blocks] == [False]
    assert "none of its calls was recorded on its member rank 2" in found.matching.reasons[0]


@pytest.mark.parametrize("numbered", [True, False])
def test_every_unmatched_call_has_a_reason(numbered):
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=2, seq=k if numbered else NONE) for k in range(5)]
    later = [replace(call, seq=call.seq + 9 if numbered else NONE) for call in calls]
    for other in ([], [*later, *later[:1]], later[:2], [replace(call, group="h") for call in later]):
        found = match_and_align(job({0: calls, 1: [Call(op="send", group="other"), *other]}, (PAIR,)))
        assert found.matching.unmatched > 0
        assert found.matching.reasons


@pytest.mark.parametrize(("behind", "paired"), [(0, 20), (1, 0)])
def test_calls_of_steps_of_other_numbers_are_not_paired_by_order(behind: int, paired: int) -> None:
    """One rank recorded a step later than the other: pairing by order would lag by one, and clocks would hide it."""
    run = job(
        {
            rank: [
                Call(op="all_reduce", start=100 * MS * step + rank * 3 * MS, length=5 * MS, size=2, step=step)
                for step in range(1 + behind * rank, 21 + behind * rank)
            ]
            for rank in (0, 1)
        },
        (Group(name="g", size=2, ranks=(0, 1)),),
    )
    found = match_and_align(run)
    assert found.matched == paired
    assert any("steps of different numbers" in each for each in found.matching.reasons) == (not paired)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_call_that_every_rank_made_has_them_all_where_no_group_was_recorded(ranks: int) -> None:
    calls = [Call(op="all_reduce", start=k * 100 * MS, length=5 * MS, volume=10**9) for k in range(6)]
    run = job({rank: [replace(each, start=each.start - rank * MS) for each in calls] for rank in range(ranks)})
    found = analyze(run)
    (row,) = found.collectives
    assert (row.group_size, row.estimate) == (ranks, "matched")
    assert row.busbw_gbs == pytest.approx(1e9 / (5 * MS) * 2 * (ranks - 1) / ranks)
    assert "could not be matched" not in str(found.critical_path.reason)
    assert not any(each.id == "few_ranks_recorded" for each in found.findings)
    fewer = replace(run, world_size=ranks + 1)
    (row,) = analyze(fewer).collectives
    assert (row.group_size, row.estimate) == (None, "upper_bound")


def test_members_by_size_alone_need_all_ranks_of_the_job() -> None:
    calls = [Call(op="all_reduce", start=k * 100 * MS, length=5 * MS, size=2, seq=k) for k in range(6)]
    whole = [block.whole for block in match(job({0: calls, 1: calls, 2: [], 3: []})).blocks]
    assert whole == [True]
    assert [block.whole for block in match(job({0: calls, 1: calls}, world_size=4)).blocks] == [False]


@pytest.mark.parametrize(
    ("count", "late_us", "moved_us", "size", "whole"),
    [
        pytest.param(4, 2_000, 0, 2, True, id="few"),
        pytest.param(4, 50, 0, 2, False, id="few that begin nearly together"),
        pytest.param(9, 50, 0, 2, True, id="many that do"),
        pytest.param(3, 2_000, 0, 2, False, id="too few"),
        pytest.param(9, 2_000, 700, 2, False, id="that end apart, as those of two groups"),
        pytest.param(9, 0, 0, 2, False, id="that begin together"),
        pytest.param(9, 2_000, 0, NONE, False, id="of a group of unknown size"),
        pytest.param(9, 2_000, 0, 4, False, id="of a larger group"),
    ],
)
def test_in_a_job_of_unknown_size_calls_that_end_together_though_they_begin_apart_have_all_members(
    count: int, late_us: int, moved_us: int, size: int, *, whole: bool
) -> None:
    """The clock of rank 1 is 5 ms ahead, and drifts."""

    def calls(rank: int) -> list[Call]:
        found = []
        for k in range(count):
            start = k * 100 * MS + rank * (5 * MS + k * 20 * US)
            late = rank * (k % 3) ** 2 * late_us * US // 4
            length = 20 * MS - late + rank * (k % 3) ** 2 * moved_us * US // 4
            found.append(Call(op="all_reduce", start=start + late, length=length, size=size, seq=k))
        return found

    unknown = job({0: calls(0), 1: calls(1)}, world_size=None)
    assert [block.whole for block in match(unknown).blocks] == [whole]
    (row,) = analyze(unknown).collectives
    assert (row.estimate == "matched") == whole


@pytest.mark.parametrize(("world", "size"), [(2, 2), (3, NONE)])
def test_in_a_job_of_two_ranks_every_group_has_two(world: int, size: int) -> None:
    one = job({0: [Call(op="all_reduce", group="tp"), Call(op="broadcast", size=1)]}, world_size=world)
    filled = fill_group_columns(one.ranks, (), world)
    assert filled[0].collectives.group_size.tolist() == [size, 1]


LINE = Group(name="g", size=3, ranks=(0, 2, 4))
AHEAD = 5 * MS
"""How far the clock of the last rank is ahead."""


def batched(*, rounds: int = 6, named: bool = True, apart: int = 20 * MS) -> dict[int, list[Call]]:
    """Return a line of ranks whose neighbours exchange in batches that name no peer, after three messages that do; the
    middle rank is with both in turn, `apart` from each other."""
    calls: dict[int, list[Call]] = {0: [], 2: [], 4: []}
    for k in range(3 if named else 0):
        for place, (sender, receiver) in enumerate(((0, 2), (2, 4))):
            at = (40 * k + 20 * place) * MS
            calls[sender].append(Call(op="send", peer=receiver, start=at + AHEAD * (sender == 4)))
            calls[receiver].append(Call(op="recv", peer=sender, start=at + AHEAD * (receiver == 4)))
    for k in range(rounds):
        at = (200 + 60 * k) * MS
        for one, other, begin in ((0, 2, at), (2, 4, at + apart)):
            for rank, waits in ((one, 3 * MS), (other, 0)):
                start = begin - waits + AHEAD * (rank == 4)
                calls[rank].append(Call(op="send_recv", start=start, length=MS + waits))
    return calls


def test_batches_that_name_no_peer_are_paired_by_their_ends_and_show_the_clocks():
    found = match_and_align(job(batched(), (LINE,)))
    exchanged = [each for each in found.pairs.pairs if each.both_ways]
    assert [(each.sender, each.receiver, each.send_rows.size) for each in exchanged] == [(0, 2, 6), (2, 4, 6)]
    assert exchanged[0].recv_rows.tolist() == [6, 8, 10, 12, 14, 16]  # of the middle rank, the others are with the next
    assert (found.pairs.unmatched, found.pairs.reasons) == (0, ())
    assert found.clocks.comparable((0, 2, 4))
    assert found.clocks.offset_ns[4] - found.clocks.offset_ns[0] == AHEAD


@pytest.mark.parametrize(
    "calls",
    [batched(named=False), batched(apart=50 * US), {**batched(), 4: batched()[4][:-1]}],
    ids=["no clock", "two that end together", "one is missing"],
)
def test_batches_are_not_paired_where_any_is_unsure(calls):
    found = match_and_align(job(calls, (LINE,))).pairs
    assert not any(each.both_ways for each in found.pairs)
    assert "does not say with which rank its send_recv calls are" in found.reasons[-1]


def dimensions(run: Run) -> set[str | None]:
    ranks = with_dimensions(run.ranks, run.groups, run.world_size)
    return {
        None if code < 0 else each.names[code]
        for each in ranks.values()
        for code in each.collectives.dimension.tolist()
    }


def test_a_line_whose_batches_name_no_peer_is_a_pipeline_by_the_messages_that_do():
    assert dimensions(job(batched(), (LINE,))) == {"pipeline"}
    ring = batched()
    ring[0] = [replace(call, peer=4) if call.op == "send" else call for call in ring[0]]
    assert dimensions(job(ring, (LINE,))) == {None}


def test_ranks_that_average_in_pairs_are_no_pipeline() -> None:
    """0 with 1, 2 with 3: a stage between others would have messages with both. Of a cut line rank 2 shows both."""
    group = Group(name="g", size=4, ranks=(0, 1, 2, 3))
    pairs = {rank: [Call(op="send", peer=peer, start=at * MS) for at in range(4)] for rank, peer in ((0, 1), (2, 3))}
    assert dimensions(job(pairs, (group,), world_size=4)) == {None}
    line = {**pairs, 2: [*pairs[2], Call(op="recv", peer=1, start=9 * MS)]}
    assert dimensions(job(line, (group,), world_size=4)) == {"pipeline"}


@pytest.mark.parametrize(
    ("first", "second", "found"), [("s??r", "r??s", "pipeline"), ("????", "????", None), ("s??s", "r??r", None)]
)
def test_two_stages_that_exchange_in_batches_are_known_by_how_a_step_begins_and_ends(first, second, found):
    ops = {"s": "send", "r": "recv", "?": "send_recv"}
    calls = {
        rank: [
            Call(op=ops[each], start=(at + 10 * step) * MS, step=step) for step in (1, 2) for at, each in enumerate(own)
        ]
        for rank, own in enumerate((first, second))
    }
    assert dimensions(job(calls, (PAIR,))) == {found}
