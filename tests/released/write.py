"""Write what this version writes, once, when it is released: `python -m tests.released.write tests/released/X.Y`.

    trace_run, regressed_run    recordings with the profiler, without their traces
    events_run                  a recording with events alone
    ingested_run, larger_run    traces of simulated jobs, the first with tables and links beside them
    baselines                   `baseline save`
    *.json                      what each command prints of them with --json
    schemas                     the published JSON Schemas

`test_released.py` opens them with every later version. They are never written again.
"""

import multiprocessing
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.property.synthetic import Job, Layout, simulate, write_kineto

ROOT = Path(__file__).parents[2]
STEPS = 4
TABLE = "op,size_bytes,time_us,ranks\nall_reduce,1048576,100.0,2\nall_reduce,16777216,900.0,2\n"
TOPOLOGY = "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV4     0-7\nGPU1    NV4      X      0-7\n"


COMMANDS = {
    "analysis_trace": ["analyze", "trace_run"],
    "analysis_events": ["analyze", "events_run"],
    "analysis_ingested": ["analyze", "ingested_run"],
    "comparison": ["compare", "trace_run", "regressed_run"],
    "gate": ["gate", "baselines/main", "regressed_run"],
    "history": ["report", "trace_run", "regressed_run", "--history"],
    "scaling": ["compare", "--scale", "ingested_run", "larger_run"],
    "whatif": ["whatif", "regressed_run", "--bucket-cap-mb", "1,4,25"],
    "advice": ["advise", "regressed_run"],
}
"""Each document's name, and the command that prints it in the folder of a version."""


def main(folder: Path) -> None:
    """Write all; refuses to replace what was released."""
    folder = folder.absolute()
    folder.mkdir(parents=True)
    for name, run in (("baseline", "trace_run"), ("regressed", "regressed_run")):
        shutil.copytree(ROOT / "traces" / name, folder / run, ignore=shutil.ignore_patterns("*.json.gz"))
    _record(folder / "events_run")
    with tempfile.TemporaryDirectory() as place:
        for name, ranks in (("ingested_run", 2), ("larger_run", 4)):
            inputs = Path(place) / name
            inputs.mkdir()
            write_kineto(simulate(Job(layout=Layout(dp=ranks), steps=2, layers=1)), inputs)
            (inputs / "table.csv").write_text(TABLE, encoding="utf-8")
            (inputs / "topology.txt").write_text(TOPOLOGY, encoding="utf-8")
            overlapscope(Path(place), "ingest", name, "-o", str(folder / name))
        for number in range(4):
            name = "regressed_run" if number % 2 else "trace_run"
            shutil.copytree(folder / name, Path(place) / "runs" / str(number))
        overlapscope(Path(place), "gate", "--calibrate", "runs", "-o", str(folder / "floor.json"))
    overlapscope(folder, "baseline", "save", "main", "trace_run", "--folder", "baselines")
    for name, words in COMMANDS.items():
        (folder / f"{name}.json").write_text(overlapscope(folder, *words, "--json"), encoding="utf-8")
    shutil.copytree(
        ROOT / "docs", folder / "schemas", ignore=lambda _, names: [n for n in names if ".schema." not in n]
    )


def overlapscope(folder: Path, *words: str) -> str:
    """Return what a command prints in a folder; its exit code may be a verdict."""
    command = [sys.executable, "-m", "overlapscope", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode > 1:
        sys.exit(f"overlapscope {' '.join(words)}\n{done.stderr}")
    return done.stdout


def _record(run: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=_train, args=(run, f"{place}/store", rank)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    if any(each.exitcode for each in ranks):
        sys.exit("the recording failed")
    for path in run.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'("host":\s*)"[^"]*"', r'\1"host"', text), encoding="utf-8")


def _train(run: Path, store: str, rank: int) -> None:
    import torch  # noqa: PLC0415
    from torch import distributed, nn  # noqa: PLC0415

    import overlapscope as scope_of  # noqa: PLC0415

    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256))
    with scope_of.profile(run, model=model, mode="events", warmup=1, steps=STEPS, measure_overhead=False) as scope:
        for _ in range(1 + STEPS):
            with scope.step():
                model(torch.ones(8, 256)).sum().backward()
                model.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
