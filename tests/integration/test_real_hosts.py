"""The adapters inside the real frameworks: two processes over gloo, each host in its own environment's version.

`make test-extras` installs the frameworks; where one is missing, its tests skip.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.loaded_run import LoadedRun
from tests.conftest import ROOT
from tests.integration.host_facts import ACCUMULATES, BATCH, MODES, STEPS, TOKENS, WARMUP

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = pytest.mark.extras
Known = dict[str, Any]
"""What a rank of a host knows after its trainings, by mode."""
WORLD = 2
SAMPLES = BATCH * ACCUMULATES * WORLD
PEAK_TFLOPS = 0.5
HOSTS = {
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "zero3": "deepspeed",
    "torchtitan": "torchtitan",
    "torchtitan_tp": "torchtitan",
}
"""Jobs and the package that each needs."""


def torchrun(*arguments: str, folder: Path = ROOT) -> str:
    """Run two ranks of a script or module and return what they print."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(WORLD),
        *arguments,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: run `make test-extras`")


@pytest.mark.parametrize("host", HOSTS)
def test_a_real_hosts_training_is_recorded_as_it_ran(host: str, tmp_path: Path) -> None:
    needs(HOSTS[host])
    torchrun("-m", "tests.integration.jobs.training_hosts", host, str(tmp_path))
    said = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD)]
    for mode in MODES[1:]:
        check_steps_are_the_hosts_own_and_add_up(said, tmp_path, mode)
        check_parameters_end_with_the_bits_they_have_without_us(said, mode)
        check_collectives_move_the_models_gradients(said, tmp_path, host, mode)
        check_what_the_host_knows_of_a_step_gives_rates(said, tmp_path, host, mode)
    check_both_modes_see_the_same_bytes(tmp_path)


@pytest.mark.parametrize(
    ("heading", "package", "run"),
    [
        ("PyTorch Lightning", "lightning", "lightning"),
        ("transformers", "transformers", "trainer"),
        ("Accelerate", "accelerate", "accelerate"),
        ("DeepSpeed", "deepspeed", "deepspeed"),
    ],
)
def test_the_example_of_the_documentation_records_both_ranks(
    heading: str, package: str, run: str, tmp_path: Path
) -> None:
    needs(package)
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    example = re.search(rf"^## {heading}\n\n```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert example
    (tmp_path / "example.py").write_text(example[1], encoding="utf-8")
    torchrun("example.py", folder=tmp_path)
    ranks = overlapscope.load(tmp_path / "runs" / run).analysis().ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert sum(step.complete for step in rank.steps) >= 3
        assert rank.whole.exposed_comm_ns


def analyzed(path: Path) -> dict[str, Any]:
    """Return what `analyze` prints as JSON."""
    command = [sys.executable, "-m", "overlapscope.cli.main", "analyze", str(path), "--json"]
    command += ["--peak-tflops", str(PEAK_TFLOPS)]
    found: dict[str, Any] = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return found


def bytes_by_step(run: LoadedRun, rank: int, op: str) -> list[int]:
    """Return the bytes of the calls of an operation in each step, but for single numbers such as a norm."""
    calls = run.table("collectives", rank)
    calls = calls[(calls.op == op) & (calls.dtype == "float32") & (calls.elements > 1)]
    return [int(calls[calls.step == step].bytes.sum()) for step in range(WARMUP, STEPS)]


def check_steps_are_the_hosts_own_and_add_up(said: list[Known], folder: Path, mode: str) -> None:
    assert [each[mode]["steps"] for each in said] == [STEPS] * WORLD
    run = overlapscope.load(folder / mode)
    assert run.ranks == list(range(WORLD))
    for rank in run.analysis().ranks:
        assert run.run.ranks[rank.rank].recorded["failures"] == []
        assert [step.step for step in rank.steps] == list(range(WARMUP, STEPS))
        for step in rank.steps:
            assert step.complete
            parts = (step.overlapped_ns, step.exposed_comm_ns, step.compute_only_ns, step.copy_only_ns, step.idle_ns)
            assert sum(part or 0 for part in parts) == step.window_ns
            assert step.compute_ns
            assert step.exposed_comm_ns


def check_parameters_end_with_the_bits_they_have_without_us(said: list[Known], mode: str) -> None:
    assert {each[mode]["digest"] for each in said} == {said[0]["without"]["digest"]}


def check_collectives_move_the_models_gradients(said: list[Known], folder: Path, host: str, mode: str) -> None:
    run, gradients = overlapscope.load(folder / mode), 4 * said[0][mode]["parameters"]
    steps = STEPS - WARMUP
    for rank in range(WORLD):
        if host == "torchtitan_tp":  # activations move
            for op in ("all_gather", "reduce_scatter"):
                moved = bytes_by_step(run, rank, op)
                assert moved == moved[:1] * steps
                assert moved[0] % (4 * BATCH * TOKENS) == 0 < moved[0]
            continue
        if host in ("zero3", "torchtitan"):  # each micro-batch's gradients are scattered; parameters are gathered
            assert bytes_by_step(run, rank, "reduce_scatter") == [ACCUMULATES * gradients] * steps
            assert all(bytes_by_step(run, rank, "all_gather"))
            continue
        assert bytes_by_step(run, rank, "all_reduce") == [gradients] * steps
        if host == "deepspeed":  # ZeRO-1: each rank updates its part, and all gather the parameters
            assert bytes_by_step(run, rank, "all_gather") == [gradients] * steps
            continue
        calls = run.table("collectives", rank)
        assert set(calls[(calls.op == "all_reduce") & (calls.bytes > 100)].phase) == {"backward"}
        assert run.run.ranks[rank].recorded["ddp"]["bucket_bytes"] == [gradients]


def check_both_modes_see_the_same_bytes(folder: Path) -> None:
    events, trace = (overlapscope.load(folder / mode) for mode in MODES[1:])
    for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        assert bytes_by_step(events, 0, op) == bytes_by_step(trace, 0, op), op


def check_what_the_host_knows_of_a_step_gives_rates(said: list[Known], folder: Path, host: str, mode: str) -> None:
    found = analyzed(folder / mode)["throughput"]
    seconds = found["time_ns"] / 1e9 / found["steps"]
    assert found["steps"] == STEPS - WARMUP
    samples, tokens = found["samples"], found["tokens"]
    if host.startswith("torchtitan"):
        assert samples is None
        given = SAMPLES // WORLD if host == "torchtitan_tp" else SAMPLES  # tensor-parallel ranks share theirs
    else:
        given = SAMPLES
        assert samples["per_step"] == given
        assert samples["per_second"] == pytest.approx(given / seconds)
    of_tokens = host == "transformers" or host.startswith("torchtitan")
    assert (tokens and tokens["per_step"]) == (given * TOKENS if of_tokens else None)
    if "flops" in said[0][mode]:
        flops = said[0][mode]["flops"]
        assert found["flops_per_device"]["per_step"] == pytest.approx(flops)
        assert found["mfu"] == pytest.approx(flops / seconds / (PEAK_TFLOPS * 1e12))
    else:
        assert found["mfu"] is None
