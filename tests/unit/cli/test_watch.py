"""`analyze --watch` as people have it: a process that shows a run while it grows, and ends with Ctrl-C."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import overlapscope
from overlapscope.cli import watch
from overlapscope.cli.main import main
from tests.conftest import ROOT

RUN = ROOT / "traces" / "regressed"
COMMAND = [sys.executable, "-c", """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
from overlapscope.cli import watch
from overlapscope.cli.main import main
watch.LOOK_SECONDS = 0.05
sys.exit(main())
""", "analyze", "--watch"]  # fmt: skip
PATIENCE_S = 60


@contextmanager
def watching(*inputs: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command; end it however the block ends."""
    with subprocess.Popen([*COMMAND, *inputs], text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Any) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_each_change_is_a_line_until_ctrl_c(tmp_path: Path) -> None:
    place, lines = tmp_path / "new", list[str]()
    with watching(str(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
        reader.start()
        until(lambda: any(" waiting: " in line for line in lines))
        place.mkdir()
        for name in ("rank_00000", "run.json"):
            copy = shutil.copytree if (RUN / name).is_dir() else shutil.copyfile
            copy(RUN / name, place / name)
        until(lambda: any("  rank 0 of 2 (1 not recorded), 6 steps" in line for line in lines))
        shutil.copytree(RUN / "rank_00001", place / "rank_00001")
        until(lambda: any("  2 ranks of 2, 6 steps" in line for line in lines))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        reader.join(PATIENCE_S)
        assert process.stderr.read() == "overlapscope analyze: interrupted\n"
    assert "28.093 ms of a 140.533 ms step is exposed communication (20.1 %)" in lines[-1]
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in lines)
    assert len(lines) < 12, "a line a change, none without"


@pytest.mark.slow
def test_a_terminal_shows_one_screen_and_is_left_as_it_was() -> None:
    ours, theirs = pty.openpty()
    shown = bytearray()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    with watching(str(RUN), stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)

        def read() -> None:
            try:
                while piece := os.read(ours, 4096):
                    shown.extend(piece)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        until(lambda: "exposed, last 6 steps" in shown.decode("utf-8", "replace"))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        reader.join(PATIENCE_S)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.decode())
    assert "28.093 ms of a 140.533 ms step is exposed communication (20.1 %)" in text
    assert "Largest loss outside compute: 28.1 ms" in text
    assert "Traceback" not in text
    assert text.rstrip().endswith("overlapscope analyze: interrupted")
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is back"


def test_the_screen_has_the_figures_of_analyze_and_a_bar_to_scale() -> None:
    analysis = overlapscope.load(RUN).analysis()
    console = Console(file=(page := StringIO()), width=120, color_system=None)
    console.print(watch._drawn([RUN], analysis))
    head, text = analysis.headline, page.getvalue()
    assert re.search(r"compute only +108\.174 +77\.0 %", text)
    assert re.search(r"step +140\.533", text)
    (bar,) = re.findall(r"^█+$", text, re.MULTILINE)
    assert len(bar) == watch.BAR_CELLS
    longest = max(each.exposed_comm_ns for each in head.job_steps)
    (trend,) = re.findall(r"last 6 steps  (\S+)  0 to 37\.404 ms", text)
    assert round(longest / 1e6, 3) == 37.404
    assert [trend[at] == "█" for at in range(6)] == [each.exposed_comm_ns == longest for each in head.job_steps]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [48, 60, 71])
def test_a_narrow_terminal_has_bars_and_rows_of_one_line(columns: int) -> None:
    analysis = overlapscope.load(RUN).analysis()
    console = Console(file=(page := StringIO()), width=columns, color_system=None)
    console.print(watch._drawn([RUN], analysis))
    lines = [each.rstrip() for each in page.getvalue().splitlines()]
    assert max(map(len, lines)) <= columns
    (bar,) = (each for each in lines if re.fullmatch("█+", each))
    assert len(bar) == columns
    start = lines.index(bar) + 2
    rows = lines[start : 1 + next(at for at in range(start, len(lines)) if lines[at].startswith("step "))]
    assert len(rows) > 10
    assert all(re.search(r"\d\.\d{3}( +\d+\.\d %)?$", each) for each in rows), rows
    assert sum("exposed, last" in each for each in lines) == 1
    assert lines[-1].endswith(" 0 to 37.404 ms")
    many = [msgspec.structs.replace(each, step=at) for at, each in enumerate(analysis.headline.job_steps * 9)]
    long = msgspec.structs.replace(analysis, headline=msgspec.structs.replace(analysis.headline, job_steps=many))
    console = Console(file=(page := StringIO()), width=columns, color_system=None)
    console.print(watch._drawn([RUN], long))
    assert re.fullmatch(r"exposed, last \d+ steps  [▁-█]+  0 to 3\d\.\d{3} ms", page.getvalue().splitlines()[-1])


def test_what_prints_once_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(RUN), "--watch", "--json"]) == 2
    assert capsys.readouterr().err.startswith("overlapscope analyze: --watch shows the overview until Ctrl-C;")


def test_a_terminal_without_rich_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "find_spec", lambda _: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["analyze", str(RUN), "--watch"]) == 2
    expected = "overlapscope analyze: --watch draws with rich, which is not installed: pip install rich\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--comm", "(", str(RUN)], "--comm '(' is not a regular expression"),
        (["--rank", "7", str(RUN)], f"{RUN} is a run that was read before"),
        (["https://example.invalid/a.json"], "--watch looks for changes on a disk of this machine; https://example"),
    ],
)
def test_what_no_change_of_the_files_mends_ends_it(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rest(_: float) -> None:
        raise AssertionError("it waits for files to change")

    monkeypatch.setattr(watch.time, "sleep", rest)
    assert main(["analyze", "--watch", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"overlapscope analyze: {message}")


def test_that_something_could_not_be_read_is_shown(tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(RUN, place)
    assert "while reading" not in watch._sentence(overlapscope.load(place).analysis())
    (place / "rank_00001" / "spans.parquet").write_bytes(b"damaged")
    analysis = overlapscope.load(place).analysis()
    assert watch._sentence(analysis).endswith("(1 warning while reading: see overlapscope analyze)")
    Console(file=(page := StringIO()), width=120, color_system=None).print(watch._drawn([place], analysis))
    assert "(1 warning while reading: see overlapscope analyze)" in page.getvalue()


def test_a_folder_that_goes_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").touch()
    (tmp_path / "gone").mkdir()
    look = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(tmp_path / "gone"):
            os.rmdir(path)
        return look(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        assert [name for name, _, _ in watch._files([tmp_path])] == [str(tmp_path / "kept")]
