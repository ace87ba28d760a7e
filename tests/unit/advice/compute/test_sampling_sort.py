"""Servers that sort the scores of all words are told so; those that choose experts in each layer are not."""

from collections.abc import Sequence

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

SORT = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<float>>"


def serving(
    *, took_us: float = 60, name: str = SORT, host_op: str = "aten::sort", times: int = 1, trains: bool = False
) -> Run:
    """Return a server whose step of 1 ms has 60 kernels, and kernels that sort, for `took_us` in all."""

    def step(_: int) -> Sequence[Item]:
        each = (980 - took_us) / 60
        return [
            *[Kernel(start=at * each, end=(at + 1) * each, launch=-1) for at in range(60)],
            *[
                Kernel(start=980 - (at + 1) * took_us / times, end=980 - at * took_us / times, launch=0, name=name,
                       host_op=host_op)
                for at in range(times)
            ],
            Sent(start=100, end=200),
            Range(name="execute_context_0(0)_generation_128(128)", start=0, end=5),
            *[Range(name="Optimizer.step#AdamW.step", start=6, end=7)] * trains,
        ]  # fmt: skip

    return made(step)


@pytest.mark.parametrize(
    "how",
    [{}, {"host_op": "anything"}, {"name": "void radixSortKVInPlace"}, {"name": "reduce", "host_op": "aten::topk"}],
)
def test_sorting_is_named_with_what_it_takes(how: dict[str, str]) -> None:
    found = fired(serving(**how))["sampling_sort"]  # type: ignore[arg-type]
    assert found.title == (
        "Sample without sorting: sorts of the whole vocabulary take 0.06 ms of a 1 ms step (6.0 %; kernels: 1)"
    )
    assert found.gain_high_ns == 60 * US
    assert set(found.apply) == {"serving"}


@pytest.mark.parametrize(
    "other",
    [
        {"took_us": 45}, {"name": "gemm", "host_op": "aten::mm"}, {"times": 4}, {"trains": True},
        {"name": "void at::native::sbtopk::gatherTopK<float>", "host_op": "vllm::topk_softmax"},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, object]) -> None:
    assert "sampling_sort" not in fired(serving(**other))  # type: ignore[arg-type]
