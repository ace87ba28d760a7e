"""Of FSDP2's settings that copy less those are advised that are not in effect; where all are, none is."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import HOST, OPERATION, HostSpans, Lanes, make
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Kernel, Range, Sent, made

COMPUTED = Kernel(start=0, end=600)
COPIED = Range(name="FSDP::all_gather_copy_out (layers.7)", start=30, end=33), Kernel(start=600, end=655, launch=31)
REST = Kernel(start=655, end=990, launch=40)


def gathering(*calls: tuple[str, str | None, str]) -> Run:
    """Return two ranks that copy for FSDP2 for 55 us of each step, beside calls of these operations, phases and types;
    the first half of a step's 600 us of compute hides them."""
    sent = [Sent(start=100 + 50 * at, end=140 + 50 * at, op=op) for at, (op, _, _) in enumerate(calls)]
    run = made(lambda _: [COMPUTED, *COPIED, *sent, REST])
    return replace(run, ranks={rank: _with(each, calls) for rank, each in run.ranks.items()})


def _with(timeline: RankTimeline, calls: Sequence[tuple[str, str | None, str]]) -> RankTimeline:
    names = list(timeline.names)
    codes = {each: len(names) + at for at, each in enumerate({text for call in calls for text in call[1:] if text})}
    steps = timeline.collectives.op.size // len(calls)
    phases = np.tile(np.array([codes.get(phase or "", -1) for _, phase, _ in calls], np.int32), steps)
    dtypes = np.tile(np.array([codes[dtype] for _, _, dtype in calls], np.int32), steps)
    return replace(
        timeline, names=(*names, *codes), collectives=replace(timeline.collectives, phase=phases, dtype=dtypes)
    )


def copies(run: Run) -> Recommendation | None:
    found = {each.id: each for each in analyze_with_advice(run).recommendations}
    return found.get("communication_copies")


@pytest.mark.parametrize(
    ("calls", "gathers_less", "halves"),
    [
        pytest.param(
            [("all_gather", "forward", "float32"), ("all_gather", "backward", "float32")], True, True,
            id="gathers in backward, in 32 bits",
        ),
        pytest.param([("all_gather", None, "float32")], True, True, id="gathers in phases that are not known"),
        pytest.param([("all_gather", "forward", "float32")], False, True, id="gathers in forward alone"),
        pytest.param(
            [("all_gather", "forward", "float32"), ("reduce_scatter", "backward", "float32")], False, True,
            id="in backward gradients alone",
        ),
        pytest.param(
            [("all_gather", "forward", "bfloat16"), ("all_gather", "backward", "float16")], True, False, id="in 16 bits"
        ),
        pytest.param(
            [("all_gather", "backward", "bfloat16"), ("reduce_scatter", "backward", "float32")], True, False,
            id="parameters in 16 bits, gradients in 32",
        ),
        pytest.param(
            [("all_gather", "forward", "bfloat16"), ("all_gather", "forward", "float32")], False, True,
            id="some parameters in 32 bits",
        ),
        pytest.param([("reduce_scatter", "backward", "bfloat16")], False, True, id="no gathers were recorded"),
        pytest.param(
            [("all_gather", "backward", "bfloat16"), ("all_gather", None, "int64")], True, False,
            id="beside parameters in 16 bits, whole numbers",
        ),
    ],
)  # fmt: skip
def test_only_what_is_not_in_effect_is_advised(
    calls: Sequence[tuple[str, str | None, str]], *, gathers_less: bool, halves: bool
) -> None:
    found = copies(gathering(*calls))
    assert found is not None
    code = found.apply["fsdp2"]
    assert ("reshard_after_forward=False" in code, "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in code) == (
        gathers_less, halves,
    )  # fmt: skip
    assert len(code.splitlines()) == gathers_less + halves


def test_nothing_is_advised_where_all_of_it_is_in_effect() -> None:
    assert copies(gathering(("all_gather", "forward", "bfloat16"))) is None
    assert copies(gathering(("all_gather", "forward", "float8_e4m3fn"))) is None
    assert copies(gathering(("all_gather", "backward", "bfloat16"))) is not None


def on_threads(run: Run, *operations: tuple[str, int, float, float]) -> Run:
    """Return the run with operations of its hosts, as (name, thread, start, end) in us of each step: thread 2 trains,
    thread 3 is autograd's."""
    return replace(run, ranks={rank: _with_host(each, operations) for rank, each in run.ranks.items()})


def _with_host(timeline: RankTimeline, operations: Sequence[tuple[str, int, float, float]]) -> RankTimeline:
    names, steps = list(timeline.names), np.arange(STEPS)
    codes = {name: len(names) + at for at, name in enumerate(dict.fromkeys(each[0] for each in operations))}
    begin = EPOCH_NS + steps * STEP * US
    columns = [
        (lane, codes[name], begin + round(start * US), begin + round(end * US)) for name, lane, start, end in operations
    ]
    lane, name, start, end = (np.concatenate(each) for each in zip(
        *((np.full(STEPS, lane), np.full(STEPS, code), first, last) for lane, code, first, last in columns), strict=True
    ))  # fmt: skip
    order = np.lexsort((start, lane))
    host = make(
        HostSpans, order.size, recording=0, lane=lane[order], kind=OPERATION, name=name[order], start_ns=start[order],
        end_ns=end[order],
    )  # fmt: skip
    threads = make(Lanes, 4, kind=[0, 0, HOST, HOST], label=timeline.lanes.label[[0, 1, 2, 2]])
    seen = replace(timeline.recordings, host_events=np.ones(1, np.bool_))
    return replace(timeline, names=(*names, *codes), host=host, lanes=threads, recordings=seen)


AUTOGRAD = ("autograd::engine::evaluate_function: MmBackward0", 3, 20, 29)


@pytest.mark.parametrize(("thread", "gathers_less", "saved_us"), [(2, False, 0), (3, True, 40)])
def test_only_copies_that_autograd_launches_are_of_gathers_in_backward(
    thread: int, *, gathers_less: bool, saved_us: int
) -> None:
    """Also where tensor parallelism gathers in backward, and forward's copies are more."""
    forward = Kernel(start=600, end=655, launch=15, host_op="fsdp::all_gather_copy_in")
    again = Kernel(start=655, end=695, launch=31, host_op="fsdp::all_gather_copy_in")
    sent = Sent(start=100, end=140, op="all_gather", phase="backward")
    run = made(lambda _: [COMPUTED, forward, again, sent, Kernel(start=695, end=990, launch=40)])
    bits = replace_dtype(run, "bfloat16")
    copy = "fsdp::all_gather_copy_in"
    found = copies(on_threads(bits, AUTOGRAD, (copy, 2, 14, 16), (copy, thread, 30, 33)))
    assert (found is not None) == gathers_less
    if found is not None:
        assert list(found.apply["fsdp2"].splitlines()) == [found.apply["fsdp2"]]
        assert found.loss_ns == saved_us * US
        assert found.evidence["FSDP copies"] == 95 * US
        assert "; 0.04 ms of these copies can be avoided, and some communication with them" in found.title


def replace_dtype(run: Run, dtype: str) -> Run:
    def of(timeline: RankTimeline) -> RankTimeline:
        types = np.full(timeline.collectives.op.size, len(timeline.names), np.int32)
        calls = replace(timeline.collectives, dtype=types)
        return replace(timeline, names=(*timeline.names, dtype), collectives=calls)

    return replace(run, ranks={rank: of(each) for rank, each in run.ranks.items()})


def test_copies_out_of_buckets_are_found_by_the_operation_around_their_innermost_one() -> None:
    """What the device idles while the host launches them is lost, too, but no launch beside its work."""
    out = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    copied = Kernel(start=650, end=680, launch=640, host_op="aten::copy_")
    other = Kernel(start=680, end=990, launch=30, host_op="aten::copy_")
    run = made(lambda _: [COMPUTED, Sent(start=100, end=500), copied, other])
    assert copies(run) is None
    found = copies(on_threads(run, (out, 3, 630, 655)))
    assert found is not None
    assert list(found.apply) == ["ddp"]
    assert found.loss_ns == (30 + 20) * US, "from 630 to 650 the device idles"
    assert found.gain_high_ns == (30 + 20) * US
    assert ", and the device is idle for 0.02 ms while they are launched: " in found.title


def test_copies_of_deepspeed_are_given_its_own_settings() -> None:
    run = gathering(("all_gather", "forward", "float32"), ("all_gather", "backward", "float32"))
    ranks = {
        rank: replace(each, names=tuple(
            "fsdp::split_with_sizes_copy" if name == "aten::mm"
            else "PartitionedParameterCoordinator.wait" if name.startswith("FSDP::") else name
            for name in each.names
        ))
        for rank, each in run.ranks.items()
    }  # fmt: skip
    found = copies(replace(run, ranks=ranks))
    assert found is not None
    assert found.title.startswith("copies around gathers and reductions take ")
    assert set(found.apply) == {"deepspeed"}
    assert "stage3_max_live_parameters" in found.apply["deepspeed"]
