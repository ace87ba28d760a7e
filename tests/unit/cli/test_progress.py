"""Names in the progress line cannot act upon the terminal."""

import sys
from io import StringIO
from pathlib import Path

import pytest

from overlapscope.cli.progress import Progress, RunProgress

NAME = "run\x1b]0;owned\x07\nnext"


class Terminal(StringIO):
    """A terminal that remembers what is written."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("known", [False, True])
def test_names_of_folders_and_files_reach_the_terminal_inert(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    RunProgress("reading")(1, 2, f"job/{NAME}")
    progress = Progress("reading")
    if known:
        progress.begin(2, 0)
    progress(Path(NAME), 10)
    written = terminal.getvalue()
    assert written.count("owned") == 2
    assert written.count("\x1b") == written.count("\r\x1b[K") == 2
    assert "\n" not in written
    assert "\x07" not in written
