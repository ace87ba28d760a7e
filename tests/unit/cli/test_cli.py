"""The command line: exit codes, what goes to which stream, the documented JSON, rank rules, patterns."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import pytest

from overlapscope.cli.main import VERBS, main
from overlapscope.report.formats.json import schema as schema_of
from tests.conftest import ROOT
from tests.support.commands import failed, stdout_of
from tests.support.writers.kineto import (
    COMM_STREAM,
    GEMM,
    MS,
    TRAINING_STEP_NS,
    US,
    distributed,
    kernel,
    training,
    write,
)
from tests.unit.cli.test_light_start import loaded_by

HEAVY = {"torch", "dash", "pandas", "plotly", "numpy", "pyarrow"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "traces"
    inside.mkdir()
    return inside


@pytest.fixture
def trace(folder: Path) -> Path:
    path = folder / "worker.json"
    path.write_bytes(write(training(3), metadata=distributed(0)))
    return path


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["analyze", *map(str, arguments), "--json"]) == 0
    shown = capsys.readouterr()
    document: dict[str, Any] = json.loads(shown.out)
    return document


def command(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "overlapscope.cli.main", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_json_is_valid_under_its_published_schema(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("analysis")
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    (trace.parent / "none.json").write_bytes(b"")
    (trace.parent / "copies.json").write_bytes(
        write([kernel("Memset (Device)", 0, MS, sort="gpu_memset")], metadata=distributed(1, 2))
    )
    for arguments in ([trace], [trace.parent]):
        document = analyzed(capsys, *arguments)
        check.validate(document)
        document["ranks"][0]["whole"]["comm_ns"] = "a lot"
        with pytest.raises(jsonschema.ValidationError):
            check.validate(document)


def test_the_json_says_what_the_trace_holds(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = analyzed(capsys, trace)
    steps = document["ranks"][0]["steps"]
    assert [step["step"] for step in steps] == [3, 4, 5]
    for step in steps[:2]:
        assert {name: step[name] for name in TRAINING_STEP_NS} == TRAINING_STEP_NS
    assert document["run"] == {
        "world_size": 2,
        "ranks": [0],
        "missing_ranks": [1],
        "unread_ranks": [],
        "fingerprint": {"backend": "nccl", "nccl_version": "2.21.5"},
        "has_device": True,
        "recorded_steps": None,
        "capture_cost": None,
        "triggers": [],
    }
    assert document["sources"][0]["path"] == str(trace)


def test_the_table_leads_with_exposed_communication(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    steps = analyzed(capsys, trace)["ranks"][0]["steps"]
    exposed, window, share = (
        median(step[name] for step in steps) for name in ("exposed_comm_ns", "window_ns", "exposed_fraction")
    )
    sentence = f"{exposed / 1e6:.3f} ms of a {window / 1e6:.3f} ms step is exposed communication"
    assert f"{sentence} ({share * 100:.1f} %)" in shown.out
    assert shown.out.rstrip().splitlines()[-1].startswith("next: overlapscope ingest ")
    assert all(len(line) <= 120 or str(trace) in line for line in shown.out.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["analyze"],
        ["analyze", "HERE", "--nonsense"],
        ["analyze", "HERE", "--max-gib", "x"],
        ["ingest", "HERE"],
        ["analyze", "HERE", "-o"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_ends_in_2_without_output(
    arguments: list[str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(trace) if each == "HERE" else each for each in arguments])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: overlapscope" in shown.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--comm", "("),
        ("--compute", "*"),
        ("--comm", "(?P<op"),
        ("--rank", "x"),
        ("--rank", "=3"),
        ("--rank", "worker.json="),
        ("--rank", "other.json=1"),
        ("--rank", "1.5"),
        ("--max-gib", "0"),
        ("--max-gib", "-1"),
        ("--max-gib", "nan"),
        ("--max-gib", "inf"),
    ],
)
def test_a_wrong_option_ends_in_2_with_one_line_that_names_it(
    option: str, value: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option in failed(capsys, 2, "analyze", trace, f"{option}={value}")


def test_a_path_that_is_not_there_ends_in_3_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(folder / "none.json") in failed(capsys, 3, "analyze", folder / "none.json")
    assert str(folder / "none.json") in failed(capsys, 3, "ingest", folder / "none.json", "-o", folder / "run")
    assert not (folder / "run").exists()


def test_a_path_that_is_not_there_spoils_the_others_too(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.json" in failed(capsys, 3, "analyze", trace, trace.parent / "none.json")


def test_a_file_beyond_the_size_limit_ends_in_3(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-gib" in failed(capsys, 3, "analyze", trace, "--max-gib", "0.000001")
    assert main(["analyze", str(trace), "--max-gib", "1"]) == 0


def test_without_a_verb_the_help_is_shown_and_2_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert all(verb in shown.out + shown.err for verb in VERBS)


def test_output_goes_to_the_file_alone(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    direct = analyzed(capsys, trace)
    there = tmp_path / "analysis.json"
    assert stdout_of(capsys, "analyze", trace, "--json", "-o", there) == ""
    assert json.loads(there.read_text()) == direct
    there.write_text("old")
    assert main(["analyze", str(trace), "--json", "-o", str(there), "-f"]) == 0
    assert json.loads(there.read_text()) == direct


def test_force_does_not_replace_a_folder_that_is_no_run(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run" in failed(capsys, 2, "ingest", trace, "-o", trace.parent, "-f")
    assert trace.exists()


def test_ingest_keeps_every_figure(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    direct = analyzed(capsys, trace)
    run = tmp_path / "run"
    summary = json.loads(stdout_of(capsys, "ingest", trace, "-o", run, "--json"))
    assert summary["schema"] == "overlapscope.ingest/1"
    assert (summary["ranks"], summary["missing_ranks"]) == ([0], [1])
    assert analyzed(capsys, run) == direct
    assert main(["ingest", str(trace), "-o", str(run)]) == 2
    assert main(["ingest", str(trace), "-o", str(run), "-f"]) == 0


def test_a_run_among_traces_ends_in_2(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(trace), "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert "run directory" in failed(capsys, 2, "analyze", tmp_path / "run", trace)


def rankless(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(write(training(2)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank7.json", 7),
        ("rank_03.pt.trace.json", 3),
        ("trace-rank-12of16.json", 12),
        ("RANK=5.json", 5),
        ("rank4/worker.json", 4),
        ("rank4/rank6.json", 6),
    ],
)
def test_the_name_of_a_file_or_its_folder_tells_the_rank(
    name: str, rank: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = analyzed(capsys, rankless(folder, name))
    assert document["run"]["ranks"] == [rank]
    assert document["sources"][0]["ranks"] == [rank]
    assert document["sources"][0]["warnings"] == []


def test_the_trace_itself_tells_the_rank_before_its_name_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for after in (False, True):
        path = folder / "rank5.json"
        path.write_bytes(write(training(2), metadata=distributed(1), metadata_after=after))
        assert analyzed(capsys, path)["run"]["ranks"] == [1]


def test_the_traces_own_rank_comes_before_the_users_with_a_warning(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = analyzed(capsys, trace)["run"]["ranks"]
    for option in ("3", "worker.json=4"):
        document = analyzed(capsys, trace, "--rank", option)
        assert document["run"]["ranks"] == own
        assert any("is not used" in warning for warning in document["sources"][0]["warnings"])


def test_the_user_tells_the_rank_where_neither_trace_nor_name_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rankless(folder, "worker.json")
    assert analyzed(capsys, path, "--rank", "3")["run"]["ranks"] == [3]
    assert analyzed(capsys, path, "--rank", "worker.json=4")["run"]["ranks"] == [4]


def test_one_trace_without_a_rank_is_rank_0_with_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = analyzed(capsys, rankless(folder, "worker.json"))
    assert document["run"]["ranks"] == [0]
    assert any("rank 0" in warning for warning in document["sources"][0]["warnings"])


def test_several_traces_without_ranks_are_refused_until_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = rankless(folder, "a.json"), rankless(folder, "b.json")
    assert "--rank a.json=0" in failed(capsys, 3, "analyze", folder)
    assert "--rank" in failed(capsys, 2, "analyze", folder, "--rank", "0")
    document = analyzed(capsys, first, second, "--rank", "a.json=1", "--rank", "b.json=0")
    assert [source["ranks"] for source in document["sources"]] == [[1], [0]]


def test_a_trace_without_a_rank_among_others_is_left_out_with_a_warning(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = analyzed(capsys, trace)
    lost = rankless(trace.parent, "other.json")
    document = analyzed(capsys, trace.parent)
    assert document["ranks"] == alone["ranks"]
    source = next(source for source in document["sources"] if source["path"] == str(lost))
    assert source["ranks"] == []
    assert any("--rank other.json=N" in warning for warning in source["warnings"])


def test_one_rank_recorded_twice_at_the_same_time_names_both_files(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace.parent / "again.json").write_bytes(trace.read_bytes())
    line = failed(capsys, 3, "analyze", trace.parent)
    assert "again.json" in line
    assert "worker.json" in line


@pytest.mark.parametrize("rank", ["4294967296", "99999999999999999999"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "in the trace"])
def test_a_rank_too_large_to_be_one_ends_without_a_traceback(
    given: bool, rank: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rankless(folder, "worker.json")
    path.write_bytes(write(training(1), metadata={"distributedInfo": {"rank": 0 if given else int(rank)}}))
    option = ["--rank", rank] if given else []
    assert main(["analyze", str(path), "--json", *option]) in (0, 2, 3)
    assert main(["ingest", str(path), "-o", str(tmp_path / "run"), *option]) in (0, 2, 3)
    capsys.readouterr()


def own_kernels(folder: Path) -> Path:
    path = folder / "worker.json"
    events = [
        kernel(GEMM, 0, 4 * MS),
        kernel("my_allreduce_kernel", 3 * MS, 2 * MS, stream=COMM_STREAM),
        kernel("ncclDevKernel_AllGather_RING_LL(x)", 6 * MS, MS, stream=COMM_STREAM),
    ]
    path.write_bytes(write(events, metadata=distributed(0)))
    return path


def test_a_comm_pattern_makes_kernels_communicate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own_kernels(folder)
    before = analyzed(capsys, path)
    assert before["ranks"][0]["whole"]["comm_ns"] == 1 * MS
    assert before["unclassified"] == {"spans": 1, "duration_ns": 2 * MS, "names": ["my_allreduce_kernel"]}
    after = analyzed(capsys, path, "--comm", "my_all.*")
    whole = after["ranks"][0]["whole"]
    assert (whole["comm_ns"], whole["overlapped_ns"], whole["exposed_comm_ns"]) == (3 * MS, 1 * MS, 2 * MS)
    assert after["unclassified"] == {"spans": 0, "duration_ns": 0, "names": []}


def test_a_compute_pattern_makes_kernels_compute(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own_kernels(folder)
    document = analyzed(capsys, path, "--compute", "^nccl.*AllGather", "--compute", "my_.*")
    assert document["ranks"][0]["whole"]["comm_ns"] == 0
    assert document["ranks"][0]["whole"]["compute_ns"] == 6 * MS
    assert document["unclassified"]["spans"] == 0


def test_a_pattern_that_matches_nothing_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own_kernels(folder)
    document, plain = analyzed(capsys, path, "--comm", "nothing_like_it"), analyzed(capsys, path)
    assert document["ranks"] == plain["ranks"]
    assert any("no kernel matches 'nothing_like_it'" in warning for warning in document["sources"][0]["warnings"])


def test_data_goes_to_stdout_and_nothing_else_does(trace: Path) -> None:
    done = command("analyze", trace, "--json")
    assert done.returncode == 0
    assert done.stderr == b""
    assert json.loads(done.stdout)["schema"] == "overlapscope.analysis/1"
    rankless(trace.parent, "worker2.json")
    warned = command("analyze", trace.parent, "--json")
    assert warned.returncode == 0
    assert json.loads(warned.stdout)
    assert b"warning" in warned.stderr
    assert b"\r" not in warned.stderr
    assert b"\x1b" not in warned.stderr + warned.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--json",), ("--all",)])
def test_a_reader_that_goes_away_is_no_error(options: tuple[str, ...], trace: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "overlapscope.cli.main", "analyze", str(trace), *options],
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_gets_an_answer(folder: Path) -> None:
    path = rankless(folder, "caf\u00e9.json")
    for options in ((), ("--json",)):
        done = command("analyze", path, *options, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_loads_nothing_heavy(verb: str) -> None:
    help_of = f"main({[*([verb] if verb else []), '--help']!r})"
    loaded = loaded_by(f"from overlapscope.cli.main import main\ntry: {help_of}\nexcept SystemExit: pass")
    assert not loaded & HEAVY


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import overlapscope") & HEAVY
    assert "numpy" in loaded_by("import overlapscope.loaded_run")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert f"overlapscope {verb}" in shown.out
    assert "example" in shown.out
    assert "--json" in shown.out


def test_doctor_answers_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert stdout_of(capsys, "doctor")
    report = json.loads(stdout_of(capsys, "doctor", "--json"))
    assert report["schema"] == "overlapscope.doctor/1"
    assert all({"name", "available", "detail"} <= set(check) for check in report["checks"])


def test_steps_are_marked_when_they_are_not_wholly_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "rank0.json"
    path.write_bytes(write(training(3), metadata=distributed(0))[: -40 * 10])
    steps = analyzed(capsys, path)["ranks"][0]["steps"]
    assert not any(step["complete"] for step in steps)
    assert "recorded in part" in stdout_of(capsys, "analyze", path)
    assert steps[0]["window_ns"] == 10 * MS
    assert steps[0]["copy_ns"] == 600 * US


def test_the_command_is_there_as_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "overlapscope", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"overlapscope ")


@pytest.mark.slow
def test_what_cannot_be_written_whole_is_not_left_half(tmp_path: Path) -> None:
    out = tmp_path / "analysis.json"
    done = subprocess.run(
        [sys.executable, "-m", "overlapscope", "analyze", str(ROOT / "traces" / "baseline"), "--json", "-o", str(out)],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
    )
    assert done.returncode == 3
    assert "cannot be written" in done.stderr
    assert not out.exists()


def test_the_help_of_analyze_names_every_kind_of_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["analyze", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for kind in ("trace or log", "gzip", "folder", "archive (tar, tar.gz, zip)", "URL", "s3://", "run directory"):
        assert kind in shown


@pytest.mark.parametrize("words", [["analyze", ""], ["compare", "", "b"], ["gate", "a", ""], ["report", ""]])
def test_an_empty_path_is_not_the_current_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "the path is empty" in capsys.readouterr().err
