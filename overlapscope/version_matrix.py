"""Which versions of other software were tried, and how: docs/versions.md and `overlapscope doctor` read this table.

*tested*: tests ran with it and passed. *read only*: tests read real files that it wrote; nothing was recorded beside
it. *untried*: followed in its source or documentation, or only expected to work. What tests ran with is kept by the
runs themselves in `version_runs.json` (`make test-versions`); everything else stands in `ROWS`.
"""

from functools import cache
from pkgutil import get_data
from typing import Final, Literal

import msgspec

Status = Literal["tested", "read only", "untried"]

REAL_TRACES: Final = "tests/unit/analysis/figures/test_real_traces.py"
NCCL_LOG: Final = "tests/unit/formats/test_nccl_log.py"
NSIGHT: Final = "tests/unit/formats/test_nsight.py"
FAKES: Final = "hooks follow its source and run against fakes: tests/integration/test_frameworks.py"
ON_A_DEVICE: Final = "recording on a device: tests/integration/test_gpu.py waits for one"
OF_SOURCE: Final = "other versions are followed in source only"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Some versions of software, none of which is in `version_runs.json`."""

    software: str
    versions: tuple[str, ...] = ()
    """Releases up to the minor version, or words for what a file does not state; empty means all others."""
    status: Status
    by: str
    """The test that reads its files; for untried versions, what is known of them."""


class VersionRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the tests with known versions."""

    command: str
    selected: str
    """Which tests, as an expression of pytest's markers."""
    date: str
    passed: int
    failed: int
    """Tests that failed or could not be run."""
    skipped: int
    versions: dict[str, str]
    """The version of Python and of each distribution that OverlapScope depends on."""


ROWS: Final = (
    Row(software="Python", status="untried", by="make release runs README's commands on each Python there is"),
    Row(software="torch", versions=("1.8",), status="read only", by=REAL_TRACES),
    Row(
        software="torch",
        status="untried",
        by="tests record with the oldest and the newest promised; real traces are read that do not name their torch",
    ),
    Row(software="NCCL", versions=("2.9",), status="read only", by=NCCL_LOG),
    Row(software="NCCL", versions=("2.17", "2.27"), status="read only", by=REAL_TRACES),
    Row(software="NCCL", status="untried", by=f"{OF_SOURCE}; {ON_A_DEVICE}"),
    Row(software="RCCL", versions=("2.22",), status="read only", by=REAL_TRACES),
    Row(software="RCCL", status="untried", by=f"{OF_SOURCE}; {ON_A_DEVICE}"),
    Row(software="CUDA", versions=("11.2",), status="read only", by=NCCL_LOG),
    Row(software="CUDA", versions=("12.8",), status="read only", by=NSIGHT),
    Row(software="CUDA", versions=("12.9",), status="read only", by=REAL_TRACES),
    Row(software="CUDA", status="untried", by=ON_A_DEVICE),
    Row(software="ROCm", versions=("6.4",), status="read only", by=REAL_TRACES),
    Row(software="ROCm", status="untried", by=ON_A_DEVICE),
    Row(software="Nsight Systems", versions=("2026.2",), status="read only", by=NSIGHT),
    Row(software="Nsight Systems", status="untried", by="exports of other versions are followed in descriptions only"),
    Row(
        software="rocprofv3",
        versions=("one of 2025",),
        status="read only",
        by="tests/unit/formats/test_rocprof.py (its file names no version)",
    ),
    Row(software="rocprofv3", status="untried", by=OF_SOURCE),
    Row(
        software="torch_npu (Ascend)",
        versions=("one of 2025",),
        status="read only",
        by="tests/unit/formats/test_ascend.py (its files name no version)",
    ),
    Row(software="torch_npu (Ascend)", status="untried", by=OF_SOURCE),
    Row(
        software="Horovod",
        versions=("not stated",),
        status="read only",
        by="tests/unit/formats/test_horovod.py (a sample of negotiations)",
    ),
    Row(software="Horovod", status="untried", by=OF_SOURCE),
    Row(software="PyTorch Lightning", status="untried", by=FAKES),
    Row(software="transformers", status="untried", by=FAKES),
    Row(software="Accelerate", status="untried", by=FAKES),
    Row(software="DeepSpeed", status="untried", by=FAKES),
    Row(software="Megatron-Core", status="untried", by=FAKES),
    Row(software="torchtitan", status="untried", by=FAKES),
)
"""The first row of a software that holds a version counts."""


@cache
def version_runs() -> dict[str, VersionRun]:
    """Return the kept runs of the tests by name."""
    return msgspec.json.decode(get_data(__package__, "version_runs.json") or b"", type=dict[str, VersionRun])


def status_of(software: str, version: str) -> tuple[Status, str]:
    """Return how a version of some software was tried, and by what.

    Versions are compared up to the minor one: what ran with 2.4.0 counts for 2.4.1.
    """
    release = minor(version)
    runs = [run for run in version_runs().values() if software in run.versions]
    if ran := [run for run in runs if minor(run.versions[software]) == release and not run.failed]:
        commands = ", ".join(dict.fromkeys(run.command for run in ran))
        return "tested", f"{commands} ({max(run.date for run in ran)})"
    rows = [row for row in ROWS if row.software == software and (not row.versions or release in row.versions)]
    if rows:
        return rows[0].status, rows[0].by
    return "untried", f"tests ran with {', '.join(dict.fromkeys(run.versions[software] for run in runs))}" * bool(runs)


def minor(version: str) -> str:
    """Return the first two numbers of a version: `2.4` of `2.4.0+cu121`."""
    return ".".join(version.partition("+")[0].split(".")[:2])
