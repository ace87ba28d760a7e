"""Kernel names and host ranges: the tables are consistent, and the user's patterns come first."""

import re
import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.ingest.build import kernel_names as classify
from overlapscope.ingest.build.kernel_names import (
    COMMUNICATES,
    COMPUTES,
    FUSES,
    HOST_COLLECTIVE,
    LIBRARY_RANGE,
    UNPLACED,
    Classifier,
    KernelClass,
    canonical_operation,
    may_describe_collective,
    reaches_peers,
    surrounds_collective,
)

TABLE, COMPUTE_TABLE = (
    tomllib.loads((files("overlapscope.ingest.build") / f"{name}_names.toml").read_text(encoding="utf-8"))
    for name in ("comm", "compute")
)
ROWS = [*TABLE["rule"], COMPUTE_TABLE["never"], *COMPUTE_TABLE["rule"]]
ROLES = {"comm": COMMUNICATES, "fused": FUSES}
EXAMPLES = [(place, example) for place, rule in enumerate(TABLE["rule"]) for example in rule["examples"]]
CANONICAL = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv", "send_recv", "barrier", "wait", "coalesced", "dispatch", "combine",
}  # fmt: skip

COMPUTE_KERNELS = [
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(cutlass::Params)",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(Params)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_NNT",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false, false>()",
    "Cijk_Ailk_Bljk_BBS_BH_MT128x256x32_MI32x32x8x1_SN_1LDSB0_APM1",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>()",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*)",
    "void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, false, true>(int, int, int)",
    "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_stride1",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(ReduceOp)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>()",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(long)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<unsigned int, 1, 128, 1>()",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(flash::Flash_fwd_params)",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128>>(Flash_bwd_params)",
    "attn_fwd.kd",
    "bwd_kernel_dk_dv.kd",
    "_bwd_kernel_dkdvdq_causal.kd",
    "_bwd_preprocess_do_o_dot_0d1d2d",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<bfloat16_t>::Params)",
    "void cub::CUB_200200_900_NS::DeviceReduceKernel<cub::DispatchReduce<long*, float*, int, cub::Sum>::Policy>()",
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<cub::DispatchRadixSort<false, long, long, int>>()",
    "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__scatter_if::Agent>(int)",
    "triton_poi_fused_add_mul_silu_4",
    "triton_red_fused_all_reduce_mean_pow_rsqrt_2",
    "triton_per_fused__to_copy_native_layer_norm_backward_sum_7",
    "__amd_rocclr_fillBufferAligned.kd",
    "__amd_rocclr_copyBuffer",
    "void transformer_engine::(anonymous namespace)::cast_transpose_fused_kernel<256, 4>(Param)",
    "void apex::multi_tensor_apply_kernel<TensorListMetadata<2>, L2NormFunctor<float>>(int)",
    "embedding_backward_feature_kernel",
    "fbgemm_gpu::split_embedding_codegen_forward_unweighted_kernel",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u>(float*)",
    "nvjpeg::huffman_decode_kernel",
    "void dali::kernels::SliceFlipNormalizePermutePadKernel<float>",
]  # fmt: skip


def placed(name: str) -> KernelClass:
    placement, by_user = Classifier().place(name)
    assert not by_user
    return placement


# --- the tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "example"), EXAMPLES, ids=[f"{place}-{name[:50]}" for place, name in EXAMPLES])
def test_every_example_is_placed_by_its_own_rule(place, example):
    first = next(at for at, rule in enumerate(TABLE["rule"]) if re.search(rule["pattern"], example))
    assert first == place, f"decided by an earlier rule: {TABLE['rule'][first]['pattern']}"
    rule = TABLE["rule"][place]
    found = re.search(rule["pattern"], example)
    spelled = found.groupdict().get("op")
    op = canonical_operation(spelled) if spelled else rule.get("op")
    assert placed(example) == KernelClass(ROLES[rule["role"]], op)


def test_rules_tell_which_kernels_reach_their_peers_in_one_or_two_stages():
    rules = [(rule["library"], rule.get("direct", False), name) for rule in TABLE["rule"] for name in rule["examples"]]
    assert [reaches_peers(name) for _, _, name in rules] == [direct for _, direct, _ in rules]
    shots = [rule for rule in TABLE["rule"] if re.search(r"(?i)shot|stage|lamport", " ".join(rule["examples"]))]
    assert [rule["library"] for rule in shots if rule["role"] == "comm" and not rule.get("direct")] == []


def test_every_rule_has_an_example_a_source_and_an_operation_that_is_canonical():
    assert [rule["pattern"] for rule in TABLE["rule"] if not rule["examples"] or not rule["source"]] == []
    assert {rule["op"] for rule in TABLE["rule"] if "op" in rule} <= CANONICAL


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["pattern"][:50])
def test_whatever_a_rule_matches_contains_one_of_its_texts(row):
    assert row["contains"] == [text.lower() for text in row["contains"]]

    @given(st.from_regex(row["pattern"], alphabet=st.characters(codec="ascii")))
    def check(name):
        assert any(text in name.lower() for text in row["contains"])

    check()


def test_a_name_of_other_letters_is_searched_whatever_it_contains():
    assert re.search("(?i)sort", "\u017fort")
    assert "sort" not in "\u017fort".lower()
    assert placed("\u017fort_kernel") == KernelClass(COMPUTES)


def test_the_texts_to_look_for_first_change_no_placement(monkeypatch):
    names = [*COMPUTE_KERNELS, *(name for _, name in EXAMPLES), *(entry["example"] for entry in TABLE["not_comm"])]
    names += [name.swapcase() for name in names]
    with_texts = [placed(name) for name in names]
    searched = [replace(rule, contains=()) for rule in classify._comm_rules()]
    never, computes = classify._compute_rules()
    monkeypatch.setattr(classify, "_comm_rules", lambda: searched)
    without = replace(never, contains=()), [replace(rule, contains=()) for rule in computes]
    monkeypatch.setattr(classify, "_compute_rules", lambda: without)
    assert [placed(name) for name in names] == with_texts


@pytest.mark.parametrize("entry", TABLE["not_comm"], ids=lambda entry: entry["example"][:50])
def test_a_name_that_only_looks_like_communication_is_none(entry):
    assert placed(entry["example"]).role in (COMPUTES, UNPLACED)


@pytest.mark.parametrize(("spelling", "canonical"), TABLE["operations"].items(), ids=list(TABLE["operations"]))
def test_every_spelling_of_the_table_names_its_operation(spelling, canonical):
    assert canonical_operation(spelling) == canonical_operation(canonical) == canonical
    assert canonical in CANONICAL


@pytest.mark.parametrize("name", COMPUTE_KERNELS, ids=lambda name: name[:50])
def test_common_compute_kernels_are_known_to_compute(name):
    assert placed(name) == KernelClass(COMPUTES)


# --- names from traces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATES, "all_reduce"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", COMMUNICATES, "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATES, "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", COMMUNICATES, None),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs", FUSES, "reduce_scatter"),
        ("my_own_kernel", UNPLACED, None),
        ("", UNPLACED, None),
    ],
)
def test_a_name_gives_role_and_operation(name, role, op):
    assert placed(name) == KernelClass(role, op)


# --- the user's patterns --------------------------------------------------------------------------------------------


def test_the_users_patterns_come_before_the_tables():
    classifier = Classifier(comm=["^my_gemm"], compute=["^ncclDevKernel_Generic"])
    assert classifier.place("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)") == (
        KernelClass(COMPUTES),
        True,
    )
    assert classifier.place("ncclDevKernel_SendRecv") == (KernelClass(COMMUNICATES, "send_recv"), False)
    for _ in range(2):  # a second question gets the same answer
        assert classifier.place("my_own_kernel") == (KernelClass(UNPLACED), False)
        assert classifier.place("my_gemm_kernel") == (KernelClass(COMMUNICATES), True)


def test_a_users_pattern_may_name_the_operation():
    classifier = Classifier(comm=[r"mesh_(?P<op>\w+?)_kernel"])
    assert classifier.place("mesh_allgather_kernel") == (KernelClass(COMMUNICATES, "all_gather"), True)
    assert classifier.place("mesh_mystery_kernel") == (KernelClass(COMMUNICATES, None), True)


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{99999999999999999999}"])
@pytest.mark.parametrize("option", ["comm", "compute"])
def test_a_pattern_that_is_no_regular_expression_is_refused_by_its_option(option, pattern):
    with pytest.raises(UsageError, match=f"^{option}") as refused:
        Classifier(**{option: [pattern]})
    assert pattern in str(refused.value)
    assert refused.value.in_shell == f"--{refused.value}"
    assert refused.value.exit_code == 2


# --- operations and host ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "op"),
    [
        (" allreduce ", "all_reduce"),
        ("ALL_GATHER", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("_allgather_base_", "all_gather"),
        ("all reduce", "all_reduce"),
        *((spelling, None) for spelling in ("", "mystery", "reduce_kernel", None, 3, ["allreduce"])),
    ],
)
def test_case_and_underscores_around_an_operation_do_not_matter(spelling, op):
    assert canonical_operation(spelling) == op


@pytest.mark.parametrize(
    ("name", "speaks", "surrounds"),
    [
        ("record_param_comms", True, True),
        ("nccl:all_reduce", True, True),
        ("nccl:_all_gather_base", True, True),
        ("xccl:broadcast", True, True),
        ("hccl:allreduce", True, True),
        ("gloo:all_reduce", True, False),
        ("c10d::allreduce_", True, False),
        ("symm_mem::one_shot_all_reduce", True, False),
        ("aten::add_", False, False),
        ("ProfilerStep#3", False, False),
        ("my nccl:all_reduce", False, False),
        ("FSDP::all_gather (layers.7)", False, False),
    ],
)
def test_host_ranges_of_collectives_are_known_by_name(name, speaks, surrounds):
    assert may_describe_collective(name) == speaks
    assert surrounds_collective(name) == surrounds


def test_ranges_of_a_library_spell_their_operation():
    assert LIBRARY_RANGE.match("nccl:_reduce_scatter_base")["op"] == "_reduce_scatter_base"
    assert LIBRARY_RANGE.match("nccl:send 0->1")["op"] == "send"
    assert HOST_COLLECTIVE.match("gloo:all_reduce")["op"] == "all_reduce"


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int)", "barrier"),
        ("deep_ep::intranode::cached_notify_combine<8>", "barrier"),
        ("void deep_ep::internode::cached_notify<false>(int, int, int, int, int*)", "barrier"),
        ("_ZN7deep_ep9intranode15notify_dispatchILi8EEEvPKiPi", "barrier"),
        ("void uccl::internode::notify_dispatch<false, 4>(int const*)", "barrier"),
        ("deep_ep::intranode::barrier<8>", "barrier"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "dispatch"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)", "combine"),
    ],
)
def test_a_kernel_without_payload_is_no_call_of_the_operation_it_serves(kernel: str, op: str) -> None:
    assert Classifier().place(kernel)[0] == KernelClass(COMMUNICATES, op)
