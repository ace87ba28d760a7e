"""Python stacks of real traces, against their raw events; and that no figure depends on whether they were read."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.ingest.formats.kineto.events import LONG_FRAME_US
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import json as as_json
from overlapscope.report.text.chain import MOST_FRAMES, python_lines
from overlapscope.timeline.columns import FUNCTION, HOST_SPAN_KINDS, PYTHON
from overlapscope.timeline.python_stack import innermost, stack_of_launch
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import shared_file
from tests.support.commands import stdout_of
from tests.support.writers.kineto import ABSOLUTE_FLOATS, TORCH_2024, US, Dialect, distributed, op, training, write

REAL = ("kineto/tracelens_b200_eager.json.gz", "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz")


def run_of(path: Path, *, stacks: bool) -> Run:
    return read_inputs([path], ReadOptions(stacks=stacks), workers=1)


def raw_ns(value: object) -> int:
    return round(float(str(value)) * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_launch_is_in_the_functions_that_the_raw_events_say(name: str, tmp_path: Path) -> None:
    path = shared_file(name)
    events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if each.get("ph") == "X"]
    frames: dict[Any, list[tuple[int, int, str]]] = {}
    for each in events:
        if each["cat"] == "python_function":
            start = raw_ns(each["ts"])
            frames.setdefault((each["pid"], each["tid"]), []).append((start, -raw_ns(each["dur"]), each["name"]))
    calls = {
        each["args"]["correlation"]: each
        for each in events
        if each["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in each["args"]
    }
    run = run_of(path, stacks=True)
    save_run(run, tmp_path / "run", version="0")
    (timeline,) = run.ranks.values()
    (stored,) = load_run(tmp_path / "run").ranks.values()
    seen = 0
    for row in range(0, timeline.num_spans, 41):
        call = calls.get(int(timeline.spans.correlation[row]))
        if call is None:
            continue
        at = raw_ns(call["ts"])
        around = sorted(
            each for each in frames.get((call["pid"], call["tid"]), ()) if each[0] <= at < each[0] - each[1]
        )
        expected = [re.sub(r" at 0x[0-9a-f]+", "", each) for *_, each in around]
        assert stack_of_launch(timeline, row) == expected
        assert stack_of_launch(stored, row) == expected
        seen += len(expected) > 5
    assert seen > 5


def _long_functions(run: Run) -> int:
    host = next(iter(run.ranks.values())).host
    return int(((host.kind == FUNCTION) & (host.end_ns - host.start_ns >= 1_000 * LONG_FRAME_US)).sum())


def test_the_innermost_function_is_of_those_in_files_where_any_is() -> None:
    stack = ["train.py(3): main", "train.py(131): log_step", "<built-in method step of Trainer object>"]
    assert innermost(stack) == "train.py(131): log_step"
    assert innermost(stack[2:]) == stack[2]
    assert innermost([]) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_no_figure_depends_on_whether_stacks_were_read(name: str) -> None:
    with_stacks, without = (run_of(shared_file(name), stacks=stacks) for stacks in (True, False))
    kinds = [Counter(next(iter(run.ranks.values())).host.kind.tolist()) for run in (with_stacks, without)]
    assert kinds[0][FUNCTION] > 10_000
    assert kinds[1] == {kind: number for kind, number in kinds[0].items() if kind != FUNCTION} | {
        FUNCTION: _long_functions(with_stacks)
    }
    assert kinds[1][FUNCTION] < 100
    assert as_json.render(analyze(with_stacks)) == as_json.render(analyze(without))


@pytest.mark.parametrize("dialect", [TORCH_2024, ABSOLUTE_FLOATS])
def test_modules_and_functions_of_any_dialect_keep_their_times(dialect: Dialect, tmp_path: Path) -> None:
    """Also where times are parsed from text: the rows of a piece are then decoded a second time."""
    names = ["train.py(3): step", "nn.Module: Linear_0", "<built-in method mul of Tensor object at 0x7f12ab>"]
    frames = [
        op(names[number % 3] if number % 7 else f"<built-in method f of T object at 0x7f{number:x}>",
           300 * US + number * US, (400 - number) * US, sort="python_function")
        for number in range(40)
    ]  # fmt: skip
    plain = training()
    mixed = [*plain[:4], *frames[:11], *plain[4:20], *frames[11:], *plain[20:]]
    (tmp_path / "rank0.json").write_bytes(write(mixed, dialect, metadata=distributed(0)))
    (timeline,) = run_of(tmp_path, stacks=True).ranks.values()
    host = timeline.host
    begin = int(host.start_ns[host.kind == FUNCTION].min()) - min(each.start_ns for each in frames)
    found = Counter()  # type: ignore[var-annotated]
    for kind, code, start, end in zip(
        *(each.tolist() for each in (host.kind, host.name, host.start_ns, host.end_ns)), strict=True
    ):
        if kind in (PYTHON, FUNCTION):
            found[HOST_SPAN_KINDS[kind], timeline.names[code], start - begin, end - begin] += 1
    expected = Counter()  # type: ignore[var-annotated]
    for each in frames:
        assert each.duration_ns is not None
        name = each.name.split(" at 0x")[0] + (">" if each.name.startswith("<") else "")
        kind = "python" if name.startswith("nn.Module") else "function"
        expected[kind, name, each.start_ns, each.start_ns + each.duration_ns] += 1
    assert {key[:2]: number for key, number in expected.items()} == {key[:2]: number for key, number in found.items()}
    slack = 1 if dialect is TORCH_2024 else 500
    for one, other in zip(sorted(expected), sorted(found), strict=True):
        assert one[:2] == other[:2]
        assert all(abs(a - b) <= slack for a, b in zip(one[2:], other[2:], strict=True))


@pytest.mark.slow
def test_explain_prints_the_stack_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_file(REAL[0])
    run = run_of(path, stacks=True)
    (rank,) = run.ranks
    rows = [row for row in range(run.ranks[rank].num_spans) if len(stack_of_launch(run.ranks[rank], row)) > 8]
    row = rows[len(rows) // 2]
    stack = stack_of_launch(run.ranks[rank], row)
    assert RunChains(run).before(rank, row).python == stack
    printed = stdout_of(capsys, "explain", path, "--stacks", "--span", f"{rank}:{row}", "--links", "1")
    lines = printed.splitlines()
    begin = lines.index("In Python, the outermost first:") + 1
    shown = lines[begin : begin + len(python_lines(stack)) - 1]
    assert shown == python_lines(stack)[1:]
    assert stack[-1][:60] in shown[-1]
    document = json.loads(stdout_of(capsys, "explain", path, "--stacks", "--span", f"{rank}:{row}", "--json"))
    assert document["python"] == stack
    modules = json.loads(stdout_of(capsys, "explain", path, "--span", f"{rank}:{row}", "--json"))["python"]
    functions = [each for each in modules if not each.startswith("nn.Module: ")]
    whole = iter(stack)
    assert all(each in whole for each in modules), "in the same order"
    assert [each for each in stack if each.startswith("nn.Module: ")] == [
        each for each in modules if each not in functions
    ]
    assert 0 < len(functions) < len(stack) / 2, "the long ones alone"


def test_of_a_deep_stack_the_innermost_functions_are_printed() -> None:
    deep = [f"f{number}" for number in range(MOST_FRAMES + 5)]
    lines = python_lines(deep)
    assert lines[1:3] == ["  ... 5 more; --json has them all", "  f5"]
    assert lines[-1] == f"  f{MOST_FRAMES + 4}"
    assert python_lines([]) == []
