"""Commands that an output names can be pasted: alone on their line, with the inputs and the reading options given."""

import argparse
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from overlapscope.cli.arguments import add_inputs
from overlapscope.cli.next_commands import of_given, reading_words
from tests.conftest import ROOT, shared_file
from tests.support.commands import stdout_of
from tests.support.writers.kineto import training, write

OPTIONS = ["--rank", "by-name", "--comm", "my .*", "--compute=-x", "--stacks", "--max-gib", "12.5"]
REGRESSED = str(ROOT / "traces" / "regressed")


def read(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_inputs(parser)
    return parser.parse_args(words)


def test_every_reading_option_is_kept() -> None:
    args = read(["trace.json", *OPTIONS])
    assert reading_words(args) == OPTIONS
    assert read(["trace.json", *reading_words(args)]) == args
    assert reading_words(read(["trace.json"])) == []


def test_the_options_stand_behind_all_inputs() -> None:
    args = read(["a b.json", "--rank", "by-name"])
    text = "overlapscope compare RUN NEW_RUN --record; overlapscope explain RUN --at 0:1"
    assert of_given(text, args) == (
        "overlapscope compare 'a b.json' NEW_RUN --rank by-name --record; "
        "overlapscope explain 'a b.json' --rank by-name --at 0:1"
    )
    assert of_given(text, read(["a", "b", "--rank", "by-name"])) == text, "RUN stands for one run"


def test_ranks_of_named_files_are_left_out_beside_other_inputs() -> None:
    args = read(["old.json", "--rank", "old.json=0", "--stacks"])
    assert of_given("overlapscope compare RUN NEW_RUN --all; overlapscope analyze RUN", args) == (
        "overlapscope compare old.json NEW_RUN --stacks --all; overlapscope analyze old.json --rank old.json=0 --stacks"
    )
    assert reading_words(read(["old", "--rank", "3", "--rank", "by-name"]), other_inputs=True) == [
        "--rank", "3", "--rank", "by-name",
    ]  # fmt: skip


def silent(folder: Path, device: str = "A100") -> Path:
    """Write two traces that state no rank."""
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.json").write_bytes(
            write(training(3), metadata={"deviceProperties": [{"id": 0, "name": device}]})
        )
    return folder


@pytest.mark.slow
def test_compare_and_gate_name_how_the_sides_were_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, candidate = silent(tmp_path / "base"), silent(tmp_path / "candidate")
    options = ["--rank", "by-name", "--comm", "my_.*"]
    given = shlex.join([str(base), str(candidate), *options])
    assert stdout_of(capsys, "compare", base, candidate, *options).endswith(
        f"\nnext: overlapscope compare {given} --all\n"
    )
    assert stdout_of(capsys, "gate", base, candidate, *options).endswith(
        f"\nnext: overlapscope gate --calibrate RUNS -o floor.json {shlex.join(options)}\n"
    )
    assert "my_" not in stdout_of(capsys, "gate", base, candidate, *options, "--redact")
    other = silent(tmp_path / "other", device="B200")
    assert stdout_of(capsys, "gate", base, other, *options, code=3).endswith(
        f"\nnext: overlapscope compare {shlex.join([str(base), str(other), *options])}\n"
    )


@pytest.mark.slow
def test_a_noise_floor_is_used_as_it_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcd":
        shutil.copytree(ROOT / "traces" / "baseline", tmp_path / name)
    shown = stdout_of(capsys, "gate", "--calibrate", tmp_path, "--max-gib", "12.5")
    assert shown.endswith("next: overlapscope gate BASE CAND --floor FLOOR --max-gib 12.5\n")


def test_a_calibration_of_other_runs_names_no_files_of_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = silent(tmp_path / "base"), silent(tmp_path / "candidate")
    ranks = ["--rank", "a.json=0", "--rank", "b.json=1"]
    shown = stdout_of(capsys, "gate", base, candidate, *ranks, "--comm", "my_.*")
    assert shown.endswith("\nnext: overlapscope gate --calibrate RUNS -o floor.json --comm 'my_.*'\n")


@pytest.mark.slow
def test_what_ranks_wait_for_is_a_command_alone_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = str(shared_file("kineto/megatron_tp8"))
    shown = stdout_of(capsys, "whatif", given)
    assert shown.endswith(f"\nTo see what ranks wait for:\nnext: overlapscope analyze {given}\n")
    assert "\nThe rows below are what-ifs that no setting makes.\n" in shown
    assert "\nwhat-ifs " in shown
    assert "\nsettings " in stdout_of(capsys, "whatif", REGRESSED)


def test_where_no_setting_is_surely_faster_no_run_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = stdout_of(capsys, "whatif", ROOT / "traces" / "baseline", "--bucket-cap-mb", "1000", "--no-search")
    assert shown.startswith("No setting that was replayed is surely faster")
    assert "next:" not in shown


def test_the_command_of_the_longest_loss_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    given = str(ROOT / "traces" / "baseline")
    shown = stdout_of(capsys, "analyze", given)
    (command,) = re.findall(r"^  \.\.\. .* ms: overlapscope (explain .*)$", shown, re.MULTILINE)
    assert given in command
    assert stdout_of(capsys, *shlex.split(command))
