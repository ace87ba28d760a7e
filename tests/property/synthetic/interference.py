"""Kernels that run slower while a collective does, by a known factor: a kernel's rest of work goes on at that rate.

Communication lies elsewhere in each step, as far as its jitter goes, and covers its edges' kernels only in part.
"""

import numpy as np
from msgspec import Struct

from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Spans, make
from tests.property.synthetic.draw import between

US = 1_000
GAP_NS = 500


class Slowed(Struct, frozen=True, kw_only=True):
    """A device that computes and communicates, in ns."""

    seed: int
    times: float
    """How many times as long a kernel takes beside communication; 1 for none."""
    steps: int
    layers: int = 12
    kernels: int = 25
    """Kernels of a layer; every layer has the same."""
    shortest_ns: float = 2 * US
    longest_ns: float = 300 * US
    noise: float = 0.03
    step_noise: float = 0.005
    share: float = 0.4
    """Of a step that communication takes, in as many pieces as there are `pieces`."""
    pieces: int = 3
    jitter: float = 0.1
    """By how much of the step communication moves from step to step."""
    unlike: float = 0.0
    """By how much transfers differ in what they slow (standard deviation of the logarithm)."""


def draw(seed: int, times: float | None = None) -> Slowed:
    """Draw a device."""
    rng = np.random.default_rng([seed, 71])
    return Slowed(
        seed=seed, times=times or float(rng.uniform(1.03, 1.6)), steps=int(rng.integers(3, 9)),
        layers=int(rng.integers(6, 24)), kernels=int(rng.integers(10, 40)), shortest_ns=between(rng, 1.5 * US, 5 * US),
        longest_ns=between(rng, 60 * US, 800 * US), noise=between(rng, 0.005, 0.08),
        step_noise=between(rng, 0.001, 0.01), share=float(rng.uniform(0.15, 0.6)), pieces=int(rng.integers(1, 6)),
        jitter=between(rng, 0.02, 0.3),
    )  # fmt: skip


def spans_of(job: Slowed) -> tuple[Spans, float]:
    """Return what is recorded, and the ns by which compute is longer than without communication."""
    rng, of_transfers = np.random.default_rng([job.seed, 72]), np.random.default_rng([job.seed, 73])
    work = np.exp(rng.uniform(np.log(job.shortest_ns), np.log(job.longest_ns), job.kernels))
    every = np.tile(work, job.layers)
    length = every.sum() + GAP_NS * every.size
    centres = (np.arange(job.pieces) + rng.uniform(0.2, 0.8, job.pieces)) / job.pieces
    rows = []
    now, lost = 0.0, 0.0
    for step in range(job.steps):
        at = centres + rng.uniform(-0.5, 0.5, job.pieces) * job.jitter
        begins = np.maximum(now + length * (at - job.share / job.pieces / 2), now)
        ends = begins + length * job.share / job.pieces
        rows += [(COMM, 7, -1, step, begin, end) for begin, end in zip(begins, ends, strict=True)]
        times = 1 + (job.times - 1) * np.exp(of_transfers.normal(0, job.unlike, job.pieces))
        takes = every * np.exp(rng.normal(0, job.noise, every.size)) * np.exp(rng.normal(0, job.step_noise))
        for place, took in enumerate(takes.tolist()):
            end = _end(now, took, begins, ends, times)
            lost += end - now - took
            rows.append((COMPUTE, 3, place % job.kernels, step, now, end))
            now = end + GAP_NS
        now = max(now, float(ends.max()))
    kind, lane, name, at_step, start, end = np.array(rows).T
    order = np.argsort(start, kind="stable")
    found = make(
        Spans, len(rows), kind=kind[order], lane=lane[order], name=name[order], step=at_step[order], recording=0,
        start_ns=np.rint(start[order]), end_ns=np.rint(end[order]), launch_ns=np.rint(start[order]) - 5 * US,
        collective=NONE,
    )  # fmt: skip
    return found, lost


def _end(now: float, left: float, begins: np.ndarray, ends: np.ndarray, times: np.ndarray) -> float:
    """Return when work that begins now ends, where communication slows it."""
    edges = np.unique(np.concatenate([begins, ends]))
    for edge in edges[edges > now].tolist():
        slow = float(times[(begins <= now) & (now < ends)].max(initial=1.0))
        if now + left * slow <= edge:
            return float(now + left * slow)
        left -= (edge - now) / slow
        now = edge
    return float(now + left)
