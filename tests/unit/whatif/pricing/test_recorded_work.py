"""Kernels of a recorded step by class: of a real trace, by hand, and none where there are no kernels."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import ATTENTION, COMPUTE, MATMUL, MEMORY, Spans, make
from overlapscope.timeline.names import NameTable
from overlapscope.whatif.pricing.recorded_work import recorded_work
from tests.conftest import ROOT, shared_file
from tests.unit.whatif.pricing.dry_runs import Row, dry_run


def timeline(*kernels: tuple[str, int, int, int]):  # type: ignore[no-untyped-def]
    names = NameTable()
    spans = make(
        Spans,
        len(kernels),
        recording=0,
        lane=0,
        kind=[kind for _, kind, _, _ in kernels],
        name=names.codes(name for name, *_ in kernels),
        start_ns=np.arange(len(kernels)) * 1000,
        end_ns=np.arange(len(kernels)) * 1000 + [lasted for *_, lasted in kernels],
        step=[step for _, _, step, _ in kernels],
    )
    empty = dry_run([Row(work=MEMORY)]).ranks[0]
    return replace(empty, basis="trace", spans=spans, names=tuple(names.to_list()))


def test_kernels_are_summed_by_class_over_complete_steps() -> None:
    found = recorded_work(
        timeline(
            ("nvjet_tst_256x128", COMPUTE, 1, 100),
            ("void flash_fwd_kernel<cutlass::half_t>", COMPUTE, 1, 30),
            ("void at::native::elementwise_kernel", COMPUTE, 1, 7),
            ("ncclDevKernel_AllGather", 1, 1, 500),
            ("nvjet_tst_256x128", COMPUTE, 2, 300),
            ("nvjet_tst_256x128", COMPUTE, 3, 9999),
        ),
        [1, 2],
    )
    assert found == {MATMUL: 200, ATTENTION: 15, MEMORY: 3.5}


def test_without_products_or_without_a_device_nothing_is_said() -> None:
    assert recorded_work(timeline(("some_kernel", COMPUTE, 1, 5)), [1]) == {}
    assert recorded_work(timeline(("gemm", COMPUTE, 1, 5)), []) == {}
    assert recorded_work(replace(timeline(("gemm", COMPUTE, 1, 5)), has_device=False), [1]) == {}
    run = read_inputs([ROOT / "traces" / "baseline"])
    assert recorded_work(run.ranks[0], [3, 4]) == {}


@pytest.mark.slow
def test_a_real_trace_has_all_its_kernels_in_one_class_each() -> None:
    run = read_inputs([shared_file("kineto/a100_rank3of8_six_steps.json.gz")])
    (own,) = run.ranks.values()
    steps = [1010, 1011]
    found = recorded_work(own, steps)
    spans = own.spans
    chosen = (spans.kind == COMPUTE) & np.isin(spans.step, steps)
    assert sum(found.values()) == pytest.approx((spans.end_ns - spans.start_ns)[chosen].sum() / 2)
    assert 0 < found[MATMUL] < found[MEMORY]
