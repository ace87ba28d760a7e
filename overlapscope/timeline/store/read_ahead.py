"""Iterate over ranks with all their tables, reading the next ones in threads meanwhile.

Loads little itself: a command asks for the number of cores before it loads anything large.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from overlapscope.timeline.run import RankTimeline

A = TypeVar("A")
B = TypeVar("B")


def read_ahead(ranks: Mapping[int, "RankTimeline"]) -> Iterator[tuple[int, "RankTimeline"]]:
    """Yield each rank as `at_hand` does. Raises InputError where a rank's tables cannot be read any more."""
    from overlapscope.timeline.run import RankTimeline  # noqa: PLC0415 - as said above

    if all(type(each) is RankTimeline for each in ranks.values()):
        yield from ((rank, each.at_hand()) for rank, each in ranks.items())
    else:
        yield from zip(ranks, in_threads(lambda each: each.at_hand(), ranks.values(), ahead=1), strict=True)


def in_threads(work: Callable[[A], B], items: Iterable[A], *, ahead: int | None = None) -> Iterator[B]:
    """Yield `work(item)` for each item, in order; `ahead` results are computed in advance (default: one per core).

    For work that waits for files or decompresses them. An exception is raised when its result is due.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - what is read as a whole needs no threads

    ahead = ahead or available_cores()
    due: deque[Future[B]] = deque()
    with ThreadPoolExecutor(ahead) as pool:
        try:
            for each in items:
                due.append(pool.submit(work, each))
                if len(due) > ahead:
                    yield due.popleft().result()
            while due:
                yield due.popleft().result()
        finally:
            for left in due:
                left.cancel()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
