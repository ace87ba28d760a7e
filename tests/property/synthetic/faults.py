"""Faults to plant in a job, as strong as asked for: a share of the healthy step by which the steps grow longer."""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from tests.property.synthetic.job import Fault, Job
from tests.property.synthetic.machine import Simulated, simulate

FAULTS: Final = (
    "slow_host",
    "host_stall",
    "slow_compute",
    "longer_batch",
    "more_kernels",
    "data_loading",
    "garbage_collector",
    "slow_link",
    "expert_imbalance",
    "stage_imbalance",
    "throttled",
    "allocator",
)
CAUSES: Final = {
    "slow_host": "host",
    "host_stall": "host",
    "slow_compute": "slower_compute",
    "longer_batch": "more_work",
    "more_kernels": "more_work",
    "data_loading": "data_loading",
    "garbage_collector": "garbage_collector",
    "slow_link": "slow_link",
    "expert_imbalance": "more_work",
    "stage_imbalance": "more_work",
    "throttled": "throttled",
    "allocator": "allocator",
}
"""What the analysis calls them."""
NOTED: Final = {"host_stall": "", "garbage_collector": "gc_pause_ns", "allocator": "allocator_retries"}
"""Pauses of a host, and the reading that may tell of them."""
PROBE_STEPS = 7
TRIES = 6
WITHIN = 0.15
"""The steps grow by the share asked for, within this part of it; hosts that run ahead hide some of a fault."""


def plant(job: Job, kind: str, *, share: float, culprit: int = 0, seed: int = 0) -> Job:
    """Return the job with a fault that makes its steps longer by `share` of the healthy ones.

    The fault is the culprit's and of those who cannot but share it: its tensor group for a longer batch, the ranks of
    its host for a link, those with the same experts, those of its stage. Raises ValueError where the job cannot have
    such a fault, or not so strong.
    """
    if kind not in FAULTS:
        raise ValueError(f"no such fault: {kind}")
    probe = replace(job, steps=PROBE_STEPS, recorded=())
    healthy = simulate(probe, keep=False)
    rng = np.random.default_rng([seed, 11])
    build = _builder(job, kind, culprit, rng, healthy)
    strength = share
    known = [(0.0, 0.0)]
    # Strengths tried, and by what the steps grew.
    for _ in range(TRIES):
        planted = build(strength)
        grown = simulate(replace(probe, fault=planted), keep=False).step_ns / healthy.step_ns - 1
        if abs(grown - share) <= WITHIN * share:
            return replace(job, fault=planted)
        known.append((strength, grown))
        strength = _next(known, share)
    if kind == "stage_imbalance" and grown > 0.5 * share:
        return replace(job, fault=planted)  # layers are whole
    raise ValueError(f"{kind} cannot make the steps of this job longer by {share:.0%}")


def _next(known: list[tuple[float, float]], share: float) -> float:
    """Return the strength to try next: on the line through the two nearest, but for the harmless one once it misleads.

    Hosts that run ahead hide the beginning of a fault.
    """
    effective = [each for each in known if each[1] > 0.1 * share]
    if not effective:
        return known[-1][0] * 2.5
    (s1, g1), (s2, g2) = ([*known, *effective] if len(effective) == 1 else effective)[-2:]
    if len(effective) == 1:
        s1, g1 = known[-2] if known[-1] == effective[-1] else known[-1]
    slope = (g2 - g1) / (s2 - s1) if s2 != s1 else g2 / s2
    slope = slope if slope > 0 else g2 / s2
    return float(np.clip(s2 + (share - g2) / slope, 0.2 * s2, 4 * s2))


def _builder(
    job: Job, kind: str, culprit: int, rng: np.random.Generator, healthy: Simulated
) -> Callable[[float], Fault]:
    """Return what makes a fault of a strength: about the share of the step that it costs."""
    step, compute, host = healthy.step_ns, healthy.compute_ns[culprit], healthy.host_ns[culprit]
    alone = (culprit,)
    marked, noted = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    at = float(rng.choice([-1.0, rng.uniform(0.05, 0.95)]))
    if kind == "slow_host":
        return lambda by: Fault(kind=kind, culprits=alone, host_factor=(step * (1 + by)) / host)
    if kind in NOTED:
        every = int(rng.integers(1, 4))
        # That the collector ran is not always noted; that the allocator asked again is all that tells of it.
        noted_as = NOTED[kind] if noted or kind == "allocator" else ""
        return lambda by: Fault(
            kind=kind, culprits=alone, stall_ns=by * step * every, stall_every=every, stall_at=at,
            stall_noted=noted_as,
        )  # fmt: skip
    if kind in ("slow_compute", "throttled"):
        return lambda by: Fault(
            kind=kind, culprits=alone, compute_factor=1 + by * step / compute, clock_noted=kind == "throttled"
        )  # fmt: skip
    if kind == "longer_batch":
        tensor = next(row for row in job.layout.groups("tp").tolist() if culprit in row)
        return lambda by: Fault(kind=kind, culprits=tuple(tensor), work_factor=1 + by * step / compute)
    if kind == "more_kernels":
        return lambda by: Fault(kind=kind, culprits=alone, extra_kernels=by * step / compute)
    if kind == "data_loading":
        return lambda by: Fault(kind=kind, culprits=alone, load_ns=by * step, load_marked=marked)
    if kind == "slow_link":
        hosts = job.layout.host_of(np.arange(job.layout.world))
        beside = tuple(np.flatnonzero(hosts == hosts[culprit]).tolist())
        return lambda by: Fault(kind=kind, culprits=beside, link_factor=1 + 20 * by)
    if kind == "expert_imbalance":
        if not job.moe or job.layout.ep == 1:
            raise ValueError("experts are not spread over ranks")
        every_rank = np.arange(job.layout.world)
        expert = every_rank // job.layout.tp % job.layout.dp % job.layout.ep
        return lambda by: Fault(
            kind=kind, culprits=tuple(np.flatnonzero(expert == expert[culprit]).tolist()), expert_share=1 + 4 * by
        )  # fmt: skip
    if job.layout.pp == 1:
        raise ValueError("there are no stages")
    stage = culprit // job.layout.stage_ranks
    first = stage * job.layout.stage_ranks
    return lambda by: Fault(
        kind=kind, culprits=tuple(range(first, first + job.layout.stage_ranks)), stage=stage,
        stage_layers=max(1, round(job.layers * by)),
    )  # fmt: skip
