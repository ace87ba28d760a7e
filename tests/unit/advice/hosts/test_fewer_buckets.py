"""A slow host has less to launch in fewer buckets, where DDP sends many small ones."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.hosts.fewer_buckets import fewer_buckets
from overlapscope.advice.rule_input import RuleInput
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import OPERATION, HostSpans
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_exposed_calls import looked_at

MIB = 1 << 20


def launching(
    *, buckets: int = 24, each_us: float = 10, size_bytes: int = 10 * MIB, phase: str = "backward",
    seen: str = "DistributedDataParallel.forward", operation: str = "c10d::allreduce_",
) -> RuleInput:  # fmt: skip
    """Return a job whose hosts launch so many all-reduces of a size in each step of 1,000 us, and take so long each."""

    def step(_: int) -> list[Item]:
        sent = [Sent(start=at * 30, end=at * 30 + 20, size_bytes=size_bytes, phase=phase) for at in range(buckets)]
        return [Range(name=seen, start=0, end=1), Kernel(start=0, end=990), *sent]

    run = made(step)
    return looked_at(
        replace(run, ranks={rank: _with_host(own, buckets, each_us, operation) for rank, own in run.ranks.items()})
    )


def _with_host(timeline: RankTimeline, calls: int, each_us: float, operation: str) -> RankTimeline:
    names = NameTable(timeline.names)
    starts = [EPOCH_NS + (number * STEP + at * 30) * US for number in range(STEPS) for at in range(calls)]
    rows = [
        {"recording": 0, "lane": 2, "kind": OPERATION, "name": name, "start_ns": at, "end_ns": at + round(us * US)}
        for at in starts
        for name, us in ((operation, each_us), ("record_param_comms", each_us / 2), ("aten::mm", 1))
    ]
    host = fact_table(HostSpans, rows, names)
    return replace(timeline, host=host, names=tuple(names.to_list()))


def test_fewer_buckets_are_advised_with_the_time_that_their_launches_take() -> None:
    assert fewer_buckets(launching(), [1]) == {
        "ddp": "DistributedDataParallel(model, bucket_cap_mb=100)  # each of 24 all-reduces a step takes this host "
        "0.01 ms: 3 larger ones save it about 0.21 ms, while it is slow"
    }
    inner = fewer_buckets(launching(operation="other"), [1])["ddp"]
    assert inner.endswith("about 0.105 ms, while it is slow"), (
        "of the inner operation, where the outer one was not recorded"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [{"buckets": 19}, {"size_bytes": 100 * MIB}, {"each_us": 0.9}, {"phase": "forward"}, {"seen": "FSDP::pre_forward"}],
    ids=str,
)
def test_else_nothing_is_advised(other: dict[str, object]) -> None:
    assert fewer_buckets(launching(**other), [1]) == {}  # type: ignore[arg-type]


def test_of_ranks_that_were_not_recorded_nothing_is_known() -> None:
    assert fewer_buckets(launching(), [7]) == {}
