"""Broken links, closed folders, files deleted before they are read: each is skipped, and reported."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlapscope
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest import read_run as reading
from overlapscope.ingest.inputs import discover
from tests.support.writers.kineto import distributed, training, write, write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = write_job(tmp_path / "job", 3)
    for rank in (1, 2):
        (folder / f"rank{rank}.json").unlink()
    return folder


def warnings_of(place: Path) -> list[tuple[str, tuple[str, ...]]]:
    return [(source.path, source.warnings) for source in overlapscope.load(place).sources if source.warnings]


def test_a_link_to_nothing_is_reported_and_its_rank_is_not_readable(job: Path) -> None:
    (job / "rank1.json").symlink_to("/nowhere/rank1.json")
    (job / "rank2.json").symlink_to("rank2.json")
    assert warnings_of(job) == [(str(job / f"rank{rank}.json"), ("is a link to a missing file",)) for rank in (1, 2)]
    assert overlapscope.load(job).run.unread_ranks == (1, 2)


def test_a_folder_of_such_links_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank1.json").symlink_to("/nowhere/rank1.json")
    with pytest.raises(InputError, match=r"the folder holds no file; .*rank1\.json is a link to a missing file"):
        overlapscope.load(tmp_path)


def test_a_link_to_nothing_beside_a_run_is_no_second_input(job: Path, tmp_path: Path) -> None:
    overlapscope.write_run(job, to=tmp_path / "runs" / "first")
    (tmp_path / "runs" / "latest").symlink_to("gone")
    assert overlapscope.load(tmp_path / "runs").ranks == [0]


@pytest.mark.parametrize(
    "words",
    [
        "report LOOP", "compare LOOP LOOP", "gate LOOP LOOP", "baseline save x LOOP --folder OUT",
        "ingest LOOP -o OUT", "export LOOP -o OUT", "whatif LOOP",
    ],
)  # fmt: skip
def test_links_in_a_circle_end_in_one_line(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "a").symlink_to("b")
    (tmp_path / "loop" / "b").symlink_to("a")
    places = {"LOOP": str(tmp_path / "loop"), "OUT": str(tmp_path / "out")}
    assert main([places.get(each, each) for each in words.split()]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_link_that_is_named_says_where_it_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latest").symlink_to("gone")
    assert main(["analyze", str(tmp_path / "latest")]) == 3
    assert "latest: is a link to gone, which is not there" in capsys.readouterr().err


def test_a_folder_that_cannot_be_listed_costs_itself(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "closed").mkdir()
    listing = Path.iterdir

    def refuse(self: Path) -> Iterator[Path]:
        if self.name == "closed":
            raise PermissionError(13, "Permission denied")
        return listing(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert warnings_of(job) == [(str(job / "closed"), ("cannot be read: Permission denied",))]
    with pytest.raises(InputError, match="closed: cannot be read: Permission denied"):
        discover([job / "closed"])


def test_a_file_that_goes_before_it_is_read_costs_itself(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "rank1.json").write_bytes(write(training(), metadata=distributed(1, 3)))
    read = reading.read_task

    def gone_before(*args: object) -> object:
        (job / "rank1.json").unlink(missing_ok=True)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_task", gone_before)
    assert warnings_of(job) == [(str(job / "rank1.json"), ("cannot be read: No such file or directory",))]


def test_a_pipe_among_traces_is_left_alone(job: Path) -> None:
    os.mkfifo(job / "rank1.json")
    assert overlapscope.load(job).ranks == [0]


def test_standard_input_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "-"]) == 3
    assert "-: standard input cannot be read" in capsys.readouterr().err


def test_a_rank_beyond_the_world_that_is_named_is_reported(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(write(training(), metadata=distributed(7, 2)))
    run = overlapscope.load(tmp_path / "trace.json")
    assert (run.ranks, run.world_size) == ([7], 8)
    assert any("rank 7 does not fit the world size 2" in each for each in run.sources[0].warnings)
