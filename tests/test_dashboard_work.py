"""Work beside a request: answered at once, made once, and lost for nobody."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Semaphore, Thread

import pytest

from overlapscope_dashboards import work as module
from overlapscope_dashboards.work import MAX_AT_ONCE, Work


def test_what_is_quick_is_given_at_once_and_what_is_slow_when_it_is_asked_for_again() -> None:
    work, go = Work[str](), Event()
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
    work, go, made, given = Work[int](), Event(), list[int](), list[int | None]()
    asked, begun = Semaphore(0), work._begun

    def noted(key: str, wanted: Callable[[], int]) -> Future[int] | None:
        found = begun(key, wanted)
        asked.release()
        return found

    monkeypatch.setattr(work, "_begun", noted)

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


def test_a_fault_is_raised_where_it_is_fetched() -> None:
    def fail() -> str:
        raise ValueError("no")

    work = Work[str]()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work.fetch("it", fail, 30)


def test_work_is_bounded_and_what_nobody_fetched_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    work, go = Work[int](), Event()
    assert [work.fetch(at, lambda: int(go.wait()), 0) for at in range(MAX_AT_ONCE)] == [None] * MAX_AT_ONCE
    assert work.fetch("more", lambda: 1, 30) is None
    go.set()
    for piece in list(work._pieces.values()):
        piece.future.result(timeout=30)
    monkeypatch.setattr(module, "FORGOTTEN_S", -1)
    assert work.fetch(0, lambda: 7, 30) == 7
