"""Word between ranks at the end of a run, through the job's own key-value store: no collective, a bounded wait."""

import json
import time
from datetime import timedelta
from typing import Any

PREFIX = "overlapscope"
POLL_SECONDS = 0.05


def store() -> Any:
    """Give the store that the process group was made with; None without one."""
    from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.PrefixStore(PREFIX, distributed.distributed_c10d._get_default_store())


def send(to: Any, key: str, message: dict[str, Any]) -> None:
    """Leave a message for rank 0."""
    to.set(key, json.dumps(message))


def receive(of: Any, keys: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """Give the messages that arrive within `seconds`; asks, never blocks on one that will not come."""
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + seconds
    of.set_timeout(timedelta(seconds=max(seconds, 1)))
    while len(found) < len(keys):
        for key in keys:
            if key not in found and of.check([key]):
                found[key] = json.loads(of.get(key))
        if time.monotonic() > end:
            break
        if len(found) < len(keys):
            time.sleep(POLL_SECONDS)
    return found
