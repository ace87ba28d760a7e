"""Traces made at random, against the independent oracle: whatever lies in them, every nanosecond agrees."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import overlapscope
from tests.property.examples import examples
from tests.support import oracle
from tests.unit.analysis.figures.test_real_traces import figures, named_nccl_or_multimem

KERNELS = ("void cutlass::Kernel<gemm>(Params)", "triton_poi_fused_add_0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
BASES = (None, 0, 1_767_189_312_000_000_000)


@st.composite
def traces(draw: st.DrawFn) -> dict[str, Any]:
    """A trace of two streams, two host threads and up to four steps, with gaps, lags and missing launches."""
    base = draw(st.sampled_from(BASES))
    origin_ns = 4_400_663_614_049_970_000 if base is None else draw(st.sampled_from([0, 4_400_663_614_049_971]))
    if base is None:
        origin_ns = 4_400_663_614_049_971  # floats keep nanoseconds below 2**43 us

    def microseconds(ns: int) -> float:
        return round(ns / 1000, 3)

    events: list[dict[str, Any]] = []
    for correlation in range(1, draw(st.integers(1, 14)) + 1):
        launched = draw(st.integers(0, 4000))
        lag = draw(st.integers(0, 3000))
        sort = draw(st.sampled_from(["kernel", "kernel", "kernel", "gpu_memcpy", "gpu_memset"]))
        name = draw(st.sampled_from(KERNELS)) if sort == "kernel" else "Memcpy HtoD (Pinned -> Device)"
        device = {"ph": "X", "cat": sort, "name": name, "pid": 0, "tid": draw(st.sampled_from([7, 20]))}
        device |= {"ts": microseconds(origin_ns + launched + lag), "dur": microseconds(draw(st.integers(0, 1500)))}
        events.append(device | {"args": {"correlation": correlation, "device": 0, "stream": device["tid"]}})
        if draw(st.integers(0, 5)):
            thread = draw(st.sampled_from([100, 101]))
            runtime = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": thread}
            runtime |= {"ts": microseconds(origin_ns + launched), "dur": 0.5, "args": {"correlation": correlation}}
            events.append(runtime)
    number, at = draw(st.integers(0, 5)), draw(st.integers(0, 500))
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 1500))
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 100, "tid": 100}
        events.append(mark | {"ts": microseconds(origin_ns + at), "dur": microseconds(length)})
        number += draw(st.sampled_from([1, 1, 1, 2]))
        at += length + draw(st.integers(0, 200))
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    if base is not None:
        trace["baseTimeNanoseconds"] = base
    return trace | {"traceEvents": draw(st.permutations(events))}


@examples(200)
@given(trace=traces())
def test_generated_traces_agree_with_the_oracle(trace: dict[str, Any]) -> None:
    busy = [
        sum(event["dur"] for event in trace["traceEvents"] if event["tid"] == stream and event["name"] in KERNELS[:2])
        for stream in (7, 20)
    ]
    assume(busy[0] != busy[1])  # with two equally busy streams either may be the main lane
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_text(json.dumps(trace), encoding="utf-8")
        truth = oracle.answer(path, named_nccl_or_multimem)
        info = overlapscope.load(path).analysis().ranks[0]
    assert figures(info.whole) == truth.whole
    assert {step.step: figures(step) if step.window_ns is not None else None for step in info.steps} == truth.steps
    for each in (info.whole, *info.steps):
        if each.window_ns is not None:
            parts = (each.overlapped_ns, each.exposed_comm_ns, each.compute_only_ns, each.copy_only_ns, each.idle_ns)
            assert sum(part or 0 for part in parts) == each.window_ns
