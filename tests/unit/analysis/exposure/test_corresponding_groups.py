"""Groups that correspond: the calls of one show what like calls of another need, of which all may wait."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.exposure.corresponding_groups import corresponding_groups
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import rank_timeline
from tests.unit.advice.calls.test_savings import looked_at
from tests.unit.analysis.exposure.test_longer_than_like import KNOWN, steps_of

US = 1_000


def group(name: str, *ranks: int, description: str = "TP") -> Group:
    return Group(name=name, size=len(ranks), ranks=ranks, description=description)


@pytest.mark.parametrize(
    ("other", "like"),
    [
        pytest.param(group("b", 4, 5, 6, 7), True, id="the next four"),
        pytest.param(group("b", 9, 10, 11, 12), False, id="over two nodes, if these are of four"),
        pytest.param(group("b", 4, 5, 6, 7, 8), False, id="more"),
        pytest.param(group("b", 0, 2, 4, 6), False, id="apart"),
        pytest.param(group("b", 4, 5, 6, 7, description="DP"), False, id="for something else"),
    ],
)
def test_groups_correspond_that_are_as_large_and_placed_alike(other: Group, *, like: bool) -> None:
    first = group("a", 0, 1, 2, 3)
    assert corresponding_groups([first, other]) == ({"a": "a", "b": "a"} if like else {})
    assert corresponding_groups([first, replace(first, name="b", ranks=None)]) == {}


def two_replicas(
    waits_us: int, kind: dict[str, object] = KNOWN, members: tuple[int, ...] = (4, 5, 6, 7), calls: int = 6
) -> Run:
    """Return ranks 1 and 5 of two groups; calls of the first one last 10 us, all of the second `waits_us` longer."""
    fast = steps_of([[10] * calls], {**kind, "group": "a"})
    slow = steps_of([[10 + waits_us] * 6], {**kind, "group": "b"})
    return Run(
        world_size=8,
        ranks={1: replace(fast, rank=1), 5: replace(slow, rank=5)},
        groups=(group("a", 0, 1, 2, 3), group("b", *members)),
    )


def test_waiting_in_all_calls_of_a_group_shows_beside_a_group_that_corresponds_to_it() -> None:
    """By hand: the first call lies before the step's compute, so five wait 40 us each; the mean is over two ranks."""
    said = {each.id: each for each in analyze(two_replicas(40)).findings}["longer_than_like"]
    assert said.evidence["longer_ns"] == 5 * 40 * US / 2
    (slower,) = said.evidence["slower_groups"]
    assert (slower["group"], slower["than"], slower["times"]) == ("b", "a", 5.0)
    assert "calls of group b (ranks 4, 6, 7 not recorded) take 5 times as long as those of group a" in said.title
    assert said.title.endswith("a late rank, or a slower link, is there")


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(two_replicas(40, members=(3, 4, 5, 6)), id="placed in another way"),
        pytest.param(two_replicas(40, {**KNOWN, "op": "all_to_all"}), id="members may send more"),
        pytest.param(two_replicas(2), id="within what transfers vary by"),
        pytest.param(two_replicas(40, calls=4), id="too few calls to know"),
    ],
)
def test_of_other_groups_and_calls_nothing_follows(run: Run) -> None:
    assert not any(each.id == "longer_than_like" for each in analyze(run).findings)


@pytest.mark.parametrize(("calls", "us"), [(6, 12.5), (4, 62.5)])
def test_calls_of_another_group_bound_the_transfer_of_those_that_are_too_few_themselves(calls: int, us: float) -> None:
    found = looked_at(two_replicas(40, calls=calls), ranks=6).transfers_at_most_ns
    assert set(found[1].tolist()) == {us * US}
    assert set(found[5].tolist()) == {62.5 * US}, "whatever a group takes that may have a faster link"


def test_a_single_call_that_is_too_short_says_nothing_of_the_calls_of_other_ranks() -> None:
    """It may be damage: the second shortest of its like lasts as long as all others."""
    lasted = [[50] * 6 for _ in range(3)]
    whole = replace(steps_of(lasted, {**KNOWN, "group": "a"}), rank=1)
    lasted[1][3] = 1
    damaged = replace(steps_of(lasted, {**KNOWN, "group": "b"}), rank=5)
    groups = (group("a", 0, 1, 2, 3), group("b", 4, 5, 6, 7))
    found = analyze(Run(world_size=8, ranks={1: whole, 5: damaged}, groups=groups)).findings
    assert not any(each.id == "longer_than_like" for each in found)


def test_waiting_of_a_named_group_is_a_loss_and_in_the_bound_of_overlap_as_its_link_may_be_slower() -> None:
    """Calls of tensor parallelism take 10 us on one rank, and 40 more on the other: 150 us a rank, beside which at most
    the 96 us run that a rank computes; without waiting it would be 50 us."""
    run = two_replicas(40, {**KNOWN, "dimension": "tensor"})
    found = {each.id: each for each in analyze_with_advice(run).recommendations}
    assert found["tensor_parallel"].gain_high_ns == pytest.approx(96 * US)
    loss = found["exposed_communication"]
    assert "; calls of group b take at least 0.1 ms longer than the shortest of their like" in loss.title
    assert "record all ranks" in loss.apply["look"]
    assert next(each for each in found if each in (loss.id, "tensor_parallel")) == loss.id


MIB = 1 << 20
GATHER, SCATTER, REDUCE = (("all_gather", 8 * MIB), ("reduce_scatter", 16 * MIB), ("all_reduce", MIB))


def in_rows(
    rank: int, shard: str, replica: str, *, gather_us: float, scatter_us: float, tiny_us: float = 2, until_us: int = 0,
    gap_us: float = 0, scatter_bytes: int = 16 * MIB,
) -> RankTimeline:  # fmt: skip
    """Return a rank whose steps gather and scatter six times each, then reduce over replicas for 10 us from `until_us`
    on, or at once, and compute. Calls of shards follow each other after `gap_us`."""
    calls, work, steps = [], [], []
    for step in range(6):
        begin = at = step * 1000.0
        shards = [(GATHER, gather_us)] * 6 + [(("reduce_scatter", scatter_bytes), scatter_us)] * 6
        reduces_at = begin + sum(lasts + gap_us for _, lasts in shards) + tiny_us
        ends = max(reduces_at, begin + until_us) + 10
        rows = [(shard, kind, lasts, gap_us) for kind, lasts in shards]
        rows += [(shard, ("all_reduce", 4), tiny_us, 0), (replica, REDUCE, ends - reduces_at, 0)]
        for name, (op, size), lasts, gap in rows:
            calls.append(
                {"op": op, "bytes": size, "group": name, "dtype": "float32", "step": step, "lane": 0,
                 "start_ns": round(at * US), "end_ns": round((at + lasts) * US), "launch_ns": round(begin * US)}
            )  # fmt: skip
            at += lasts + gap
        work.append({"name": "gemm", "step": step, "start_ns": round(ends * US), "end_ns": round((begin + 990) * US),
                     "launch_ns": round(begin * US)})  # fmt: skip
        steps.append({"step": step, "start_ns": round(begin * US), "end_ns": round((begin + 1000) * US)})
    return rank_timeline(rank, calls=calls, work=work, steps=steps)


def sharded_job(slow: RankTimeline, until_us: int = 0) -> Run:
    """Return ranks 2 and 5 of two groups of shards, and of two of replicas; rank 2 reduces until 10 us after a time."""
    fast = in_rows(2, "a", "c", gather_us=10, scatter_us=20, until_us=until_us)
    groups = (
        group("a", 0, 1, 2, 3), group("b", 4, 5, 6, 7), group("c", 2, 6, description="DP"),
        group("e", 1, 5, description="DP"),
    )  # fmt: skip
    return Run(world_size=8, ranks={2: fast, 5: slow}, groups=groups)


def said_of(run: Run) -> str:
    (title,) = (each.title for each in analyze(run).findings if each.id == "longer_than_like")
    return title.partition("; ")[2]


LINK = (
    "calls of group b (ranks 4, 6, 7 not recorded) take 2 times as long as those of group a, whatever their size, and"
)


def test_calls_that_take_as_many_times_as_long_whatever_their_size_and_in_rows_are_of_a_slower_link() -> None:
    slow = in_rows(5, "b", "e", gather_us=20, scatter_us=40)
    assert said_of(sharded_job(slow)).startswith(LINK)


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(in_rows(5, "b", "e", gather_us=20, scatter_us=50), id="not in proportion"),
        pytest.param(in_rows(5, "b", "e", gather_us=20, scatter_us=40, tiny_us=20), id="tiny ones, too"),
        pytest.param(in_rows(5, "b", "e", gather_us=20, scatter_us=40, gap_us=25), id="none follow directly"),
        pytest.param(in_rows(5, "b", "e", gather_us=20, scatter_us=40, scatter_bytes=12 * MIB), id="one size alike"),
    ],
)
def test_of_others_it_is_not_known_whether_a_rank_is_late(slow: RankTimeline) -> None:
    assert "slower link, or steady" not in said_of(sharded_job(slow))
    assert "a late rank, or a slower link, is there" in said_of(sharded_job(slow))


def test_a_group_whose_member_is_in_calls_over_a_slower_link_until_then_waits_for_these() -> None:
    """Those end at 362 us of each step; rank 6, which was not recorded, comes then, and the call takes 10 us more."""
    slow = in_rows(5, "b", "e", gather_us=20, scatter_us=40)
    said = said_of(sharded_job(slow, until_us=362))
    assert said.startswith(LINK)
    assert "those of group e, as rank 6 is in calls of group b until then" in said
    other = said_of(sharded_job(slow, until_us=400))
    assert "as rank 6" not in other, "38 us after these have ended"
    assert other.endswith("take 23 times as long as those of group e: a late rank, or a slower link, is there")
