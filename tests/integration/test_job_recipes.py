"""The recipes of examples/jobs, run as they stand against what stands in for their launchers; nodes share no disk."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import overlapscope
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
JOBS = ROOT / "examples" / "jobs"
COMMANDS = {
    "python": f'exec "{sys.executable}" "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    "overlapscope": f'exec "{sys.executable}" -m overlapscope "$@"',
    "scontrol": 'test "$1 $2 $3" = "show hostnames node[0-1]"; echo localhost; echo node1',
    # Two nodes of one task each, with a disk of their own.
    "srun": """
        while [ "${1#--}" != "$1" ]; do shift; done
        for node in 0 1; do
          SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_TMPDIR=$NODES/node$node "$@" & pids="$pids $!"
        done
        for pid in $pids; do wait "$pid" || exit 1; done""",
}


class Cluster:
    """Two nodes, each with a folder of its own, the commands of launchers, and a shared place for what is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder, folder / "kept" / "run"
        for name in ("bin", "node0", "node1", "work"):
            (folder / name).mkdir()
        for name, script in COMMANDS.items():
            command = folder / "bin" / name
            command.write_text(f"#!/bin/bash\nset -e\n{script}\n", encoding="utf-8")
            command.chmod(0o755)
        for each in JOBS.iterdir():
            if each.is_file():
                shutil.copy(each, folder / "work")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in the folder with the recipes."""
        known = {
            **os.environ, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "KEEP": str(self.kept),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "NODES": str(self.folder),
            "OMP_NUM_THREADS": "1", "USE_LIBUV": "0",
        }  # fmt: skip
        return subprocess.Popen(
            command, cwd=self.folder / "work", env={**known, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(self, *processes: subprocess.Popen[str]) -> str:
        """Wait until all succeed; return what they print."""
        printed = [each.communicate(timeout=180)[0] for each in processes]
        assert not any(each.returncode for each in processes), "\n".join(printed)
        return "\n".join(printed)

    def check(self) -> None:
        """One run came out, in which both nodes' ranks are whole."""
        analysis = overlapscope.load(self.kept).analysis()
        assert list(analysis.run.ranks) == [0, 1]
        assert list(analysis.run.missing_ranks) == []
        assert [len(each.steps) > 0 for each in analysis.ranks] == [True, True]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.slow
def test_slurm(cluster: Cluster) -> None:
    printed = cluster.finish(
        cluster.start(
            "bash", "slurm.sbatch", SLURM_JOB_NODELIST="node[0-1]", SLURM_JOB_ID=str(cluster.port - 20000),
            SLURM_NTASKS="2", SLURM_SUBMIT_DIR=str(cluster.folder),
        )
    )  # fmt: skip
    assert "2 ranks of 2" in printed
    cluster.check()


ENDED = """
import os, time
from pathlib import Path
import train

backward = train.torch.Tensor.backward

steps = []

def slow(loss):
    backward(loss)
    time.sleep(0.05)
    steps.append(loss)
    if len(steps) == 6:
        Path(os.environ["RUN"] + f".rank{os.environ['RANK']}").touch()

train.torch.Tensor.backward = slow
train.train(os.environ["RUN"])
"""


LATER = [pytest.param(each, marks=pytest.mark.long) for each in ("rank 1 first", "rank 0 first")]


@pytest.mark.slow
@pytest.mark.parametrize("signalled", ["at once", *LATER])
def test_sigterm_with_a_disk_on_each_node_keeps_all_ranks(cluster: Cluster, signalled: str) -> None:
    # As srun does it: all tasks get the signal, and the first that ends so has the others killed.
    (cluster.folder / "work" / "ended.py").write_text(ENDED, encoding="utf-8")
    script = cluster.folder / "work" / "train.py"
    script.write_text(script.read_text(encoding="utf-8").replace("range(12)", "range(10_000)"), encoding="utf-8")
    runs = [cluster.folder / f"node{node}" / "run" for node in range(2)]
    tasks = [
        cluster.start(
            sys.executable, "ended.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cluster.port), WORLD_SIZE="2",
            RANK=str(rank), LOCAL_RANK="0", RUN=str(run),
        )
        for rank, run in enumerate(runs)
    ]  # fmt: skip
    end = time.monotonic() + 120
    while not all(Path(f"{run}.rank{rank}").exists() for rank, run in enumerate(runs)):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)
    in_order = tasks[::-1] if signalled == "rank 1 first" else tasks
    for task in in_order:
        task.send_signal(signal.SIGTERM)
        time.sleep(0 if signalled == "at once" else 0.5)
    while all(task.poll() is None for task in tasks):
        assert time.monotonic() < end
        time.sleep(0.01)
    for task in tasks:
        task.kill()  # as --kill-on-bad-exit does
    printed = [task.communicate()[0] for task in tasks]
    run = overlapscope.load(runs[0]).run
    assert (list(run.ranks), run.missing_ranks) == ([0, 1], ()), printed
    assert all(rank.steps.step.size > 0 for rank in run.ranks.values())
    assert "Exception raised from" not in "".join(printed)


@pytest.mark.slow
def test_torchrun_on_every_node(cluster: Cluster) -> None:
    nodes = [
        cluster.start(
            "bash", "torchrun.sh", NODE_RANK=str(node), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cluster.port),
            GPUS="1", SCRATCH=str(cluster.folder / f"node{node}"),
        )
        for node in range(2)
    ]  # fmt: skip
    cluster.finish(*nodes)
    cluster.check()


@pytest.mark.slow
def test_a_place_that_cannot_keep_the_run_is_refused_before_training(cluster: Cluster) -> None:
    cluster.kept.mkdir(parents=True)
    (cluster.kept / "older").touch()
    started = cluster.start(
        sys.executable, "train.py", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cluster.port), WORLD_SIZE="1", RANK="0",
        LOCAL_RANK="0", RUN=str(cluster.folder / "node0" / "run"),
    )  # fmt: skip
    printed = started.communicate(timeout=180)[0]
    assert (started.returncode, "holds files already: set KEEP" in printed) == (1, True)
    assert not (cluster.folder / "node0" / "run").exists()


@pytest.mark.long
def test_torchrun_on_a_shared_disk(cluster: Cluster) -> None:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(cluster.port), "GPUS": "1", "SCRATCH": str(cluster.folder)}
    cluster.finish(*(cluster.start("bash", "torchrun.sh", NODE_RANK=str(node), **given) for node in range(2)))
    cluster.check()


@pytest.mark.long
def test_a_kubernetes_job(cluster: Cluster) -> None:
    service, job = yaml.safe_load_all((JOBS / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    template = job["spec"]["template"]["spec"]
    (container,) = template["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{template['subdomain']}"
    assert service["metadata"]["name"] == template["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert environment["RUN"].rpartition("/")[0] in mounted
    arguments = [each.replace("29500", str(cluster.port)) for each in container["args"]]
    here = {"GPUS": "1", "MASTER_ADDR": "127.0.0.1", "KEEP": str(cluster.kept)}
    pods = []
    for pod in range(job["spec"]["completions"]):
        own = {"JOB_COMPLETION_INDEX": str(pod), "RUN": str(cluster.folder / f"node{pod}" / "run")}
        pods.append(cluster.start(*container["command"], *arguments, **{**environment, **here, **own}))
    cluster.finish(*pods)
    cluster.check()


@pytest.mark.long
def test_a_pytorchjob(cluster: Cluster) -> None:
    job = yaml.safe_load((JOBS / "pytorchjob.yaml").read_text(encoding="utf-8"))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pods = []
    for rank, kind in enumerate(("Master", "Worker")):
        (container,) = replicas[kind]["template"]["spec"]["containers"]
        operator = {
            "PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1",
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(cluster.port),
        }  # fmt: skip
        here = {"RUN": str(cluster.folder / f"node{rank}" / "run"), "KEEP": str(cluster.kept)}
        assert set(here) == {each["name"] for each in container["env"]}
        pods.append(cluster.start(*container["command"], **operator, **here))
    cluster.finish(*pods)
    cluster.check()


RAY = '''
"""What the recipe needs of Ray Train: workers with the variables of env:// and a process group."""
import multiprocessing, os, sys, types

def _work(loop, config, backend, rank, size):
    from torch import distributed
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    distributed.init_process_group(backend)
    loop({**config, "run": config["run"].format(rank=rank)})
    distributed.destroy_process_group()

class ScalingConfig(types.SimpleNamespace): pass
class TorchConfig(types.SimpleNamespace): pass
class TorchTrainer:
    def __init__(self, loop, *, train_loop_config, scaling_config, torch_config):
        self.given = loop, train_loop_config, torch_config.backend
        self.size = scaling_config.num_workers
    def fit(self):
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=_work, args=(*self.given, rank, self.size)) for rank in range(self.size)]
        for each in workers: each.start()
        for each in workers: each.join()
        sys.exit(any(each.exitcode for each in workers))
'''


@pytest.mark.long
def test_ray_train(cluster: Cluster) -> None:
    package = cluster.folder / "work" / "ray" / "train"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for name in ("__init__", "torch"):
        (package / f"{name}.py").write_text(RAY, encoding="utf-8")
    run = str(cluster.folder / "node{rank}" / "run")
    cluster.finish(
        cluster.start("python", "ray_train.py", WORKERS="2", GPUS="0", RUN=run, MASTER_PORT=str(cluster.port))
    )
    cluster.check()


def test_the_page_shows_every_recipe_as_it_stands() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    for each in sorted(JOBS.iterdir()):
        if each.is_file():
            assert each.read_text(encoding="utf-8") in page, each.name
            assert re.search(rf"\]\(\.\./examples/jobs/{re.escape(each.name)}\)", page), each.name
