"""Write a job: `python -m tests.property.synthetic OUT --tp 2 --pp 2 --dp 4 --ranks 0-15 --fault slow_host`."""

import argparse
from pathlib import Path

from msgspec.structs import replace

from overlapscope.timeline.store.load_save import save_run
from tests.property.synthetic import FAULTS, Job, Layout, plant, run_of, simulate, write_kineto
from tests.property.synthetic.draw import faulty, healthy


def main() -> None:
    """Write the files, and say what is wrong with the job."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.synthetic", description=__doc__)
    parser.add_argument("out", type=Path)
    for name in ("tp", "pp", "dp", "ep"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--kernels-each", type=int, default=1, help="split every kernel into so many: longer traces")
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--without-numbers", action="store_true")
    parser.add_argument("--ranks", help="recorded ones, e.g. 0-15 or 0,8,16")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--culprit", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.2, help="of the step, that the fault costs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, help="the drawn job of this number instead, with a fault")
    parser.add_argument("--draw-healthy", type=int, help="the drawn healthy job of this number instead")
    parser.add_argument("--run", action="store_true", help="write a run directory, not trace files")
    given = parser.parse_args()
    job = _job(given)
    simulated = simulate(job)
    if given.run:
        save_run(run_of(simulated), given.out, version="synthetic")
    else:
        write_kineto(simulated, given.out)
    spans = sum(piece.start.size for record in simulated.records for piece in record.pieces)
    print(f"{given.out}: {job.ranks().size} of {job.layout.world} ranks, {job.steps} steps of "
          f"{simulated.step_ns / 1e6:.1f} ms, {spans} spans")  # fmt: skip
    print(f"fault: {job.fault.kind}" + (f" of ranks {list(job.fault.culprits)}" if job.fault.culprits else ""))


def _job(given: argparse.Namespace) -> Job:
    if given.draw is not None:
        return faulty(given.draw).job
    if given.draw_healthy is not None:
        return healthy(given.draw_healthy).job
    layout = Layout(tp=given.tp, pp=given.pp, dp=given.dp, ep=given.ep)
    job = Job(
        layout=layout, seed=given.seed, steps=given.steps, layers=given.layers, microbatches=given.microbatches,
        kernels_each=given.kernels_each, moe=given.moe, fsdp=given.fsdp, graphs=given.graphs,
        numbered=not given.without_numbers,
    )  # fmt: skip
    if given.fault:
        job = plant(job, given.fault, share=given.share, culprit=given.culprit, seed=given.seed)
    return replace(job, recorded=_ranks(given.ranks) if given.ranks else None)


def _ranks(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


if __name__ == "__main__":
    main()
