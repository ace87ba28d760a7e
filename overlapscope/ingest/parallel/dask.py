"""Files read by an executor that the user brings, such as the workers of a Dask cluster."""

import os
import socket
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from overlapscope.display import display_path
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.parallel.process_pool import describe_failure
from overlapscope.ingest.parallel.read_parallel import result_of, spool_task
from overlapscope.ingest.parallel.spool import is_spooled
from overlapscope.ingest.parallel.task import Read, Task
from overlapscope.ingest.parallel.worker_count import bytes_in

CONNECT_SECONDS: Final = 30
PORT: Final = 8786
"""Where Dask's schedulers listen if nobody says otherwise."""
MAX_GREETING_BYTES: Final = 1 << 20
RETRIES: Final = 2
"""How often a file is tried again whose reading failed; one whose worker is lost is given to another one as well."""


@contextmanager
def dask_executor(address: str | None) -> Iterator[Executor | None]:
    """Yield the cluster whose scheduler listens at `address` (`tcp://HOST:PORT`), None for None.

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


def read_by_executor(
    tasks: Sequence[Task], numbers: Sequence[int], executor: Executor
) -> Generator[tuple[int, Read], None, None]:
    """Have the files of the tasks with these numbers read, the largest first; yield each when it is done.

    Raises InputError as `spool_task` does, and when the executor itself broke down.
    """
    order = sorted(numbers, key=lambda number: -bytes_in(tasks[number].path))
    pending = {executor.submit(spool_task, tasks[number]): number for number in order}
    for future in as_completed(pending):
        task = tasks[pending[future]]
        if isinstance(error := future.exception(), BrokenExecutor):
            raise InputError(
                f"{display_path(task.named)}: the executor that was to read it broke down ({describe_failure(error)}); "
                "what was read until then is kept, and the same call goes on from there"
            )
        read = result_of(future, lost=True)
        os.listdir(task.folder.parent)  # network file systems look again at what they knew not to be there
        if not read.refused and not is_spooled(task):
            where = display_path(task.folder.parent)
            why = f"was read where {where} is another disk than here: choose a place for the run that all workers share"
            read = Read(refused=why, lost=True)
        yield pending[future], read
