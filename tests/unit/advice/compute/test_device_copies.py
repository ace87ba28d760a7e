"""Copies on the device that an operation of PyTorch made are named, with what they take; others are not."""

import pytest

from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Range, Sent
from tests.unit.advice.test_advice_rules import always, fired

COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def copying(
    *, took_us: float = 60, host_op: str = "aten::copy_", inside: str = "aten::contiguous", name: str = COPY,
    launch: float = 45, sent: str = "all_reduce", add_us: float = 0,
) -> Run:  # fmt: skip
    """Return a job whose step of 1 ms has one copy, launched at 45 us, in `inside` from 40 to 50 us, 2 us after the
    kernel before it ended."""
    begin = 980 - took_us - add_us
    return always(
        Kernel(start=0, end=begin - 2, name="ampere_gemm", launch=-1),
        Kernel(start=begin, end=begin + took_us, name=name, launch=launch, host_op=host_op),
        *([Kernel(start=980 - add_us, end=980, name=ADD, launch=60)] if add_us else []),
        Sent(start=150, end=200, op=sent),
        Kernel(start=980, end=999, name="ampere_gemm"),
        Range(name=inside, start=40, end=50),
    )


def found(run: Run) -> Recommendation | None:
    return fired(run).get("device_copies")


@pytest.mark.parametrize(
    ("host_op", "inside"),
    [("aten::copy_", "aten::contiguous"), ("aten::contiguous", "anything"), ("aten::copy_", "aten::reshape")],
)
def test_copies_are_named_with_their_operation_and_what_they_save_at_most(host_op: str, inside: str) -> None:
    advised = found(copying(host_op=host_op, inside=inside))
    assert advised is not None
    op = inside if host_op == "aten::copy_" else host_op
    assert (
        advised.title
        == f"Copy less on the device: 1 copies a step take 0.06 ms of a 1 ms step (6.0 %), launched in {op}"
    )
    # With the gap before it.
    assert (advised.gain_high_ns, advised.loss_ns, advised.verdict) == (62 * US, None, "look")
    assert advised.shown_by is not None
    assert advised.shown_by.end_ns - advised.shown_by.start_ns == 60 * US


@pytest.mark.parametrize(
    "other",
    [
        {"took_us": 45}, {"inside": "aten::_to_copy"}, {"host_op": "aten::add", "name": ADD},
        {"name": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"}, {"launch": 55},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, object]) -> None:
    assert found(copying(**other)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "where",
    ["Optimizer.step#AdamW.step", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
     "FSDP::all_gather", "torch::distributed::reducer::mul_out"],
)  # fmt: skip
def test_neither_are_those_for_the_optimizer_gradients_or_communication(where: str) -> None:
    run = always(
        Kernel(start=0, end=900, name="ampere_gemm", launch=-1),
        Kernel(start=900, end=980, name=COPY, launch=45, host_op="aten::clone"),
        Sent(start=150, end=200),
        Range(name=where, start=40, end=50),
    )
    assert found(run) is None


def test_what_runs_beside_other_compute_is_no_loss() -> None:
    beside = Kernel(start=900, end=980, name="ampere_gemm", launch=44)
    copy = Kernel(start=900, end=980, name=COPY, launch=45, host_op="aten::clone")
    rest = (Kernel(start=0, end=900, launch=-1), Sent(start=150, end=200))
    assert found(always(*rest, copy)) is not None
    assert found(always(*rest, copy, beside)) is None


def test_in_a_pipeline_it_is_a_cost_and_no_bound() -> None:
    staged, other = found(copying(sent="send")), found(copying())
    assert staged is not None
    assert other is not None
    assert (staged.bound_from, other.bound_from) == ("loss", None)
    assert "a step may gain more" in staged.assumed[0]


def test_a_compiler_could_fuse_copies_and_casts_too() -> None:
    """80 us of copies, and 40 of additions, of a step of 1 ms."""
    for inside in ("aten::contiguous", "aten::_to_copy"):
        advised = fired(copying(took_us=80, add_us=40, inside=inside))["unfused_elementwise"]
        assert advised.title.startswith("Try torch.compile: elementwise kernels and copies take 0.12 ms of a 1 ms step")
        assert (advised.evidence["copies_ns"], advised.evidence["kernels"]) == (80 * US, 2)
    assert "unfused_elementwise" not in fired(copying(took_us=80, add_us=40, inside="anything"))


COPIED = "void at::native::{}<128, 4, at::native::{}<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op", "counts"),
    [
        (COPIED.format("elementwise_kernel", "gpu_kernel_impl_nocast"), None, True),
        (COPIED.format("elementwise_kernel_manual_unroll", "gpu_kernel_impl_nocast"), None, True),
        ("batched_transpose_16x64_pack_1x4_ediv_1x2_half", None, True),
        ("transpose_CNHW2NCHW_V2_2D_WG_off64", None, True),
        (COPIED.format("elementwise_kernel", "gpu_kernel_impl"), None, False),
        (COPIED.format("vectorized_elementwise_kernel", "gpu_kernel_impl_nocast"), None, False),
        (COPIED.format("elementwise_kernel", "gpu_kernel_impl_nocast"), "aten::mm", False),
        ("__amd_rocclr_copyBuffer", None, False),
    ],
    ids=["by its name", "of ROCm", "of MIOpen", "of MIOpen, named by layouts", "a cast", "no other layout",
         "its operation is known", "to or from what is not known"],
)  # fmt: skip
def test_where_no_operation_was_recorded_copies_to_another_layout_are_known_by_name(
    name: str, op: str | None, *, counts: bool
) -> None:
    """As in traces of rocprof: 120 us of copies, and 40 of additions, of a step of 1 ms."""
    run = copying(took_us=120, add_us=40, inside="nothing", name=name)
    for timeline in run.ranks.values():
        host_op, computes = timeline.spans.host_op, timeline.spans.kind == COMPUTE
        host_op[computes] = -1 if op is None else timeline.names.index(op)
    advised = fired(run)
    assert "unfused_elementwise" not in advised, "copies are none"
    assert ("device_copies" in advised) == counts
    if counts:
        found = advised["device_copies"]
        assert found.title == (
            "Copy less on the device: 1 copies a step take 0.12 ms of a 1 ms step (12.0 %), to another layout, as the "
            "names of their kernels say"
        )
        assert (found.gain_high_ns, found.evidence["operations"]) == (122 * US, [])
        assert "for the optimizer, gradients or communication" in found.assumed[1]
