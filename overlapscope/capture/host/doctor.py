"""Check what this machine can read and record."""

import os
import platform
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import msgspec

from overlapscope.capture.host.device_links import links


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One capability: whether it is available, what was found, how to get it."""

    name: str
    available: bool
    detail: str
    remedy: str = ""


def examine() -> list[Check]:
    """Return a check of everything that reading and recording use; imports torch where it is installed."""
    return [
        Check(
            name="python",
            available=sys.version_info >= (3, 11),
            detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        ),
        _reading(),
        *_torch(),
        _nvml(),
        device_links(),
        _infiniband(),
    ]


def _reading() -> Check:
    found = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "pyarrow", "msgspec", "pandas"))
    return Check(name="read traces", available=True, detail=found)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(no version)"


def _torch() -> list[Check]:
    if find_spec("torch") is None:
        return [
            Check(
                name="record with torch",
                available=False,
                detail="torch is not installed; reading traces does not need it",
                remedy="pip install 'overlapscope[torch]'",
            )
        ]
    import torch  # noqa: PLC0415 - only here, and only when it is installed
    from torch import distributed  # noqa: PLC0415

    checks = [Check(name="record with torch", available=True, detail=f"torch {torch.__version__}")]
    backends = [
        name
        for name, there in (
            ("gloo", distributed.is_available() and distributed.is_gloo_available()),
            ("nccl", distributed.is_available() and distributed.is_nccl_available()),
            ("mpi", distributed.is_available() and distributed.is_mpi_available()),
        )
        if there
    ]
    checks.append(
        Check(name="process groups", available=bool(backends), detail=", ".join(backends) or "torch has no backend")
    )
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
        checks.append(
            Check(name="CUDA", available=True, detail=f"{torch.cuda.device_count()} devices: {', '.join(names)}")
        )
    else:
        checks.append(
            Check(name="CUDA", available=False, detail="torch finds no device; CPU runs over gloo can be recorded")
        )
    activities = {str(activity).rpartition(".")[2] for activity in torch.profiler.supported_activities()}
    checks.append(
        Check(name="torch.profiler", available=bool(activities), detail=f"activities: {', '.join(sorted(activities))}")
    )
    return checks


def _nvml() -> Check:
    import pynvml  # noqa: PLC0415 - a driver that hangs should hang doctor, not `import overlapscope`

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(name="NVML telemetry", available=False, detail=f"{error}", remedy="an NVIDIA driver on this host")
    try:
        count = pynvml.nvmlDeviceGetCount()
        driver = pynvml.nvmlSystemGetDriverVersion()
        return Check(name="NVML telemetry", available=count > 0, detail=f"{count} devices, driver {driver}")
    except pynvml.NVMLError as error:
        return Check(name="NVML telemetry", available=False, detail=f"{error}")
    finally:
        pynvml.nvmlShutdown()


def device_links() -> Check:
    """Check how the devices of this host are linked: pairs by kind, and devices with NVLinks that are down."""
    import pynvml  # noqa: PLC0415 - as above

    name = "device links"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(name=name, available=False, detail=f"{error}")
    try:
        found = links(pynvml)
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return Check(name=name, available=False, detail=f"{error}")
    finally:
        pynvml.nvmlShutdown()
    if not found:
        return Check(name=name, available=False, detail=f"{count} device{'s' * (count != 1)}: no links between devices")
    kinds = Counter(f"{each.kind or 'unknown'}{f' x{each.lanes}' if each.lanes else ''}" for each in found)
    # Each pair is counted twice, once from either side.
    detail = ", ".join(f"{kind}: {seen // 2} pair{'s' * (seen != 2)}" for kind, seen in sorted(kinds.items()))
    down = {each.a: each.down for each in found if each.down}
    return Check(
        name=name,
        available=True,
        detail="; ".join([detail, *(f"{device} has {number} NVLinks down" for device, number in down.items())]),
    )


def _infiniband() -> Check:
    folder = "/sys/class/infiniband"
    try:
        ports = sorted(os.listdir(folder))
    except OSError:
        ports = []
    detail = ", ".join(ports) if ports else "no InfiniBand or RoCE port on this host"
    return Check(name="network counters", available=bool(ports), detail=detail)
