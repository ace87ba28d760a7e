"""What the machine offers to the checks, and whether NVML and torch speak of the same device."""

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import overlapscope
from overlapscope.capture.host import environment
from overlapscope.gpu_check.document import Value
from overlapscope.gpu_check.measurements import Measurements, NotRunError, Process, measure
from overlapscope.gpu_check.recordings import on_device, steps_of
from overlapscope.gpu_check.spin import Spin, device

TESTS: Final = Path(overlapscope.__file__).parents[1] / "tests" / "integration" / "test_gpu.py"
Facts = Mapping[str, Value]

REASONS: Final[Mapping[str, Callable[[Facts], str | None]]] = {
    "kernels": lambda facts: None if facts.get("kernel_ms") else "the driver did not load our kernels (see C0)",
    "nccl": lambda facts: None if facts.get("nccl") else "this torch has no NCCL",
    "nccl 2.30": lambda facts: _too_old(str(facts.get("nccl", ""))),
    "gloo": lambda facts: None if facts.get("gloo") else "this torch has no gloo",
    "nvml": lambda facts: None if facts.get("driver") else f"NVML: {facts.get('nvml_error', 'not available')}",
    "two devices": lambda facts: None if int(facts.get("devices", 0)) > 1 else "there is one device only",
    "nsys": lambda facts: None if facts.get("nsys") else "nsys (Nsight Systems) is not installed",
    "tests": lambda facts: None if facts.get("tests") else "the tests, or pytest, are not here: a checkout has them",
}
"""What a check may need: why it is not there, by the figures of `inventory`; None if it is."""


def _too_old(nccl: str) -> str | None:
    if not nccl:
        return "this torch has no NCCL"
    numbers = [int(part) for part in nccl.split(".") if part.isdigit()]
    return None if numbers >= [2, 30] else f"NCCL is {nccl}: it may put two ranks on one device from 2.30 on"


def inventory(measured: Measurements) -> None:
    """Note versions and what the machine offers; launch one of our kernels."""
    torch = device()
    properties = torch.cuda.get_device_properties(0)
    dist = torch.distributed
    there = dist.is_available()
    facts: dict[str, Value | None] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if there and dist.is_nccl_available() else None,
        "gloo": there and bool(dist.is_gloo_available()),
        "devices": int(torch.cuda.device_count()),
        "device": str(properties.name),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "nsys": shutil.which("nsys") is not None,
        "tests": TESTS.exists() and find_spec("pytest") is not None,
        "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "not set"),
    }
    for name, value in facts.items():
        if value is not None:
            measured.figure(name, value)
    for name, value in _nvml_facts().items():
        measured.figure(name, value)
    from overlapscope.capture.host.doctor import examine

    measured.figure("doctor_checks", len(examine()))
    spin = Spin(torch)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    took = []
    for _ in range(5):
        begin.record()
        spin(5_000_000)
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end))
    measured.figure("kernel_ms", statistics.median(took))


def _nvml_facts() -> dict[str, Value]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"nvml_error": str(error)}
    try:
        facts: dict[str, Value] = {"driver": _text(pynvml.nvmlSystemGetDriverVersion())}
        try:
            facts["mig"] = bool(pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0))[0])
        except pynvml.NVMLError:
            facts["mig"] = False  # a device that cannot be divided
        return facts
    finally:
        pynvml.nvmlShutdown()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def tests(measured: Measurements) -> None:
    """Run the tests that need a device."""
    device()
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", str(TESTS), "-rs"]
    words += [f"--rootdir={TESTS.parents[2]}", f"--junitxml={measured.folder / 'junit.xml'}"]
    ended = Process(words).wait(150)
    if not (measured.folder / "junit.xml").exists():
        raise RuntimeError(f"pytest {ended.failure or 'wrote no result'}")
    passed, failed, skipped = counted((measured.folder / "junit.xml").read_text(encoding="utf-8"))
    measured.figure("tests_passed", passed)
    measured.figure("tests_failed", failed)
    measured.figure("tests_skipped", skipped)
    if failed:
        sys.stdout.write(ended.output)


def counted(junit: str) -> tuple[int, int, int]:
    """Return how many tests passed, failed (or could not be run) and were skipped, by a JUnit document."""
    from defusedxml.ElementTree import fromstring

    suites = list(fromstring(junit).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(each.get(name, 0)) for each in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


# -- the right device ----------------------------------------------------------------------------------------------


def identity(measured: Measurements) -> None:
    """Compare NVML's device with torch's, also where CUDA_VISIBLE_DEVICES names it by its UUID."""
    torch = device()
    import pynvml

    _, uuid = environment.device(0)
    if uuid is None:
        raise NotRunError("this torch does not report a device's UUID")
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        measured.figure("same_device", _text(pynvml.nvmlDeviceGetUUID(handle)) == uuid)
        found, _ = measure(f"{__name__}:visible_uuid", measured.folder / "by_uuid", 60, {"CUDA_VISIBLE_DEVICES": uuid})
        measured.figure("same_device_by_uuid", found.figures.get("uuid") == uuid)
        power, used = [], []
        for _ in range(3):
            power.append((pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3, float(_smi(uuid, "power.draw"))))
            used.append((pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20, float(_smi(uuid, "memory.used"))))
            time.sleep(0.5)
        measured.figure("power_difference_percent", least_difference_percent(power))
        measured.figure("memory_difference_percent", least_difference_percent(used))
    finally:
        pynvml.nvmlShutdown()
    _host_tensors(torch, measured)


def visible_uuid(measured: Measurements) -> None:
    """Note the UUID of the first device that is visible."""
    device()
    measured.figure("uuid", environment.device(0)[1] or "")


def _smi(uuid: str, what: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={uuid}", f"--query-gpu={what}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise NotRunError(f"nvidia-smi cannot be asked: {error}") from error
    return done.stdout.strip()


def _host_tensors(torch: Any, measured: Measurements) -> None:
    """Reduce a tensor of the host in a job that computes on a device: it is timed by the host's clock."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    spin = Spin(torch)
    data = torch.ones(1 << 16)
    took: list[int] = []

    def forward() -> None:
        spin(20_000_000)
        begun = time.monotonic_ns()
        dist.all_reduce(data, async_op=True).wait()
        took.append(time.monotonic_ns() - begun)

    model = on_device(torch, forward)
    path = measured.folder / "run"
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for _ in range(5):
            with scope.step():
                model()
            torch.cuda.synchronize()
    recorded = [each.comm_ns for each in steps_of(path) if each.complete and each.comm_ns is not None]
    dist.destroy_process_group()
    measured.figure("host_calls_recorded", len(recorded))
    if not recorded:
        measured.missing("host_call_longer_ms", "no step with this call was recorded whole")
        return
    # A mark of the device would lie behind the 20 ms that it computes.
    measured.figure("host_call_longer_ms", (statistics.median(recorded) - statistics.median(took)) / 1e6)


def other_device(measured: Measurements) -> None:
    """Record a model on the second device while the first is current."""
    torch = device()
    if torch.cuda.device_count() < 2:
        raise NotRunError("there is one device only")
    found, ended = measure(f"{__name__}:on_second_device", measured.folder / "job", 60)
    if found.failed or found.not_run:
        raise RuntimeError(found.failed or found.not_run or ended.output)
    for name, value in found.figures.items():
        measured.figure(name, value)


def on_second_device(measured: Measurements) -> None:
    """Train on cuda:1 without `set_device`, and note what of cuda:0 was used."""
    import torch
    from torch import distributed as dist

    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 1))
    model = torch.nn.Linear(512, 512).to("cuda:1")
    one, many = torch.ones(32 << 20, device="cuda:1"), torch.empty(32 << 20, device="cuda:1")
    free = _free_bytes(0)
    path = measured.folder / "run"
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for _ in range(6):
            with scope.step():
                work = dist.all_gather_into_tensor(many, one, async_op=True)
                model(torch.randn(64, 512, device="cuda:1")).sum().backward()
                work.wait()
            torch.cuda.synchronize(1)
    steps = [each for each in steps_of(path) if each.complete]
    measured.figure("whole_steps", len(steps))
    measured.figure("steps_without_communication", sum(not each.comm_ns for each in steps))
    measured.figure("first_device_used_mib", (free - _free_bytes(0)) / 2**20)
    dist.destroy_process_group()


def _free_bytes(index: int) -> int:
    """Return the free memory of a device by NVML, which makes no context on it."""
    import pynvml
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    pynvml.nvmlInit()
    try:
        handle = (
            pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid is not None
            else pynvml.nvmlDeviceGetHandleByIndex(index)
        )  # fmt: skip
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
    finally:
        pynvml.nvmlShutdown()


def least_difference_percent(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the least relative difference of the pairs, in percent: both are read one after the other, and change."""
    return min(100 * abs(a / b - 1) if b else float("inf") for a, b in pairs)
