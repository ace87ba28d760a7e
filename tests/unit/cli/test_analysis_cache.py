"""The analysis that is kept in a run: printed again byte by byte, and never once a file of the run has changed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from overlapscope.cli import analysis_cache as load_analysis
from overlapscope.cli.analysis_cache import CACHE_NAME, MIN_SPANS
from overlapscope.cli.main import main
from overlapscope.timeline.store.load_save import save_run
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.unit.cli.test_light_start import loaded_by


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(load_analysis, "MIN_SPANS", 1)
    save_run(run_of(simulate(Job(layout=Layout(tp=2), seed=4, steps=4))), tmp_path / "run", version="1")
    return tmp_path / "run"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    assert main(["analyze", *map(str, arguments)]) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def change_what_is_kept(file: Path) -> None:
    _, content = file.read_bytes().split(b"\n", 1)
    content = content.replace(b'"step": 10', b'"step": 77')
    file.write_bytes(load_analysis.checksum_line(content) + content)


@pytest.mark.slow
@pytest.mark.parametrize("form", [["--json"], [], ["--all"]])
def test_what_was_kept_is_printed_again_without_reading_the_run(
    form: list[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "rank_00001" / "steps.parquet").unlink()  # whose warning stands on stderr, both times
    first = printed(capsys, place, *form)
    assert "rank 1 left out" in first[1]
    assert (place / CACHE_NAME).exists()
    monkeypatch.setattr("overlapscope.timeline.store.load_save.load_run", None)
    assert printed(capsys, place, *form) == first


def test_small_runs_are_left_as_they_are(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_analysis, "MIN_SPANS", MIN_SPANS)
    printed(capsys, place)
    assert not (place / CACHE_NAME).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["a table", "a copy", "run.json", "a rank more", "a rank gone", "our code", "another name"]
)
def test_what_was_kept_does_not_count_once_something_changed(
    change: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(capsys, place)
    change_what_is_kept(place / CACHE_NAME)
    assert '"step": 77' in printed(capsys, place, "--json")[0]
    if change == "a table":
        os.utime(place / "rank_00001" / "spans.parquet", ns=(1, 1))
    elif change == "a copy":  # of the same size and time
        table = place / "rank_00001" / "spans.parquet"
        shutil.copy2(table, place.with_name("copy"))
        os.replace(place.with_name("copy"), table)
    elif change == "run.json":
        (place / "run.json").write_text((place / "run.json").read_text() + " ")
    elif change == "a rank more":
        shutil.copytree(place / "rank_00001", place / "rank_00009")
    elif change == "a rank gone":
        shutil.rmtree(place / "rank_00001")
    elif change == "our code":
        monkeypatch.setattr(load_analysis, "__version__", "99")
    else:
        place = place.rename(place.with_name("other"))
    analysis = json.loads(printed(capsys, place, "--json")[0])
    assert all(each["step"] != 77 for rank in analysis["ranks"] for each in rank["steps"])


@pytest.mark.slow
def test_a_link_in_its_place_is_neither_read_nor_followed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = printed(capsys, place, "--json")[0]
    other = tmp_path / "other.json"
    (place / CACHE_NAME).rename(other)
    change_what_is_kept(other)
    (place / CACHE_NAME).symlink_to(other)
    before = other.read_bytes()
    assert printed(capsys, place, "--json")[0] == whole
    assert other.read_bytes() == before
    assert not (place / CACHE_NAME).is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("form", [["--json"], []])
@pytest.mark.parametrize(
    "damage",
    [
        *(lambda whole, left=left: whole[: int(len(whole) * left)] for left in (0.1, 0.5, 0.999)),
        *(lambda whole, rest=rest: whole[: whole.index(b"\n") + 1] + rest
          for rest in (b"", b'{"sources": [', b'{"sources": 3}', bytes(100))),
    ],
)  # fmt: skip
def test_what_was_kept_and_is_damaged_is_made_anew(
    damage: Callable[[bytes], bytes], form: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = printed(capsys, place, *form)
    whole = (place / CACHE_NAME).read_bytes()
    (place / CACHE_NAME).write_bytes(damage(whole))
    assert printed(capsys, place, *form) == first
    assert (place / CACHE_NAME).read_bytes() == whole


def test_what_another_user_wrote_is_not_read(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = printed(capsys, place, "--json")[0]
    change_what_is_kept(place / CACHE_NAME)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert printed(capsys, place, "--json")[0] == whole


def test_a_run_that_cannot_be_written_is_analyzed_all_the_same(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(load_analysis.os, "replace", refused)
    assert json.loads(printed(capsys, place, "--json")[0])["ranks"]
    assert sorted(each.name for each in place.iterdir()) == ["rank_00000", "rank_00001", "run.json"]


def test_nothing_is_kept_of_ranks_behind_links_whose_changes_would_not_be_seen(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "rank_00001").rename(tmp_path / "elsewhere")
    (place / "rank_00001").symlink_to(tmp_path / "elsewhere")
    printed(capsys, place)
    assert not (place / CACHE_NAME).exists()


def test_a_table_that_was_kept_with_all_rows_shown_is_the_usual_one(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    printed(capsys, place, "--all")
    again = printed(capsys, place)
    (place / CACHE_NAME).unlink()
    assert printed(capsys, place) == again


def test_showing_what_was_kept_loads_nothing_large(place: Path) -> None:
    assert main(["analyze", str(place)]) == 0
    calls = f"main(['analyze', {str(place)!r}]); main(['analyze', {str(place)!r}, '--json'])"
    loaded = loaded_by(f"from overlapscope.cli.main import main; {calls}")
    by_argparse = loaded_by("import argparse; argparse.ArgumentParser()")  # dataclasses, since Python 3.14
    assert not {"numpy", "msgspec", "pyarrow", "dataclasses"} & (loaded - by_argparse)


def test_what_killed_processes_left_half_written_is_removed_and_nothing_else(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, young = place / f"{CACHE_NAME}.{'0' * 16}", place / f"{CACHE_NAME}.{'1' * 16}"
    others = [place / f"{CACHE_NAME}.mine", place / ".analysis", place / "notes"]
    for each in (old, young, *others):
        each.write_text("half")
    for each in (old, *others):
        os.utime(each, ns=(1, 1))
    printed(capsys, place)
    assert (place / CACHE_NAME).exists()
    assert not old.exists()
    assert all(each.exists() for each in (young, *others))
