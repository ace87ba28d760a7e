"""Devices of one process that work in turn, and such that work together."""

from collections.abc import Mapping, Sequence

import pytest

from overlapscope.analysis.checks.pipelines.devices_in_turn import devices_in_turn
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.one_process import ranks_of_one_process
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow, whole_windows
from overlapscope.timeline.columns import COMPUTE, DEVICE, HOST
from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
STEP_MS, STEPS = 10, 2
Times = Sequence[tuple[int, int]]


def timeline(rank: int, times: Times, process: str) -> RankTimeline:
    """Return two steps of 10 ms in which the device of a process computes at these times of a step, in ms."""
    work = [
        {
            "kind": COMPUTE, "name": "gemm", "step": step, "launch_ns": step * STEP_MS * MS,
            "start_ns": (step * STEP_MS + start) * MS, "end_ns": (step * STEP_MS + end) * MS,
        }
        for step in range(STEPS)
        for start, end in times
    ]  # fmt: skip
    lanes = [{"kind": DEVICE, "process": "0", "label": "stream 7"}, {"kind": HOST, "process": process, "label": "1"}]
    recorded = [{"source": "one.json", "start_ns": 0, "end_ns": STEPS * STEP_MS * MS}]
    return rank_timeline(rank, work=work, lanes=lanes, recordings=recorded)


def found(
    devices: Mapping[int, Times], processes: Sequence[str] | None = None, *, marked: bool = True
) -> list[Finding]:
    ranks = {
        rank: timeline(rank, times, processes[at] if processes else "7")
        for at, (rank, times) in enumerate(devices.items())
    }
    windows = {
        rank: [
            StepWindow(step=step, recording=0, window=(step * STEP_MS * MS, (step + 1) * STEP_MS * MS), complete=marked)
            for step in range(STEPS)
        ]
        for rank in devices
    }
    coverage = {rank: Coverage.of(own.spans) for rank, own in ranks.items()}
    return devices_in_turn(ranks, coverage, windows, {rank: whole_windows(own) for rank, own in ranks.items()})


def test_it_is_said_how_long_each_device_idles_while_another_one_works() -> None:
    (each,) = found({0: [(0, 4)], 1: [(4, 9)]})
    assert each.title == (
        "the devices of ranks 0, 1, which one process drives, work in turn. Of a step of 10.000 ms rank 0 idles for "
        "6.000 ms, 5.000 ms of it while another one works, rank 1 idles for 5.000 ms, 4.000 ms of it while another one "
        "works"
    )
    assert each.evidence["in_turn_ns"] == {"0": 10 * MS, "1": 8 * MS}


def test_of_steps_that_are_not_complete_it_is_said_of_the_recording() -> None:
    (each,) = found({0: [(0, 4)], 1: [(4, 9)]}, marked=False)
    assert "Of the recording rank 0 idles for 11.000 ms" in each.title


@pytest.mark.parametrize(
    ("devices", "processes"),
    [
        ({0: [(0, 9)], 1: [(0, 9)]}, "7777"),
        ({0: [(0, 5)], 1: [(0, 6)]}, "7777"),
        ({0: [(0, 4)], 1: [(4, 9)]}, "78"),
        ({0: [(0, 4)]}, "7"),
    ],
    ids=["together", "both idle", "two processes", "one device"],
)
def test_nothing_is_said_otherwise(devices: Mapping[int, Times], processes: str) -> None:
    assert not found(devices, processes)


def test_it_is_the_process_that_loses_most() -> None:
    devices = {0: [(0, 8)], 1: [(5, 10)], 2: [(0, 4)], 3: [(4, 9)]}
    (each,) = found(devices, "7788")
    assert each.evidence["ranks"] == [2, 3]


def test_ranks_of_one_process_are_those_whose_threads_are_of_it() -> None:
    ranks = {rank: timeline(rank, [(0, 1)], process) for rank, process in enumerate("7787")}
    assert ranks_of_one_process(ranks) == [(0, 1, 3)]
