"""When each transfer ran: from the marks of the host, or on a device from its data's readiness, duration and waits.

The backend's stream on a device begins a transfer when its data are ready and the one before it in its lane is done.
Two things are then known without touching that stream: the duration, between the backend's own events, and where a
stream of the job waited for the transfer: if the wait lasted, the transfer ended with it; if not, it was done by then.

Streams that share a hardware queue (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default, for torch's 33 streams and more) leave
it in the order of issue: a transfer may begin as late as one of another lane that was issued before it. What begins in
such a way has two ends: the earliest one counts, and the latest one stands beside it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from overlapscope.capture.records import Transfer

LASTING_NS: Final = 5_000
"""A wait for an event that has passed takes a stream less than this."""
UNSHARED_QUEUES: Final = 32
"""With as many connections, the most that CUDA allows, streams of a usual job share no queue."""


def share_queues(connections: str | None) -> bool:
    """Return whether streams may share hardware queues, by CUDA_DEVICE_MAX_CONNECTIONS: 8 where it is not set."""
    return not (connections is not None and connections.isdigit() and int(connections) >= UNSHARED_QUEUES)


class TransferTime(NamedTuple):
    """When a transfer ran: from `begin_ns` to `end_ns`, or as late as from `latest_begin_ns` to `latest_end_ns`."""

    ready_ns: int
    begin_ns: int
    end_ns: int
    latest_begin_ns: int
    latest_end_ns: int


class TransferTimes:
    """Times transfers in the order of their issue; `epoch_ns` converts a mark, None where it was not read."""

    def __init__(
        self, epoch_ns: Callable[[Any], int | None], *, serial: bool, shared: bool, before: "TransferTimes | None"
    ) -> None:
        """Go on from the transfers of an earlier part of the recording, `before`, which stays as it is."""
        self._epoch_ns, self._serial = epoch_ns, serial
        self._shared = shared
        self._ends: dict[str, tuple[int, int]] = {} if before is None else dict(before._ends)
        """The end of the last transfer of each lane, and its latest one."""
        self._begun: int = 0 if before is None else before._begun
        """The latest begin of any transfer of the device so far."""

    def of(self, transfer: Transfer) -> TransferTime | None:
        """Return when the transfer ran; None where its end is not known."""
        ready = self._epoch_ns(transfer.ready)
        if ready is None:
            return None
        if transfer.done is not None:
            end = self._epoch_ns(transfer.done)
            return None if end is None else self._keep(transfer, TransferTime(ready, min(ready, end), end, ready, end))
        if transfer.on_host or not self._serial:
            return None
        before, before_latest = self._ends.get(transfer.lane, (ready, ready))
        begin = max(ready, before)
        latest = max(begin, before_latest, self._begun if self._shared else 0)
        wait = transfer.waited
        reached = self._epoch_ns(wait.begin) if wait is not None else None
        passed = self._epoch_ns(wait.end) if wait is not None else None
        lasted = reached is not None and passed is not None and passed - reached > LASTING_NS
        if transfer.duration_ns is None:
            if passed is None or not lasted:
                return None  # done by the wait, but since when?
            return self._keep(transfer, TransferTime(ready, min(begin, passed), passed, min(begin, passed), passed))
        took = transfer.duration_ns
        if passed is not None and (lasted or begin + took > passed):
            time = TransferTime(ready, passed - took, passed, passed - took, passed)
        else:
            latest_end = latest + took
            if passed is not None:
                latest_end = max(min(latest_end, passed), begin + took)
            time = TransferTime(ready, begin, begin + took, latest_end - took, latest_end)
        return self._keep(transfer, time)

    def _keep(self, transfer: Transfer, time: TransferTime) -> TransferTime:
        if not transfer.on_host:
            self._ends[transfer.lane] = time.end_ns, time.latest_end_ns
            self._begun = max(self._begun, time.latest_begin_ns)
        return time
