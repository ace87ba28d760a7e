"""Send messages between ranks at the end of a run, by the job's own key-value store: no collective, a bounded wait."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

PREFIX = "overlapscope"
POLL_SECONDS = 0.05


class StoreEndedError(Exception):
    """The job's store has ended."""


@contextmanager
def _store_lasts() -> Iterator[None]:
    """Raise StoreEndedError, in one line, in place of torch's errors."""
    from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

    try:
        yield
    except distributed.DistError as error:
        raise StoreEndedError(
            "the job's store has ended with the process that held it; this rank's columns lie on its own node"
        ) from error


def store() -> Any:
    """Return the store that the process group was created with; None without a process group."""
    from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.PrefixStore(PREFIX, distributed.distributed_c10d._get_default_store())


@_store_lasts()
def count(at: Any, key: str, more: int = 0) -> int:
    """Add `more` to a number that all ranks share, 0 at first, and return it."""
    return int(at.add(key, more))


@_store_lasts()
def send(to: Any, key: str, message: dict[str, Any]) -> None:
    """Store a message under `key` for the rank that receives it."""
    to.set(key, json.dumps(message))


@_store_lasts()
def receive(
    of: Any, keys: list[str], seconds: float, hurried: Callable[[], bool] = lambda: False
) -> dict[str, dict[str, Any]]:
    """Return by key the messages that arrive within `seconds`, and before `hurried()`.

    Polls whether a message has arrived, and never waits in the store, whose timeout is the job's own.
    """
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + seconds
    while len(found) < len(keys):
        for key in keys:
            if key not in found and of.check([key]):
                found[key] = json.loads(of.get(key))
        if time.monotonic() > end or hurried():
            break
        if len(found) < len(keys):
            time.sleep(POLL_SECONDS)
    return found


PART_BYTES = 1 << 20
MAX_COLUMNS_BYTES = 64 << 20
"""Larger columns are not sent: sending them would delay the end of the job."""


@_store_lasts()
def send_folder(to: Any, key: str, folder: Path) -> int:
    """Send a folder's columns (not its traces) to rank 0, which shares no file system; return the number of parts."""
    files = [each for each in sorted(folder.rglob("*")) if each.suffix in (".parquet", ".json")]
    content = msgspec.msgpack.encode({each.relative_to(folder).as_posix(): each.read_bytes() for each in files})
    if len(content) > MAX_COLUMNS_BYTES:
        return 0
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    for number, part in enumerate(parts):
        to.set(f"{key}/part{number}", part)
    return len(parts)


@_store_lasts()
def receive_folder(of: Any, key: str, parts: int, folder: Path) -> None:
    """Unpack a folder that `send_folder` sent."""
    content = b"".join(of.get(f"{key}/part{number}") for number in range(parts))
    for name, columns in msgspec.msgpack.decode(content, type=dict[str, bytes]).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(columns)
