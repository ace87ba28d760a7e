"""What is recorded: which disturbance, of which rank, in which mode."""

import os
import random
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

WORLD = int(os.environ.get("DISTURBED_RANKS") or (3 if len(os.sched_getaffinity(0)) > 2 else 2))
"""Ranks of the job: as many as have a core each, where there are so few. Two have no third one to compare with, so that
slow links are left out then."""
MODES = ("events", "trace")
INTERFACE = "link0"
"""Name of a rank's only interface where it has a namespace of its own."""
ON_ONE_HOST = ("control", "compute", "sleep", "loader", "collector", "own_cores", "shared_core")
ON_LINKS = ("links_as_they_are", "one_slow_link", "all_slow_links")


CORES = {"own_cores": tuple(range(WORLD)), "shared_core": (0, 0, 1)[:WORLD]}
"""Which of the machine's cores each rank may use, in these kinds; in the others all."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recording; `place` says where in the step the disturbance lies."""

    kind: str
    mode: str
    seed: int
    rank: int | None
    place: str
    share: float = 0.7
    """Length of the disturbance, as a share of the undisturbed step."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.mode}-{self.seed}"

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)


PLACES = {
    "compute": ("forward", "backward"),
    "sleep": ("before forward", "forward", "before backward", "after the optimizer"),
    "loader": ("between steps", "in a region", "in the step"),
    "collector": ("forward", "before backward"),
    "one_slow_link": ("both ways", "what it sends", "what it receives"),
}


def recording(kind: str, mode: str, seed: int) -> Recording:
    """Draw the rank and the place."""
    drawn = random.Random(f"{kind} {seed}")
    places = PLACES.get(kind, ("",))
    if mode == "events" and kind == "loader":
        places = places[:2]  # inside a step, without a name, only a trace tells a loader from anything else
    rank = drawn.randrange(WORLD) if kind in PLACES else None
    return Recording(kind=kind, mode=mode, seed=seed, rank=rank, place=places[drawn.randrange(len(places))])


def plan(kinds: Sequence[str], seeds: Sequence[int], modes: Sequence[str] = MODES) -> list[Recording]:
    """Return the recordings of every kind and mode, kinds interleaved: a machine changes over minutes."""
    return [recording(kind, mode, seed) for seed in seeds for mode in modes for kind in kinds]
