"""Read the kernel's counters of this process's TCP connections (gloo's, and NCCL's sockets) while it trains.

Nothing is changed on a connection: its counters are read through a duplicate of its descriptor, which exists for some
microseconds. Offsets are those of `struct tcp_info` (include/uapi/linux/tcp.h), which only ever grows at its end. The
interface of each local address, and the link rate that the interface states, are added at the end.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

DESCRIPTORS: Final = "/proc/self/fd"
MAX_DESCRIPTORS: Final = 4096
"""A process with more open descriptors is not examined."""
MAX_KEPT: Final = 256
"""Most connections that are reported: those that carried most."""
MIN_BYTES: Final = 64 << 10
"""A connection that carried less shows nothing about its link."""
MAX_RATES: Final = 1024
"""Rates of a connection that are kept, the last ones: of some ten minutes."""
APP_LIMITED_AT, ACKED_AT, RECEIVED_AT, RATE_AT, BUSY_AT, RECEIVER_AT, RESENT_AT = 7, 120, 128, 160, 168, 176, 208
MIN_INFO_BYTES: Final = 216
"""A kernel that reports less (before 4.19) is not used."""
SIOCGIFADDR: Final = 0x8915
"""From linux/sockios.h: the IPv4 address of an interface, in a `struct ifreq`."""
INTERFACES: Final = Path("/sys/class/net")


def rate_bytes_s(interface: str) -> int | None:
    """Return the link rate that an interface states; None where it states none, as loopback and most virtual ones."""
    try:
        megabits = int((INTERFACES / interface / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return megabits * 125_000 if megabits > 0 else None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one connection since it was opened, and the rate at which its last data were delivered."""

    acked_bytes: int
    received_bytes: int
    resent_bytes: int
    busy_us: int
    """Time with data in flight or waiting to be sent."""
    receiver_us: int
    """The part of it in which the receiver's window was full."""
    rate_bytes_s: int | None
    """None where the last data were too few to fill the link."""


class _Connection(msgspec.Struct):
    local: str
    peer: str
    first: Counts
    last: Counts
    rates: deque[int] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_RATES))


class SocketWatch:
    """From `open` on, counts what each TCP connection carries; the telemetry thread calls `sample` repeatedly."""

    def __init__(self) -> None:
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._closed = False

    def open(self) -> None:
        """Read the counters for the first time."""
        self._look()

    def close(self) -> None:
        """Read the counters for the last time."""
        self._look()
        self._closed = True

    def sample(self) -> Iterator[tuple[str, float]]:
        """Read the counters once more; return no reading, because connections are reported as a whole at the end."""
        if not self._closed:
            self._look()
        return iter(())

    def connections(self) -> list[dict[str, Any]]:
        """Return what each connection carried since `open`, as plain values: the busiest first."""
        found: list[dict[str, Any]] = []
        interfaces = by_address() if self._connections else {}
        for each in list(self._connections.values()):
            sent = each.last.acked_bytes - each.first.acked_bytes
            received = each.last.received_bytes - each.first.received_bytes
            if max(sent, received) < MIN_BYTES:
                continue
            found.append(
                {
                    "local": each.local,
                    "peer": each.peer,
                    "interface": interfaces.get(_address(each.local)),
                    "interface_bytes_s": rate_bytes_s(interfaces.get(_address(each.local), "")),
                    "sent_bytes": sent,
                    "received_bytes": received,
                    "resent_bytes": each.last.resent_bytes - each.first.resent_bytes,
                    "busy_ns": 1000 * (each.last.busy_us - each.first.busy_us),
                    "receiver_limited_ns": 1000 * (each.last.receiver_us - each.first.receiver_us),
                    "rate_bytes_s": round(median(each.rates)) if each.rates else None,
                }
            )
        return sorted(found, key=lambda each: -max(each["sent_bytes"], each["received_bytes"]))[:MAX_KEPT]

    def _look(self) -> None:
        for descriptor in _sockets():
            seen = _seen(descriptor)
            if seen is None:
                continue
            local, peer, counts = seen
            known = self._connections.get((local, peer))
            if known is None:
                self._connections[local, peer] = _Connection(local=local, peer=peer, first=counts, last=counts)
                continue
            if counts.rate_bytes_s is not None and counts.acked_bytes > known.last.acked_bytes:
                known.rates.append(counts.rate_bytes_s)
            known.last = counts


def _sockets() -> list[int]:
    """Return the descriptors of this process that are sockets; none where the system has no /proc."""
    try:
        names = os.listdir(DESCRIPTORS)
    except OSError:
        return []
    found = []
    for name in names if len(names) <= MAX_DESCRIPTORS else []:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"{DESCRIPTORS}/{name}").startswith("socket:"):
                found.append(int(name))
    return found


def _seen(descriptor: int) -> tuple[str, str, Counts] | None:
    """Return the two ends of a connection and its counters; None if it is not a TCP connection, or is closed."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            local, peer = _end(connection.getsockname()), _end(connection.getpeername())
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    except OSError:
        return None
    return None if len(info) < MIN_INFO_BYTES else (local, peer, _counts(info))


def _end(address: Any) -> str:
    return f"[{address[0].removeprefix('::ffff:')}]:{address[1]}"


def _address(end: str) -> str:
    return end[1:].partition("]")[0]


def _counts(info: bytes) -> Counts:
    def at(offset: int) -> int:
        return int(struct.unpack_from("=Q", info, offset)[0])

    app_limited = info[APP_LIMITED_AT] & 1
    return Counts(
        acked_bytes=at(ACKED_AT),
        received_bytes=at(RECEIVED_AT),
        resent_bytes=at(RESENT_AT),
        busy_us=at(BUSY_AT),
        receiver_us=at(RECEIVER_AT),
        rate_bytes_s=None if app_limited else at(RATE_AT) or None,
    )


def by_address() -> dict[str, str]:
    """Return the interface of each IPv4 address of this process's network namespace."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return {}
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query, SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
            except OSError:
                continue  # without an address
            found[socket.inet_ntoa(answer[20:24])] = name
    return found
