"""One table of versions: the page, what ran, what pyproject.toml promises, and what `doctor` prints."""

import json
import platform
import re
import stat
import tomllib
from pathlib import Path

import pytest

from overlapscope import version_matrix
from overlapscope.capture.host.installed_software import DISTRIBUTIONS, PROGRAMS, installed_versions
from overlapscope.cli.main import main
from overlapscope.version_matrix import ROWS, VersionRun, minor, status_of, version_runs
from tests import run_versions
from tests.conftest import ROOT

AGAIN = "run `make test-versions`"


def test_the_page_is_what_the_table_and_the_last_runs_say() -> None:
    page = run_versions.PAGE.read_text(encoding="utf-8")
    assert page == run_versions.page(), "run `python -m tests.run_versions page`"


def test_what_is_promised_ran_and_passed() -> None:
    runs = version_runs()
    assert list(runs) == list(run_versions.CASES), AGAIN
    for name, run in runs.items():
        case = run_versions.CASES[name]
        lowest = run_versions.bounds(case.torch_of)
        assert (run.command, run.selected) == (case.command, case.selected), AGAIN
        if name == "hosts":
            assert (run.failed, run.skipped, run.passed > 0) == (0, 0, True), AGAIN
            assert set(run_versions.HOSTS.values()) <= set(run.versions), AGAIN
            continue
        assert (run.failed, run.passed > (50 if run.selected.startswith("dry_run") else 100)) == (0, True), AGAIN
        assert {"Python", *lowest} - set(run.versions) <= ({"torch"} if "not torch" in run.selected else set()), AGAIN
        for distribution in lowest if case.lowest is None else case.lowest:
            assert minor(run.versions[distribution]) == minor(lowest[distribution] + ".0"), AGAIN
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for distribution, version in runs["pinned"].versions.items():
        assert distribution == "Python" or minor(pinned[distribution]) == minor(version), AGAIN
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f">={minor(runs['lowest'].versions['Python'])}" == project["requires-python"], AGAIN
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert sorted(pythons) == sorted({minor(run.versions["Python"]) for run in runs.values()}), AGAIN


def test_every_test_that_the_table_names_exists() -> None:
    named = [path for row in ROWS for path in re.findall(r"tests/[\w/]+\.py", row.by)]
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert all(re.search(r"tests/[\w/]+\.py", row.by) for row in ROWS if row.status == "read only")


def test_every_software_ends_in_a_row_for_all_other_versions() -> None:
    last = {row.software: row for row in ROWS}
    assert all(row.versions == () and row.status == "untried" for row in last.values())
    assert {*DISTRIBUTIONS, *PROGRAMS, "Python", "CUDA", "ROCm", "NCCL", "RCCL"} == set(last)


def test_other_pages_claim_what_the_table_holds() -> None:
    oldest = next(row.versions[0] for row in ROWS if row.software == "torch")
    first, newest = (minor(version_runs()[name].versions["torch"]) for name in ("torch-oldest", "torch-newest"))
    claim = f"torch {oldest} to {newest}"
    for page in ("README.md", "docs/sources.md"):
        assert claim in (ROOT / page).read_text(encoding="utf-8"), f"{page}: {claim}"
    sources = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    assert f"real traces of torch {first} to {newest} (gloo)" in sources
    for software, words in (("Nsight Systems", "real export ({})"), ("NCCL", "real log (NCCL {}.9")):
        (version,) = next(row.versions for row in ROWS if row.software == software)
        assert words.format(version) in sources


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run that passed and one that failed."""
    made = {
        name: VersionRun(
            command=f"make {name}", selected="", date="2026-01-31", passed=9, failed=failed, skipped=0,
            versions={"torch": torch, "numpy": "2.0.0"},
        )
        for name, torch, failed in (("good", "2.5.1", 0), ("bad", "2.6.0", 1))
    }  # fmt: skip
    monkeypatch.setattr(version_matrix, "version_runs", lambda: made)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("software", "version", "status", "by"),
    [
        ("torch", "2.5.1", "tested", "make good (2026-01-31)"),
        ("torch", "2.5.0+cu121", "tested", "make good (2026-01-31)"),
        ("torch", "2.50.0", "untried", None),
        ("torch", "2.6.0", "untried", None),  # its tests failed
        ("torch", "1.8.1", "read only", version_matrix.REAL_TRACES),
        ("numpy", "2.0.3", "tested", "make good (2026-01-31)"),
        ("numpy", "2.4.6", "untried", "tests ran with 2.0.0"),
        ("CUDA", "12.8", "read only", version_matrix.NSIGHT),
        ("CUDA", "13.0", "untried", version_matrix.ON_A_DEVICE),
        ("rocprofv3", "1.0.0", "untried", version_matrix.OF_SOURCE),
        ("unheard of", "1.0", "untried", ""),
    ],
)
def test_a_version_counts_as_what_it_was_tried_as(software: str, version: str, status: str, by: str | None) -> None:
    found = status_of(software, version)
    assert found[0] == status
    assert by is None or found[1] == by


def test_doctor_prints_the_rows_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2026.2.1.210-262137639646v0'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "rocprofv3").write_text("not a program")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(["doctor", "--json"]) == 0
    rows = {row["software"]: row for row in json.loads(capsys.readouterr().out)["versions"]}
    assert {"Python", "numpy", "pyarrow", "msgspec", "pandas", "plotly", "dash"} <= set(rows)
    assert rows["Python"]["version"] == platform.python_version()
    assert rows["Nsight Systems"] == {
        "software": "Nsight Systems", "version": "2026.2.1.210", "status": "read only", "by": version_matrix.NSIGHT
    }  # fmt: skip
    assert main(["doctor"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for row in installed_versions():
        assert f"{row.software} {row.version} {row.status} {row.by}".strip() in lines
