"""How many processes are worth it: by cores that may be used, and by what there is to read."""

import os
from pathlib import Path

import pytest

from overlapscope.ingest.parallel import process_pool, worker_count
from overlapscope.ingest.parallel.worker_count import (
    BYTES_WORTH_A_PROCESS,
    FILE_READER,
    MOST_SHARES,
    PART_READER,
    USUAL_RATIO,
    processes_for,
    shares_among,
    start_ahead,
)

OLDER = {"cpu__cfs_quota_us": "250000", "cpu__cfs_period_us": "100000"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 cores and no control groups yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(worker_count, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(worker_count, "_OWN", tmp_path / "own")
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
        ("3:cpu,cpuacct:/job\n1:memory:/x\n", "cpu/job", OLDER),
        ("", "cpu", OLDER),
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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "asked", "sizes", "shares"),
    [
        (64, None, [5 * GIB] * 8, [8] * 8),
        (16, None, [5 * GIB] * 8, [2] * 8),
        (8, None, [5 * GIB] * 8, [1] * 8),
        (64, None, [5 * GIB, 1 << 20], [8, 1]),
        (64, 6, [5 * GIB, 5 * GIB, 5 * GIB], [2, 2, 2]),
        (64, 2, [5 * GIB], [2]),
        (64, None, [100 * GIB], [MOST_SHARES]),
        (64, None, [2], [1]),
        (64, 3, [2], [3]),
        (64, 1, [100 * GIB], [1]),
        (64, 1, [5 * GIB, 5 * GIB], [1, 1]),
        (64, None, [], []),
    ],
)
def test_cores_beyond_one_a_file_help_with_the_large_ones(
    machine: Path, monkeypatch: pytest.MonkeyPatch, cores: int, asked: int | None, sizes: list[int], shares: list[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert shares_among(asked, files(machine, *sizes)) == shares
    assert shares_among(None, [machine / "elsewhere"] * 3) == [1, 1, 1]


@pytest.mark.parametrize(
    ("to_disk", "expected"),
    [(False, [(3, PART_READER), (2, FILE_READER)]), (True, [(3, "overlapscope.ingest.parallel.spool")])],
)
def test_workers_start_ahead_only_where_they_have_something_to_read(
    machine: Path, monkeypatch: pytest.MonkeyPatch, to_disk: bool, expected: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    for name in ("run", "job"):
        (machine / name).mkdir()
    (machine / "run" / "run.json").touch()
    files(machine / "run", 100 * GIB, name="ranks.bin")
    large = files(machine / "job", *[GIB] * 3)
    small = files(machine, 1000, name="small.json")
    started: list[tuple[int, str]] = []
    monkeypatch.setattr(process_pool, "started_ahead", lambda count, module: started.append((count, module)))
    for paths in (small, [machine / "run"], large[:1], [machine / "job"], [machine / "absent.json"], []):
        start_ahead(None, paths, to_disk=to_disk)
        start_ahead(1, paths, to_disk=to_disk)
    assert started == expected
