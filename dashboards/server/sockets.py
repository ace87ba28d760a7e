"""Listening sockets for a host name, which may have several addresses, as localhost has ::1 and 127.0.0.1."""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

TRIES: Final = 8
"""Free ports to try until one is free on all addresses."""
ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors for an address that this machine does not have, as ::1 where IPv6 is off: the other addresses are enough."""
Address = tuple[socket.AddressFamily, Any]


def bind_all(host: str, port: int) -> tuple[list[socket.socket], int]:
    """Bind a socket to every address of a host, all on one port; port 0 chooses one that is free on all of them.

    Raises OSError where nothing can be bound, or the port is taken on one of the addresses.
    """
    addresses = _addresses(host, port)
    for left in reversed(range(TRIES)):
        try:
            return _bound(addresses, port)
        except OSError as error:
            if port or not left or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _addresses(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(addresses: Sequence[Address], port: int) -> tuple[list[socket.socket], int]:
    made: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as failing:
        failing.callback(close, made)
        for family, address in addresses:
            try:
                made.append(_one(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
                continue
            port = made[-1].getsockname()[1]
        failing.pop_all()
    if not made:
        raise absent or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return made, port


def _one(family: socket.AddressFamily, address: Any) -> socket.socket:
    with ExitStack() as failing:
        made = failing.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if os.name == "posix":  # on Windows it would let two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen()
        failing.pop_all()
    return made


def close(sockets: Sequence[socket.socket]) -> None:
    """Close all sockets and ignore errors."""
    for each in sockets:
        with suppress(OSError):
            each.close()
