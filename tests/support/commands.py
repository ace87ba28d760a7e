"""Commands run in this process, and what they print."""

from pathlib import Path

import pytest

from overlapscope.cli.main import main


def stdout_of(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    """Return what a command that ends in `code` prints on stdout."""
    assert main([*map(str, words)]) == code
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], code: int, *words: str | Path) -> str:
    """Return the one line on stderr with which a command ends in `code`."""
    assert main([*map(str, words)]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith(f"overlapscope {words[0]}: ")
    return shown.err
