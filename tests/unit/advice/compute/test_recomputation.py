"""Activations that are recomputed are seen by the kernels of attention, and by nothing that looks like it."""

from typing import Any

import msgspec
import pytest

from overlapscope.advice.advise import by_rules
from overlapscope.advice.compute import recomputation as rule
from overlapscope.advice.compute.recomputation import recomputation
from overlapscope.advice.model_parallel import MADE_AGAIN
from overlapscope.advice.order import ranked
from overlapscope.advice.rule_input import AGAIN_NS, RuleInput
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.run import RankTimeline
from tests.support.step_cases import US, Item, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import always
from tests.unit.advice.test_exposed_calls import looked_at
from tests.unit.advice.test_stream_copies import unmarked

FORWARD = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128>>(Flash_fwd_params)"
BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<128>(Flash_bwd_params)"
AGAIN = "FFFFF" + "BF" * 3 + "B"
"""Four layers, each of which is recomputed."""


def found(
    order: str = AGAIN, *, forward: str = FORWARD, backward: str = BACKWARD, apart: int = 30
) -> Recommendation | None:
    """Return what is recommended where a step of 1,000 us has such kernels of attention, begun so many us apart."""

    def step(_: int) -> list[Item]:
        kernels = [
            Kernel(start=at * apart, end=at * apart + apart / 2, name=forward if one == "F" else backward)
            for at, one in enumerate(order)
        ]
        return [*kernels, Kernel(start=950, end=990), Sent(start=980, end=995)]

    return recomputation(looked_at(made(step)))


def test_it_is_said_how_often_attention_runs_and_how_long_a_forward_pass_takes() -> None:
    each = found()
    assert each is not None
    assert each.title == (
        "Recompute less, if memory allows: attention runs forward 8 times a step and backward 4 times, as activations "
        "are computed again in backward; a forward pass of these layers takes about 0.12 ms of a 1 ms step, and what "
        "is recomputed up to about as long"
    )
    assert each.gain_high_ns is each.loss_ns is None, "whether memory holds more is not known"
    assert each.verdict == "trial"
    assert msgspec.json.encode(each.evidence) == (
        b'{"forward_kernels":8.0,"forward_ns":120000,"exposed_ns":0,"again_ns":60000}'
    )


@pytest.mark.parametrize(
    "alike",
    [
        {"order": "FFFFFF" + "BBFF" + "BB"},  # two layers at a time
        {"order": AGAIN * 2, "apart": 20},  # two micro-batches
        {
            "forward": "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS",
            "backward": "_ZN5aiter24fmha_bwd_hd128_bf16E",
        },
        {
            "forward": "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
            "backward": "fmha_cutlassB_bf16_aligned_64x64_k64_sm80",
        },
    ],
    ids=str,
)
def test_it_is_seen_in_other_orders_and_kernels(alike: dict[str, Any]) -> None:
    assert found(**alike) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"order": "FFFFBBBB"},
        {"order": "FFFFFFFFBBBB"},  # as of a teacher
        {"order": "FBFBFBFB"},  # as of a pipeline
        {"order": "FFFF" + "BF" * 2 + "B"},  # three layers
        {"order": "FFFFF" + "BF" * 2 + "BB"},  # one is not recomputed
        {"backward": "other"},
        {"apart": 4},  # little
    ],
    ids=str,
)
def test_nothing_is_said_elsewhere(other: dict[str, Any]) -> None:
    assert found(**other) is None


def cut(order: str, *, sent: bool = False) -> Recommendation | None:
    """Return what is recommended where a recording without steps has such kernels of attention, 30 us apart, each of
    which a call follows."""

    def step(number: int) -> list[Item]:
        kernels = [
            Kernel(start=at * 30, end=at * 30 + 15, name=FORWARD if one == "F" else BACKWARD)
            for at, one in enumerate(order)
        ]
        calls = [Sent(start=at * 30 + 16, end=at * 30 + 26) for at in range(len(order)) if sent]
        return [*kernels, Kernel(start=950, end=990), *calls] if number == 0 else []

    return recomputation(looked_at(unmarked(made(step))))


PASS = "FFFFF" + "BF" * 3 + "B"


@pytest.mark.parametrize(
    "order",
    [
        "FB" * 2 + PASS[:8],  # begins and ends within backward, and has four layers of it
        PASS,
        PASS[2:] + PASS,  # begins in forward
        PASS + PASS + "FFFF",  # ends in it
        "FB" * 4 + PASS,
    ],
)
def test_a_recording_that_is_cut_within_a_step_shows_it_by_what_backward_follows(order: str) -> None:
    found = cut(order)
    assert found is not None
    layers, forward = order.count("B"), order.count("F")
    assert found.per == "recording"
    again_ns = found.evidence.pop(AGAIN_NS)
    assert found.evidence == {"forward_kernels": forward, "forward_ns": layers * 30 * US, "exposed_ns": 0}
    assert again_ns == layers * 15 * US, "as only attention was recorded"
    assert f"forward {forward} times a recording and backward {layers} times" in found.title


@pytest.mark.parametrize(
    "order",
    [
        "FFFFBBBB" * 2,
        "FB" * 8,  # as of a pipeline's last stage
        "FFFFF" + "BF" * 4 + "BBBB",  # as of its first one, of one layer
        "FFFFF" + "BF" * 6 + "B",  # more backward than layers
        "FFFF" + "BF" * 2 + "B" + "FFFF",  # three layers
        "FB" + PASS[:7],  # fewer backward
        PASS + "FFFF" + "BF" * 2 + "B" + PASS,  # unlike passes
    ],
)
def test_of_a_recording_that_is_cut_other_orders_show_nothing(order: str) -> None:
    assert cut(order) is None


def test_exposed_calls_of_a_forward_pass_are_said_to_be_made_again() -> None:
    found = cut("FB" * 2 + PASS[:8], sent=True)
    assert found is not None
    assert found.title.endswith("up to about as long, with up to 0.04 ms of exposed communication")


def layered(again: tuple[str, ...]) -> Recommendation | None:
    """Return what is recommended for four layers, each of 5 us of `norm`, 10 of attention and 15 of `mlp` in forward,
    of which `again` run before backward, and `norm_bwd` after it."""
    took = {FORWARD: 10, "norm": 5, "mlp": 15, BACKWARD: 20, "norm_bwd": 10}
    forward, once_more = ("norm", FORWARD, "mlp"), (*again, BACKWARD, "norm_bwd")

    def step(_: int) -> list[Item]:
        kernels: list[Item] = []
        at = 0
        for name in forward * 4 + once_more * 4:
            kernels.append(Kernel(start=at, end=at + took[name], name=name))
            at += took[name]
        return [*kernels, Kernel(start=950, end=990), Sent(start=980, end=995)]

    return recomputation(looked_at(made(step)))


@pytest.mark.parametrize(
    ("again", "again_us"),
    [
        pytest.param(("norm", FORWARD, "mlp"), 4 * 30, id="whole layers"),
        pytest.param((FORWARD,), 4 * 10, id="attention alone"),
    ],
)
def test_what_runs_again_is_known_by_names(again: tuple[str, ...], again_us: int) -> None:
    found = layered(again)
    assert found is not None
    assert (found.evidence["forward_ns"], found.evidence[AGAIN_NS]) == (4 * 30 * US, again_us * US)


@pytest.mark.parametrize(("exposed_us", "first"), [(29, "recomputation"), (31, "exposed_communication")])
def test_half_of_it_counts_in_the_order_of_losses(exposed_us: int, first: str) -> None:
    """Of 60 us."""
    own = found()
    assert own is not None
    other = msgspec.structs.replace(own, id="exposed_communication", loss_ns=exposed_us * US, evidence={})
    assert ranked([other, own])[0].id == first


def test_kernels_are_looked_through_once_beside_calls_that_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [FORWARD] * 5 + [BACKWARD, FORWARD] * 3 + [BACKWARD]
    kernels = [Kernel(start=20 * at, end=20 * at + 15, name=name) for at, name in enumerate(names)]
    run = always(*kernels, Kernel(start=500, end=990), Sent(start=301, end=500, launch=1, dimension="tensor"))
    given, seen = looked_at(run), list[int]()
    original = rule._recomputed

    def counted(given: RuleInput, timeline: RankTimeline) -> object:
        seen.append(timeline.rank)
        return original(given, timeline)

    monkeypatch.setattr(rule, "_recomputed", counted)
    found = {each.id: each for each in by_rules(run, given.analysis, given.cross_rank)}
    assert MADE_AGAIN in found["tensor_parallel"].assumed
    assert sorted(seen) == sorted(run.ranks)
