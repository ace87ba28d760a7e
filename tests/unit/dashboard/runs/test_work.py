"""Background work: requests are answered quickly, each job runs once, and no result is lost."""

from threading import Event, Semaphore, Thread
from time import monotonic, sleep
from typing import Any

import pytest

from overlapscope_dashboards.runs import work as module
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.runs.work import MAX_AT_ONCE, MAX_PER_PAGE, MAX_UNCLAIMED, MAX_WAITING, BackgroundWork
from overlapscope_dashboards.server.serve import THREADS


def test_what_is_quick_is_given_at_once_and_what_is_slow_when_it_is_asked_for_again() -> None:
    work, go = BackgroundWork[str](), Event()
    assert work.fetch("quick", lambda: "done", 30) == "done"

    def slow() -> str:
        go.wait()
        return "done"

    assert work.fetch("slow", slow, 0) is None
    assert work.fetch("another", lambda: "done", 30) == "done"
    go.set()
    assert work.fetch("slow", lambda: "made twice", 30) == "done"
    assert work.fetch("slow", lambda: "made anew", 30) == "made anew"


def test_who_asks_for_the_same_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    work, go, made, given = BackgroundWork[int](), Event(), list[int](), list[int | None]()
    asked, begun = Semaphore(0), work._start

    def noted(*given_: Any) -> Any:
        found = begun(*given_)
        asked.release()
        return found

    monkeypatch.setattr(work, "_start", noted)

    def make() -> int:
        go.wait()
        made.append(1)
        return len(made)

    asking = [Thread(target=lambda: given.append(work.fetch("it", make, 30))) for _ in range(4)]
    for each in asking:
        each.start()
    assert all(asked.acquire(timeout=30) for _ in asking)
    go.set()
    for each in asking:
        each.join()
    assert given == [1] * 4
    assert made == [1]


def test_of_many_who_ask_for_what_is_slow_few_wait() -> None:
    work, go, given = BackgroundWork[int](), Event(), list[int | None]()

    def make() -> int:
        go.wait()
        return 7

    asking = [Thread(target=lambda: given.append(work.fetch("it", make, 300))) for _ in range(3 * MAX_WAITING)]
    for each in asking:
        each.start()
    until = monotonic() + 60
    while len(given) < 2 * MAX_WAITING and monotonic() < until:
        sleep(0.01)
    assert given == [None] * 2 * MAX_WAITING
    go.set()
    for each in asking:
        each.join(60)
    assert given[2 * MAX_WAITING :] == [7] * MAX_WAITING
    assert THREADS > 2 * MAX_WAITING


def test_a_fault_is_raised_where_it_is_fetched() -> None:
    def fail() -> str:
        raise ValueError("no")

    work = BackgroundWork[str]()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work.fetch("it", fail, 30)


def test_one_page_takes_few_places_however_many_addresses_it_has() -> None:
    work, go = BackgroundWork[int](), Event()
    for at in range(2 * MAX_PER_PAGE):
        assert work.fetch(at, lambda: int(go.wait()), 0, of="slow") is None
    assert len(work._jobs) == MAX_PER_PAGE
    assert work.fetch("it", lambda: 1, 30, of="another") == 1
    go.set()
    assert work.fetch("one more", lambda: 2, 30, of="slow") == 2  # it waits for a slot


def test_work_is_bounded_in_all() -> None:
    work, go = BackgroundWork[int](), Event()
    asked = range(MAX_AT_ONCE)
    assert [work.fetch(at, lambda: int(go.wait()), 0, of=at) for at in asked] == [None] * MAX_AT_ONCE
    assert work.fetch("more", lambda: 1, 0, of="more") is None
    go.set()
    assert work.fetch("more", lambda: 1, 30, of="more") == 1


def test_what_nobody_fetched_is_made_anew_and_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    work = BackgroundWork[int]()
    for at in range(MAX_UNCLAIMED + 5):
        work.fetch(at, lambda: 1, 0)
        for piece in list(work._jobs.values()):
            piece.future.result(timeout=30)
    assert work.fetch("it", lambda: 2, 30) == 2
    assert len(work._jobs) <= MAX_UNCLAIMED + 1
    work.fetch("late", lambda: 3, 0)
    monkeypatch.setattr(module, "UNCLAIMED_S", -1)
    assert work.fetch("late", lambda: 7, 30) in (3, 7)
    assert work.fetch("late", lambda: 7, 30) == 7


def test_who_fetches_late_takes_nothing_away_that_was_begun_anew() -> None:
    work, go = BackgroundWork[int](), Event()
    first = work._start("it", lambda: 1, None, 0)
    assert first is not None
    assert first.future.result(timeout=30) == 1
    assert work.fetch("it", lambda: 2, 30) == 1
    assert work.fetch("it", lambda: int(go.wait()), 0) is None  # started again
    begun = work._jobs["it"]
    work._start = lambda *_: first  # type: ignore[method-assign] - as one who asked before
    assert work.fetch("it", lambda: 3, 30) == 1
    assert work._jobs["it"] is begun
    go.set()


def test_a_timeout_of_the_work_itself_is_a_fault_of_it() -> None:
    def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        BackgroundWork[None]().fetch("it", fail, 30)


# --- what is kept for a while -----------------------------------------------------------------------------------------


def test_the_longest_unused_value_leaves() -> None:
    recent, made = RecentCache[str](2), list[str]()

    def of(key: str) -> str:
        return recent.get(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    for key in ("a", "b", "a", "c", "a", "b"):
        assert of(key) == key
    assert made == ["a", "b", "c", "b"]
