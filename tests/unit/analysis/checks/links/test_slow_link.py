"""Slow links: known from connections' counters or from groups slower than their equals, and from nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.checks.links.slow_link import compare_groups, compare_replicas, slow_links
from overlapscope.analysis.checks.links.tcp_counters import flows, slow_rank
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Group, Run
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.stragglers.test_stragglers import job

MB = 1_000_000
RANKS = 3
MS = 1_000_000


def connected(rates: Mapping[tuple[int, int], float], stated: float | None = None, hosts: int = RANKS) -> Run:
    """Return a job of ranks on `hosts` hosts that sent each other 100 MB at the rates given, in MB/s."""
    run = job()
    ranks = {}
    for rank in range(RANKS):
        rows = []
        for (sender, receiver), rate in rates.items():
            if rank in (sender, receiver):
                ends = [
                    f"[10.0.0.{each % hosts}]:{1000 + 10 * sender + receiver + 100 * each}"
                    for each in (sender, receiver)
                ]
                local, peer = ends if rank == sender else ends[::-1]
                sent = 100 * MB if rank == sender else 20_000
                rows.append(
                    {
                        "local": local, "peer": peer, "sent_bytes": sent, "received_bytes": 0,
                        "busy_ns": round(100 / rate * 1e9), "rate_bytes_s": round(rate * MB),
                        "interface": "eth0", "interface_bytes_s": None if stated is None else stated * MB,
                    }
                )  # fmt: skip
        ranks[rank] = replace(run.ranks[rank], recorded={"sockets": rows})
    return Run(world_size=RANKS, ranks=ranks, groups=())


def found(run: Run) -> list[Finding]:
    return slow_links(run, match_and_align(run).splits)


RING = ((0, 1), (1, 2), (2, 0))


def test_connections_that_are_alike_are_not_slow() -> None:
    assert found(connected({(0, 1): 600, (1, 2): 900, (2, 0): 500})) == []
    assert found(connected(dict.fromkeys(RING, 900.0), stated=1250)) == []


def test_a_link_slow_both_ways_is_its_ranks() -> None:
    (each,) = found(connected({(0, 1): 20, (1, 2): 18, (2, 0): 600}))
    assert (each.id, each.evidence["rank"]) == ("slow_link:rank1", 1)
    assert [(pair["sender"], pair["receiver"]) for pair in each.evidence["pairs"]] == [(1, 2), (0, 1)]


def test_one_slow_connection_may_be_either_ends() -> None:
    (each,) = found(connected({(0, 1): 20, (1, 2): 600, (2, 0): 600}))
    assert (each.id, each.evidence["rank"]) == ("slow_link", None)


def test_links_that_are_all_slow_are_known_from_what_their_interface_states() -> None:
    (each,) = found(connected(dict.fromkeys(RING, 20.0), stated=1250))
    assert (each.id, each.evidence["rank"], each.evidence["fastest_bytes_s"]) == ("slow_link", None, 20 * MB)
    assert found(connected(dict.fromkeys(RING, 20.0))) == []  # nothing to compare with


@pytest.mark.parametrize("change", [{"rate_bytes_s": None}, {"receiver_limited_ns": 4_000_000_000}])
def test_a_connection_that_nothing_of_its_link_held_back_is_not_slow(change: dict[str, Any]) -> None:
    run = connected({(0, 1): 20, (1, 2): 18, (2, 0): 600})
    ranks = {}
    for rank, timeline in run.ranks.items():
        rows = [{**each, **change} for each in timeline.recorded["sockets"]]
        ranks[rank] = replace(timeline, recorded={"sockets": rows})
    assert found(replace(run, ranks=ranks)) == []


def test_rates_are_compared_with_their_own_kind_only() -> None:
    """The kernel's last sample of one connection is far above what any keeps up: a short burst."""
    run = connected({(0, 1): 150, (1, 2): 320, (2, 0): 250})
    rows = [{**each, "rate_bytes_s": 4600 * MB} for each in run.ranks[2].recorded["sockets"]]
    assert found(replace(run, ranks={**run.ranks, 2: replace(run.ranks[2], recorded={"sockets": rows})})) == []


def test_a_connection_that_hardly_ever_sent_does_not_weigh() -> None:
    run = connected({(0, 1): 20, (1, 2): 18, (2, 0): 600})
    longer = {
        rank: replace(each, recordings=replace(each.recordings, end_ns=each.recordings.end_ns + 10**12))
        for rank, each in run.ranks.items()
    }
    assert found(replace(run, ranks=longer)) == []


def test_connections_within_a_host_pass_no_link() -> None:
    assert found(connected({(0, 1): 20, (1, 2): 18, (2, 0): 600}, hosts=1)) == []


@pytest.mark.parametrize(
    ("slow", "fast", "rank"),
    [
        ({(1, 0), (1, 2)}, {(0, 1), (2, 1), (0, 2), (2, 0)}, 1),  # what it sends
        ({(0, 1), (2, 1)}, {(1, 0), (1, 2), (0, 2), (2, 0)}, 1),  # what it receives
        ({(0, 1), (1, 0)}, {(0, 2), (2, 0)}, 1),  # rank 0 sends and receives fast elsewhere
        ({(0, 1), (1, 0)}, set(), None),
        ({(0, 1), (2, 3)}, {(1, 2)}, None),  # two links
        ({(0, 1)}, {(1, 2)}, None),
    ],
)
def test_a_rank_is_named_where_all_that_is_slow_is_its_own(
    slow: set[tuple[int, int]], fast: set[tuple[int, int]], rank: int | None
) -> None:
    assert slow_rank(slow, fast) == rank


@pytest.mark.parametrize(
    "sockets",
    [
        "text",
        [None, 3, "x", []],
        [{"local": 3, "peer": None}],
        [{"local": "a:1", "peer": "b:1", "sent_bytes": "many", "busy_ns": float("nan")}],
        [{"local": "a:1", "peer": "a:1", "sent_bytes": 1e9, "busy_ns": 1}],
        [{"local": "a:1", "peer": "b:1", "sent_bytes": 1e400, "busy_ns": -5, "rate_bytes_s": True}],
    ],
)
def test_damaged_counters_tell_nothing(sockets: Any) -> None:
    run = job()
    ranks = {rank: replace(each, recorded={"sockets": sockets}) for rank, each in run.ranks.items()}
    assert flows(replace(run, ranks=ranks)) == []


# --- groups ---------------------------------------------------------------------------------------------------------


def pairs_job(
    slow: Sequence[tuple[int, int]],
    *,
    times: float = 4.0,
    ranks: int = 4,
    calls: int = 12,
    since: int = 0,
    until: int = 1000,
    of_step: int | None = None,
) -> Run:
    """Return a job in which all pairs of ranks reduce the same, one after the other; the slow ones take longer. Steps
    are of `of_step` calls each, where that is given."""
    rng = np.random.default_rng(1)
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    made: dict[int, list[tuple[int, int, int, int]]] = {rank: [] for rank in range(ranks)}
    now = 0
    for call in range(calls):
        for group, pair in enumerate(pairs):
            length = int(MS * rng.uniform(0.8, 1.2) * (times if pair in slow and since <= call < until else 1.0))
            late = pair[int(rng.integers(2))]
            for rank in pair:
                wait = 0 if rank == late else int(MS * rng.uniform(0, 3))
                made[rank].append((group, call, now + 4 * MS - wait, now + 4 * MS + length))
            now += 20 * MS
    return Run(
        world_size=ranks,
        ranks={
            rank: rank_timeline(
                rank,
                calls=[
                    {"op": "all_reduce", "dtype": "float32", "group": str(group), "seq": seq, "bytes": 1 << 20,
                     "group_size": 2, "start_ns": start, "end_ns": end,
                     **({} if of_step is None else {"step": seq // of_step})}
                    for group, seq, start, end in rows
                ],
            )
            for rank, rows in made.items()
        },
        groups=tuple(Group(name=str(at), size=2, ranks=pair) for at, pair in enumerate(pairs)),
    )  # fmt: skip


def test_pairs_that_are_slower_than_their_equals_share_the_rank_whose_link_is_slow() -> None:
    (each,) = found(pairs_job([(0, 2), (1, 2), (2, 3)], ranks=4))
    assert (each.id, each.evidence["rank"], each.known_from) == ("slow_link:rank2", 2, "transfers")


def test_one_slow_pair_is_a_slow_link_of_nobody() -> None:
    (each,) = found(pairs_job([(0, 2)]))
    assert (each.id, each.evidence["rank"]) == ("slow_link", None)


def test_groups_that_take_as_long_as_their_equals_have_no_slow_link() -> None:
    assert found(pairs_job([])) == []
    assert found(pairs_job([(0, 2)], times=1.3)) == []


def test_one_group_alone_has_nothing_to_compare_with() -> None:
    assert found(job(fault="host")) == []


def test_a_link_that_becomes_slow_is_known_from_the_calls_before() -> None:
    (each,) = found(pairs_job([(0, 1)], ranks=2, calls=20, since=12))
    assert (each.id, each.evidence["rank"], each.evidence["groups_as_usual"]) == ("slow_link", None, 0)
    assert each.evidence["groups"][0]["times_as_long"] > 2
    (each,) = found(pairs_job([(0, 1), (0, 2)], ranks=3, calls=20, since=10))
    assert each.id == "slow_link:rank0"


def test_a_link_that_is_slow_for_some_steps_is_known_from_those_before_and_after() -> None:
    (each,) = found(pairs_job([(0, 1)], ranks=2, calls=30, since=12, until=18, of_step=3))
    assert each.title.startswith("a link was slow: the group of ranks 0, 1 takes ")
    assert each.title.endswith(" times as long in steps 4 to 5 as before and after (transfer time, without wait time)")
    assert (each.evidence["steps"], each.evidence["groups_as_usual"]) == ([4, 5], 0)
    (each,) = found(pairs_job([(0, 1), (0, 2)], ranks=3, calls=30, since=12, until=18, of_step=3))
    assert (each.id, each.evidence["groups_as_usual"]) == ("slow_link:rank0", 1)


@pytest.mark.parametrize(
    "job_of",
    [
        {"since": 12, "until": 16, "of_step": 2},  # four calls
        {"since": 12, "until": 18},  # of no known steps
        {"until": 6, "of_step": 3},  # from the begin on, as while connections are made
        {"since": 13, "until": 18, "of_step": 3},  # one of them is quick
        {"since": 12, "until": 18, "of_step": 5},  # of two steps some calls alone
        {"since": 12, "until": 18, "of_step": 3, "times": 1.5},
    ],
)
def test_calls_of_some_steps_that_differ_less_tell_nothing(job_of: dict[str, Any]) -> None:
    assert found(pairs_job([(0, 1)], ranks=2, calls=30, **job_of)) == []


def test_calls_that_always_took_as_long_or_were_longer_before_tell_nothing() -> None:
    assert found(pairs_job([(0, 1)], ranks=2, calls=20)) == []
    assert found(pairs_job([(0, 1)], ranks=2, calls=20, since=18)) == []  # a few late calls may be anything


def test_messages_that_take_longer_than_their_equals_between_other_ranks_are_on_a_slow_link() -> None:
    def run(slow: int) -> Run:
        """Even ranks send, odd ones receive from the rank before, and wait for their message."""
        calls: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(6)}
        for at in range(0, 80 * MS, 10 * MS):
            for rank in range(6):
                start, end = at - MS * (rank % 2), at + MS * (4 if rank // 2 == slow else 1)
                calls[rank].append(
                    {"op": "recv" if rank % 2 else "send", "peer": rank ^ 1, "group": "p2p", "group_size": 6,
                     "bytes": 1 << 20, "launch_ns": start, "start_ns": start, "end_ns": end}
                )  # fmt: skip
        host = {"settings": {"host": "one"}}
        return Run(world_size=6, ranks={rank: rank_timeline(rank, calls=calls[rank], recorded=host) for rank in calls})

    together = match_and_align(run(slow=1))
    assert together.pairs.matched == 24
    (finding,) = compare_groups(run(slow=1), together.splits, together.pairs.pairs)
    assert finding.id == "slow_link"
    assert [each["ranks"] for each in finding.evidence["groups"]] == [[2, 3]]
    assert finding.evidence["groups"][0]["times_as_long"] == 4.0
    assert compare_groups(run(slow=3), together.splits, match_and_align(run(slow=3)).pairs.pairs) == []


# --- all groups of one rank -----------------------------------------------------------------------------------------

Members = tuple[int, ...]
ROWS, COLUMNS = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2), (1, 3), (4, 6), (5, 7))


def grid_job(times: Mapping[Members, float], *, device: bool = True, compute: int = 0) -> Run:
    """Return a job of two kinds of pairs: rows reduce 37 times for 40 us, columns gather 6 times for 170 us. After a
    gather come `compute` ns of compute. Some take so many times as long; sizes are not recorded."""
    rng = np.random.default_rng(1)
    made: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(8)}
    for at in range(43):
        op, pairs, length = ("all_gather", COLUMNS, 170_000) if at % 7 == 6 else ("all_reduce", ROWS, 40_000)
        for pair in pairs:
            took = round(length * times.get(pair, 1.0) * rng.uniform(1, 1.04))
            for rank, wait in zip(pair, (0, 20_000), strict=True):
                start = at * 500_000 + at // 7 * compute
                made[rank].append({
                    "op": op, "group": f"{op} {pair[0]}", "seq": len(made[rank]), "group_size": 2,
                    "start_ns": start - wait, "end_ns": start + took,
                })  # fmt: skip
    groups = [Group(name=f"{op} {pair[0]}", size=2, ranks=pair)
              for op, pairs in (("all_reduce", ROWS), ("all_gather", COLUMNS)) for pair in pairs]  # fmt: skip
    ranks = {rank: rank_timeline(rank, calls=own, has_device=device) for rank, own in made.items()}
    return Run(world_size=8, ranks=ranks, groups=tuple(groups))


def test_a_rank_all_groups_of_which_are_half_as_slow_again_as_those_of_others_has_a_slow_link() -> None:
    (each,) = found(grid_job({(0, 1): 1.8, (0, 2): 1.6}))
    assert (each.id, each.evidence["groups_as_usual"]) == ("slow_link:rank0", 6)
    assert each.title.endswith("as groups of other ranks that make the same calls (transfer time, without wait time)")


@pytest.mark.parametrize("calls", [[0] + [100_000] * 10, [100_000] * 11])
def test_calls_that_take_no_time_in_other_groups_are_a_finite_part_of_it(calls: list[int]) -> None:
    run = grid_job({})
    splits = [
        replace(own, transfer_ns=np.array(calls if 0 in own.block.ranks else [0] * 11))
        for own in match_and_align(run).splits
    ]
    (each,) = compare_replicas(run, splits)
    times = [group["times_as_long"] for group in each.evidence["groups"]]
    assert times == [pytest.approx(sum(calls) / 11)] * 2, "as each of 11 calls takes 1 ns elsewhere, at most"


def test_of_groups_that_may_have_other_members_it_is_said_so() -> None:
    run = grid_job({(0, 1): 1.8, (0, 2): 1.6})
    splits = match_and_align(run).splits
    (each,) = compare_replicas(run, [replace(own, block=replace(own.block, whole=False)) for own in splits])
    assert (each.id, "the same calls, if no member is missing (" in each.title) == ("slow_link:rank0", True)


@pytest.mark.parametrize(
    "job_of",
    [
        pytest.param({"times": {(0, 1): 1.8}}, id="one of its groups alone"),
        pytest.param({"times": {(0, 1): 1.8, (0, 2): 1.2}}, id="one of them by less"),
        pytest.param({"times": {(0, 1): 1.8, (1, 3): 1.8, (0, 2): 1.8}}, id="groups that share no one rank"),
        pytest.param({"times": {(0, 1): 1.8, (0, 2): 1.6}, "compute": 10**9}, id="too little of the time"),
        pytest.param({"times": {(0, 1): 1.8, (0, 2): 1.6}, "device": False}, id="no device"),
    ],
)
def test_groups_that_differ_by_less_than_a_link_of_one_rank_must_tell_nothing(job_of: dict[str, Any]) -> None:
    assert found(grid_job(**job_of)) == []


def test_groups_of_unknown_sizes_that_make_another_number_of_calls_are_not_compared() -> None:
    """Pairs that reduce much and seldom are no slow ones of those that reduce little and often."""
    run = grid_job(dict.fromkeys(COLUMNS, 3.0))
    ranks = {rank: replace(own, names=(*own.names[:3], own.names[2])) for rank, own in run.ranks.items()}
    assert ranks[0].names[2:] == ("all_reduce", "all_reduce")
    assert found(replace(run, ranks=ranks)) == []
