"""What kinds of work the compute of a device is, by the names of its kernels."""

import re
from collections.abc import Iterable
from typing import Final

from overlapscope.analysis.per_rank.kernels import KernelTotals

ELEMENTWISE: Final = "elementwise"
COMPILED: Final = "compiled (Triton)"
COPIES: Final = "copies and fills"
OTHER: Final = "other kernels"
FAMILIES: Final = {
    "attention": re.compile(
        r"flash|fmha|attention|attn|(?:^|\W)_?bwd_(?:kernel_(?:dk_?dv(?:dq)?|dq|fuse)|preprocess)(?![a-z\d])",
        re.IGNORECASE,
    ),
    COMPILED: re.compile(r"(?:^|_)triton_"),
    "optimizer": re.compile(r"multi_tensor_apply|fused_?(?:adam|sgd|adagrad|lamb)", re.IGNORECASE),
    "matrix products": re.compile(
        r"gemm|nvjet|Cijk_|xmma|cutlass|splitK|matmul|convolve|conv\d?d|winograd|(?:wgrad|dgrad|fprop)_|MIOpenConv",
        re.IGNORECASE,
    ),
    COPIES: re.compile(
        r"copy|FillFunctor|CatArray|chunk_cat|split_with_sizes|transpose|nchwToNhwc|nhwcToNchw", re.IGNORECASE
    ),
    "normalisation": re.compile(
        r"(?:layer|rms|batch|group|instance)_?norm|GammaBeta|\bbn_[bf]w|RowwiseMoments|welford", re.IGNORECASE
    ),
    "softmax and loss": re.compile(r"softmax|nll_loss|cross_?entropy", re.IGNORECASE),
    ELEMENTWISE: re.compile(r"(?<!gather_)elementwise_kernel"),
}
"""Families of kernels with names of theirs, in the order in which they are tried: a copy is also elementwise, attention
also a product. Names of PyTorch (ATen, Inductor), cuBLAS, cuDNN, CUTLASS, FlashAttention, hipBLASLt and MIOpen, as in
recordings; `bwd_...` of attention in Triton, as AOTriton (github.com/ROCm/aotriton, tritonsrc/flash.py), which PyTorch
calls on AMD, AITER and ROCm's FlashAttention (flash_attn_triton_amd) name it; what no name says
is `OTHER`. `optimizer` holds the norms of gradients."""
NOT_AN_UPDATE: Final = re.compile(r"norm|BinaryOpScalarTensor|non_finite|Copy|Zero", re.IGNORECASE)
"""In names of `foreach` kernels that prepare gradients (clipping by norm, scaling, casts, zeros) and update nothing:
where a kernel has no launch of its own, only its name says so. An optimizer that multiplies by tensors takes longer."""


def family_of(name: str) -> str:
    """Return the family of a kernel."""
    return next((family for family, pattern in FAMILIES.items() if pattern.search(name)), OTHER)


def family_times(tables: Iterable[KernelTotals]) -> dict[str, int]:
    """Return for how long the kernels of each family ran on these ranks, in ns, the longest first.

    Kernels that ran beside each other count each.
    """
    found: dict[str, int] = {}
    for table in tables:
        for name, ns in zip(table.name, table.total_ns.tolist(), strict=True):
            family = family_of(name)
            found[family] = found.get(family, 0) + ns
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
