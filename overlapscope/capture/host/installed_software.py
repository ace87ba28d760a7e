"""Find which software of `version_matrix` is installed on this machine."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

import msgspec

from overlapscope.version_matrix import Status, status_of, version_runs

DISTRIBUTIONS: Final = {
    "torch": ("torch",),
    "torch_npu (Ascend)": ("torch_npu",),
    "Horovod": ("horovod",),
    "PyTorch Lightning": ("lightning", "pytorch-lightning"),
    "transformers": ("transformers",),
    "Accelerate": ("accelerate",),
    "DeepSpeed": ("deepspeed",),
    "Megatron-Core": ("megatron-core",),
    "torchtitan": ("torchtitan",),
}
"""Distributions by the name of the software."""
PROGRAMS: Final = {"Nsight Systems": "nsys", "rocprofv3": "rocprofv3"}
"""Programs that print their version for `--version`."""
PROGRAM_SECONDS: Final = 20.0


class InstalledVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version on this machine and how it was tried."""

    software: str
    version: str
    status: Status
    by: str


def installed_versions() -> list[InstalledVersion]:
    """Return the row of `version_matrix` for all software found here; imports torch where it is installed."""
    rows = []
    for software, found in _found():
        status, by = status_of(software, found)
        rows.append(InstalledVersion(software=software, version=found, status=status, by=by))
    return rows


def _found() -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    needed = {name: (name,) for run in version_runs().values() for name in run.versions}
    for software, names in {**needed, **DISTRIBUTIONS}.items():
        found = next((each for each in map(_of_distribution, names) if each is not None), None)
        if found is not None and software != "Python":
            yield software, found
    yield from _of_torch()
    for software, program in PROGRAMS.items():
        printed = _printed(program)
        if printed is not None:
            yield software, printed


def _of_distribution(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _of_torch() -> Iterator[tuple[str, str]]:
    """Yield what torch was built with."""
    if find_spec("torch") is None:
        return
    import torch  # noqa: PLC0415 - only here, and only when it is installed
    from torch import distributed  # noqa: PLC0415

    if torch.version.cuda:
        yield "CUDA", str(torch.version.cuda)
    if torch.version.hip:
        yield "ROCm", str(torch.version.hip)
    if distributed.is_available() and distributed.is_nccl_available():
        yield "RCCL" if torch.version.hip else "NCCL", ".".join(map(str, torch.cuda.nccl.version()))


def _printed(program: str) -> str | None:
    """Return the first version that `program --version` prints; None where there is none."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
    return number[0] if number else None
