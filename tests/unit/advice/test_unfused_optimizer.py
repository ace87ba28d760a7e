"""A fused optimizer is to be tried where torch's own takes long in many kernels."""

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::BinaryOpScalarFunctor>"


def updating(
    *,
    optimizer: str = "AdamW",
    kernel: str = FOREACH,
    took_us: float = 60,
    launch: float = 800,
    host_op: str = "foreach",
) -> Run:
    """Return a job whose optimizer's range, from 790 us on, launches two kernels."""
    middle, until = 900 + took_us / 2, 900 + took_us
    return made(
        lambda _: [
            Kernel(start=0, end=900), Sent(start=100, end=200),
            Range(name=f"Optimizer.step#{optimizer}.step", start=790, end=850),
            Kernel(start=900, end=middle, launch=launch, name=kernel, host_op=host_op),
            Kernel(start=middle, end=until, launch=launch + 1, name=kernel, host_op=host_op),
            Kernel(start=until, end=990, launch=860),
        ]
    )  # fmt: skip


def test_it_is_named_with_its_kernels_and_no_gain() -> None:
    found = fired(updating())["unfused_optimizer"]
    assert found.title.startswith("Try fused=True: 2 kernels of AdamW take 0.06 ms of a 1 ms step (6.0 %)")
    assert found.apply == {"torch": "optimizer = torch.optim.AdamW(..., fused=True)"}
    assert (found.gain_high_ns, found.predicted_gain_ns, found.loss_ns) == (None, None, None)
    assert found.evidence["optimizer_ns"] == 60 * US


@pytest.mark.parametrize(
    "other",
    [
        {"took_us": 40}, {"optimizer": "Adafactor"}, {"host_op": "aten::_fused_adamw_"}, {"launch": 700},
        {"kernel": "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"}, {"kernel": "elementwise_kernel"},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, object]) -> None:
    assert "unfused_optimizer" not in fired(updating(**other))  # type: ignore[arg-type]
