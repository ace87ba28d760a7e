"""Which calls most exposed time is of, how fast they are, and whether sizes show that they transfer."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls import call_rates
from overlapscope.advice.calls.call_rates import dominant_calls, like_sockets, transfer_rate_gbs
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.rule_input import RuleInput
from overlapscope.timeline.run import Group, Run
from tests.support.step_cases import Item, Kernel, Sent, made
from tests.unit.advice.test_exposed_calls import MIB, looked_at


def in_turn(*calls: tuple[int, float, float]) -> list[Item]:
    """Return calls that follow compute each, given as (MiB, us, us of the compute before)."""
    found: list[Item] = []
    at = 10.0
    for mib, us, compute in calls:
        found.append(Kernel(start=at, end=at + compute))
        at += compute
        found.append(Sent(start=at, end=at + us, size_bytes=mib * MIB))
        at += us
    return [*found, Kernel(start=at, end=at + 10)]


def one_of_eight(
    steps: Sequence[Item] | Callable[[int], Sequence[Item]], ranks: tuple[int, ...] = tuple(range(8))
) -> RuleInput:
    run: Run = made(steps if callable(steps) else lambda _: steps)
    group = replace(run.groups[0], size=8, ranks=ranks)
    sizes = replace(run.ranks[0].collectives, group_size=run.ranks[0].collectives.group_size * 0 + 8)
    only = replace(run.ranks[0], collectives=sizes)
    return looked_at(replace(run, ranks={0: only}, world_size=max(ranks) + 1, groups=(group,)))


def test_the_calls_of_most_exposed_time_are_named_with_number_size_and_rate() -> None:
    step = [Kernel(start=0, end=100), Sent(start=100, end=500, size_bytes=4 * MIB, dimension="data"),
            Kernel(start=500, end=600), Sent(start=600, end=620, size_bytes=8, op="all_gather", group="h")]  # fmt: skip
    found = dominant_calls(looked_at(made(lambda _: step)))
    assert found is not None
    assert found.busbw_gbs == (pytest.approx(4 * MIB / 400e3),) * 2
    assert found.words("step") == "mostly all_reduce of DP among 2 ranks, 1 a step of 4 MiB, 10.5 GB/s on the bus"
    assert found.words("step", rate=False).endswith("1 a step of 4 MiB")


@pytest.mark.parametrize(
    ("mib", "said"),
    [(16, "3 a step of 4 MiB to 16 MiB, one of 16 MiB exposed for 0.4 ms"), (8, "4 a step of 4 MiB to 8 MiB")],
)
def test_one_call_with_much_of_the_exposed_time_is_named(mib: int, said: str) -> None:
    step = in_turn((4, 100, 20), (mib, mib * 25, 20), (4, 100, 20), (5, 125, 20))
    found = dominant_calls(looked_at(made(lambda _: step)))
    assert found is not None
    assert found.words("step", rate=False) == f"mostly all_reduce among 2 ranks, {said}"
    twice = dominant_calls(looked_at(made(lambda _: in_turn((4, 100, 20), (8, 200, 20), (8, 200, 20)))))
    assert twice is not None
    assert twice.largest is None, "two calls have it"
    often = in_turn((4, 60, 20), (5, 75, 20))
    rare = dominant_calls(looked_at(made(lambda step: often if step else in_turn((4, 60, 20), (16, 800, 20)))))
    assert rare is not None
    assert rare.largest is None, "a mean over steps is no call of one of them"


@pytest.mark.parametrize(
    ("slow_us", "slow_steps", "words"),
    [
        pytest.param(300, 3, "14 to 41.9 GB/s on the bus, by step", id="slow in half of the steps"),
        pytest.param(140, 3, "35 GB/s on the bus", id="a little slower"),
    ],
)
def test_where_steps_have_no_rate_in_common_both_are_said(slow_us: int, slow_steps: int, words: str) -> None:
    def step(number: int) -> list[Item]:
        return in_turn((4, slow_us if number < slow_steps else 100, 50))

    found = dominant_calls(looked_at(made(step)))
    assert found is not None
    assert found.rate_words() == words


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        pytest.param([(1, step) for step in range(6)], "at least 24.5 to 73.4 GB/s on the bus, by rank", id="one rank"),
        pytest.param(
            [(step % 3, step) for step in range(6)],
            "at least 24.5 to 73.4 GB/s on the bus, by rank and step",
            id="in turn",
        ),
    ],
)
def test_it_is_said_what_rates_differ_by(slow: list[tuple[int, int]], words: str) -> None:
    """On a rank and in a step that is slow calls take 300 us, else 100."""
    runs = [made(lambda n, r=rank: in_turn((4, 300 if (r, n) in slow else 100, 50)), ranks=8) for rank in range(3)]  # type: ignore[misc]
    own = {rank: each.ranks[rank] for rank, each in enumerate(runs)}
    found = dominant_calls(looked_at(replace(runs[0], ranks=own)))
    assert found is not None
    assert found.rate_words() == words


def test_calls_of_a_rank_are_those_of_all_its_groups() -> None:
    step = [Kernel(start=0, end=100), Sent(start=100, end=300, size_bytes=4 * MIB),
            Sent(start=300, end=500, size_bytes=4 * MIB, group="h")]  # fmt: skip

    def words(*ranks: tuple[int, ...] | None) -> str:
        run = made(lambda _: step)
        groups = [replace(run.groups[0], name=name, ranks=own) for name, own in zip("gh", ranks, strict=True)]
        found = dominant_calls(looked_at(replace(run, groups=tuple(groups))))
        assert found is not None
        return found.words("step")

    assert "2 a step" in words((0, 1), (0, 1))
    assert "1 a step" in words((0, 2), (1, 3))
    assert "1 a step" in words(None, None), "of how many groups a rank is a member is not known"


def test_the_rate_of_calls_that_may_hold_waiting_is_a_least_one_and_small_calls_have_none() -> None:
    found = dominant_calls(one_of_eight(in_turn((4, 100, 50))))
    assert found is not None
    assert ", at least " in found.words("step")
    small = dominant_calls(one_of_eight([Kernel(start=0, end=90), Sent(start=90, end=190, size_bytes=4096)]))
    assert small is not None
    assert small.busbw_gbs is None
    half = [Sent(start=0, end=90, size_bytes=MIB), Sent(start=100, end=195, size_bytes=MIB, op="all_gather"),
            Sent(start=200, end=300, size_bytes=MIB, op="reduce_scatter")]  # fmt: skip
    assert dominant_calls(looked_at(made(lambda _: half))) is None, "none has most of it"


@pytest.mark.parametrize(
    ("calls", "transfers"),
    [
        pytest.param([(4, 100, 50), (8, 200, 20), (4, 100, 90)], True, id="as their bytes, whatever was computed"),
        pytest.param([(4, 100, 50), (8, 200, 100), (4, 100, 50)], False, id="as what was computed: a slower rank"),
        pytest.param([(4, 100, 50), (4, 100, 20), (4, 100, 90)], False, id="one size"),
        pytest.param([(4, 150, 50), (8, 150, 20), (4, 150, 90)], False, id="whatever the size"),
    ],
)
def test_calls_of_several_sizes_at_one_bandwidth_transfer(
    calls: list[tuple[int, float, float]], *, transfers: bool
) -> None:
    rate = transfer_rate_gbs(one_of_eight(in_turn(*calls)))
    assert rate == ((pytest.approx(1.75 * 4 * MIB / 100e3),) * 2 if transfers else None)


@pytest.mark.parametrize(("us", "low"), [(57.5, 100 / 115), (52, 1.0)])
def test_a_rate_is_that_of_the_operation_which_waits_least_or_of_each_where_they_differ(us: float, low: float) -> None:
    calls = in_turn((4, 50, 50), (8, 100, 20), (4, 50, 90), (4, us, 50), (8, 2 * us, 20), (4, us, 90))
    ops = iter(["all_gather"] * 3 + ["reduce_scatter"] * 3)
    step = [replace(each, op=next(ops)) if isinstance(each, Sent) else each for each in calls]
    fastest = 0.875 * 4 * MIB / 50e3
    assert transfer_rate_gbs(one_of_eight(step)) == (pytest.approx(low * fastest), pytest.approx(fastest))


@pytest.mark.parametrize(
    ("gather_us", "low_us", "high_us"),
    [
        pytest.param([176] * 4, 200, 176, id="faster than the others"),
        pytest.param([200] * 2 + [176] * 2, 200, 176, id="faster or slower"),
        pytest.param([198] * 4, 198, 198, id="as fast as the others"),
    ],
)
def test_the_operation_of_most_exposed_time_counts_with_few_calls(
    gather_us: Sequence[float], low_us: float, high_us: float
) -> None:
    """Four of six steps gather 16 MiB; all reduce 8 MiB in three calls of 100 us in sum, as 16 MiB in 200 us."""

    def step(number: int) -> list[Item]:
        calls = [(2, 25, 50), (4, 50, 20), (2, 25, 90)]
        gathers = [Sent(start=300, end=300 + us, op="all_gather", size_bytes=16 * MIB) for us in gather_us[number:][:1]]
        return [*in_turn(*calls)[:-1], *gathers, Kernel(start=520, end=530)]

    rate = 0.875 * 16 * MIB / 1e3
    reduced = one_of_eight(lambda number: [_scattered(each) for each in step(number)])
    assert transfer_rate_gbs(reduced) == (pytest.approx(rate / low_us), pytest.approx(rate / high_us))


def _scattered(each: Item) -> Item:
    return replace(each, op="reduce_scatter") if isinstance(each, Sent) and each.op == "all_reduce" else each


@pytest.mark.parametrize(
    ("waits_us", "transfers"),
    [
        pytest.param(0, True, id="sizes differ little, rates not at all"),
        pytest.param(4, True, id="a short wait in each"),
        pytest.param(16, False, id="rates differ by less than a twentieth, as each may wait for long"),
    ],
)
def test_sizes_that_differ_little_show_transfer_where_rates_differ_by_far_less(
    waits_us: int, *, transfers: bool
) -> None:
    """Of 5 and 7 MiB: by 7 / 5 more bytes at a rate 1.01, and 1.04, times as high."""
    calls = [(5, 125 + waits_us, 50), (7, 175 + waits_us, 20), (5, 125 + waits_us, 90)]
    rate = transfer_rate_gbs(one_of_eight(in_turn(*calls)))
    assert (rate is not None) is transfers


def test_of_whole_jobs_waiting_is_known_and_no_rate_is_asked_for() -> None:
    assert transfer_rate_gbs(looked_at(made(lambda _: in_turn((4, 100, 50), (8, 200, 20), (4, 100, 90))))) is None


@pytest.mark.parametrize(
    ("us", "ranks", "slow"),
    [
        pytest.param(900, (0, 8, 16), True, id="between hosts"),
        pytest.param(900, tuple(range(8)), False, id="perhaps on one host"),
        pytest.param(300, (0, 8, 16), False, id="faster"),
    ],
)
def test_even_the_fastest_large_calls_may_be_as_slow_as_sockets(
    monkeypatch: pytest.MonkeyPatch, us: float, ranks: tuple[int, ...], *, slow: bool
) -> None:
    monkeypatch.setattr(call_rates, "SOCKET_BYTES", MIB)  # steps of 1 ms hold no larger ones that are slow
    given = one_of_eight(in_turn((1, us, 20)), ranks)
    found = like_sockets(given, dominant_calls(given))  # the last of six steps is cut short
    assert found == ((pytest.approx(1.75 * MIB / (us * 1e3)), 5, False) if slow else None)
    known = [replace(each, host="a") for each in given.analysis.ranks]
    one_host = replace(given, analysis=replace(given.analysis, ranks=known))
    assert like_sockets(one_host, dominant_calls(given)) == found, "of the others no host is known"


@pytest.mark.parametrize(
    ("devices", "several"),
    [
        pytest.param("01230123", True, id="four on each of two hosts"),
        pytest.param("01234567", False, id="eight of one"),
        pytest.param("00000000", False, id="each process sees its own alone"),
    ],
)
def test_ranks_with_devices_of_one_number_are_perhaps_on_several_hosts(
    monkeypatch: pytest.MonkeyPatch, devices: str, *, several: bool
) -> None:
    monkeypatch.setattr(call_rates, "SOCKET_BYTES", MIB)
    run = made(lambda _: in_turn((1, 900, 20)), ranks=8)
    numbered = {
        rank: replace(
            own,
            names=(*own.names, device),
            lanes=replace(own.lanes, process=np.full_like(own.lanes.process, len(own.names))),
        )
        for (rank, own), device in zip(run.ranks.items(), devices, strict=True)
    }
    given = looked_at(replace(run, ranks=numbered))
    found = like_sockets(given, dominant_calls(given))
    assert (found is not None) == several
    assert found is None or not found[2], "processes of containers, or that share devices, have one number too"
    known = [replace(each, host="a") for each in given.analysis.ranks]
    one_host = replace(given, analysis=replace(given.analysis, ranks=known))
    assert like_sockets(one_host, dominant_calls(given)) is None
    two = [replace(each, host="ab"[each.rank // 4]) for each in given.analysis.ranks]
    on_two = like_sockets(replace(given, analysis=replace(given.analysis, ranks=two)), dominant_calls(given))
    assert on_two is not None
    assert on_two[2], "by their names"


def test_groups_of_another_size_say_nothing_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rates, "SOCKET_BYTES", MIB)
    step = [*in_turn((1, 800, 20)), Sent(start=860, end=870, size_bytes=MIB, group="h")]
    given = one_of_eight(step, (0, 8, 16))
    timeline = given.run.ranks[0]
    calls = timeline.collectives
    sizes = np.where(calls.group == timeline.names.index("h"), 2, calls.group_size).astype(calls.group_size.dtype)
    run = replace(
        given.run,
        ranks={0: replace(timeline, collectives=replace(calls, group_size=sizes))},
        groups=(*given.run.groups, Group(name="h", size=2, ranks=(0, 1))),
    )
    mixed = looked_at(run)
    assert like_sockets(mixed, dominant_calls(mixed)) == (pytest.approx(1.75 * MIB / 800e3), 5, False)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([(4, 200, 50), (8, 400, 20), (4, 200, 90)], "fewer bytes, or a faster link"),
        ([(4, 50, 250), (8, 100, 150), (4, 50, 350)], "fewer bytes, overlap, or a faster link"),
    ],
    ids=["more than compute", "less"],
)
def test_no_overlap_is_advised_where_communication_takes_longer_than_compute(
    calls: list[tuple[int, float, float]], said: str
) -> None:
    loss = largest_loss(one_of_eight(in_turn(*calls)), [])
    assert loss is not None
    assert loss.apply["torch"].endswith(f"GB/s on the bus: {said}")
