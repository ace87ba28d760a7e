"""The network interface of each local address, and the rate that it is known to have."""

import os
import socket
import struct
from pathlib import Path
from typing import Final

ADDRESS_OF: Final = 0x8915
"""SIOCGIFADDR (linux/sockios.h): the IPv4 address of an interface, in a `struct ifreq`."""
INTERFACES: Final = Path("/sys/class/net")


def by_address() -> dict[str, str]:
    """Give the interface of each IPv4 address of this host (of this process's network namespace)."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return {}
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(asked, ADDRESS_OF, struct.pack("256s", os.fsencode(name)[:15]))
            except OSError:
                continue  # without an address
            found[socket.inet_ntoa(told[20:24])] = name
    return found


def rate_bytes_s(interface: str) -> int | None:
    """Give the rate that an interface states; None where it states none, as loopback and most virtual ones."""
    try:
        megabits = int((INTERFACES / interface / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return megabits * 125_000 if megabits > 0 else None
