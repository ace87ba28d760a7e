"""Errors of the Python interface name its own arguments; the command line's name its options."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.ingest.write_run import write_run as write_inside

RUN = Path(__file__).parents[3] / "traces" / "baseline"
TRACES = [next((RUN / f"rank_0000{rank}").glob("*.json.gz")) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"load\(\): a list is no path; give what it holds: load\(\*paths\)"),
        (TRACES, r"load\(\): a list is no path"),
        ((each for each in TRACES), r"load\(\): a generator is no path"),
        (None, r"load\(\): None is no path"),
        (b"trace.json", r"load\(\): b'trace.json' is no path"),
        ("", r"load\(\): a path is empty"),
    ],
)
def test_what_is_no_path_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        overlapscope.load(given)


def test_writing_wants_paths_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"write_run\(\): name a trace file"):
        overlapscope.write_run(to=tmp_path / "run")
    with pytest.raises(UsageError, match=r"write_run\(\): a list is no path"):
        overlapscope.write_run(TRACES, to=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"write_run\(\): None is no path"):
        overlapscope.write_run(TRACES[0], to=None)  # type: ignore[arg-type]


def test_what_stands_in_the_way_is_replaced_by_an_argument_here_and_by_an_option_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for write in (lambda: overlapscope.write_run(*TRACES, to=RUN), lambda: overlapscope.load(RUN).save(RUN)):
        with pytest.raises(UsageError, match=r"choose another place, or replace it with force=True$"):
            write()
    assert main(["ingest", str(TRACES[0]), "-o", str(RUN)]) == 2
    assert capsys.readouterr().err.endswith("choose another place, or replace it with -f\n")


@pytest.mark.parametrize(
    ("arguments", "here", "options", "there"),
    [
        ({"comm": "("}, "comm '(' is not a regular expression", ["--comm", "("], "--comm '(' is not a regular"),
        ({"ranks": 3}, "ranks=3: there are 2 inputs", ["--rank", "3"], "--rank 3: there are 2 inputs"),
        ({"ranks": {"x": 3}}, "ranks={'x': 3}: no input has", ["--rank", "x=3"], "--rank x=3: no input has"),
    ],
)
def test_a_bad_argument_is_called_what_the_caller_calls_it(
    arguments: dict[str, Any], here: str, options: list[str], there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        overlapscope.load(*TRACES, **arguments)
    assert here in str(raised.value)
    assert "--" not in str(raised.value)
    assert main(["analyze", *map(str, TRACES), *options]) == 2
    assert there in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [{"comm": 3}, {"compute": [b"x"]}, {"ranks": "3"}, {"ranks": {"a": -1}}])
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(arguments))}="):
        overlapscope.load(*TRACES, **arguments)


def test_an_error_keeps_both_wordings_from_process_to_process() -> None:
    with pytest.raises(UsageError) as raised:
        write_inside(TRACES, RUN)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (str(copied), copied.in_shell) == (str(raised.value), raised.value.in_shell)
    assert str(copied) != copied.in_shell


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_a_number_of_processes_that_is_none_is_refused(workers: Any, tmp_path: Path) -> None:
    for call in (
        lambda: overlapscope.load(*TRACES, workers=workers),
        lambda: overlapscope.write_run(*TRACES, to=tmp_path / "run", workers=workers),
    ):
        with pytest.raises(UsageError, match=rf"workers={workers!r}: give a number of processes, 1 at least, or None"):
            call()


def test_an_executor_is_one_and_goes_without_a_number_of_processes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"executor=3: give a concurrent\.futures\.Executor"):
        overlapscope.write_run(*TRACES, to=tmp_path / "run", executor=3)  # type: ignore[arg-type]
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(UsageError, match=r"workers are processes .*choose one"),
    ):
        overlapscope.write_run(*TRACES, to=tmp_path / "run", executor=executor, workers=2)


def test_a_run_is_not_written_to_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"s3://bucket/run: a run is written to a disk of this machine"):
        overlapscope.write_run(*TRACES, to="s3://bucket/run")
    with pytest.raises(UsageError, match=r"s3://bucket/run: a run is written to a disk of this machine"):
        overlapscope.load(RUN).save("s3://bucket/run")
    assert main(["ingest", str(TRACES[0]), "-o", "s3://bucket/run"]) == 2
    assert list(tmp_path.iterdir()) == []
