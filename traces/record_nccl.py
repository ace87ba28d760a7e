"""Record small NCCL runs with their NCCL logs anew: two real ranks of DDP and of FSDP2, on one CUDA device or two.

    python traces/record_nccl.py

Writes `nccl/ddp` and `nccl/fsdp` (run directories that keep the profiler's traces beside the columns), the log of each
rank beside them, and `nccl/manifest.json`; together they stay under 3 MB. Needs torch with NCCL and a CUDA device. What
names the recording machine (host, process, addresses, file path) is replaced.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))  # the job is the one that the tests run

from overlapscope.gpu_check.kept_files import clean_log, clean_trace  # noqa: E402 - behind the path
from tests.integration.jobs.training_gpu import environment  # noqa: E402 - behind the path

RUNS = {
    "ddp": "2 ranks, DDP over NCCL sockets, 4 layers of 1024 x 1024, buckets of 5 MiB, 3 steps",
    "fsdp": "2 ranks, FSDP2 over NCCL sockets, 2 layers of 1024 x 1024, each sharded on its own, 3 steps",
}
MAX_BYTES = 3_000_000
TIMEOUT_SECONDS = 300


def train(scenario: str, folder: Path) -> None:
    """Run the job; leave its run directory and logs in `folder`."""
    processes = []
    for rank in range(2):
        command = [
            sys.executable,
            "-m",
            "tests.integration.jobs.training_gpu",
            scenario,
            str(rank),
            "2",
            str(folder / "store"),
        ]
        command += [str(folder / "run"), "trace", str(folder / f"out{rank}.json")]
        log = folder / f"nccl.rank{rank}.log"
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment(rank, log=log)))
    try:
        codes = [process.wait(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        sys.exit(f"the {scenario} job failed: {codes}")


def clean_run(run: Path) -> None:
    """Replace what names the machine in the traces and in what each rank tells of itself."""
    for path in sorted(run.rglob("*.json.gz")):
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(clean_trace(text, path.name), mtime=0))
    for path in sorted(run.rglob("rank.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        settings = entry["recorded"]["settings"]
        settings |= {"host": "host", "pid": 0}
        settings["environment"].pop("NCCL_DEBUG_FILE", None)
        path.write_text(json.dumps(entry), encoding="utf-8")
    manifest = run / "run.json"
    job = json.loads(manifest.read_text(encoding="utf-8"))
    for entry in job["ranks"]:
        entry["recorded"] = json.loads((run / entry["folder"] / "rank.json").read_text(encoding="utf-8"))["recorded"]
    manifest.write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Record, clean, describe."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: NCCL runs cannot be recorded here")
    files = {}
    place = HERE / "nccl"
    shutil.rmtree(place, ignore_errors=True)
    for scenario in RUNS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            train(scenario, folder)
            shutil.copytree(folder / "run", place / scenario)
            for rank in range(2):
                log = (folder / f"nccl.rank{rank}.log").read_text(encoding="utf-8", errors="replace")
                (place / f"{scenario}.nccl.rank{rank}.log").write_text(clean_log(log, rank), encoding="utf-8")
        clean_run(place / scenario)
    for path in sorted(place.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            files[str(path.relative_to(place))] = {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
    total = sum(entry["bytes"] for entry in files.values())
    if total > MAX_BYTES:
        sys.exit(f"the runs take {total} bytes, more than {MAX_BYTES}")
    manifest = {
        "runs": RUNS,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "device": torch.cuda.get_device_name(),
        "recorded_by": "traces/record_nccl.py",
        "files": files,
    }
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
