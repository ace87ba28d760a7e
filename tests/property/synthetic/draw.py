"""Whole jobs at random: 64 ranks, at most 16 recorded, from ranges fixed before anything was tuned on them."""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from tests.property.synthetic.faults import FAULTS, plant
from tests.property.synthetic.job import MS, US, Job, Layout

WORLD: Final = 64
MOST_RECORDED: Final = 16
SHARES: Final = (0.05, 0.30)
"""What a fault costs, of the step."""
ATTEMPTS = 200


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn job, and whether those to blame are among its recorded ranks."""

    job: Job
    share: float
    recorded_culprits: tuple[int, ...]


def healthy(seed: int) -> Drawn:
    """Draw a job in which nothing is wrong."""
    rng = np.random.default_rng([seed, 100])
    job = _job(rng, seed)
    return Drawn(job=replace(job, recorded=_recorded(rng, job.layout)), share=0.0, recorded_culprits=())


def faulty(seed: int, *, among_recorded: bool = True) -> Drawn:
    """Draw a job with one fault, of a recorded rank or of one that is not; kinds come in turn."""
    kind = FAULTS[seed % len(FAULTS)]
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng([seed, 200, attempt])
        job = _job(rng, seed * ATTEMPTS + attempt, experts=True if kind == "expert_imbalance" else None)
        recorded = _recorded(rng, job.layout)
        others = np.setdiff1d(np.arange(WORLD), recorded)
        culprit = int(rng.choice(recorded if among_recorded else others))
        share = float(rng.uniform(*SHARES))
        try:
            planted = plant(job, kind, share=share, culprit=culprit, seed=seed * ATTEMPTS + attempt)
        except ValueError:
            continue
        guilty = tuple(rank for rank in planted.fault.culprits if rank in recorded)
        if bool(guilty) == among_recorded:
            return Drawn(job=replace(planted, recorded=recorded), share=share, recorded_culprits=guilty)
    raise RuntimeError(f"no job can have {kind}")


def _job(rng: np.random.Generator, seed: int, *, experts: bool | None = None) -> Job:
    tp = int(rng.choice([1, 2, 4, 8]))
    pp = int(rng.choice([1, 1, 2, 4]))
    dp = WORLD // tp // pp
    moe = bool(rng.random() < 0.35) if experts is None else experts
    ep = int(rng.choice([each for each in (2, 4, 8) if dp % each == 0 and each <= dp] or [1])) if moe else 1
    return Job(
        layout=Layout(tp=tp, pp=pp, dp=dp, ep=ep),
        seed=seed,
        steps=int(rng.integers(4, 9)),
        first_step=int(rng.integers(0, 1000)),
        layers=int(rng.integers(2, 5)),
        microbatches=int(rng.integers(pp, 2 * pp + 1)) if pp > 1 else int(rng.integers(1, 4)),
        layer_ns=between(rng, 0.5 * MS, 6 * MS),
        layer_bytes=int(between(rng, 4 << 20, 256 << 20)),
        activation_bytes=int(between(rng, 1 << 20, 64 << 20)) // 1024 * 1024,
        moe=moe and ep > 1,
        fsdp=pp == 1 and bool(rng.random() < 0.4),
        joint_norm=bool(rng.random() < 0.7),
        sync_steps=bool(rng.random() < 0.6),
        graphs=bool(rng.random() < 0.2),
        persistent=bool(rng.random() < 0.3),
        launch_ns=between(rng, 4 * US, 25 * US),
        latency_ns=between(rng, 2 * US, 8 * US),
        kernel_jitter=between(rng, 0.003, 0.04),
        rank_jitter=between(rng, 0.001, 0.012),
        host_jitter=between(rng, 0.1, 0.5),
        host_rank_jitter=between(rng, 0.01, 0.1),
        hiccup_chance=between(rng, 1e-5, 2e-3),
        hiccup_ns=between(rng, 0.1 * MS, 2 * MS),
        batch_jitter=float(rng.choice([0.0, 0.0, between(rng, 0.01, 0.1)])),
        expert_jitter=between(rng, 0.01, 0.15),
        load_ns=between(rng, 0.05 * MS, 2 * MS),
        intra_gbs=between(rng, 100, 400),
        inter_gbs=between(rng, 8, 50),
        alpha_ns=between(rng, 5 * US, 30 * US),
        link_jitter=between(rng, 0.01, 0.1),
        end_jitter_ns=between(rng, 1 * US, 20 * US),
        interference=float(rng.uniform(1.0, 1.3)),
        numbered=bool(rng.random() < 0.7),
        offsets_ns=between(rng, 0.01 * MS, 100 * MS),
        drift_ppm=float(rng.choice([0.0, between(rng, 0.1, 20)])),
    )


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw evenly in the logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _recorded(rng: np.random.Generator, layout: Layout) -> tuple[int, ...]:
    """Choose who records: the first ranks, two hosts, one rank a host, a model replica, a data group, or anybody."""
    way = rng.integers(6)
    if way == 0:
        chosen = np.arange(MOST_RECORDED)
    elif way == 1:
        hosts = rng.choice(WORLD // layout.ranks_per_host, 2, replace=False)
        chosen = np.flatnonzero(np.isin(layout.host_of(np.arange(WORLD)), hosts))
    elif way == 2:
        chosen = np.arange(WORLD // layout.ranks_per_host) * layout.ranks_per_host
    elif way == 3:
        size = layout.groups("mp").shape[1]
        replicas = rng.permutation(layout.groups("mp"))[: max(1, MOST_RECORDED // size)]
        chosen = replicas.ravel()
    elif way == 4:
        groups = layout.groups("dp")
        chosen = rng.permutation(groups)[: max(1, MOST_RECORDED // groups.shape[1])].ravel()
    else:
        chosen = rng.choice(WORLD, MOST_RECORDED, replace=False)
    if chosen.size > MOST_RECORDED:
        chosen = chosen[:MOST_RECORDED]
    return tuple(sorted(chosen.tolist()))
