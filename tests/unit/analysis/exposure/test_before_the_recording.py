"""Calls beside which a device works off what was launched before its recording are no loss of the job."""

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.columns import HOST, RUNTIME
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000
LANES = ({"process": "0", "label": "7"}, {"process": "0", "label": "20"}, {"kind": HOST, "process": "9", "label": "9"})
LAUNCH_NS = 3_000


def rank_of(
    rank: int, calls_ms: list[tuple[str, int, int]], computes_ms: list[tuple[int, int]], launched_ms: int = 0
) -> RankTimeline:
    """Return a rank whose host launches a call, compute, and so on, all in one millisecond."""

    def row(at: int, begin: int, end: int) -> dict[str, int]:
        return {
            "start_ns": EPOCH + begin * MS, "end_ns": EPOCH + end * MS,
            "launch_ns": EPOCH + launched_ms * MS + at * 10_000,
            "correlation": at,
        }  # fmt: skip

    calls: list[Row] = [
        {"op": op, "group": "0", "seq": at, "bytes": 1 << 20, "group_size": 2, **row(2 * at, begin, end)}
        for at, (op, begin, end) in enumerate(calls_ms)
    ]
    work: list[Row] = [{"name": "gemm", **row(2 * at + 1, *own)} for at, own in enumerate(computes_ms)]
    host: list[Row] = [
        {
            "kind": RUNTIME, "lane": 2, "name": "cudaLaunchKernel", "correlation": each["correlation"],
            "start_ns": each["launch_ns"], "end_ns": each["launch_ns"] + LAUNCH_NS,
        }
        for each in sorted((*calls, *work), key=lambda each: int(each["launch_ns"]))
    ]  # fmt: skip
    whole: Row = {"start_ns": EPOCH, "end_ns": EPOCH + 100 * MS, "host_events": True}
    return rank_timeline(rank, calls=calls, work=work, lanes=LANES, host=host, recordings=[whole])


def recorded(computes_at_ms: int, launched_ms: int = 0) -> Run:
    """Return two ranks, of which the second comes late to a gather; compute begins, then waits for a reduction.

    The host of the second launches everything from one moment on.
    """
    own, late = (
        rank_of(
            rank,
            [("all_gather", came, 20), ("all_reduce", 80, 90)],
            [(computes_at_ms, 80), (90, 100)],
            launched_ms * rank,
        )
        for rank, came in enumerate((5, 15))
    )
    return Run(world_size=2, ranks={0: own, 1: late}, groups=(Group(name="0", size=2, ranks=(0, 1)),))


def test_what_is_exposed_beside_unrecorded_work_is_of_the_start_of_the_recording() -> None:
    analysis = analyze(recorded(60))
    for info, gather_ms in zip(analysis.ranks, (15, 5), strict=True):
        assert info.whole.causes == {"start_of_recording": gather_ms * MS, "dependency": 10 * MS}
        assert sum(info.whole.causes.values()) == info.whole.exposed_comm_ns
    assert {row.op: row.exposed_ns for row in analysis.collectives} == {"all_gather": 0, "all_reduce": 10 * MS}
    cost = analysis.throughput
    assert cost is not None
    assert cost.exposed_fraction is not None
    assert abs(cost.exposed_fraction - 20 / (95 + 85 - 2 * 40 - 15 - 5)) < 1e-9, "both without what is not known"


def test_a_cold_start_waits_for_its_first_gather_and_for_the_late_rank() -> None:
    analysis = analyze(recorded(20, launched_ms=15))
    waits, late = (info.whole.causes for info in analysis.ranks)
    assert "start_of_recording" not in waits | late
    assert late == {"dependency": 15 * MS}
    assert (waits["dependency"], waits["peer_host"]) == (15 * MS, 10 * MS)
    assert sum(waits.values()) == 25 * MS
    assert {row.op: row.exposed_ns for row in analysis.collectives} == {"all_gather": 10 * MS, "all_reduce": 10 * MS}


def test_what_a_late_rank_had_launched_in_time_waited_for_work_that_is_not_recorded() -> None:
    waits = analyze(recorded(20)).ranks[0].whole.causes
    assert waits == {"start_of_recording": 10 * MS, "dependency": 15 * MS}
