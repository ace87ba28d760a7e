"""How many processes are worth it: by cores that may be used, and by what there is to read."""

import os
from pathlib import Path

import pytest

from overlapscope.ingest.parallel import worker_count as cores
from overlapscope.ingest.parallel.worker_count import BYTES_WORTH_A_PROCESS, USUAL_RATIO, processes_for

OLDER = {"cpu__cfs_quota_us": "250000", "cpu__cfs_period_us": "100000"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 cores and no control groups yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_OWN", tmp_path / "own")
    return tmp_path


def files(folder: Path, *sizes: int, name: str = "{}.json") -> list[Path]:
    """Sparse files: their sizes are what counts."""
    paths = [folder / name.format(number) for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        with open(path, "wb") as file:
            file.truncate(size)
    return paths


def limit(machine: Path, group: str, **content: str) -> None:
    folder = machine / "cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def test_large_files_take_a_process_a_core(machine: Path) -> None:
    assert processes_for(None, files(machine, *[10 * BYTES_WORTH_A_PROCESS] * 100)) == 64


def test_where_the_system_cannot_tell_what_is_ours_all_cores_count(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert processes_for(None, files(machine, *[10 * BYTES_WORTH_A_PROCESS] * 9)) == 3


def test_there_are_no_more_processes_than_files(machine: Path) -> None:
    assert processes_for(None, files(machine, *[10 * BYTES_WORTH_A_PROCESS] * 3)) == 3
    assert processes_for(50, files(machine, 1, 1)) == 2
    assert processes_for(None, []) == 1


def test_small_files_are_read_here(machine: Path) -> None:
    assert processes_for(None, files(machine, *[BYTES_WORTH_A_PROCESS // 9] * 8)) == 1


def test_compressed_files_count_by_what_they_hold(machine: Path) -> None:
    each = BYTES_WORTH_A_PROCESS // USUAL_RATIO + 1
    assert processes_for(None, files(machine, *[each] * 4, name="{}.json.gz")) == 4
    assert processes_for(None, files(machine, *[each] * 4)) == 1


def test_who_asks_for_processes_gets_them(machine: Path) -> None:
    assert processes_for(3, files(machine, *[1] * 8)) == 3


@pytest.mark.parametrize(
    ("own", "group", "content"),
    [
        ("0::/a/b\n", "a/b", {"cpu__max": "250000 100000\n"}),
        ("0::/a/b\n", "a", {"cpu__max": "250000 100000\n"}),
        ("0::/\n", "", {"cpu__max": "250000 100000\n"}),
        (
            "3:cpu,cpuacct:/job\n1:memory:/x\n",
            "cpu/job",
            {"cpu__cfs_quota_us": "250000", "cpu__cfs_period_us": "100000"},
        ),
        ("", "cpu", {"cpu__cfs_quota_us": "250000", "cpu__cfs_period_us": "100000"}),
    ],
)
def test_a_control_group_limits_them(machine: Path, own: str, group: str, content: dict[str, str]) -> None:
    (machine / "own").write_text(own, encoding="utf-8")
    large = files(machine, *[10 * BYTES_WORTH_A_PROCESS] * 8)
    assert processes_for(None, large) == 8
    limit(machine, group, **content)
    assert processes_for(None, large) == 3


@pytest.mark.parametrize("content", ["max 100000\n", "-1 100000", "nonsense", "", "1000 0"])
def test_a_group_without_a_limit_is_none(machine: Path, content: str) -> None:
    limit(machine, "", cpu__max=content)
    assert processes_for(None, files(machine, *[10 * BYTES_WORTH_A_PROCESS] * 8)) == 8
