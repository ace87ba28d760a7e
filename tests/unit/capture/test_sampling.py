"""Which steps are recorded: one of each block, the same on all ranks, as many as the cost allows."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
from overlapscope.capture import sampling
from overlapscope.capture.sampling import AIMED_SHARE, MOST_EVERY, MOST_SHARE, Sampling, agree, needed_every


class Store:
    """What the ranks of a job share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.mark.parametrize("every", [2, 3, 24, 1000])
def test_one_step_of_each_block_is_recorded_at_no_regular_distance(every: int) -> None:
    chosen = Sampling(since_step=7, every=every)
    recorded = [step for step in range(7, 7 + 50 * every) if chosen.records(step)]
    assert [(step - 7) // every for step in recorded] == list(range(50))
    places = [(step - 7) % every for step in recorded]
    assert all(places.count(each) < 40 for each in places)


def test_every_step_is_recorded_where_the_cost_is_small() -> None:
    assert needed_every(MOST_SHARE * 1e6, 1e6) == 1
    assert Sampling(since_step=3, every=1).records(3)


@given(st.integers(0, 50), st.integers(1, 40), st.integers(0, 200))
def test_the_next_recorded_step_is_the_first_that_is_recorded(since: int, every: int, after: int) -> None:
    chosen = Sampling(since_step=since, every=every)
    found = chosen.next_recorded(since + after)
    assert found == next(step for step in range(since + after, since + after + 2 * every) if chosen.records(step))


@pytest.mark.parametrize("cost_ns", [1.1e6, 3e6, 40e6])
def test_the_mean_cost_of_all_steps_is_below_what_is_aimed_at(cost_ns: float) -> None:
    every = needed_every(cost_ns, 100e6)
    assert cost_ns / every <= AIMED_SHARE * 100e6 < cost_ns / (every - 1)
    assert needed_every(1e12, 1e6) == needed_every(1.0, 0.0) == MOST_EVERY


def test_ranks_agree_on_what_the_most_expensive_one_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    store, found = Store(), dict[int, Any]()
    monkeypatch.setattr(sampling.exchange, "store", lambda: store)
    monkeypatch.setattr(sampling, "POLL_SECONDS", 0.001)

    def ask(rank: int) -> None:
        found[rank] = agree("key", rank, 3, (5, 9, 2)[rank], lambda: 100 + rank, threading.Event())

    ranks = [threading.Thread(target=ask, args=(rank,)) for rank in (2, 0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert found == dict.fromkeys(range(3), Sampling(since_step=100, every=9))


def test_without_an_answer_all_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.exchange, "store", Store)
    monkeypatch.setattr(sampling, "ANSWER_SECONDS", 0.01)
    assert agree("key", 0, 2, 5, lambda: 100, threading.Event()) is None
    assert agree("key", 1, 2, 5, lambda: 100, threading.Event()) is None
    monkeypatch.setattr(sampling.exchange, "store", lambda: None)
    assert agree("key", 0, 2, 5, lambda: 100, threading.Event()) is None
    assert agree("key", 0, 1, 5, lambda: 100, threading.Event()) == Sampling(since_step=100, every=5)
