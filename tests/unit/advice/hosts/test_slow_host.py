"""Hosts that are slower than others stand before what is exposed or idle, which may be theirs."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.hosts.slow_host import is_why_late, not_computed_ns, slow_host
from overlapscope.advice.order import moved_ns, ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.common.findings import Finding
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.losses.test_order_of_losses import named, one
from tests.unit.advice.test_exposed_calls import looked_at


def slowed(ranks: Sequence[int], *, exposed_us: int = 300, missing: int = 0) -> RuleInput:
    """Return a job that exposes so much of each step of 1,000 us, and of which these ranks have slow hosts."""
    until = 990 - exposed_us
    given = looked_at(made(lambda _: [Kernel(start=0, end=until), Sent(start=until, end=990)]))
    evidence = {"ranks": list(ranks), "hosts": ["node3"], "of_rank": {str(rank): {"times": 9.34} for rank in ranks}}
    found = Finding(id="slow_host", severity="warning", title="", evidence=evidence, known_from="trace")
    run = replace(given.run, world_size=len(given.run.ranks) + missing)
    return replace(given, run=run, analysis=replace(given.analysis, findings=[found]))


@pytest.mark.parametrize(
    ("given", "title"),
    [
        (
            slowed([1]),
            "Look at the host of rank 1 (node3): it takes 9.3 times as long as the others for the same calls, and "
            "hardly waits for its device, so that it may pace all ranks",
        ),
        (
            slowed([0, 1], missing=6),
            "Look at the hosts of ranks 0, 1 (node3): they take up to 9.3 times as long as the others for the same "
            "calls, and hardly wait for their devices, so that they, or a rank of their machines that was not "
            "recorded, may pace all ranks",
        ),
    ],
)
def test_slow_hosts_are_to_be_looked_at(given: RuleInput, title: str) -> None:
    found = slow_host(given)
    assert found is not None
    assert found.title == title
    assert found.gain_high_ns is found.loss_ns is None, "how much of it is theirs is not known"
    assert found.evidence["not_computed_ns"] == not_computed_ns(given.analysis) > 300 * US


def test_nothing_is_said_where_nothing_is_lost_or_no_host_is_slow() -> None:
    given = slowed([1])
    assert slow_host(replace(given, analysis=replace(given.analysis, findings=[]))) is None
    lost_little = replace(given.figures, exposed_comm_ns=5 * US, idle_ns=5 * US)
    assert slow_host(replace(given, analysis=replace(given.analysis, headline=lost_little))) is None


def test_a_slow_host_stands_before_what_it_may_be_why() -> None:
    given = slowed([1])
    slow = slow_host(given)
    assert slow is not None
    exposed = one("exposed_communication", loss_ns=300 * US)
    compute = one("unfused_optimizer", 500)
    found = [exposed, compute, slow]
    assert [each.id for each in ranked(found, 1, moved_ns(found, given.analysis))] == [
        "unfused_optimizer", "slow_host", "exposed_communication",
    ]  # fmt: skip
    assert not named(given, slow).startswith("Largest loss")
    assert named(given).startswith("Largest loss")


@pytest.mark.parametrize(("rank", "held_by", "same"), [(1, None, True), (0, None, False), (1, "throttled", False)])
def test_waiting_for_a_rank_with_a_slow_host_is_said_once(rank: int, held_by: str | None, *, same: bool) -> None:
    slow = slow_host(slowed([1]))
    assert slow is not None
    late = one("late_rank", evidence={"rank": rank, "held_by": held_by})
    assert is_why_late(slow, late) is same
    assert not is_why_late(None, late)
