"""Sizes are shown in the unit in which they are neither 0 nor long; a shell reads names as they are."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.cli.main import main
from overlapscope.display import shell_words, size_text
from overlapscope.report.formatting import signed_size, size
from tests.conftest import ROOT

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1,023 B"), (1024, "1 KiB"), (40_000, "39.06 KiB"), (1024**2 - 1, "1 MiB"),
        (25 << 20, "25 MiB"), (1024**3 - 1, "1 GiB"), (950_000_000_000, "884.8 GiB"), (1 << 45, "32,768 GiB"),
        (-(24 << 20), "-24 MiB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_the_unit_that_fits(size_bytes: int, said: str) -> None:
    assert size_text(size_bytes) == said


@given(st.integers(0, 1 << 60))
def test_what_is_said_is_the_size_to_four_digits_and_never_0_for_something(size_bytes: int) -> None:
    number, unit = size_text(size_bytes).split()
    value = float(number.replace(",", ""))
    assert value * UNITS[unit] == pytest.approx(size_bytes, rel=5.1e-4)
    assert (value == 0) == (size_bytes == 0)
    assert value < 1024 or unit == "GiB"


def test_differences_have_a_sign_and_what_is_not_known_a_question_mark() -> None:
    assert (signed_size(4 << 20), signed_size(-512), signed_size(0)) == ("+4 MiB", "-512 B", "0 B")
    assert (size(None), size(4096)) == ("?", "4 KiB")


def test_a_small_run_is_not_of_0_mib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = next((ROOT / "traces/baseline/rank_00000").glob("*.json.gz"))
    assert main(["ingest", str(trace), "-o", str(tmp_path / "run")]) == 0
    stored = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    said = re.search(r"spans, (.+)\n", capsys.readouterr().out)
    assert said is not None
    assert said[1] == size_text(stored)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "two words",
        "it's",
        "a\nb",
        "tab\there",
        "it's\n\\over",
        "\x1b[31m",
        "\u00e9 \u2028",
        "$HOME\n`x`",
        "\x07f",
    ],
)
def test_a_shell_reads_any_name_from_one_line(name: str) -> None:
    line = shell_words(["printf", "%s", name])
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    read = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert read.stdout.decode() == name


def test_bytes_that_are_not_utf_8_stay_themselves() -> None:
    name = os.fsdecode(b"run\xff\n")
    read = subprocess.run(["bash", "-c", shell_words(["printf", "%s", name])], capture_output=True, check=True)
    assert read.stdout == b"run\xff\n"
