"""Runs below a folder are found once, and their jobs are named by what is no number."""

from pathlib import Path

import pytest

from overlapscope.errors import InputError
from overlapscope.fleet.find import job_name, runs_below, unique_names


def empty_run(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "run.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("llama-20260901-1234", "llama"),
        ("llama_2026-09-01T12:30:00Z", "llama"),
        ("llama-7b-run12", "llama-7b"),
        ("gpt3", "gpt3"),
        ("gpt3-17", "gpt3"),
        ("t5-v2", "t5-v2"),
        ("slurm.4711", "slurm"),
        ("llama/2026-09-01", "llama"),
        ("2026-09-01/llama", "llama"),
        ("team-a/llama-3", "team-a/llama"),
        ("llama/run-12", "llama"),
        ("run12", "nightly"),
        ("20260901", "nightly"),
        ("llama_lr0.1", "llama_lr0.1"),
        ("llama_lr0.1-run3", "llama_lr0.1"),
        ("exp-1e-4", "exp-1e-4"),
        ("exp_lr1E+4_20260901.2", "exp_lr1E+4"),
        ("v1.2", "v1.2"),
        ("v1.2-17", "v1.2"),
        ("llama-2026.09.01", "llama"),
        ("moe/run_3/20260901_120000", "moe"),
    ],
)
def test_a_job_is_named_by_its_path_without_numbers_and_dates(path: str, job: str) -> None:
    assert job_name(Path(path).parts, "nightly") == job


def test_runs_are_found_below_folders_and_links_and_hidden_folders_are_not_followed(tmp_path: Path) -> None:
    for name in ("b/run-1", "a", ".hidden/run"):
        empty_run(tmp_path / name)
    empty_run(tmp_path / "a" / "inside")
    (tmp_path / "latest").symlink_to(tmp_path / "a", target_is_directory=True)
    assert [(each.name, each.job) for each in runs_below(tmp_path)] == [("a", "a"), ("b/run-1", "b")]


def test_a_folder_without_runs_a_run_and_nothing_are_refused(tmp_path: Path) -> None:
    empty_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for place, why in (("run", "is a run itself"), ("empty", "no run directory"), ("missing", "is no folder")):
        with pytest.raises(InputError, match=why):
            runs_below(tmp_path / place)


def test_names_that_are_shown_alike_are_numbered() -> None:
    assert unique_names(["a", "b", "a", "a (2)", "a"]) == ["a", "b", "a (3)", "a (2)", "a (4)"]
