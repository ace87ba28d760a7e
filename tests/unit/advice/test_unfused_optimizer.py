"""A fused optimizer is to be tried where torch's own takes long in many kernels."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, HostSpans, make
from overlapscope.timeline.run import RankTimeline, Run
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


NORM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::LpNormFunctor<float, 2>>"


def in_a_graph(run: Run) -> Run:
    """Return the job with one launch of a graph a step: no kernel has a launch of its own."""

    def captured(timeline: RankTimeline) -> RankTimeline:
        spans = replace(timeline.spans, launch_ns=np.full_like(timeline.spans.launch_ns, NONE))
        return replace(timeline, spans=spans, names=(*timeline.names, "cudaGraphLaunch"))

    return replace(run, ranks={rank: captured(each) for rank, each in run.ranks.items()})


def test_of_a_graph_names_tell_its_kernels() -> None:
    # Its range lasts from 790 to 850 us, when none of them runs: the graph was launched before.
    found = fired(in_a_graph(updating()))["unfused_optimizer"]
    assert "2 kernels of AdamW take 0.06 ms" in found.title
    assert found.apply == {"torch": "optimizer = torch.optim.AdamW(..., fused=True, capturable=True)"}
    assert "by their names" in found.measured[0]
    of_sgd = fired(in_a_graph(updating(optimizer="SGD")))["unfused_optimizer"]
    assert of_sgd.apply == {"torch": "optimizer = torch.optim.SGD(..., fused=True)"}


def test_clipping_in_a_graph_is_no_update() -> None:
    assert "unfused_optimizer" not in fired(in_a_graph(updating(kernel=NORM)))


def test_of_a_graph_with_its_correlation_names_tell_its_kernels_too() -> None:
    """The launch of the graph lies in no range of the optimizer, and before all kernels."""

    def captured(timeline: RankTimeline) -> RankTimeline:
        spans = timeline.spans
        one = np.ones_like(spans.correlation)
        spans = replace(spans, launch_ns=spans.start_ns - 500 * US, correlation=one)
        host = replace(make(HostSpans, 1), name=np.array([len(timeline.names)], np.int32), correlation=one[:1])
        return replace(timeline, spans=spans, host=host, names=(*timeline.names, "cudaGraphLaunch"))

    run = updating()
    run = replace(run, ranks={rank: captured(each) for rank, each in run.ranks.items()})
    found = fired(run)["unfused_optimizer"]
    assert found.evidence["optimizer_ns"] == 60 * US
    assert "capturable=True" in found.apply["torch"]
