"""Files that are not a source, and sources inside other text: skipped, refused with a reason, or read."""

import json
from pathlib import Path
from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import HEAD_BYTES
from overlapscope.ingest.registry import MAX_SEARCHED_BYTES
from overlapscope.report.text.analysis import render
from tests.support.writers.kineto import distributed, training, write, write_job

PROSE = "".join(f"Line {number} of a report says what was tried, and on which machine.\n" for number in range(40))
PROGRAM = "# all_reduce_perf\n"
HEADER = "#     size       count    type   redop    root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
ROW = "  33554432     8388608   float     sum      -1 1048.6  32.00  48.00      0 1000.0  33.55  50.33      0\n"
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-15\nGPU1\tNV4\t X \t0-15\n"

OTHERS = {
    "package.json": '{"name": "site", "version": "1.0.0", "scripts": {"build": "tsc"}}',
    "notebook.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": [ROW]}], "nbformat": 4}, indent=1),
    "metrics.jsonl": '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n',
    "vocabulary.json": json.dumps({f"word{number}": number for number in range(20_000)}),
    "dataset.json": json.dumps([{"instruction": f"question {number}", "output": "yes"} for number in range(5_000)]),
    "answers.json": json.dumps([{"a": 1}, {"b": 2}], indent=2),
    "README.md": PROSE + HEADER + ROW + MATRIX,
    "metrics.csv": "step,loss\n1,2.5\n",
    "train.log": "[trainer] 2026-01-02 10:00:00 - INFO - step: 1  loss: 12.25  memory: 34.9GiB  tps: 1,234\n",
    "training.py": "print('elapsed time per iteration (ms): {:.1f} |'.format(ms))\n",
}


def folder_with_a_trace(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_kind_beside_a_trace_is_passed_over_by_name(name: str, tmp_path: Path) -> None:
    folder = folder_with_a_trace(tmp_path)
    alone = analyze(read_inputs([folder]))
    (folder / name).write_text(OTHERS[name], encoding="utf-8")
    together = analyze(read_inputs([folder]))
    assert (together.ranks, together.told) == (alone.ranks, alone.told)
    assert [source.path for source in together.sources] == [str(folder / "rank0.json")]
    assert together.sources[0].warnings == [
        *alone.sources[0].warnings,
        f"files passed over that look like no trace and no known log: 1 ({name})",
    ]


def test_of_many_files_passed_over_the_first_are_named(tmp_path: Path) -> None:
    folder = folder_with_a_trace(tmp_path)
    for number in range(200):
        (folder / f"config{number:03}.json").write_text('{"strict": true}')
    (note,) = [each for each in read_inputs([folder]).sources[0].warnings if "passed over" in each]
    assert note.endswith(": 200 (config000.json, config001.json, config002.json, ...)")


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "README.md"])
def test_a_named_file_of_another_kind_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(OTHERS[name], encoding="utf-8")
    assert main(["analyze", str(path)]) == 3
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    is_json = OTHERS[name][0] in "{[" and name != "train.log"
    expected = ("torch profiler trace", "not a trace") if is_json else ("holds nothing that can be read",)
    assert any(each in printed.err for each in expected)


@pytest.mark.parametrize("cut", [1, 5, 14, 40, 200])
def test_a_trace_cut_before_its_events_is_named_and_not_passed_over(cut: int, tmp_path: Path) -> None:
    folder = folder_with_a_trace(tmp_path)
    text = (
        b'{"schemaVersion": 1, "deviceProperties": [' + b'{"id": 0, "name": "a device"}, ' * 8 + b'], "traceEvents": ['
    )
    (folder / "cut.json").write_bytes(text[:cut])
    assert str(folder / "cut.json") in [source.path for source in read_inputs([folder]).sources]


def test_a_trace_behind_long_metadata_is_found_in_a_folder(tmp_path: Path) -> None:
    folder = folder_with_a_trace(tmp_path)
    whole = json.loads(write(training(), metadata=distributed(1, 1)))
    events = whole.pop("traceEvents")
    long = {"schemaVersion": 1, "note": "x" * (3 * HEAD_BYTES), **whole, "traceEvents": events}
    (folder / "long.json").write_text(json.dumps(long))
    assert sorted(read_inputs([folder]).ranks) == [0, 1]


def test_a_trace_that_begins_with_foreign_keys_is_read_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    whole = json.loads(write(training(), metadata=distributed(0)))
    path.write_text(json.dumps({"note": "x" * (3 * HEAD_BYTES), **whole}))
    assert sorted(read_inputs([path]).ranks) == [0]


def table_rows(analysis: Analysis, table: str) -> list[dict[str, Any]]:
    return list(analysis.told[table].rows) if table in analysis.told else []


@pytest.mark.parametrize("before", ["", PROSE, PROSE * (2 * HEAD_BYTES // len(PROSE))], ids=["none", "some", "much"])
def test_a_named_report_gives_the_table_and_the_matrix_of_its_own_kind(before: str, tmp_path: Path) -> None:
    """One and a half times as much prose as table, or a table after more text than the head of a file."""
    report = tmp_path / "report.md"
    report.write_text(before + "```\n" + PROGRAM + HEADER + ROW + "```\n" + PROSE)
    measured = table_rows(analyze(read_inputs([report])), "measurements")
    assert [(each["op"], each["bytes"], each["ranks"], each["time_ns"]) for each in measured] == [
        ("all_reduce", 33554432, 4, pytest.approx(1048.6e3)),
        ("all_reduce", 33554432, 4, pytest.approx(1000.0e3)),
    ]
    report.write_text(before + "```\n" + MATRIX + "```\n" + PROSE)
    links = table_rows(analyze(read_inputs([report])), "links")
    assert [(each["a"], each["b"], each["kind"], each["lanes"]) for each in links] == [
        ("GPU0", "GPU1", "NVLink", 4),
        ("GPU1", "GPU0", "NVLink", 4),
    ]


def test_a_table_whose_comment_signs_were_lost_is_read(tmp_path: Path) -> None:
    """Markdown makes headings of lines with `#`, so that people leave the signs out."""
    report = tmp_path / "issue.txt"
    report.write_text(PROSE + HEADER.replace("#wrong", "wrong").replace("#", " ") + ROW)
    assert [each["busbw_gbs"] for each in table_rows(analyze(read_inputs([report])), "measurements")] == [48.0, 50.33]


def test_a_test_that_failed_before_its_first_result_is_refused_as_such(tmp_path: Path) -> None:
    failed = tmp_path / "failed.log"
    failed.write_text(
        HEADER + "     2097152         32768     float    none      -1 node0: Test failure common.cu:389\n"
    )
    with pytest.raises(InputError, match=r"no row .* \(1 lines are damaged\); did the test end before"):
        read_inputs([failed])


@pytest.mark.slow
def test_nothing_is_looked_for_beyond_the_first_megabytes(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text(PROSE * (2 * MAX_SEARCHED_BYTES // len(PROSE)) + HEADER + ROW)
    with pytest.raises(InputError, match="in its first 4 MiB no line of a known log or table"):
        read_inputs([report])


@pytest.mark.parametrize("start", ["\x1b[4m", "[4m"])
def test_an_underlined_header_is_read_with_and_without_its_escape_characters(start: str, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    end = start.replace("4", "0")
    path.write_text(MATRIX.replace("\tGPU0", f"\t{start}GPU0", 1).replace("Affinity", f"Affinity{end}"))
    assert len(table_rows(analyze(read_inputs([path])), "links")) == 2


# --- host recordings of jobs whose collectives ran elsewhere ---------------------------------------------------------


def host_trace(tmp_path: Path, *names: str) -> Path:
    """A trace of host operations alone: 10 us of work, then one range of each name, 10 us each."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7 + (name.startswith("gloo:")), "ts": 100 + 10 * at}
        | {"dur": 10, "args": {"External id": at + 1}}
        for at, name in enumerate(["aten::mm", *names])
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}))
    return path


@pytest.mark.parametrize("called", ["record_param_comms", "nccl:all_reduce", "xccl:_allgather_base", "hccl:send"])
def test_a_recording_of_the_host_alone_does_not_pass_for_a_run_without_communication(
    called: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no device work is in the trace: the profiler did not record it"):
        read_inputs([host_trace(tmp_path, "c10d::allreduce_", called)])


@pytest.mark.parametrize("ran", ["gloo:all_reduce", "ucc:all_reduce", "mpi:all_reduce"])
def test_collectives_that_ran_on_the_host_are_read(ran: str, tmp_path: Path) -> None:
    (rank,) = analyze(read_inputs([host_trace(tmp_path, "c10d::allreduce_", ran)])).ranks
    assert rank.whole.comm_ns == 10_000


def test_calls_that_nothing_shows_run_are_a_warning(tmp_path: Path) -> None:
    analysis = analyze(read_inputs([host_trace(tmp_path, "c10d::allreduce_")]))
    assert [each for each in analysis.sources[0].warnings if "communication is missing from all figures" in each]
    assert "No communication was recorded in" in render(analysis)


# --- what the text says ----------------------------------------------------------------------------------------------


def test_ranks_alike_are_not_called_worst_and_least(tmp_path: Path) -> None:
    shown = render(analyze(read_inputs([write_job(tmp_path, 2)])))
    assert "the same on every rank" in shown
    assert "most exposed" not in shown


def test_a_file_that_could_not_be_read_is_no_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "broken.json").write_text("{")
    analysis = analyze(read_inputs([tmp_path]))
    assert len(analysis.sources) == 2
    assert render(analysis).splitlines()[0] == "no rank recorded, topo-matrix"
