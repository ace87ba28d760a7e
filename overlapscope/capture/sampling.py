"""Choose which steps `events` mode records, so that its mean cost stays a small share of training.

Each rank measures what a recorded step costs; the most expensive rank decides how many steps there are for one that is
recorded. Ranks agree through the job's store, on a thread of its own that no training waits for, and from a step on
that lies ahead. From then on the number of a step alone decides, so all ranks record the same ones.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import msgspec

from overlapscope.capture.lifecycle import exchange

MOST_SHARE: Final = 0.01
"""Every step is recorded where the upper bound of the cost is below this share of a step."""
AIMED_SHARE: Final = 0.002
"""Where it is not, the mean cost is kept below this share: room for the first steps, which are recorded to measure.
Those are some 30 recorded ones before ranks agree, at up to a fifth of a step each: 0.3 % of 2,000 steps. A step that
is not recorded costs some 0.07 ms, from cold caches."""
MOST_EVERY: Final = 1000
AHEAD_SECONDS: Final = 3.0
"""How far ahead of rank 0 the agreed step lies; other ranks ask every POLL_SECONDS."""
AHEAD_STEPS: Final = 8
POLL_SECONDS: Final = 0.25
ANSWER_SECONDS: Final = 60.0
"""How long a rank waits for the others; without an answer all stays as it was."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """From step `since_step` on, one in each `every` steps is recorded."""

    since_step: int
    every: int

    def records(self, step: int) -> bool:
        """Return whether a step is recorded.

        The one of each block is chosen by a checksum of the block's number, as if at random: a regular choice could
        coincide with gradient accumulation, or with checkpoints.
        """
        block, place = divmod(step - self.since_step, self.every)
        return self.every == 1 or place == self._place(block)

    def next_recorded(self, step: int) -> int:
        """Return the first step that is recorded from `step` on, which is `since_step` or later."""
        block, place = divmod(step - self.since_step, self.every)
        block += place > self._place(block)
        return self.since_step + block * self.every + self._place(block)

    def _place(self, block: int) -> int:
        return crc32(block.to_bytes(8, "little")) % self.every


def needed_every(cost_ns: float, step_ns: float) -> int:
    """Return how many steps there must be for one that is recorded at this cost."""
    if cost_ns <= MOST_SHARE * step_ns:
        return 1
    return min(MOST_EVERY, math.ceil(cost_ns / (AIMED_SHARE * step_ns))) if step_ns > 0 else MOST_EVERY


def agree(
    key: str, rank: int, world_size: int, every: int, ahead: Callable[[], int], stopped: threading.Event
) -> Sampling | None:
    """Return what all ranks record from some step on, None where not all answer; `every` is what this rank needs.

    `ahead()` returns a step that all ranks reach later than the answer. Waits: call it on a thread of its own.
    """
    if world_size == 1:
        return Sampling(since_step=ahead(), every=every)
    store = exchange.store()
    if store is None:
        return None
    with suppress(exchange.StoreEndedError):  # the job ends
        return _agree(store, key, rank, world_size, every, ahead, stopped)
    return None


def _agree(
    store: Any, key: str, rank: int, world_size: int, every: int, ahead: Callable[[], int], stopped: threading.Event
) -> Sampling | None:
    exchange.send(store, f"{key}/rank{rank}", {"every": every})
    if rank == 0:
        found = _wait_for(store, [f"{key}/rank{each}" for each in range(world_size)], stopped)
        if found is None:
            return None
        agreed = Sampling(since_step=ahead(), every=max(int(each["every"]) for each in found.values()))
        exchange.send(store, key, msgspec.structs.asdict(agreed))
        return agreed
    found = _wait_for(store, [key], stopped)
    return None if found is None else msgspec.convert(found[key], Sampling)


def _wait_for(store: Any, keys: list[str], stopped: threading.Event) -> dict[str, dict[str, Any]] | None:
    """Return all messages, None where they do not arrive in time."""
    end = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < end and not stopped.is_set():
        found = exchange.receive(store, keys, 0)
        if len(found) == len(keys):
            return found
        stopped.wait(POLL_SECONDS)
    return None
