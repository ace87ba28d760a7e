"""16 bits are to be tried in exposed all-to-alls in float32 that are as fast in each step: they do not wait."""

import pytest
from msgspec.structs import replace

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20


def exchanging(
    *, late: float = 0, size_bytes: int = 128 * MIB, op: str = "all_to_all", start: float = 300, end: float = 700
) -> Run:
    """Return one rank of a job of two, whose call of odd steps begins `late` us earlier, and ends at the same time."""

    def step(number: int) -> list[Kernel | Sent]:
        begin = start - late * (number % 2)
        call = Sent(start=begin, end=end, launch=100, op=op, size_bytes=size_bytes)
        return [Kernel(start=0, end=300), call, Kernel(start=end, end=990, launch=101)]

    both = made(step)
    return replace(both, ranks={0: both.ranks[0]})


def test_the_gain_is_at_most_what_is_exposed_and_half_of_the_fastest() -> None:
    found = fired(exchanging())["sixteen_bit_exchange"]
    assert (found.gain_low_ns, found.gain_high_ns) == (0, 200 * US), "half of 400 us"
    assert (found.verdict, found.changes_numerics) == ("trial", True)
    assert "about 0.4 ms of each is probably transfer" in found.title
    assert fired(exchanging(start=200, end=320))["sixteen_bit_exchange"].loss_ns == 20 * US, "what is exposed"
    assert fired(exchanging(late=40))["sixteen_bit_exchange"].gain_high_ns == pytest.approx(200 * US), "the fastest"


@pytest.mark.parametrize(
    "other", [{"late": 100}, {"size_bytes": 4096}, {"op": "all_gather"}, {"end": 310, "start": 200}], ids=str
)
def test_nothing_is_advised_where_calls_may_wait_or_are_small_or_overlapped(other: dict[str, object]) -> None:
    assert "sixteen_bit_exchange" not in fired(exchanging(**other))  # type: ignore[arg-type]


def test_the_gain_is_at_most_that_of_the_rank_that_saves_most() -> None:
    call = Sent(start=300, end=700, launch=100, op="all_to_all", size_bytes=128 * MIB)
    busy = made(lambda _: [Kernel(start=0, end=690), call, Kernel(start=700, end=990, launch=101)]).ranks[1]
    run = exchanging()
    assert fired(replace(run, ranks={**run.ranks, 1: busy}))["sixteen_bit_exchange"].loss_ns == 200 * US


def test_where_not_all_ranks_are_read_it_is_assumed_that_no_other_saves_more() -> None:
    one = exchanging()
    many = replace(one, world_size=9, ranks={rank: replace(one.ranks[0], rank=rank) for rank in range(9)})
    assert "that no rank saves more than the 5 of 9 that were read" in fired(many)["sixteen_bit_exchange"].assumed
