"""Small collectives: what of them is exposed without waiting, and what servers do about them."""

import numpy as np
from msgspec.structs import replace

from overlapscope.advice.calls.small_collectives import (
    ALREADY,
    FEWER,
    FUSE,
    FUSE_ON_ROCM,
    small_collectives,
)
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import many
from tests.unit.advice.test_exposed_calls import looked_at


def found(run: Run, *, waits_us: int = 0) -> Recommendation:
    given = looked_at(run)
    figures = replace(given.figures, causes={"peer_host": waits_us * US})
    small = small_collectives(replace(given, figures=figures, analysis=replace(given.analysis, headline=figures)))
    assert small is not None
    return small


def serving(run: Run) -> Run:
    ranks = {rank: replace(each, names=(*each.names, "vllm::all_reduce")) for rank, each in run.ranks.items()}
    return replace(run, ranks=ranks)


def without_sizes(run: Run) -> Run:
    ranks = {
        rank: replace(each, collectives=replace(each.collectives, bytes=np.full_like(each.collectives.bytes, NONE)))
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


def test_a_servers_calls_are_to_be_shortened_and_not_joined_as_it_computes_between_them() -> None:
    small = found(serving(many(20, size_bytes=200_000, op="all_reduce")))
    assert small.title.startswith("Shorten small collectives: 20 calls of all_reduce")
    assert "custom-all-reduce" in small.apply["serving"]
    assert "coalescing" not in " ".join(small.apply.values())
    assert small.gain_high_ns == 400 * US, "none of the calls has to remain"
    trained = found(many(20, size_bytes=200_000, op="all_reduce"))
    assert trained.title.startswith("Send fewer, larger collectives: ")
    assert trained.gain_high_ns == 380 * US


def test_calls_without_sizes_are_not_said_to_take_as_long_whatever_these_are() -> None:
    assert "whatever their size; 0.4 ms are exposed, 20 us of each" in found(many(20, size_bytes=2000)).title
    assert "whatever" not in found(without_sizes(many(20, size_bytes=2000))).title


def test_waiting_for_late_ranks_is_no_latency() -> None:
    """Of twenty calls five take 60 us, for a late rank or a core, the others 20."""
    begins = np.cumsum([100, *[20] * 15, *[60] * 5])
    sent = [
        Sent(start=begin, end=end, launch=1 + at / 100, op="all_gather", size_bytes=2000)
        for at, (begin, end) in enumerate(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True))
    ]
    run = made(lambda _: [Kernel(start=0, end=99), *sent, Kernel(start=800, end=990, launch=3)])
    assert found(run).evidence["exposed_ns"] == 600 * US
    waits = found(run, waits_us=150)
    assert waits.evidence["exposed_ns"] == 450 * US
    assert waits.gain_high_ns == 450 * US * 19 // 20
    assert "0.45 ms are exposed, 22.5 us of each, without waiting for late ranks" in waits.title
    assert "without waiting" not in found(run).title
    assert found(run, waits_us=500).evidence["exposed_ns"] == 400 * US, "what the calls take in the median"


CUSTOM = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int, int)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def in_kernels(run: Run, *kernels: str) -> Run:
    """Return a run whose calls are made by these kernels in turn."""

    def own(timeline: RankTimeline) -> RankTimeline:
        spans = timeline.spans
        code = len(timeline.names) + spans.collective % len(kernels)
        name = np.where(spans.collective == NONE, spans.name, code).astype(spans.name.dtype)
        return replace(timeline, names=(*timeline.names, *kernels), spans=replace(spans, name=name))

    return replace(run, ranks={rank: own(each) for rank, each in run.ranks.items()})


def test_a_server_whose_calls_are_custom_ones_is_told_what_is_left() -> None:
    run = serving(many(20, size_bytes=200_000, op="all_reduce"))
    custom = found(in_kernels(run, CUSTOM))
    assert custom.title.startswith("Shorten small collectives: 20 calls of all_reduce a step take their latency")
    assert ALREADY in custom.title
    assert custom.apply == {"serving": f"# {FUSE}\n{FEWER}"}
    for kernels in ([NCCL], [CUSTOM] * 4 + [NCCL]):  # 80 % of the time in custom ones
        other = found(in_kernels(run, *kernels))
        assert ALREADY not in other.title
        assert "custom-all-reduce" in other.apply["serving"]


def test_the_norm_is_fused_as_the_devices_can() -> None:
    run = in_kernels(serving(many(20, size_bytes=200_000, op="all_reduce")), CUSTOM)
    run = replace(run, fingerprint={"device": "AMD Instinct MI250X"})
    assert found(run).apply["serving"].startswith(f"# {FUSE_ON_ROCM}\n")
