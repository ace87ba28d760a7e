"""Workers of a Dask cluster as an executor."""

import socket
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from overlapscope.errors import UsageError

CONNECT_SECONDS: Final = 30
PORT: Final = 8786
"""Where Dask's schedulers listen if nobody says otherwise."""
MAX_GREETING_BYTES: Final = 1 << 20
RETRIES: Final = 2
"""How often a file is tried again whose reading failed; one whose worker is lost is given to another one as well."""


@contextmanager
def dask_executor(address: str | None) -> Iterator[Executor | None]:
    """Give the cluster whose scheduler listens at `address` (`tcp://HOST:PORT`), None for None.

    Raises UsageError when `distributed` is not installed, or nobody answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError("--scheduler needs Dask: pip install 'overlapscope[cluster]'") from error
    _require_listener(address)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(_nobody(address, error)) from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise UsageError(f"--scheduler {address}: it has no workers yet; start some, or wait for them")
        yield client.get_executor(pure=False, retries=RETRIES)


def _require_listener(address: str) -> None:
    """Raise UsageError where no scheduler listens: Dask would wait for it, and for ever for something else.

    A scheduler speaks first on tcp: the length of its greeting, as 8 bytes.
    """
    greeting = b"\1"
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        with socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=CONNECT_SECONDS) as spoken:
            if parts.scheme == "tcp":
                greeting = spoken.recv(8, socket.MSG_WAITALL)
    except (OSError, ValueError) as error:
        raise UsageError(_nobody(address, error)) from error
    if not 0 < int.from_bytes(greeting, "little") < MAX_GREETING_BYTES:
        raise UsageError(_nobody(address, "something else listens"))


def _nobody(address: str, error: object) -> str:
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return f"--scheduler {address}: no Dask scheduler answers there ({said}); give its address, as tcp://HOST:{PORT}"
