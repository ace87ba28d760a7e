"""Of FSDP2's settings that copy less those are advised that are not in effect; where all are, none is."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import Kernel, Range, Sent, made

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
