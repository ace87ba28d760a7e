"""Ranks agree, through the job's key-value store, on the step from which which of them record a trace.

Nothing is sent between ranks but small values of the store, every few seconds, by a thread. A rank that sees a reason
adds a claim. The first one to claim collects the others' claims some moments later, and writes the plan: a step that
all ranks have still before them, and the ranks that record. Every rank counts the same steps.
"""

import json
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from overlapscope.capture.lifecycle import exchange
from overlapscope.capture.trigger.usual_range import Kind

MARGIN_POLLS = 4
"""How many polls of the store lie at least between the writing of a plan and its step."""
MARGIN_STEPS = 5
CLAIM_POLLS = 2
"""How many polls the first rank to claim waits for the claims of others: of the rank that is late, above all."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's reason to record."""

    rank: int
    kind: Kind
    grown_ns: int
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """From which step which ranks record, and why."""

    step: int
    """Number of the step in which the profiler warms up; it records from the next one on."""
    ranks: list[int]
    reason: str
    folder: str
    """Name of the folder that holds the traces."""


def ranks_to_record(claims: Sequence[Claim], world_size: int, most: int) -> list[int]:
    """Return the ranks that record, at most `most`.

    Where somebody asked: ranks spread over all. Where a rank's own work grew: those that grew most, and one other to
    compare with. Else ranks spread over those that saw it.
    """
    if any(claim.kind == "asked" for claim in claims):
        return _spread(range(world_size), most)
    own = sorted((claim for claim in claims if claim.kind == "own"), key=lambda claim: -claim.grown_ns)
    if not own:
        return _spread(sorted({claim.rank for claim in claims}), most)
    chosen = list(dict.fromkeys(claim.rank for claim in own))[: max(most - 1, 1)]
    others = [rank for rank in range(min(world_size, len(chosen) + 1)) if rank not in chosen]
    return sorted(chosen + (others[:1] if most > 1 else []))


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    if len(ranks) <= most:
        return list(ranks)
    return sorted({ranks[at * len(ranks) // most] for at in range(most)})


class Agreement:
    """The thread of one rank that claims, plans and learns of plans.

    `progress` returns the number of the next step and the seconds of a step. Without a store the rank is alone.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        *,
        most_ranks: int,
        poll_seconds: float,
        progress: Callable[[], tuple[int, float]],
        folder: Callable[[int], str],
    ) -> None:
        self._store = store if store is not None else _OwnStore()
        self._rank, self._world_size, self._most = rank, world_size, most_ranks
        self._poll_seconds, self._progress, self._folder = poll_seconds, progress, folder
        self._wanted: Claim | None = None
        self._claimed = False
        self._polls_to_plan: int | None = None
        """Of the first rank to claim: polls until it writes the plan."""
        self._number = 0
        """How many plans this rank has been through."""
        self._plan: Plan | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="overlapscope-trigger", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self._poll_seconds + 1)

    def claim(self, claim: Claim) -> None:
        """Ask for a recording; while one is planned, do nothing."""
        if self._plan is None and self._wanted is None:
            self._wanted = claim

    @property
    def plan(self) -> Plan | None:
        """The plan that this rank has not been through yet."""
        return self._plan

    @property
    def asked(self) -> bool:
        """Whether somebody asked this rank for a recording that it has not been through yet."""
        return self._wanted is not None and self._wanted.kind == "asked"

    def done(self) -> None:
        """Go on after the plan: a later claim makes the next one."""
        self._wanted, self._claimed, self._polls_to_plan = None, False, None
        self._number += 1
        self._plan = None

    def _run(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            if self._plan is None:
                try:
                    self._poll()
                except (exchange.StoreEndedError, RuntimeError, OSError):  # the job ends, and its store before us
                    return

    def _poll(self) -> None:
        key = f"trigger/{self._number}"
        found = exchange.receive(self._store, [f"{key}/plan"], 0.0)
        if found:
            self._plan = msgspec.convert(found[f"{key}/plan"], Plan)
        elif self._polls_to_plan is not None:
            self._polls_to_plan -= 1
            if self._polls_to_plan == 0:
                self._write_plan(key)
        elif self._wanted is not None and not self._claimed:
            at = exchange.count(self._store, f"{key}/claims", 1)
            exchange.send(self._store, f"{key}/claim{at}", msgspec.to_builtins(self._wanted))
            self._claimed = True
            self._polls_to_plan = CLAIM_POLLS if at == 1 else None

    def _write_plan(self, key: str) -> None:
        keys = [f"{key}/claim{at}" for at in range(1, 1 + exchange.count(self._store, f"{key}/claims"))]
        claims = [msgspec.convert(each, Claim) for each in exchange.receive(self._store, keys, 0.0).values()]
        count, seconds = self._progress()
        step = count + max(MARGIN_STEPS, math.ceil(MARGIN_POLLS * self._poll_seconds / max(seconds, 1e-6)))
        ranks = ranks_to_record(claims, self._world_size, self._most)
        first = max(claims, key=lambda claim: (claim.kind == "asked", claim.kind == "own", claim.grown_ns))
        reason = first.reason if first.kind == "asked" else f"rank {first.rank}: {first.reason}"
        plan = Plan(step=step, ranks=ranks, reason=reason, folder=self._folder(step))
        exchange.send(self._store, f"{key}/plan", msgspec.to_builtins(plan))


class _OwnStore:
    """Stands in for the job's store in a job of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, key: str, more: int) -> int:
        self._counts[key] = self._counts.get(key, 0) + more
        return self._counts[key]

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key].encode()


def describe(plan: Plan) -> str:
    """Return a plan as the text that travels in the trace."""
    return json.dumps({"reason": plan.reason, "ranks": plan.ranks, "step": plan.step})
