"""Ranks that receive, compute and send back are the last stage of a pipeline, whatever their groups are called."""

from typing import Any

import pytest

from overlapscope.analysis.checks.pipelines.last_stage_waits import last_stage_waits
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
STEP_MS = 100
STEPS = 3


def found(
    *, batches: int = 4, fills: int = 9, waits: int = 5, in_turn: bool = True, peers: tuple[int | None, ...] = (0,),
    dimension: str | None = None, answer_bytes: int = 1 << 20, after: int = 5, more: int = 0,
) -> list[Finding]:  # fmt: skip
    """Return what is found of rank 3, which in each step of 100 ms receives, computes for 8 ms and sends back, so many
    times, and then computes for `after` ms.

    A message is sent in 1 ms; it waits for the first one for `fills` ms, not for the second, and for `waits` ms for
    each later one. Not `in_turn`, it sends as it receives. The last step has `more` micro-batches.
    """
    calls: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []

    def spans(step: int, start: int, end: int) -> dict[str, Any]:
        begin = step * STEP_MS
        return {"step": step, "launch_ns": begin * MS, "start_ns": (begin + start) * MS, "end_ns": (begin + end) * MS}

    for step in range(STEPS):
        at = 0
        for each in range(batches + more * (step == STEPS - 1)):
            come = at + 1 + (fills if each == 0 else 0 if each == 1 else waits)
            sends = come + 8 if in_turn else at
            group = {"group_size": 2, "peer": peers[each % len(peers)], "dimension": dimension}
            calls.append({"op": "recv", "group": "to", "bytes": 1 << 20, **group, **spans(step, at, come)})
            work.append({"kind": COMPUTE, "name": "gemm", **spans(step, come, come + 8)})
            calls.append(
                {"op": "send", "group": "back", "bytes": answer_bytes, **group, **spans(step, sends, sends + 1)}
            )
            at = come + 8
        work.append({"kind": COMPUTE, "name": "adam", **spans(step, at + 1, at + 1 + after)})
    timeline = rank_timeline(3, calls=calls, work=work)
    windows = [
        StepWindow(step=step, recording=0, window=(step * STEP_MS * MS, (step + 1) * STEP_MS * MS), complete=True)
        for step in range(STEPS)
    ]
    run = Run(world_size=4, ranks={3: timeline})
    return last_stage_waits(run, {3: Coverage.of(timeline.spans)}, {3: windows})


def test_it_is_said_how_long_a_last_stage_waits_as_the_pipeline_fills_and_later() -> None:
    (each,) = found()
    assert (each.id, each.severity) == ("last_stage_waits", "warning")
    assert each.title == (
        "rank 3 works like the last stage of a pipeline: 4 times a step it receives, computes and sends back. Of a "
        "100.000 ms step it waits without computing for 9.000 ms in the first receive, as the pipeline fills, and for "
        "10.000 ms in the later ones, beyond the shortest: for the stages before, or for their links"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"fills": 1, "waits": 1},  # little
        {"batches": 2, "fills": 30},
        {"in_turn": False},  # as neighbours in a ring
        {"peers": (0, 1)},
        {"peers": (None,)},
        {"dimension": "context"},
        {"answer_bytes": 1 << 19},
        {"after": 40},  # most compute is elsewhere
        {"more": 1},
    ],
    ids=str,
)
def test_nothing_is_said_of_other_ranks(other: dict[str, Any]) -> None:
    assert found(**other) == []
