"""Messages between the same devices show how long calls transfer at most, whatever these wait."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls import message_rates
from overlapscope.advice.calls.message_rates import at_most_by_messages_ns
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.common.one_host import are_on_one_host
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Sent, made
from tests.unit.advice.calls.test_savings import looked_at
from tests.unit.advice.calls.test_sixteen_bit_gradients import BFLOAT16
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20


def exchanging(
    peers: Sequence[int] = (1, 2), devices: Sequence[str] = "01", size_bytes: int = 2 * MIB, slowest_us: int = 20
) -> Run:
    """Return two ranks of three, which send to these peers, one twice as fast, and reduce 36 MiB for 500 us."""

    def step(rank: int) -> list[Item]:
        message = Sent(start=100, end=100 + slowest_us / (2 - rank), launch=50, op="send", size_bytes=size_bytes)
        reduce = Sent(start=300, end=800, launch=51, phase="backward", size_bytes=36 * MIB)
        computed = [Kernel(start=at, end=end, name=BFLOAT16) for at, end in ((0, 99), (130, 300), (800, 990))]
        return [*computed, message, reduce]

    def sent_to(timeline: RankTimeline, peer: int, device: str) -> RankTimeline:
        calls, lanes, names = timeline.collectives, timeline.lanes, (*timeline.names, device)
        to = np.where(calls.op == names.index("send"), peer, NONE)
        process = np.full_like(lanes.process, names.index(device))
        return replace(
            timeline, names=names, collectives=replace(calls, peer=to), lanes=replace(lanes, process=process)
        )

    runs = [made(lambda _, rank=rank: step(rank), ranks=3) for rank in range(2)]  # type: ignore[misc]
    own = {rank: sent_to(each.ranks[rank], peers[rank], devices[rank]) for rank, each in enumerate(runs)}
    return replace(runs[0], ranks=own)


def test_calls_are_held_to_transfer_little_slower_than_messages_between_all_members() -> None:
    """By hand: 4/3 of 36 MiB are 24 times what a message of 2 MiB moves; the slowest takes 20 us."""
    given = looked_at(exchanging())
    calls = given.run.ranks[0].collectives
    found = at_most_by_messages_ns(given, given.run.ranks[0])
    assert set(found[calls.bytes == 36 * MIB].tolist()) == {4 * 24 * 20 * US + 1_000_000}
    assert set(found[calls.bytes != 36 * MIB].tolist()) == {NONE}


def test_what_calls_take_beyond_that_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the latency of few members: 90 us of three, and 96 of transfer."""
    monkeypatch.setattr(message_rates, "LATENCY_NS", 0)
    assert fired(exchanging(peers=(1, 0), slowest_us=1))["sixteen_bit_gradients"].loss_ns == 250 * US
    assert fired(exchanging(slowest_us=1))["sixteen_bit_gradients"].loss_ns == (90 + 96) / 2 * US


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(exchanging(peers=(1, 0)), id="nobody sends to the last rank"),
        pytest.param(exchanging(devices="00"), id="perhaps several hosts"),
        pytest.param(exchanging(size_bytes=4096), id="small messages"),
    ],
)
def test_other_messages_show_nothing(run: Run) -> None:
    given = looked_at(run)
    assert set(at_most_by_messages_ns(given, given.run.ranks[0]).tolist()) == {NONE}


@pytest.mark.parametrize(("recorded", "devices", "shows"), [(3, "000", True), (2, "00", False), (2, "01", True)])
def test_names_of_hosts_show_that_ranks_are_on_one_host_where_all_of_them_are_known(
    recorded: int, devices: str, *, shows: bool
) -> None:
    """Of three; a fourth one is on another host."""
    run = replace(exchanging(devices=devices), world_size=4)
    ranks = dict(run.ranks)
    ranks |= {2: replace(run.ranks[0], rank=2)} if recorded > len(ranks) else {}
    ranks |= {3: replace(run.ranks[1], rank=3)}
    named = {rank: replace(each, recorded={"settings": {"host": "ab"[rank > 2]}}) for rank, each in ranks.items()}
    given = looked_at(replace(run, ranks=named), ranks=4)
    assert {each.host for each in given.analysis.ranks} == {"a", "b"}
    found = at_most_by_messages_ns(given, given.run.ranks[0])
    assert (set(found.tolist()) != {NONE}) == shows


def test_a_host_that_is_named_has_any_number_of_devices() -> None:
    """Of hosts with six devices, ranks 7 and 8 are on the second one; by numbers of devices that is not known."""
    run = exchanging()
    for host, known in (("b", True), (None, False)):
        recorded = {"settings": {"host": host}}
        ranks = {rank + 7: replace(each, rank=rank + 7, recorded=recorded) for rank, each in run.ranks.items()}
        shifted = replace(run, ranks=ranks)
        assert are_on_one_host(shifted, ranks_of_hosts(shifted), (7, 8)) is known
