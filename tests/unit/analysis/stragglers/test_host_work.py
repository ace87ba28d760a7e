"""When the host of a rank certainly worked: in calls and between close ones, but not while it waits or polls."""

import pytest

from overlapscope.analysis.stragglers.host_work import host_work
from overlapscope.timeline.columns import HOST, RUNTIME
from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import rank_timeline

US = 1000
Made = tuple[str, float, float]
"""Name of a call, and its start and end in us."""


def rank(*calls: Made, lane: int = 2, has_device: bool = True, host_events: bool = True) -> RankTimeline:
    """Return a rank whose calls of one thread launch a kernel each, where they are named so."""
    rows = [
        {"lane": lane, "kind": RUNTIME, "name": name, "start_ns": round(start * US), "end_ns": round(end * US),
         "correlation": at if "Launch" in name else None}
        for at, (name, start, end) in enumerate(calls)
    ]  # fmt: skip
    work = [
        {"start_ns": each["end_ns"], "end_ns": each["end_ns"] + US, "correlation": each["correlation"]}
        for each in rows
        if each["correlation"] is not None
    ]
    return rank_timeline(
        work=work,
        lanes=[{}, {}, {"kind": HOST}],
        host=rows,
        has_device=has_device,
        recordings=[{"start_ns": 0, "end_ns": 10_000 * US, "host_events": host_events}],
    )


@pytest.mark.parametrize(
    ("calls", "worked"),
    [
        pytest.param([("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 50, 55)], [(0, 55)], id="between close calls"),
        pytest.param([("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 205, 210)], [(0, 5), (205, 210)], id="silent"),
        pytest.param([("cudaLaunchKernel", 0, 900)], [(0, 20)], id="in a launch that waits for a place"),
        pytest.param(
            [("cudaLaunchKernel", 0, 5), ("cudaStreamSynchronize", 10, 500), ("cudaLaunchKernel", 510, 515)],
            [(0, 10), (500, 515)], id="not in a wait",
        ),
        pytest.param(
            [("cudaLaunchKernel", 0, 5), ("cudaEventQuery", 10, 11), ("cudaEventQuery", 90, 91),
             ("cudaLaunchKernel", 95, 100)],
            [(0, 5), (95, 100)], id="not beside polls",
        ),
        pytest.param([("cudaEventQuery", 0, 5), ("cudaMemset", 10, 15)], [], id="a thread that launches nothing"),
    ],
)  # fmt: skip
def test_a_host_works_in_its_calls_and_between_close_ones(calls: list[Made], worked: list[tuple[float, float]]) -> None:
    found = host_work(rank(*calls))
    assert found is not None
    us = zip((found.starts / US).tolist(), (found.ends / US).tolist(), strict=True)
    assert list(us) == worked


def test_nothing_is_known_of_hosts_that_were_not_recorded_or_have_no_device() -> None:
    launch = ("cudaLaunchKernel", 0.0, 5.0)
    assert host_work(rank(launch, has_device=False)) is None
    assert host_work(rank(launch, host_events=False)) is None
