"""How commands end that cannot do their work, or cannot say so: one line, the right exit code, nothing lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from tests.conftest import ROOT
from tests.support.writers.kineto import training, write


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            MemoryError(),
            "overlapscope analyze: not enough memory: use a machine with more memory, or read fewer files at once\n",
        ),
        (
            RuntimeError("can't start new thread"),
            "overlapscope analyze: the system starts no more threads: raise the limit of threads (ulimit -u, the "
            "container's pids limit) or of memory (ulimit -v)\n",
        ),
    ],
)
def test_what_the_machine_is_short_of_is_said_in_a_line(
    raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("threading.Thread.start", short)
    assert main(["analyze", str(ROOT / "traces" / "baseline")]) == 3
    assert capsys.readouterr() == ("", said)


def test_a_fault_of_ours_is_not_said_to_be_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr("threading.Thread.start", broken)
    with pytest.raises(RuntimeError, match="something else"):
        main(["analyze", str(ROOT / "traces" / "baseline")])


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_are_written_to_by_nobody(closed: str, tmp_path: Path) -> None:
    words = f"{sys.executable} -m overlapscope analyze {ROOT / 'traces' / 'baseline'} --json -o out.json {closed}"
    done = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out.json").read_bytes())["run"]["world_size"] == 2
    wrong = f"{sys.executable} -m overlapscope analyze nothing {closed}"
    assert subprocess.run(wrong, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode == 3


@pytest.mark.parametrize("verb", ["analyze", "advise", "export", "whatif"])
@pytest.mark.parametrize(
    ("place", "force", "code", "said"),
    [
        ("there.json", [], 2, "exists already; choose another name, or replace it with -f"),
        ("folder", [], 2, "is a folder; name a file"),
        ("folder", ["-f"], 2, "is a folder; name a file"),
        ("none/there.json", [], 3, "cannot be written: No such file or directory"),
        ("there.json/x", [], 3, "cannot be written: Not a directory"),
        ("s3://bucket/x.json", [], 2, "output can only be written to a disk of this machine"),
        ("trace.json", ["-f"], 2, "is an input of this command; choose another name"),
        ("", ["-f"], 2, "the path is empty: is a variable not set?"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_read(
    verb: str,
    place: str,
    force: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"overlapscope.cli.verbs.{verb}.run", lambda _: pytest.fail("it reads"))
    (tmp_path / "trace.json").write_bytes(write(training(steps=1)))
    (tmp_path / "there.json").write_text("mine")
    (tmp_path / "folder").mkdir()
    try:
        ended = main([verb, "trace.json", "-o", place, *force])
    except SystemExit as refused:
        ended = int(str(refused.code))
    assert ended == code
    assert said in capsys.readouterr().err
    assert (tmp_path / "there.json").read_text() == "mine"
