"""A fused optimizer is to be tried where torch's own takes long in many kernels."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.compute.unfused_optimizer import A_THIRD, AS_BYTES, BY_BYTES, LAUNCHES, NOTHING
from overlapscope.timeline.columns import COMM, COPY, NONE, HostSpans, make
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Range, Ready, Sent, made
from tests.unit.advice.test_advice_rules import fired

FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::BinaryOpScalarFunctor>"


def updating(
    *,
    optimizer: str = "AdamW",
    kernel: str = FOREACH,
    took_us: float = 60,
    launch: float = 800,
    host_op: str = "foreach",
    other: str | None = None,
    sent: Sequence[Item] = (Sent(start=100, end=200),),
) -> Run:
    """Return a job whose optimizer's range, from 790 us on, launches two kernels; `other` names the second one."""
    middle, until = 900 + took_us / 2, 900 + took_us
    return made(
        lambda _: [
            Kernel(start=0, end=900), *sent,
            Range(name=f"Optimizer.step#{optimizer}.step", start=790, end=850),
            Kernel(start=900, end=middle, launch=launch, name=kernel, host_op=host_op),
            Kernel(start=middle, end=until, launch=launch + 1, name=other or kernel, host_op=host_op),
            Kernel(start=until, end=990, launch=860),
        ]
    )  # fmt: skip


def test_it_is_named_with_its_kernels_and_what_it_costs() -> None:
    found = fired(updating())["unfused_optimizer"]
    assert found.title.startswith("Try fused=True: 2 kernels of AdamW take 0.06 ms of a 1 ms step (6.0 %)")
    assert found.apply == {"torch": "optimizer = torch.optim.AdamW(..., fused=True)"}
    # A fused one takes a third of it or so, beyond 5 us of each kernel: no bound; and kernels that work are no loss.
    assert found.bound_from == "loss"
    assert found.assumed == [A_THIRD]
    assert (found.gain_high_ns, found.predicted_gain_ns, found.loss_ns) == (round((60 - 50 / 3) * US), None, None)
    assert found.evidence["optimizer_ns"] == 60 * US


@pytest.mark.parametrize(
    "other",
    [
        {"took_us": 28}, {"optimizer": "Adafactor"}, {"host_op": "aten::_fused_adamw_"}, {"launch": 700},
        {"kernel": "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"}, {"kernel": "elementwise_kernel"},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, object]) -> None:
    assert "unfused_optimizer" not in fired(updating(**other))  # type: ignore[arg-type]


def test_four_percent_of_a_step_are_enough_but_not_of_a_loop() -> None:
    assert fired(updating(took_us=41))["unfused_optimizer"].gain_high_ns == round((41 - 31 / 3) * US)
    assert "unfused_optimizer" not in fired(looping(kernels=20, gap_us=-1)), "of 41 us, too"


def test_a_kernel_that_a_fused_one_takes_as_long_as_is_no_trial() -> None:
    """As of SGD, whose one `foreach` kernel reads and writes all there is."""
    run = made(
        lambda _: [
            Kernel(start=0, end=880), Sent(start=100, end=200),
            Range(name="Optimizer.step#SGD.step", start=790, end=850),
            Kernel(start=880, end=980, launch=800, name=FOREACH, host_op="foreach"),
        ]
    )  # fmt: skip
    assert "unfused_optimizer" not in fired(run)
    assert "unfused_optimizer" not in fired(looping(gap_us=0, elements=30_000_000)), "as long as its bytes need"


def test_many_kernels_of_one_operation_of_sgd_are_the_single_pass_that_a_fused_one_makes() -> None:
    """Without momentum; with it several operations pass over the tensors."""
    assert "unfused_optimizer" not in fired(updating(optimizer="SGD"))
    several = fired(updating(optimizer="SGD", other=FOREACH.replace("BinaryOp", "UnaryOp")))
    assert several["unfused_optimizer"].gain_high_ns == 60 * US - round(50 * US / 3)


def test_what_short_kernels_take_may_all_be_saved() -> None:
    """A kernel takes 5 us whatever it reads and writes: of 24 that take 3 us each nothing else is known."""
    assert fired(updating(took_us=50))["unfused_optimizer"].evidence["needs_ns"] == round(40 * US / 3)
    assert fired(looping())["unfused_optimizer"].evidence["needs_ns"] == 0


def reduced(*more: Sent, size_bytes: int = 16_000_000) -> Run:
    """Return a job that sums gradients of so many bytes over data parallelism, and then updates parameters."""
    call = Sent(start=100, end=200, size_bytes=size_bytes, dimension="data")
    return updating(sent=(call, *more))


def test_gradients_that_are_all_reduced_at_once_tell_what_an_update_reads_and_writes() -> None:
    """16 MB seven times, at 3.35 TB/s: 33.4 us of 60. Of several passes the gradients are no larger."""
    again = Sent(start=220, end=300, size_bytes=16_000_000, dimension="data")
    for run in (reduced(), reduced(again)):
        found = fired(run)["unfused_optimizer"]
        assert found.evidence["needs_ns"] == round(7 * 16_000_000 / 3350)
        assert (found.bound_from, found.assumed) == (None, [BY_BYTES])


@pytest.mark.parametrize(
    ("sizes_mb", "phase", "needs_mb"),
    [((4, 2, 8), "backward", 14), ((4, 2, 4, 2), "backward", 6), ((4, 2), "forward", 0), ((2, 2), "backward", 2)],
)
def test_what_ddp_reduces_in_one_pass_of_backward_is_updated(
    sizes_mb: tuple[int, ...], phase: str, needs_mb: int
) -> None:
    """Also where groups have no name; sizes that repeat in order are of several passes before one update."""
    calls = [
        Sent(start=100 + 50 * at, end=140 + 50 * at, size_bytes=mb * 1_000_000, phase=phase)
        for at, mb in enumerate((*sizes_mb, 0.001))
    ]
    model = Range(name="DistributedDataParallel.forward", start=0, end=50)
    found = fired(updating(sent=(*calls, model)))["unfused_optimizer"]
    assert found.bound_from == (None if needs_mb else "loss")
    if needs_mb:
        assert found.evidence["needs_ns"] == round(7 * needs_mb * 1_000_000 / 3350)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["all_gather", "broadcast", "reduce_scatter"])
def test_ranks_that_share_parameters_update_a_part(op: str) -> None:
    shared = Sent(start=220, end=300, op=op, size_bytes=16_000_000, dimension="data")
    assert fired(reduced(shared))["unfused_optimizer"].evidence["needs_ns"] == round(50 * US / 3)
    of_tensors = Sent(start=220, end=300, op=op, group="t", size_bytes=16_000_000, dimension="tensor")
    assert fired(reduced(of_tensors))["unfused_optimizer"].evidence["needs_ns"] > 30 * US


@pytest.mark.parametrize(
    ("device", "gbs"),
    [("NVIDIA L40S", 864), ("NVIDIA A100-SXM4-40GB", 2039), ("NVIDIA H200", 4800), ("NVIDIA GH200 480GB", 8000)],
)
def test_bytes_are_read_at_the_rate_of_the_device_of_the_run_or_of_the_fastest(device: str, gbs: int) -> None:
    run = replace(reduced(size_bytes=5_000 * gbs), fingerprint={"device": device})
    assert fired(run)["unfused_optimizer"].evidence["needs_ns"] == 7 * 5_000


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
    other = fired(in_a_graph(updating(optimizer="Adagrad")))["unfused_optimizer"]
    assert other.apply == {"torch": "optimizer = torch.optim.Adagrad(..., fused=True)"}


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


ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"


def looping(
    *, kernels: int = 24, gap_us: float = 5, name: str = ELEMENTWISE, fused: bool = False, elements: int = 0
) -> Run:
    """Return a job whose optimizer launches kernels of 3 us, with gaps in which the device has nothing else to do."""
    starts = [700 + at * (3 + gap_us) for at in range(kernels)]
    others = [Kernel(start=980, end=985, launch=690, name="_fused_adamw_")] if fused else []
    return made(
        lambda _: [
            Kernel(start=0, end=690), Sent(start=100, end=200),
            Range(name="Optimizer.step#AdamW.step", start=650, end=950),
            Range(name="DistributedDataParallel.forward", start=0, end=50),
            *[Ready(name="w", elements=elements, at=500)] * (elements > 0),
            *[Kernel(start=at, end=at + 3, launch=at - 2, name=name, host_op="aten::mul_") for at in starts],
            *others,
        ]
    )  # fmt: skip


def test_a_loop_over_parameters_is_named_with_what_a_fused_one_saves_at_most() -> None:
    found = fired(looping())["unfused_optimizer"]
    took = (24 * 3 + 23 * 5) * US
    assert found.title.startswith(
        "Try fused=True: AdamW updates one parameter after the other, in 24 kernels; with 0.115 ms between them"
    )
    assert "they take 0.187 ms of a 1 ms step (18.7 %)" in found.title
    assert found.gain_high_ns == found.loss_ns == pytest.approx(took, rel=0.01)
    assert found.verdict == "trial"
    assert found.assumed == [NOTHING, LAUNCHES], "sizes of its parameters are not known"
    assert found.bound_from == "loss", "what its launches take vanishes, too"
    assert found.apply["torch"].startswith("optimizer = torch.optim.AdamW(..., fused=True)")


def test_what_the_bytes_of_an_update_need_is_no_gain() -> None:
    """8,375,000 parameters of four bytes are passed over seven times, at 3.35 TB/s: 70 us of the 72."""
    found = fired(looping(elements=8_375_000))["unfused_optimizer"]
    assert found.evidence["needs_ns"] == 70 * US
    assert found.assumed == [AS_BYTES, LAUNCHES]
    assert found.gain_high_ns == pytest.approx((115 + 2) * US, rel=0.02)


def test_gaps_of_a_loop_count_beside_a_copy_but_not_beside_other_compute() -> None:
    """The copy of the next batch runs during ten of its gaps, on a stream of its own."""
    run = looping()
    copied = {}
    for rank, timeline in run.ranks.items():
        spans = timeline.spans
        rows = np.flatnonzero(spans.kind == COMM)  # the call becomes the copy
        spans = replace(
            spans,
            kind=np.where(spans.kind == COMM, COPY, spans.kind).astype(np.int8),
            start_ns=spans.start_ns.copy(),
            end_ns=spans.end_ns.copy(),
        )
        spans.start_ns[rows] += 600 * US
        spans.end_ns[rows] = spans.start_ns[rows] + 80 * US
        copied[rank] = replace(timeline, spans=spans)
    found = fired(replace(run, ranks=copied))["unfused_optimizer"]
    assert found.evidence["between_ns"] == 23 * 5 * US
    assert found.evidence["idle_ns"] == 13 * 5 * US
    assert found.evidence["optimizer_ns"] == (24 * 3 + 23 * 5) * US


@pytest.mark.parametrize(
    "other", [{"kernels": 19}, {"gap_us": 0, "kernels": 16}, {"name": "gemm"}, {"fused": True}], ids=str
)
def test_what_is_no_loop_is_not(other: dict[str, object]) -> None:
    """As what a closure computes in the optimizer's range."""
    assert "unfused_optimizer" not in fired(looping(**other))  # type: ignore[arg-type]
