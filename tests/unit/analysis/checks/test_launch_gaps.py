"""Launches whose kernels were lost are named with their steps, which are left out; what ran first is said to be so."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import render

STEPS, LAUNCHES = 5, 30


def recorded(
    tmp_path: Path, *, lost: Sequence[int], call: str = "cudaLaunchKernel", beside: str = "", early: int = 0
) -> Analysis:
    """Return the analysis of five steps of 1 ms with 30 launches each, of which those of numbers `lost` have no kernel,
    after `early` kernels without a launch; `beside` is another call."""
    events: list[dict[str, Any]] = []

    def add(name: str, kind: str, at: float, lasts: float, thread: int, **args: object) -> None:
        place = {"pid": 0 if kind == "kernel" else 1, "tid": thread}
        events.append({"ph": "X", "name": name, "cat": kind, "ts": at, "dur": lasts, **place, "args": args})

    for number in range(early):
        add("gemm", "kernel", 10 + 20 * number, 10, 7, device=0, stream=7, correlation=9000 + number)
    for step in range(STEPS):
        begin = 1000.0 * (step + 1)
        add(f"ProfilerStep#{step}", "user_annotation", begin, 999, 2)
        for each in range(LAUNCHES):
            number, at = step * LAUNCHES + each, begin + 1 + 30 * each
            add(call, "cuda_runtime", at, 3, 2, correlation=number + 1)
            if number not in lost:
                add("gemm", "kernel", at + 5, 20, 7, device=0, stream=7, correlation=number + 1)
    if beside:
        add(beside, "cuda_runtime", 1500, 1, 2, correlation=8000)
    path = tmp_path / "rank0.json"
    document = {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl"}}
    path.write_text(json.dumps(document), encoding="utf-8")
    return analyze(read_inputs([path]))


def said(analysis: Analysis, kind: str) -> list[str]:
    return [each.title for each in analysis.findings if each.id.startswith(kind)]


def complete(analysis: Analysis) -> list[int]:
    return [each.step for each in analysis.ranks[0].steps if each.complete]


def test_a_stretch_of_lost_kernels_is_named_and_its_steps_are_left_out(tmp_path: Path) -> None:
    analysis = recorded(tmp_path, lost=range(40, 65))
    assert said(analysis, "lost_kernels") == [
        "rank 0: 25 launches in a row of 150, from 1.3 to 2.1 ms after the first, have no kernel recorded; steps 1, 2 "
        "are left out"
    ]
    assert complete(analysis) == [0, 3, 4]


def test_of_several_stretches_the_longest_is_named_and_the_steps_of_all(tmp_path: Path) -> None:
    analysis = recorded(tmp_path, lost=[*range(2, 24), *range(70, 95)])
    assert said(analysis, "lost_kernels") == [
        "rank 0: 25 launches in a row of 150, from 2.3 to 3.1 ms after the first, have no kernel recorded, nor have 22 "
        "more in other stretches; steps 0, 2, 3 are left out"
    ]
    assert complete(analysis) == [1, 4]


def test_so_is_the_end_where_it_lasts_for_more_than_a_step(tmp_path: Path) -> None:
    assert said(recorded(tmp_path, lost=range(80, 150)), "lost_kernels")
    assert not said(recorded(tmp_path, lost=range(125, 150)), "lost_kernels"), "the device had not come to these"


@pytest.mark.parametrize(
    "other",
    [{"lost": range(40, 55)}, {"lost": range(40, 65), "beside": "cudaStreamBeginCapture"},
     {"lost": range(40, 65), "call": "cudaMemsetAsync"}],
    ids=str,
)  # fmt: skip
def test_other_launches_without_kernels_are_not(tmp_path: Path, other: dict[str, Any]) -> None:
    assert not said(recorded(tmp_path, **other), "lost_kernels")


def test_a_star_is_explained_where_a_row_has_one(tmp_path: Path) -> None:
    analysis = recorded(tmp_path, lost=range(40, 65))
    shown = render(analysis, all_rows=True)
    assert "step 1*" in shown
    assert "* recorded in part" in shown


def test_what_ran_before_the_first_launch_is_said_to_be_launched_before(tmp_path: Path) -> None:
    (title,) = said(recorded(tmp_path, lost=range(0), early=40), "unlinked_spans")
    assert title.startswith("40 of 190 device spans of rank 0 were launched before the recording began")
