"""Figures in TensorBoard, wandb and MLflow, read back through each one's own interface. Nothing leaves the machine.

`make test-extras` installs them; where one is missing, its test skips.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overlapscope
from overlapscope.analysis.result import Analysis
from overlapscope.cli.main import main
from overlapscope.errors import InputError, UsageError
from overlapscope.loaded_run import LoadedRun
from overlapscope.report.trackers import TRACKERS, log, steps, totals
from overlapscope.timeline.run import Run
from tests.conftest import ROOT
from tests.support import call_logs

RUN = ROOT / "traces" / "regressed"
USE_ONE = "--to logs figures; --json, --format and -o write a report: use one of them"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return overlapscope.load(RUN).analysis()


def needs(package: str) -> None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a folder that the tracker left here
        pytest.skip(f"{package} is not installed: run `make test-extras`")


def logged(to: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command; return where it says that the figures are."""
    assert main(["report", str(RUN), "--to", to]) == 0
    words, _, where = capsys.readouterr().out.strip().splitlines()[-1].partition(": ")
    assert words == "logged"
    return where


def test_what_is_logged_are_the_figures_of_analyze(analysis: Analysis) -> None:
    head, by_step, medians = analysis.headline, steps(analysis), totals(analysis)
    assert list(by_step) == [3, 4, 5, 6, 7, 8]
    for values in by_step.values():
        parts = [value for name, value in values.items() if name != "overlapscope/step_ms"]
        assert sum(parts) == pytest.approx(values["overlapscope/step_ms"])
    assert medians["overlapscope/median_exposed_comm_ms"] == (head.exposed_comm_ns or 0) / 1e6
    assert medians["overlapscope/exposed_fraction"] == head.exposed_fraction
    by_cause = [value for name, value in medians.items() if name.startswith("overlapscope/exposed_by_cause/")]
    assert sum(by_cause) == pytest.approx(medians["overlapscope/median_exposed_comm_ms"])


@pytest.mark.extras
def test_tensorboard_shows_each_step(analysis: Analysis, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    where = logged(f"tensorboard={tmp_path}", capsys)
    assert where == str(tmp_path / "regressed")
    read = EventAccumulator(where)
    read.Reload()
    by_step = steps(analysis)
    for tag in by_step[3]:
        found = {each.step: each.tensor_proto.float_val[0] for each in read.Tensors(tag)}
        assert found == {step: pytest.approx(values[tag]) for step, values in by_step.items()}
    (median,) = read.Tensors("overlapscope/median_step_ms")
    assert median.tensor_proto.float_val[0] == pytest.approx(140.532898)


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of an offline file: a header of 7 bytes, then blocks of 32 KiB as in LevelDB's log."""
    block, at, parts = 1 << 15, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield parts
            parts = b""


@pytest.mark.extras
def test_wandb_keeps_them_offline(
    analysis: Analysis, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("wandb")
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    monkeypatch.delenv("WANDB_MODE", raising=False)
    where = Path(logged(f"wandb={tmp_path / 'new'}", capsys))
    assert where.name.startswith("offline-run-")
    (file,) = where.glob("*.wandb")
    history: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    for data in wandb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            history.append(
                {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item}
            )
        if record.HasField("summary"):
            summary |= {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.summary.update}
    found = {round(each["overlapscope/step"]): each for each in history}
    for step, values in steps(analysis).items():
        assert {name: found[step][name] for name in values} == pytest.approx(values)
    expected = totals(analysis)
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


@pytest.mark.extras
def test_mlflow_keeps_them_in_a_folder(
    analysis: Analysis, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mlflow")
    import mlflow  # noqa: PLC0415

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without a database, which mlflow-skinny does not bring
    place = (tmp_path / "new").as_uri()
    uri, _, run = logged(f"mlflow={place}", capsys).rpartition(", run ")
    assert uri == place
    client = mlflow.MlflowClient(tracking_uri=place)
    kept = client.get_run(run)
    assert (kept.info.run_name, kept.info.status) == ("regressed", "FINISHED")
    assert {name: kept.data.metrics[name] for name in totals(analysis)} == pytest.approx(totals(analysis))
    for step, values in steps(analysis).items():
        for name, value in values.items():
            assert [each.value for each in client.get_metric_history(run, name) if each.step == step] == [value]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(RUN), "--to", "aim"], "there is no tracker 'aim'; it is one of tensorboard, wandb, mlflow"),
        (
            [str(RUN), "--to", "wandb", "--json"],
            "--to logs figures; --json, --format and -o write a report: use one of them",
        ),
        (
            [str(RUN), "--to", "wandb", "--format", "html"],
            "--to logs figures; --json, --format and -o write a report: use one of them",
        ),
        ([str(RUN), str(RUN), "--to", "wandb"], "--to logs one run; name one"),
    ],
)
def test_what_cannot_be_logged_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert capsys.readouterr().err == f"overlapscope report: {message}\n"


def test_a_tracker_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["report", str(RUN), "--to", "tensorboard"]) == 2
    assert capsys.readouterr().err == "overlapscope report: tensorboard is not installed: pip install tensorboard\n"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace a tracker by one that only remembers the names of runs."""
    names: list[str] = []

    def remember(_: Analysis, name: str, __: str | None) -> str:
        names.append(name)
        return "here"

    monkeypatch.setitem(TRACKERS, "wandb", remember)
    return names


@pytest.mark.slow
def test_runs_keep_names_of_their_own(named: list[str], tmp_path: Path) -> None:
    for name in ("llama-1.5b", "llama-1.7b.v2"):
        shutil.copytree(RUN, tmp_path / name)
        assert main(["report", str(tmp_path / name), "--to", "wandb"]) == 0
    saved = tmp_path / "llama-1.5b.nightly.json"
    assert main(["analyze", str(RUN), "--json", "-o", str(saved)]) == 0
    assert main(["report", str(saved), "--to", "wandb"]) == 0
    assert named == ["llama-1.5b", "llama-1.7b.v2", "llama-1.5b"]


def test_a_run_without_times_is_not_logged(named: list[str]) -> None:
    run = LoadedRun(Run(ranks={0: call_logs.log([call_logs.Call("all_reduce", 8)])}, sources=(), world_size=None))
    with pytest.raises(InputError, match="the run has no times, so there is nothing to log"):
        run.log("wandb")
    assert not named


def test_a_place_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    def write(_: Analysis, __: str, place: str | None) -> str:
        Path(place or "", "run").mkdir()
        return ""

    monkeypatch.setitem(TRACKERS, "tensorboard", write)
    assert main(["report", str(RUN), "--to", f"tensorboard={tmp_path / 'file'}"]) == 3
    assert (
        capsys.readouterr().err == f"overlapscope report: tensorboard: {tmp_path / 'file' / 'run'}: Not a directory\n"
    )


class RefusalError(Exception):
    pass


def test_an_mlflow_run_that_is_refused_halfway_is_ended(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    asked: list[str | None] = []

    def start_run(run_name: str) -> SimpleNamespace:
        asked.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def refuse(*_: object, **__: object) -> None:
        raise RefusalError("no")

    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(
        __file__="mlflow.py", active_run=lambda: None, start_run=start_run, log_metrics=refuse, end_run=ended.append,
        exceptions=SimpleNamespace(MlflowException=RefusalError),
    ))  # fmt: skip
    with pytest.raises(InputError, match="mlflow: no"):
        log(analysis, "run", "mlflow")
    assert ended == ["FAILED"]
    assert asked == ["2"], "a server that is not there is not asked for minutes"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


@pytest.mark.extras
@pytest.mark.parametrize(
    ("mode", "code", "said"), [("disabled", 0, "nowhere, wandb is disabled"), ("bogus", 3, "wandb: ")]
)
def test_what_wandb_is_set_to_is_said(
    mode: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("wandb")
    monkeypatch.setenv("WANDB_MODE", mode)
    assert main(["report", str(RUN), "--to", f"wandb={tmp_path}"]) == code
    printed = capsys.readouterr()
    assert said in (printed.out if code == 0 else printed.err)


def test_a_folder_of_the_name_of_a_tracker_is_not_the_tracker(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        (tmp_path / name).mkdir()
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, each)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("wandb", "mlflow", "tensorboard"):
        with pytest.raises(UsageError, match=f"{name} is not installed: pip install {name}"):
            log(analysis, "run", name)
