"""Kernels that add to gradients are named as such, and are for no compiler; neither are others outside of the model."""

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Range, Sent
from tests.unit.advice.test_advice_rules import always, fired

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
NODE = "autograd::engine::evaluate_function: "
ACCUMULATES = f"{NODE}torch::autograd::AccumulateGrad"


def backward(where: str = ACCUMULATES, *, host_op: str = "aten::add_", took_us: float = 150, launch: float = 45) -> Run:
    """Return a job whose step of 1 ms has an elementwise kernel, launched at 45 us in the range `where`; the
    optimizer's range begins at 100 us, and a node of autograd ends at 60 us."""
    begin = 980 - took_us
    return always(
        Kernel(start=0, end=begin, name="ampere_gemm", launch=-1),
        Kernel(start=begin, end=begin + took_us, name=ADD, launch=launch, host_op=host_op),
        Sent(start=150, end=200),
        Kernel(start=980, end=999, name="ampere_gemm"),
        Range(name=where, start=40, end=50),
        Range(name=f"{NODE}MulBackward0", start=55, end=60),
        Range(name="Optimizer.step#AdamW.step", start=100, end=120),
    )


def test_kernels_that_add_to_gradients_are_named_with_what_they_take() -> None:
    found = fired(backward())
    assert found["gradient_accumulation"].title.startswith(
        "Accumulate fewer, larger micro-batches, or zero gradients with set_to_none=True: adding to stored gradients "
        "takes 0.15 ms of a 1 ms step (15.0 %; kernels: 1)"
    )
    assert found["gradient_accumulation"].gain_high_ns == 150 * US
    assert found["gradient_accumulation"].loss_ns is None
    assert "unfused_elementwise" not in found


@pytest.mark.parametrize(
    "other", [{"took_us": 40}, {"where": f"{NODE}AddBackward0"}, {"host_op": "aten::mul"}, {"launch": 52}], ids=str
)
def test_others_add_no_gradients(other: dict[str, object]) -> None:
    assert "gradient_accumulation" not in fired(backward(**other))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "launch", "of_model"),
    [
        (f"{NODE}GeluBackward0", 45, True),
        ("DistributedDataParallel.forward", 45, True),
        ("torch::distributed::reducer::mul_out", 45, False),
        ("Optimizer.zero_grad#AdamW.zero_grad", 45, False),
        ("anything", 70, False),
        ("anything", 130, True),
    ],
)
def test_only_kernels_of_the_model_are_to_be_compiled(where: str, launch: float, *, of_model: bool) -> None:
    """Those between the last node of autograd and the optimizer clip or scale gradients."""
    assert ("unfused_elementwise" in fired(backward(where, host_op="aten::mul", launch=launch))) == of_model


def test_it_hides_no_loss() -> None:
    """Kernels that work hide no loss that is smaller than their bound: it is named beside them, and follows."""
    items = [Kernel(start=0, end=500, name="ampere_gemm"), Sent(start=900, end=960),
             Kernel(start=500, end=899, name=ADD, launch=45, host_op="aten::add_"),
             Range(name=ACCUMULATES, start=40, end=50),
             Kernel(start=960, end=999, name="ampere_gemm")]  # fmt: skip
    found = fired(always(*items))
    assert {"gradient_accumulation", "exposed_communication"} <= found.keys()
    assert list(found).index("gradient_accumulation") < list(found).index("exposed_communication")
    assert "Largest" not in found["exposed_communication"].title
