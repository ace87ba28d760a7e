"""Slow work in background threads, so that the request that needs it is answered quickly."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Condition, Thread
from time import monotonic
from typing import Final, Generic, TypeVar

import msgspec

MAX_AT_ONCE: Final = 64
"""Jobs that run at the same time ..."""
MAX_PER_PAGE: Final = 4
"""... and how many of them for one page, whatever its addresses. Further jobs wait for a free slot."""
SOON_S: Final = 0.25
"""How long any number of callers wait for a job since it began ..."""
MAX_WAITING: Final = 4
"""... and how many wait longer: the server has few request threads, and many may ask for what is still being read."""
MAX_UNCLAIMED: Final = 32
"""Finished jobs whose result was not fetched yet."""
UNCLAIMED_S: Final = 15.0
"""How long an unfetched result is kept."""
T = TypeVar("T")


class _Job(msgspec.Struct, Generic[T], kw_only=True, eq=False):
    """One job, the page it is for, and when it was last requested."""

    of: Hashable
    asked_s: float
    begun_s: float = msgspec.field(default_factory=monotonic)
    future: "Future[T]" = msgspec.field(default_factory=Future)


class BackgroundWork(Generic[T]):
    """Jobs by key. Their threads are daemons, so that stopping the server does not wait for them."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, _Job[T]] = {}
        self._free = Condition()
        self._waiting = BoundedSemaphore(MAX_WAITING)

    def fetch(self, key: Hashable, make: Callable[[], T], patience_s: float, *, of: Hashable = None) -> T | None:
        """Return the result of `make`, or None if that takes longer than `patience_s`, or many wait: then ask again.

        Raises what `make` raises. Concurrent calls with the same key share one job. `of` is the page: one page whose
        run takes long to read leaves slots for the others.
        """
        until = monotonic() + patience_s
        job = self._start(key, make, of, until)
        if job is None or not self._is_done(job, until):
            return None
        with self._free:
            if self._jobs.get(key) is job:  # otherwise another caller took it, and a new job may be running
                del self._jobs[key]
        return job.future.result()

    def _is_done(self, job: _Job[T], until: float) -> bool:
        """Wait for a job, and return whether it is done."""
        for end, place in ((min(until, job.begun_s + SOON_S), None), (until, self._waiting)):
            if job.future.done() or (place is not None and not place.acquire(blocking=False)):
                break
            wait([job.future], max(end - monotonic(), 0))
            if place is not None:
                place.release()
        return job.future.done()

    def _start(self, key: Hashable, make: Callable[[], T], of: Hashable, until: float) -> _Job[T] | None:
        with self._free:
            self._drop_unclaimed()
            while key not in self._jobs and not self._has_slot(of):
                if not self._free.wait(max(until - monotonic(), 0)):
                    return None
            if key in self._jobs:
                self._jobs[key].asked_s = monotonic()
                return self._jobs[key]
            job = _Job[T](of=of, asked_s=monotonic())
            Thread(target=self._make, args=(job, make), daemon=True).start()
            self._jobs[key] = job
            return job

    def _has_slot(self, of: Hashable) -> bool:
        under_way = [each.of for each in self._jobs.values() if not each.future.done()]
        return len(under_way) < MAX_AT_ONCE and under_way.count(of) < MAX_PER_PAGE

    def _drop_unclaimed(self) -> None:
        done = {key: each for key, each in self._jobs.items() if each.future.done()}
        oldest_first = sorted(done, key=lambda key: done[key].asked_s)
        for key in oldest_first:
            if len(done) > MAX_UNCLAIMED or monotonic() - done[key].asked_s > UNCLAIMED_S:
                del done[key], self._jobs[key]

    def _make(self, job: _Job[T], make: Callable[[], T]) -> None:
        try:
            job.future.set_result(make())
        except BaseException as error:  # noqa: BLE001 - any end is raised where the result is fetched, which waits for it
            job.future.set_exception(error)
        with self._free:
            self._free.notify_all()
