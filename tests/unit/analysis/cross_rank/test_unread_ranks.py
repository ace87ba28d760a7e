"""Ranks whose file could not be read are counted apart from ranks without a file."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.cli.main import main
from overlapscope.report.text.cross_rank import missing_ranks_text
from tests.conftest import needs_archives
from tests.support.writers.kineto import distributed, training, write


def trace(rank: int, world_size: int = 4) -> bytes:
    return write(training(), metadata=distributed(rank, world_size))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Of four ranks two that can be read, an empty file of the third, and nothing of the fourth."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_bytes(trace(rank))
    (folder / "rank2.json").write_bytes(b"")
    return folder


def document(place: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["analyze", str(place), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def unread(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in answer["findings"] if each["id"] == "unread_ranks"]


def test_a_file_that_could_not_be_read_is_counted_apart_from_a_missing_one(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = document(job, capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([2, 3], [2])
    (finding,) = unread(answer)
    assert finding["severity"] == "warning"
    assert finding["evidence"] == {"ranks": [2], "files": [str(job / "rank2.json")]}
    assert f"{job / 'rank2.json'} (not a trace: it is empty); repair it" in finding["title"]
    assert main(["analyze", str(job)]) == 0
    assert "2 ranks of 4 (1 not recorded, 1 not readable)" in capsys.readouterr().out


def test_a_run_directory_remembers_it(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(job), "-o", str(tmp_path / "run")]) == 0
    assert "run: 2 ranks, 1 not recorded, 1 not readable, " in capsys.readouterr().out
    assert main(["ingest", str(job), "-o", str(tmp_path / "run"), "-f", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["missing_ranks"], answer["unread_ranks"]) == ([2, 3], [2])
    answer = document(tmp_path / "run", capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([2, 3], [2])
    assert unread(answer)


def test_a_damaged_rank_of_a_run_directory_counts_as_not_readable(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert overlapscope.write_run(job, to=tmp_path / "run").unread_ranks == (2,)
    (tmp_path / "run" / "rank_00001" / "spans.parquet").write_bytes(b"damaged")
    answer = document(tmp_path / "run", capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([1, 2, 3], [1, 2])
    assert unread(answer)[0]["title"].startswith("ranks 1, 2 are missing, whose files could not be read: ")


@needs_archives
def test_a_member_of_an_archive_that_cannot_be_read_counts_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for rank in (0, 1):
            archive.writestr(f"rank{rank}.json", trace(rank))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 8] |= 1  # the second member is encrypted, as the directory tells
    path.write_bytes(content)
    answer = document(path, capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([1, 2, 3], [1])


def test_a_rank_that_another_file_gives_is_not_missing(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "again_rank2.json").write_bytes(trace(2))
    (job / "rank9.json").write_bytes(b"")  # no rank of this job
    answer = document(job, capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([3], [])
    assert unread(answer) == []


def test_without_a_world_size_what_is_not_readable_is_known_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.json").write_bytes(write(training()))
    (tmp_path / "rank1.json").write_bytes(b"")
    answer = document(tmp_path, capsys)
    assert (answer["run"]["missing_ranks"], answer["run"]["unread_ranks"]) == ([], [1])
    assert main(["analyze", str(tmp_path)]) == 0
    assert "rank 0 (1 not readable)" in capsys.readouterr().out


def test_gate_tells_them_apart(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(job, tmp_path / "whole")
    for rank in (2, 3):
        (tmp_path / "whole" / f"rank{rank}.json").write_bytes(trace(rank))
    main(["gate", str(tmp_path / "whole"), str(job)])
    shown = capsys.readouterr().out
    assert "candidate: 1 rank of the job not recorded: 3" in shown
    assert "candidate: 1 rank of the job not readable, although their files exist: 2" in shown


@pytest.mark.parametrize(
    ("missing", "unread", "said"),
    [
        ((), (), ""), ((1, 2), (), "2 not recorded"), ((1, 2), (2,), "1 not recorded, 1 not readable"),
        ((1, 2), (1, 2), "2 not readable"), ((), (5,), "1 not readable"),
    ],
)  # fmt: skip
def test_numbers_of_both_are_in_the_text(missing: tuple[int, ...], unread: tuple[int, ...], said: str) -> None:
    assert missing_ranks_text(missing, unread) == said
