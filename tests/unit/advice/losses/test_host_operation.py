"""Idle time in which hosts are in one operation that recurs is named with it, and no gain is promised."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.common.user_ranges import range_of_pause
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import (
    ANNOTATION,
    OPERATION,
    Annotations,
    HostSpans,
    concat,
    make,
    take,
)
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.graph_programs import Launch, Sync, Work, simulate
from tests.unit.advice.test_advice_rules import fired

US, MS = 1_000, 1_000_000
TIMES = 6
WORK, KERNEL = 5 * MS, 2 * MS
PULL = "rpc_async#pull(worker{rank} -> ps)"


def pulling(
    name: str = PULL, *, ranks: int = 1, times: int = TIMES, kind: int = OPERATION, share: float = 1.0,
    holds: bool = False, waits: bool = False, on: int | None = None, kernel_ns: int = KERNEL, work_ns: int = WORK,
) -> Run:  # fmt: skip
    """Return ranks whose hosts work for 5 ms between kernels of 2 ms, in an operation for a share of that time; with
    `holds` another one lies in it; with `on` that of this rank alone is recorded."""
    step = [Launch(0, kernel_ns), *[Sync(0)] * waits, Work(work_ns)]
    run = simulate({rank: [*step * times, Launch(0, 2 * MS)] for rank in range(ranks)}).run
    return replace(
        run,
        ranks={
            rank: _with_operations(each, name.format(rank=rank), kind, share, holds=holds)
            if on in (None, rank)
            else each
            for rank, each in run.ranks.items()
        },
    )


def _with_operations(timeline: RankTimeline, name: str, kind: int, share: float, *, holds: bool) -> RankTimeline:
    host = timeline.host
    gaps = np.flatnonzero(host.start_ns[1:] - host.end_ns[:-1] >= 2 * MS)
    start, end = host.end_ns[gaps] + US, host.start_ns[gaps + 1] - US
    end = start + (share * (end - start)).astype(np.int64)
    spans = {"recording": 0, "lane": int(host.lane[0]), "correlation": -1}
    own = make(HostSpans, gaps.size, kind=kind, name=len(timeline.names), start_ns=start, end_ns=end, **spans)
    inner = make(
        HostSpans, gaps.size, kind=OPERATION, name=len(timeline.names) + 1, start_ns=start + US, end_ns=start + 2 * US,
        **spans,
    )  # fmt: skip
    rows = concat([host, own, *[inner] * holds])
    rows = take(rows, np.lexsort((-rows.end_ns, rows.start_ns, rows.lane)))
    return replace(timeline, host=rows, names=(*timeline.names, name, "aten::add"))


def named(run: Run) -> Recommendation | None:
    return fired(run).get("host_operation")


def test_communication_of_hosts_is_named_with_what_it_costs_and_no_gain() -> None:
    found = named(pulling(ranks=2))
    assert found is not None
    assert "hosts are in rpc_async#pull(worker# -> ps), communication of the host, for 5 ms each time" in found.title
    assert found.loss_ns == pytest.approx(TIMES * (WORK - KERNEL), rel=0.02)
    assert (found.gain_high_ns, found.predicted_gain_ns, found.verdict) == (None, None, "look")


def test_another_operation_is_named_but_is_no_communication() -> None:
    found = named(pulling("my::restore_tables"))
    assert found is not None
    assert found.title.startswith("Free the host: the host of rank 0 is in my::restore_tables for 5 ms each time")
    assert not found.evidence["communicates"]


@pytest.mark.parametrize("name", ["tcp::TCPStore::get", "gloo:barrier", "http_get", "read_socket", "store.wait"])
def test_what_says_that_it_communicates(name: str) -> None:
    found = named(pulling(name))
    assert found is not None
    assert found.evidence["communicates"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_named"), [("gloo:barrier", True), ("nccl:barrier", False), ("log", False)])
def test_of_ranges_only_collectives_of_hosts_are_named(name: str, *, is_named: bool) -> None:
    """Any other range in which a host does nothing for 3 ms or more is of `host_pauses`."""
    assert (named(pulling(name, kind=ANNOTATION, kernel_ns=MS, work_ns=5 * MS // 2)) is not None) == is_named
    assert (named(pulling(name, kind=ANNOTATION)) is not None) == is_named
    assert ("host_pauses" in fired(pulling(name, kind=ANNOTATION))) != is_named


@pytest.mark.parametrize(
    "name",
    ["autograd::engine::evaluate_function: AddmmBackward0", "Optimizer.step#AdamW.step", "ProfilerStep#3", "aten::item",
     "Torch-Compiled Region: 0/1", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "gc.collect"],
)  # fmt: skip
def test_what_wraps_others_or_has_a_rule_of_its_own_is_not(name: str) -> None:
    assert named(pulling(name)) is None


def test_neither_is_what_holds_others_or_covers_less_than_nine_tenths() -> None:
    assert named(pulling(holds=True)) is None
    assert named(pulling(share=0.97)) is not None
    assert named(pulling(share=0.85)) is None


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "times", "on", "is_named"), [(1, 2, None, True), (1, 1, None, False),
                                                               (4, 1, None, True), (4, 1, 2, False)])  # fmt: skip
def test_once_is_enough_only_where_most_ranks_have_it(
    ranks: int, times: int, on: int | None, *, is_named: bool
) -> None:
    assert (named(pulling(ranks=ranks, times=times, on=on)) is not None) == is_named


def test_after_a_wait_that_had_emptied_the_device_it_is_named_too() -> None:
    after, alone = named(pulling(waits=True, kernel_ns=2 * WORK)), named(pulling())
    assert after is not None
    assert alone is not None
    assert "waits for the device before it stay" in after.assumed[0]
    assert alone.assumed == []


def test_late_launches_are_without_it() -> None:
    def late(run: Run) -> int:
        found = fired(run).get("launch_bound")
        return 0 if found is None else found.loss_ns or 0

    assert late(pulling("nccl:barrier", kind=ANNOTATION)) + late(pulling("ProfilerStep#3")) > 0
    assert late(pulling()) == 0


def test_a_collective_of_hosts_is_the_range_of_a_pause_of_a_device() -> None:
    timeline = pulling().ranks[0]
    note = make(Annotations, 1, recording=0, lane=1, name=0, start_ns=0, end_ns=WORK)

    def of(name: str) -> str | None:
        return range_of_pause(replace(timeline, annotations=note, names=(name,)), 1, 0, WORK)

    assert (of("gloo:barrier"), of("nccl:barrier")) == ("gloo:barrier", None)
