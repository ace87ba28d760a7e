"""Ranks agree on a step that none has reached yet, and on who records."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.settings import Settings, Trigger
from overlapscope.capture.trigger.agreement import Agreement, Claim, Plan, _OwnStore, ranks_to_record
from overlapscope.capture.trigger.usual_range import Kind
from overlapscope.errors import UsageError

pytest.importorskip("torch", reason="torch is not installed: ranks have no store to agree through")
pytestmark = pytest.mark.torch
POLL_SECONDS = 0.02
STEP_SECONDS = 0.001


def claim(rank: int, kind: Kind = "step", grown_ns: int = 1) -> Claim:
    return Claim(rank=rank, kind=kind, grown_ns=grown_ns, reason=f"{kind} of {rank}")


@pytest.mark.parametrize(
    ("claims", "world", "most", "ranks"),
    [
        ([claim(3, "own", 9), claim(1, "waiting"), claim(0, "waiting")], 4, 8, [0, 3]),  # one to compare with
        ([claim(0, "own", 9)], 4, 8, [0, 1]),
        ([claim(2, "own", 5), claim(7, "own", 9), claim(5, "own", 7)], 1000, 3, [0, 5, 7]),
        ([claim(2, "own")], 1000, 1, [2]),
        ([claim(0, "own")], 1, 8, [0]),
        ([claim(rank, "waiting") for rank in range(4)], 4, 8, [0, 1, 2, 3]),
        ([claim(rank) for rank in range(100)], 100, 4, [0, 25, 50, 75]),
        ([claim(5, "asked"), claim(3, "own")], 8, 4, [0, 2, 4, 6]),
    ],
)
def test_those_record_whose_own_work_grew_and_one_to_compare_with(
    claims: list[Claim], world: int, most: int, ranks: list[int]
) -> None:
    assert ranks_to_record(claims, world, most) == ranks


class Counting:
    """The steps of a job, which all its ranks count, after a time of our own."""

    seconds = 0.0

    def progress(self) -> tuple[int, float]:
        return int(self.seconds / STEP_SECONDS), STEP_SECONDS


def agreements_of(ranks: int, store: object, counting: Counting) -> list[Agreement]:
    return [
        Agreement(
            store,
            rank,
            ranks,
            most_ranks=8,
            poll_seconds=POLL_SECONDS,
            progress=counting.progress,
            folder=lambda step: f"step{step}",
        )
        for rank in range(ranks)
    ]


@contextmanager
def job(ranks: int, store: object) -> Iterator[list[Agreement]]:
    agreements = agreements_of(ranks, store, Counting())
    for each in agreements:
        each.open()
    yield agreements
    for each in agreements:
        each.close()


def wait_for_plans(agreements: list[Agreement]) -> list[Plan]:
    end = time.monotonic() + 20
    while time.monotonic() < end and any(each.plan is None for each in agreements):
        time.sleep(POLL_SECONDS / 4)
    return [each.plan for each in agreements if each.plan is not None]


def test_all_ranks_have_one_plan_whoever_claims_and_again_after_it() -> None:
    with job(4, _OwnStore()) as agreements:
        for expected, claims in (([0, 2], [claim(2, "own", 5)]), ([0, 1, 3], [claim(1, "own", 5), claim(3, "own", 6)])):
            for each in claims:
                agreements[each.rank].claim(each)
            plans = wait_for_plans(agreements)
            assert len(plans) == 4
            assert len({plan.folder for plan in plans}) == 1
            assert plans[0].ranks == expected
            assert plans[0].reason == f"rank {claims[-1].rank}: own of {claims[-1].rank}"
            for agreement in agreements:
                agreement.done()


def test_the_late_rank_may_notice_a_little_after_those_that_wait_for_it() -> None:
    store = _OwnStore()
    waiting, late = (
        Agreement(
            store, rank, 2, most_ranks=8, poll_seconds=POLL_SECONDS, progress=lambda: (0, STEP_SECONDS),
            folder=lambda step: f"step{step}",
        )
        for rank in (0, 1)
    )  # fmt: skip
    waiting.claim(claim(0, "waiting", 9))
    waiting._poll()
    waiting._poll()
    late.claim(claim(1, "own", 5))
    late._poll()
    waiting._poll()
    late._poll()
    assert late.plan is not None
    assert late.plan.ranks == [0, 1]
    assert late.plan.reason == "rank 1: own of 1"


def test_the_step_of_a_plan_lies_before_every_rank_when_it_learns_of_it() -> None:
    counting = Counting()
    agreements = agreements_of(3, _OwnStore(), counting)
    agreements[0].claim(claim(0))
    learned = set[int]()
    for turn in range(30):  # they poll one after the other
        rank = turn % 3
        counting.seconds += POLL_SECONDS / 3
        agreements[rank]._poll()
        plan = agreements[rank].plan
        if plan is not None and rank not in learned:
            assert plan.step > counting.progress()[0], "learned too late"
            learned.add(rank)
    assert learned == {0, 1, 2}


class Ended(_OwnStore):
    """The store of a job that has ended."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection was likely closed")


def test_a_store_that_has_ended_ends_the_thread_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    with job(1, Ended()) as (agreement,):
        thread = agreement._thread
        assert thread is not None
        thread.join(60)
        assert not thread.is_alive()
        assert agreement.plan is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"slower": 1.0}, "slower > 1"),
        ({"for_seconds": 0}, "for_seconds > 0"),
        ({"steps": 0}, "steps >= 1"),
        ({"signal": 9}, "cannot be handled"),
        ({"http": "9400"}, "host:port"),
        ({"http": "127.0.0.1:99999"}, "host:port"),
    ],
)
def test_what_is_not_possible_is_refused_before_training(values: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Settings(mode="events", trigger=Trigger(**values)).check()  # type: ignore[arg-type]


def test_a_trigger_needs_events() -> None:
    with pytest.raises(UsageError, match="mode='events'"):
        Settings(mode="trace", trigger=Trigger()).check()


def test_what_cannot_be_opened_is_a_warning_and_the_rest_goes_on(tmp_path: Path) -> None:
    import socket  # noqa: PLC0415 - used here alone

    from overlapscope.capture.trigger.watch import TriggerWatch  # noqa: PLC0415 - needs no torch before it records

    with socket.create_server(("127.0.0.1", 0)) as taken:
        guard = Guard()
        trigger = Trigger(http=f"127.0.0.1:{taken.getsockname()[1]}")
        watch = TriggerWatch(trigger, tmp_path, None, 0, 1, guard, lambda: None)
        with pytest.warns(UserWarning, match="opening the trigger"):
            watch.open()
        watch.close()
    assert len(guard.failures) == 1
