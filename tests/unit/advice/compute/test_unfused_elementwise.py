"""Where compute is nearly all of a step, its kinds are named, and elementwise kernels are to be compiled."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.advice.compute.unfused_elementwise import compute_words, loses_elsewhere
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.per_rank.kernel_families import OTHER, family_of, family_times
from overlapscope.analysis.per_rank.kernels import KernelTotals
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Range, Sent
from tests.unit.advice.test_advice_rules import always, fired

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "matrix products"),
        ("nvjet_tst_256x128_64x4_2x1_h_bz_coopA_NNT", "matrix products"),
        ("Cijk_Alik_Bjlk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x128x64", "matrix products"),
        ("sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "matrix products"),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", "attention"),
        ("attn_fwd.kd", "attention"),
        ("bwd_kernel_dk_dv.kd", "attention"),
        ("bwd_kernel_dq.kd", "attention"),
        ("bwd_kernel_fuse", "attention"),
        ("bwd_preprocess_varlen", "attention"),
        ("_bwd_kernel_dkdvdq_causal.kd", "attention"),
        ("_bwd_kernel_dkdv_causal", "attention"),
        ("_bwd_preprocess_do_o_dot_0d1d2d", "attention"),
        ("_attn_bwd", "attention"),
        ("chunk_bwd_kernel_dqkwg", OTHER),
        ("_bwd_kernel_dqkwg", OTHER),
        ("_layer_norm_bwd_dwdb", "normalisation"),
        ("_swiglu_bwd_kernel", OTHER),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LpNormFunctor>", "optimizer"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "copies and fills"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "copies and fills"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig", "copies and fills"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>", "normalisation"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1>", "normalisation"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", "softmax and loss"),
        (ADD, "elementwise"),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8, ReduceAdd>", OTHER),
        ("triton_poi_fused_add_0", "compiled (Triton)"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp>", OTHER),
    ],
)  # fmt: skip
def test_names_have_families(name: str, family: str) -> None:
    assert family_of(name) == family


def test_times_of_families_are_sums_over_ranks() -> None:
    table = KernelTotals(
        name=("gemm_a", ADD, "gemm_b", "what"), blocks=np.zeros(4, np.int64), count=np.ones(4, np.int64),
        total_ns=np.array([5, 7, 4, 1]),
    )  # fmt: skip
    assert list(family_times([table, table]).items()) == [("matrix products", 18), ("elementwise", 14), (OTHER, 2)]


def computing(*, took_us: float = 150, name: str = ADD, exposed_us: float = 0, gemm: str = "ampere_gemm") -> Run:
    """Return a job whose step of 1 ms has an elementwise kernel, communication, and else products."""
    begin = 980 - took_us - exposed_us
    return always(
        Kernel(start=0, end=begin, name=gemm),
        Kernel(start=begin, end=begin + took_us, name=name),
        Sent(start=50, end=100),
        *([Sent(start=980 - exposed_us, end=980)] if exposed_us else []),
        Kernel(start=980, end=999, name=gemm),
    )


def test_elementwise_kernels_are_to_be_compiled_without_a_gain() -> None:
    found = fired(computing())["unfused_elementwise"]
    assert found.title.startswith(
        "Try torch.compile: elementwise kernels take 0.15 ms of a 1 ms step (15.0 %; kernels: 1)"
    )
    assert (found.verdict, found.predicted_gain_ns, found.gain_high_ns) == ("trial", None, None)
    assert found.evidence == {"elementwise_ns": 150 * US, "kernels": 1, "copies_ns": 0}


@pytest.mark.parametrize(
    "other",
    [{"took_us": 90}, {"name": "triton_poi_fused_add_0"}, {"exposed_us": 110}, {"name": "gemm"},
     {"gemm": "triton_tem_fused_mm"}],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, float]) -> None:
    assert "unfused_elementwise" not in fired(computing(**other))  # type: ignore[arg-type]


@pytest.mark.parametrize(("launch_us", "named"), [(35, False), (45, True)])
def test_those_of_an_optimizer_that_takes_tensor_by_tensor_are_not(launch_us: float, *, named: bool) -> None:
    step = always(
        Kernel(start=0, end=830, name="ampere_gemm", launch=1), Kernel(start=830, end=980, name=ADD, launch=launch_us),
        Sent(start=50, end=100), Range(name="Optimizer.step#AdamW.step", start=30, end=40),
    )  # fmt: skip
    assert ("unfused_elementwise" in fired(step)) == named


def test_a_reason_says_what_compute_is_where_it_decides() -> None:
    def said(run: Run) -> list[str]:
        return [each for each in advise(run, analyze(run))[1] if "its kernels decide" in each]

    (words,) = said(computing())
    assert words.endswith("by their names: matrix products 85 %, elementwise 15 % of compute")
    assert not said(computing(exposed_us=110))
    assert not said(computing(gemm="what", name="that")), "names say nothing"


def test_nothing_says_that_kernels_decide_where_complete_steps_show_little_of_what_is_lost() -> None:
    run = computing()
    analysis = analyze(run)
    head, (first, *others) = analysis.headline, analysis.ranks
    step_ns, window_ns = head.step_ns or 0, first.whole.window_ns or 0
    assert not loses_elsewhere(analysis)
    assert loses_elsewhere(replace(analysis, headline=replace(head, outside_ns=round(0.2 * step_ns))))
    waits = replace(first.whole, exposed_comm_ns=window_ns // 5 * (1 + len(others)))
    partly = replace(analysis, ranks=[replace(first, whole=waits), *others])
    assert loses_elsewhere(partly)
    assert not any("its kernels decide" in each for each in advise(run, partly)[1])


def with_steps(head: Headline, *lengths_us: int) -> Headline:
    pairs = zip(head.job_steps, lengths_us, strict=False)
    return replace(head, job_steps=[replace(each, step_ns=us * US) for each, us in pairs])


def test_neither_copies_nor_a_few_long_steps_leave_it_to_kernels() -> None:
    head = analyze(computing()).headline
    table = KernelTotals(
        name=("gemm",), blocks=np.zeros(1, np.int64), count=np.ones(1, np.int64), total_ns=np.array([1]),
    )  # fmt: skip
    assert compute_words(head, [table])
    assert compute_words(replace(head, copy_only_ns=40 * US), [table])
    assert not compute_words(replace(head, copy_only_ns=50 * US), [table])
    assert compute_words(with_steps(head, 1000, 1000, 1000, 1300), [table])
    assert not compute_words(with_steps(head, 1000, 1000, 1000, 1500), [table])


def test_neither_do_steps_of_which_few_communicate() -> None:
    head = analyze(computing()).headline
    table = KernelTotals(
        name=("gemm",), blocks=np.zeros(1, np.int64), count=np.ones(1, np.int64), total_ns=np.array([1]),
    )  # fmt: skip
    quiet = [replace(each, exposed_comm_ns=0, overlapped_ns=0) for each in head.job_steps[1:]]
    loud = replace(head.job_steps[0], overlapped_ns=50 * US)
    assert not compute_words(replace(head, comm_ns=0, job_steps=[loud, *quiet]), [table])
