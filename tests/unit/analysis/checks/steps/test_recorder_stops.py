"""How long ranks did nothing at the end of a recording, where its profiler stops."""

import pytest

from overlapscope.analysis.checks.steps.recorder_stops import idle_at_stops, leads_at_stops
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import Run
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000


@pytest.mark.parametrize(
    ("idle_ms", "range_of", "found"),
    [
        ((2, 3, 2, 90), None, {(0, 3): 88 * MS}),
        ((60, 61, 60, 90), None, {(0, 3): 30 * MS}),  # it idles at the end of each step
        ((2, 90, 2, 2), None, {}),  # a step before the last one: no profiler stops there
        ((2, 3, 2, 90), 3, {}),  # a range says what it did
        ((2, 3, 2, 90), 1, {(0, 3): 88 * MS}),
        ((90,), None, {}),
    ],
)
def test_the_end_of_the_last_step_is_compared_with_those_before(
    idle_ms: tuple[int, ...], range_of: int | None, found: dict[tuple[int, int], float]
) -> None:
    steps: list[Row] = []
    work: list[Row] = []
    notes: list[Row] = []
    at = 0
    for number, idle in enumerate(idle_ms):
        end = at + (100 + idle) * MS
        work.append({"name": "mm", "kind": COMPUTE, "start_ns": at, "end_ns": at + 100 * MS, "step": number})
        steps.append({"step": number, "start_ns": at, "end_ns": end})
        notes.append({"name": f"ProfilerStep#{number}", "lane": 0, "start_ns": at, "end_ns": end})
        if number == range_of:
            notes.append({"name": "checkpoint", "lane": 0, "start_ns": at + 100 * MS, "end_ns": end})
        at = end
    recordings = [{"start_ns": 0, "end_ns": at}]
    timeline = rank_timeline(
        has_device=False, steps=steps, annotations=notes, work=work, recordings=recordings, lanes=[{}, {}]
    )
    run = Run(world_size=1, ranks={0: timeline})
    windows = {0: step_windows(timeline)}
    assert idle_at_stops(run, {0: Coverage.of(timeline.spans)}, windows) == found


@pytest.mark.parametrize(
    ("begins", "found"),
    [
        ({0: (0, 90, 180, 270), 1: (5, 105, 205, 305)}, {(0, 3): 30.0}),  # rank 1 began the first step later
        ({0: (0, 100, 200, 300), 1: (5, 105, 205, 305)}, {}),
        ({0: (0, 90, 180, 270), 1: (0, 100, 200)}, {}),  # rank 1 has no such step
        ({0: (0, 90, 180, 270)}, {}),
        ({0: (0, 90, 180), 1: (0, 90, 200), 2: (0, 90, 230)}, {(0, 2): 50.0, (1, 2): 30.0}),
    ],
)
def test_ranks_lead_the_last_one_by_what_their_steps_before_were_shorter(
    begins: dict[int, tuple[int, ...]], found: dict[tuple[int, int], float]
) -> None:
    windows = {
        rank: [StepWindow(step=step, recording=0, window=(at, at + 1), complete=True) for step, at in enumerate(own)]
        for rank, own in begins.items()
    }
    assert leads_at_stops(windows) == found
