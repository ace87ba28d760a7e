"""16-bit gradients are to be tried where they are reduced in 32 bits, exposed, by a model that computes in 16."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.advice.calls.savings import AS_FAST
from overlapscope.advice.calls.sixteen_bit_gradients import HOROVOD, SIXTEEN, UNSPLIT, WIDE, _sizes
from overlapscope.advice.replayed_settings import _without_bits
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.exposure.longer_than_like import LONGER
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20
BFLOAT16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_nt"
FLOAT32 = "ampere_sgemm_128x64_tn"


def reducing(
    *, kernel: str = BFLOAT16, phase: str | None = "backward", op: str = "all_reduce", dimension: str | None = None,
    size_bytes: int = 36 * MIB, dtype: str = "float32", start: float = 500, end: float = 800, ranks: int = 2,
) -> Run:  # fmt: skip
    """Return a job whose gradients are exposed from 600 us on."""
    call = Sent(start=start, end=end, launch=250, op=op, phase=phase, dimension=dimension, size_bytes=size_bytes)
    run = made(lambda _: [Kernel(start=0, end=600, name=kernel), call, Kernel(start=end, end=990, name=kernel)])
    kept = {rank: of_type(each, dtype) for rank, each in run.ranks.items() if rank < ranks}
    return replace(run, ranks=kept)


def of_type(timeline: RankTimeline, dtype: str) -> RankTimeline:
    names = tuple(dtype if name == "float32" else name for name in timeline.names)
    return replace(timeline, names=names)


def test_the_gain_is_at_most_what_is_exposed_and_half_of_the_transfer() -> None:
    found = fired(reducing())["sixteen_bit_gradients"]
    assert (found.gain_low_ns, found.loss_ns) == (0, 150 * US), "half of 300 us"
    assert found.gain_high_ns == 150 * US
    assert AS_FAST in found.assumed, "of 100 us of compute beside it"
    assert found.changes_numerics
    assert found.predicted_gain_ns is None
    assert "0.0377 GB a step in float32 (calls of 37.7 MB, 126 GB/s on the bus)" in found.title
    assert "0.2 ms of a 1 ms step are exposed" in found.title
    assert fired(reducing(start=300))["sixteen_bit_gradients"].loss_ns == 200 * US, "what is exposed"


def test_the_gain_is_at_most_that_of_the_rank_that_saves_most() -> None:
    """The other one computes beside the call, though not as much in all: of the mean it is no bound."""
    busy = [Kernel(start=0, end=100, name=BFLOAT16), Kernel(start=450, end=790, name=BFLOAT16),
            Kernel(start=800, end=990, name=BFLOAT16),
            Sent(start=500, end=800, launch=250, phase="backward", size_bytes=36 * MIB)]  # fmt: skip
    run = reducing()
    found = fired(replace(run, ranks={0: run.ranks[0], 1: made(lambda _: busy).ranks[1]}))["sixteen_bit_gradients"]
    assert found.loss_ns == 150 * US
    assert "0.01 ms to 0.2 ms of a 1 ms step are exposed, by rank" in found.title


def test_a_rank_that_computes_longest_and_is_not_exposed_decides_that_nothing_is_gained() -> None:
    run = reducing()
    busy = [Kernel(start=0, end=790, name=BFLOAT16), Kernel(start=800, end=990, name=BFLOAT16),
            Sent(start=500, end=800, launch=250, phase="backward", size_bytes=36 * MIB)]  # fmt: skip
    both = replace(run, ranks={0: run.ranks[0], 1: made(lambda _: busy).ranks[1]})
    assert "sixteen_bit_gradients" not in fired(both)


def test_ranks_that_reduce_nothing_are_in_no_figure() -> None:
    run = reducing()
    idle = made(lambda _: [Kernel(start=at, end=at + 300, name=BFLOAT16) for at in (0, 690)]).ranks[1]
    found = fired(replace(run, ranks={0: run.ranks[0], 1: idle}))["sixteen_bit_gradients"]
    assert "and 0.2 ms of a 1 ms step are exposed;" in found.title
    assert "a rank reduces 0.0377 GB a step" in found.title
    assert found.evidence["exposed_ns"] == 200 * US


def test_where_not_all_ranks_are_read_it_is_assumed_that_no_other_saves_more() -> None:
    assert "that no rank saves more than the 5 of 10 that were read" in by_ranks(10)
    assert not any("were read" in each for each in by_ranks(8))


def by_ranks(ranks: int) -> Sequence[str]:
    """Return what is assumed of a job of so many ranks."""
    sent = Sent(start=500, end=800, launch=250, phase="backward", size_bytes=36 * MIB)
    work = [Kernel(start=at, end=end, name=BFLOAT16) for at, end in ((0, 600), (800, 990))]
    return fired(made(lambda _: [*work, sent], ranks=ranks))["sixteen_bit_gradients"].assumed


def test_copies_that_widen_gradients_take_a_third_less_in_sixteen_bits() -> None:
    copy = Kernel(start=900, end=990, name="void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, "
                  "c10::BFloat16>(c10::BFloat16**, float*)")  # fmt: skip
    sent = Sent(start=500, end=800, launch=250, phase="backward", size_bytes=36 * MIB)
    work: list[Item] = [Kernel(start=0, end=600, name=BFLOAT16), sent, Kernel(start=800, end=900, name=BFLOAT16)]
    bound = {
        many: fired(made(lambda _, many=many: [*work, *[copy] * many]))["sixteen_bit_gradients"].gain_high_ns  # type: ignore[misc]
        for many in (0, 1)
    }
    assert (bound[1] or 0) - (bound[0] or 0) == 30 * US


SCALES = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 3ul>>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begin", "saved_us"),
    [(SCALES, 600, 30), (BFLOAT16, 600, 0), (SCALES, 570, 0), (SCALES, 601, 0)],
    ids=["directly before it", "no elementwise kernel", "a gap lies between", "something is computed beside the call"],
)
def test_an_elementwise_kernel_that_scales_what_is_sent_takes_half_as_long(
    name: str, begin: float, saved_us: float
) -> None:
    beside = [Kernel(start=700, end=790, name=FLOAT32)] * (begin > 600)

    def step(kernel: str) -> list[Item]:
        sent = Sent(start=660, end=800, launch=250, phase="backward", size_bytes=36 * MIB)
        work = [Kernel(start=at, end=end, name=BFLOAT16) for at, end in ((0, begin), (800, 990))]
        return [*work, Kernel(start=begin, end=begin + 59, name=kernel), *beside, sent]

    with_it, without = (fired(made(lambda _, each=each: step(each))) for each in (name, BFLOAT16))  # type: ignore[misc]
    more = [(each["sixteen_bit_gradients"].gain_high_ns or 0) for each in (with_it, without)]
    assert more[0] - more[1] == pytest.approx(saved_us * US, abs=US)


def one_of_two(step: Callable[[int], Sequence[Item]]) -> Run:
    both = made(step)
    return replace(both, ranks={0: both.ranks[0]})


def test_without_all_ranks_calls_are_held_to_transfer_little_longer_than_the_fast_ones_of_their_size() -> None:
    def step(number: int) -> list[Item]:
        waits = 0 if number else -200
        call = Sent(start=500 + waits, end=800, launch=250, phase="backward", size_bytes=36 * MIB)
        return [Kernel(start=0, end=600, name=BFLOAT16), call, Kernel(start=800, end=990, name=BFLOAT16)]

    found = fired(one_of_two(step))["sixteen_bit_gradients"]
    longer = (LONGER - 1) * 300 / 6
    assert found.loss_ns == pytest.approx((300 + longer) / 2 * US), "of the first 375 us, of the others all"
    assert "at least 121 GB/s" in found.title
    assert UNSPLIT in found.assumed


def test_calls_that_nothing_stands_behind_save_nothing_for_the_last_one() -> None:
    """The first three are overlapped, and end before the last one is ready."""

    def step(_: int) -> list[Item]:
        beside = [
            Sent(start=at, end=at + 100, launch=at - 1, phase="backward", size_bytes=36 * MIB) for at in (100, 250, 400)
        ]
        last = Sent(start=550, end=750, launch=549, phase="backward", size_bytes=72 * MIB)
        work = [Kernel(start=at, end=end, launch=1, name=BFLOAT16) for at, end in ((0, 550), (750, 990))]
        return [*work, *beside, last]

    assert fired(made(step))["sixteen_bit_gradients"].loss_ns == 100 * US, "half of the last one"


def test_calls_that_stand_behind_each_other_all_save_for_the_last_one() -> None:
    def step(_: int) -> list[Item]:
        row = [
            Sent(start=at, end=at + 100, launch=90, phase="backward", size_bytes=36 * MIB)
            for at in (400, 500, 600, 700)
        ]
        return [
            Kernel(start=0, end=600, launch=1, name=BFLOAT16),
            *row,
            Kernel(start=800, end=990, launch=95, name=BFLOAT16),
        ]

    assert fired(made(step))["sixteen_bit_gradients"].loss_ns == 200 * US, "half of all, and what is exposed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"kernel": FLOAT32}, {"kernel": "some_kernel"}, {"phase": None}, {"phase": "forward", "dimension": "data"},
        {"op": "all_gather"}, {"dimension": "tensor"}, {"size_bytes": 4096}, {"dtype": "bfloat16"}, {"end": 610},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_advised_elsewhere(other: dict[str, object]) -> None:
    assert "sixteen_bit_gradients" not in fired(reducing(**other))  # type: ignore[arg-type]


def test_reductions_over_dp_outside_all_phases_are_of_gradients() -> None:
    assert "sixteen_bit_gradients" in fired(reducing(phase=None, dimension="data", op="reduce_scatter"))


NAMED = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def by_horovod(kernel: str = NAMED, *, start: float = 500) -> Run:
    """Return a job of Horovod, whose calls have neither sizes nor types."""
    run = reducing(phase=None, start=start)
    ranks = {rank: untyped(each, kernel) for rank, each in run.ranks.items()}
    return replace(run, ranks=ranks)


def untyped(timeline: RankTimeline, kernel: str) -> RankTimeline:
    calls = timeline.collectives
    named = {"ncclDevKernel": kernel, "aten::mm": "void horovod::common::batched_memcpy_k<0>"}
    none = np.full_like(calls.bytes, NONE)
    lengthened = replace(calls, bytes=none, elements=none, dtype=np.full_like(calls.dtype, -1))
    return replace(timeline, names=tuple(named.get(name, name) for name in timeline.names), collectives=lengthened)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (NAMED, True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL", False),
        ("ncclKernel_AllReduce_RING_LL_Sum_half", False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", False),
        ("ncclDevKernel_Generic", False),
    ],
)
def test_the_type_of_horovods_reductions_is_in_the_names_of_their_kernels(kernel: str, *, said: bool) -> None:
    found = fired(by_horovod(kernel)).get("sixteen_bit_gradients")
    assert (found is not None) == said
    if found is not None:
        assert "a rank transfers float32 for 0.3 ms a step, as the names of kernels say" in found.title
        assert found.apply == HOROVOD
        assert "bytes" not in found.evidence


def test_calls_of_unknown_size_that_are_short_may_be_small() -> None:
    assert "sixteen_bit_gradients" not in fired(by_horovod(start=601))


def test_ddp_whose_buckets_cannot_be_replayed_gets_the_trial_of_its_bound() -> None:
    run = reducing()
    ddp = {rank: replace(each, recorded={"ddp": {"bucket_cap_bytes": 1}}) for rank, each in run.ranks.items()}
    known = replace(run, ranks=ddp)
    found, _ = advise(known, analyze(known))
    assert "sixteen_bit_gradients" in [each.id for each in found]


def test_the_loss_is_still_named_and_comes_before_a_trial_that_changes_numerics() -> None:
    run = reducing()
    found, _ = advise(run, analyze(run))
    assert [each.id for each in found] == ["exposed_communication", "sixteen_bit_gradients"]
    assert [each.id for each in _without_bits(found)] == ["exposed_communication"], "beside a replay"


@pytest.mark.parametrize(
    ("name", "narrow", "wide"),
    [
        (BFLOAT16, True, False),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", True, False),
        ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn", True, False),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", True, False),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1_SN", True, False),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false", True, False),
        (FLOAT32, False, True),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", False, True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8", False, True),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_SE", False, True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>", False, False),
    ],
)
def test_names_of_kernels_say_in_how_many_bits_they_multiply(name: str, *, narrow: bool, wide: bool) -> None:
    assert (bool(SIXTEEN.search(name)) and not WIDE.search(name), bool(WIDE.search(name))) == (narrow, wide)


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [
        (168_000_000, 1_050_000_000, "168 MB to 1.05 GB"),
        (2_000_000, 9_000_000, "2 to 9 MB"),
        (1_000_000_000, 2_500_000_000, "1 to 2.5 GB"),
        (37_700_000, 37_700_000, "37.7 MB"),
        (999_600_000, 999_700_000, "1 GB"),
    ],
)
def test_sizes_are_in_the_units_that_fit(least: int, most: int, words: str) -> None:
    assert _sizes(least, most) == words
