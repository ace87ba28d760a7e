"""Simulated fleets: is a bad host found, and is nobody accused where none is? A part of `make test-long`.

A fleet is 30 runs of three jobs on hosts drawn at random, four GPUs each. In three runs of ten some rank is slow for
reasons of its own. On the bad host one GPU, or its process, is slow in four of five of its runs. The fewer hosts a run
has, the less a run says about them: of runs on few hosts it is only wanted that nobody healthy is accused.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.compare.fleet import Fleet, FleetRun, fleet
from overlapscope.fleet.measure import measure
from overlapscope.timeline.run import Run
from tests.property.synthetic import Job, Layout, plant, run_of, simulate
from tests.property.synthetic.job import MS
from tests.support.long_results import keep

RUNS, GPUS = 30, 4
JOBS: Final = (
    ("llama", Job(layer_ns=2 * MS)),
    ("mixtral", Job(layer_ns=4 * MS, layers=3)),
    ("vit", Job(layer_ns=1 * MS, fsdp=True)),
)
SIZES: Final = {"many": (24, (4, 8, 12)), "few": (20, (2, 4, 6))}
"""Hosts of the fleet, and of a run."""
OWN_FAULTS: Final = 0.3
"""Share of runs in which a random rank is slow for reasons of its own."""
BAD_TIMES: Final = 0.8
"""Share of a bad host's runs in which it is slow."""
BAD_KINDS: Final = ("slow_compute", "throttled", "host_stall", "data_loading", "garbage_collector")
OWN_KINDS: Final = (*BAD_KINDS, "more_kernels")
SHARES: Final = (0.08, 0.30)
"""What a fault costs, of the step."""
LEAST_FOUND, MOST_ACCUSED = 0.95, 0.05
"""What must hold."""


class Verdict(msgspec.Struct, frozen=True):
    """What was said of one fleet."""

    size: str
    seed: int
    kind: str
    bad: str
    runs: int
    """Runs with the bad host, and of these those that accuse it."""
    accused: int
    named: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the bad host is named and nobody else, or nobody where none is bad."""
        return self.named == ((self.bad,) if self.bad else ())


def draw_fleet(seed: int, size: str, *, planted: bool) -> tuple[list[FleetRun], str, str]:
    """Return the measured runs of a fleet, its bad host (empty: none), and what is wrong with it."""
    rng = np.random.default_rng([seed, 300])
    every, hosts_a_run = SIZES[size]
    kind = str(rng.choice(BAD_KINDS)) if planted else ""
    bad, gpu = (f"node{rng.integers(every):02d}" if planted else ""), int(rng.integers(GPUS))
    runs = []
    for at in range(RUNS):
        name, job = JOBS[rng.integers(len(JOBS))]
        hosts = [f"node{each:02d}" for each in rng.choice(every, rng.choice(hosts_a_run), replace=False)]
        layout = Layout(dp=len(hosts) * GPUS, ranks_per_host=GPUS)
        job = replace(job, layout=layout, steps=8, seed=seed * RUNS + at)
        if bad in hosts and rng.random() < BAD_TIMES:
            job = _planted(job, (kind,), rng, hosts.index(bad) * GPUS + gpu)
        elif rng.random() < OWN_FAULTS:
            job = _planted(job, OWN_KINDS, rng, int(rng.integers(layout.world)))
        run = on_hosts(run_of(simulate(job)), hosts)
        measured = measure(run, f"{name}-{at:03d}", name)
        runs.append(replace(measured, started_ns=(measured.started_ns or 0) + at * 3_600 * 10**9))
    return runs, bad, kind


def on_hosts(run: Run, hosts: Sequence[str], gpus: int = GPUS) -> Run:
    """Return a run whose recording states the host of each rank."""
    ranks = {rank: replace(each, recorded={"settings": {"host": hosts[rank // gpus]}})
             for rank, each in run.ranks.items()}  # fmt: skip
    return replace(run, ranks=ranks)


def _planted(job: Job, kinds: Sequence[str], rng: np.random.Generator, culprit: int) -> Job:
    kind, share, seed = str(rng.choice(kinds)), float(rng.uniform(*SHARES)), int(rng.integers(2**31))
    try:
        return plant(job, kind, share=share, culprit=culprit, seed=seed)
    except ValueError:  # not so strong in this job
        return job


def verdict_on(size: str, seed: int, planted: bool) -> Verdict:
    """Draw a fleet and compare its runs."""
    runs, bad, kind = draw_fleet(seed, size, planted=planted)
    found: Fleet = fleet(runs)
    here = [run for run in runs if bad in run.hosts]
    accused = sum(any(each.host == bad for each in run.stragglers) for run in here)
    return Verdict(size, seed, kind, bad, len(here), accused, tuple(each.host for each in found.hosts.straggling))


def main() -> None:
    """Judge so many fleets of each sort; keep the result; the exit code says whether what must hold does."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.synthetic.fleets", description=__doc__)
    parser.add_argument("--fleets", type=int, default=40)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first fleet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print the result, keep nothing")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.fleets)
    wanted = [(size, seed, planted) for size in SIZES for planted in (True, False) for seed in seeds]
    with ProcessPoolExecutor(given.workers) as pool:
        verdicts = list(pool.map(verdict_on, *zip(*wanted, strict=True)))
    text, holds = report(verdicts)
    print(text)
    if not given.dry:
        keep("Fleets", text)
    sys.exit(not holds)


def report(verdicts: Sequence[Verdict]) -> tuple[str, bool]:
    """Return the result as text, and whether what must hold does."""
    lines = [f"{RUNS} runs of {len(JOBS)} jobs; seeds {verdicts[0].seed} to {verdicts[-1].seed}.", ""]
    holds = True
    for size, (hosts, hosts_a_run) in SIZES.items():
        bad = [each for each in verdicts if each.size == size and each.bad]
        healthy = [each for each in verdicts if each.size == size and not each.bad]
        found = sum(each.bad in each.named for each in bad)
        others = sum(bool(set(each.named) - {each.bad}) for each in bad)
        accused = sum(bool(each.named) for each in healthy)
        holds &= max(accused, others) <= MOST_ACCUSED * len(healthy)
        holds &= found >= LEAST_FOUND * len(bad) or size != "many"
        lines += [
            f"- {', '.join(map(str, hosts_a_run))} of {hosts} hosts a run: the bad host found in {found} of {len(bad)} "
            f"fleets, another one accused in {others}; in {accused} of {len(healthy)} healthy fleets a host is accused",
        ]
    lines += [""] + [
        f"    {each.size} hosts, seed {each.seed}, {each.kind or 'healthy'}: {each.bad} accused in {each.accused} of "
        f"{each.runs} runs, named {', '.join(each.named) or 'nobody'}"
        for each in verdicts
        if not each.right and each.size == "many"
    ]
    return "\n".join(lines).rstrip(), holds


if __name__ == "__main__":
    main()
