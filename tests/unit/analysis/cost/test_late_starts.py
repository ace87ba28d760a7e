"""Idle time before the first kernels of ranks that begin later than others, by hand; times in ms."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cost.late_starts import LateStarts, late_starts
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.per_rank.steps import step_windows, whole_windows
from overlapscope.analysis.result import Analysis, Recommendation, with_costs
from overlapscope.report.text.throughput import lines
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
TOGETHER = Clocks(reference_ns=EPOCH_NS, tied={0: 0, 1: 0})


def at(ms: float) -> int:
    return EPOCH_NS + round(ms * MS)


def rank_of(
    rank: int, begins: Sequence[float], *, marked: bool = True, shown: float = 0, waited: float = 0
) -> RankTimeline:
    """Return a rank whose steps begin on the device then, with 10 ms of compute and a call each.

    Its host shows that the job had begun from `shown` on; its first kernel waited for its stream for `waited`.
    """
    work: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for step, begin in enumerate(begins):
        own = {"step": step if marked else None, "launch_ns": at(begin - (waited if not step else 0))}
        work.append({**own, "name": "gemm", "start_ns": at(begin), "end_ns": at(begin + 10)})
        calls.append(
            {**own, "op": "all_reduce", "group": "g", "seq": step, "group_size": 2, "bytes": 4, "elements": 1,
             "dtype": "float32", "start_ns": at(begin + 10), "end_ns": at(ENDS[step])}
        )  # fmt: skip
    marks = [shown, *(begin - 1 for begin in begins[1:]), ENDS[len(begins) - 1] + 5]
    steps = [{"step": n, "start_ns": at(marks[n]), "end_ns": at(marks[n + 1])} for n in range(len(begins))]
    fetch = {"name": "enumerate(DataLoader)#next", "lane": 2, "start_ns": at(shown), "end_ns": at(begins[0] - 1)}
    return rank_timeline(
        rank, calls=calls, work=work, steps=steps if marked else (), annotations=[fetch],
        recordings=[{"start_ns": at(-10), "end_ns": at(ENDS[len(begins) - 1] + 10)}],
    )  # fmt: skip


NO_HOST = rank_timeline(1)
ENDS = (520, 560, 600)
"""When calls end, on both ranks."""
EARLY = (20, 525, 565)
"""When steps of rank 0 begin: its loader takes 20 ms, and it waits for rank 1, whose loader takes 500."""


def found(*ranks: RankTimeline, clocks: Clocks | None = TOGETHER) -> LateStarts | None:
    run = Run(world_size=2, ranks={each.rank: each for each in ranks})
    steps = {each.rank: step_windows(each) for each in ranks if each.steps.step.size}
    return late_starts(run, clocks, {each.rank: whole_windows(each) for each in ranks}, steps, 660 * MS)


@pytest.mark.parametrize(
    ("late", "late_ms"),
    [
        pytest.param({}, 480, id="from the first kernel of rank 0 to its own"),
        pytest.param({"marked": False}, 480, id="a range of the loader shows it as well"),
        pytest.param({"shown": 300}, 200, id="its host shows nothing before"),
        pytest.param({"shown": 490}, None, id="2 % of 660 ms are more than 10"),
        pytest.param({"waited": 1}, None, id="its device was busy with earlier work"),
    ],
)
def test_a_rank_begins_late_that_begins_after_another_one_and_whose_host_had_begun(
    late: dict[str, Any], late_ms: int | None
) -> None:
    marked = late.get("marked", True)
    its = found(rank_of(0, EARLY, marked=marked), rank_of(1, (500, 525, 565), **late))
    expected = None if late_ms is None else LateStarts(rank=1, most_ns=late_ms * MS, mean_ns=late_ms * MS // 2)
    assert its == expected


def test_a_window_that_ends_with_the_loader_of_a_step_left_out_makes_up_for_the_first_one() -> None:
    """Of the windows of rank 1 the last ends 5 ms behind its work."""
    ranks = [rank_of(0, EARLY), rank_of(1, (500, 525, 565))]
    run = Run(world_size=2, ranks=dict(enumerate(ranks)))
    steps = {each.rank: step_windows(each)[:2] for each in ranks}
    wholes = {each.rank: whole_windows(each) for each in ranks}
    assert late_starts(run, TOGETHER, wholes, steps, 660 * MS) == LateStarts(
        rank=1, most_ns=475 * MS, mean_ns=237_500_000
    )


def test_clocks_that_are_not_tied_and_hosts_that_were_not_recorded_tell_nothing() -> None:
    early, late = rank_of(0, EARLY), rank_of(1, (500, 525, 565))
    assert found(early, late, clocks=None) is None
    assert found(early, late, clocks=Clocks(reference_ns=EPOCH_NS)) is None
    assert found(early, replace(late, steps=NO_HOST.steps, annotations=NO_HOST.annotations)) is None


def analyzed(*, marked: bool) -> Analysis:
    ranks = [rank_of(0, EARLY, marked=marked), rank_of(1, (500, 525, 565), marked=marked)]
    group = Group(name="g", size=2, ranks=(0, 1))
    return analyze(Run(world_size=2, ranks=dict(enumerate(ranks)), groups=(group,)))


@pytest.mark.parametrize(
    ("marked", "late_ms", "exposed_ms", "of_ms", "lead_ms"),
    [
        pytest.param(False, 480, 540 + 60, 580 + 100, None, id="without marks the whole recording"),
        pytest.param(True, 475, 515 + 35, 545 + 65, 22.5, id="the last step is cut short: it lacks 5 ms"),
    ],
)
def test_all_hours_are_of_the_time_since_the_first_kernel_of_the_job(
    *, marked: bool, late_ms: int, exposed_ms: int, of_ms: int, lead_ms: float | None
) -> None:
    """Both ranks idle 5 ms between their steps, each twice; rank 1 has not begun when rank 0 waits for it.

    Of the 260 ms from the first marks to the first kernels, mean over ranks, half of the 475 are known to be idle.
    """
    analysis = analyzed(marked=marked)
    its = analysis.throughput
    assert its is not None
    assert its.late_starts == LateStarts(rank=1, most_ns=late_ms * MS, mean_ns=late_ms * MS // 2)
    a_day = 2 * 24 / (of_ms + late_ms)
    assert its.exposed_gpu_hours_a_day == pytest.approx(exposed_ms * a_day)
    assert its.idle_gpu_hours_a_day == pytest.approx(20 * a_day)
    assert its.late_starts_gpu_hours_a_day == pytest.approx(late_ms * a_day)
    hours = f"{late_ms * a_day:.1f} GPU-hours before the first kernels of ranks that begin late"
    assert f"{hours} (rank 1 by {late_ms}.000 ms)" in " ".join(lines(its, analysis.headline))
    assert (its.lead and its.lead.quiet_ns) == (lead_ms and lead_ms * MS)
    saves = Recommendation(
        id="x", title="", verdict="", predicted_gain_ns=29 * MS, gain_low_ns=None, gain_high_ns=None,
        per="step" if marked else "recording", confidence="measured", memory_bytes=None, changes_numerics=False,
        apply={}, verify="",
    )  # fmt: skip
    given = with_costs(replace(analysis, recommendations=[saves])).recommendations[0]
    assert given.gpu_hours_a_day == pytest.approx(29 * 2 * (2 if marked else 1) * a_day), "of each rank, in each step"
