"""What each pipeline stage runs in a step, in order: kernels, collectives, sends, and what the host does between."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from tests.property.synthetic.job import Job

DEVICE_BLOCKS = 132
"""Grid of a persistent kernel."""
FIXED, TOKENS, SQUARE, EXPERT = range(4)
"""What a kernel's time grows with: nothing, tokens, tokens squared, tokens that came to the rank's experts."""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel: its share of a layer's forward, what that grows with, and its grid at an even share of work."""

    name: str
    op: str
    share: float
    grows: int = TOKENS
    blocks: int = 4096


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels on the compute lane, launched one by one or as a graph."""

    kernels: Sequence[Kernel]
    scale: float = 1.0
    graph: bool = False
    backward: bool = False
    repeated: bool = False
    """Run by the culprits of `extra_kernels` alone."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A call on the groups of a dimension; `blocks` when compute waits for it."""

    dimension: str
    op: str
    bytes: int
    dtype: str = "BFloat16"
    lane: str = ""
    """Stream that it runs on; by default its dimension's."""
    blocks: bool = True
    ready: bool = True
    """It needs what was computed before; a prefetch does not."""
    uneven: bool = False
    backward: bool = False
    kernel: str = ""
    """Name of the kernel where it is not NCCL's."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy on the compute stream."""

    name: str
    length_ns: float
    backward: bool = False


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A send to, or a receive from, the stage `to` steps away."""

    sends: bool
    to: int
    bytes: int
    backward: bool = False


class WaitFor(msgspec.Struct, frozen=True, kw_only=True):
    """Compute waits for all calls on a lane."""

    lane: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A point on the host: `load` (the next batch is fetched), `sync`, `read`, `allocate`, `free`, `reduce` (what a
    call costs besides launches), `step`, `optimizer`, `optimized`, `end`."""

    what: str


Instruction = Compute | Collective | Copy | Exchange | WaitFor | Mark

NORM = Kernel(name="void vectorized_layer_norm_kernel<c10::BFloat16, float>", op="aten::native_layer_norm", share=0.04)
QKV = Kernel(name="ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", op="aten::linear", share=0.18)
ROPE = Kernel(name="fused_rope_forward_kernel", op="FusedRoPEFunc", share=0.03)
FLASH = Kernel(name="flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", op="flash_attn::_flash_attn_forward",
               share=0.15, grows=SQUARE)  # fmt: skip
PROJECT = Kernel(name="ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn", op="aten::linear", share=0.08)
UP = Kernel(name="ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", op="aten::linear", share=0.22)
GELU = Kernel(name="void at::native::vectorized_elementwise_kernel<4, GeluFunctor<c10::BFloat16>>", op="aten::gelu",
              share=0.04)  # fmt: skip
DOWN = Kernel(name="ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_32x5_tn", op="aten::linear", share=0.22)
ADD = Kernel(name="void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::BFloat16>>", op="aten::add",
             share=0.04)  # fmt: skip
ROUTER = Kernel(name="void cunn_SoftMaxForwardSmem<8, float, float>", op="aten::softmax", share=0.03)
PERMUTE = Kernel(name="moe_permute_topk_map_kernel", op="moe_permute", share=0.05, grows=EXPERT)
ADAM = Kernel(name="void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", op="aten::_fused_adam",
              share=0.3, grows=FIXED, blocks=2400)  # fmt: skip
NORM_SQUARES = Kernel(name="void at::native::multi_tensor_apply_kernel<LpNormFunctor<float>>",
                      op="aten::_foreach_norm", share=0.05, grows=FIXED, blocks=1600)  # fmt: skip
ATTENTION = (NORM, QKV, ROPE, FLASH, PROJECT)
MLP = (NORM, UP, GELU, DOWN, ADD)
EXPERTS = tuple(replace(each, grows=EXPERT) for each in (UP, GELU, DOWN))
GOLDEN = 0.6180339887
"""Spreads the repeated parts evenly."""
BACKWARD = 2.0
"""A backward takes so much longer than its forward."""
TO_DEVICE, TO_HOST, ON_DEVICE = (
    "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy DtoD (Device -> Device)"
)  # fmt: skip
SMALL_COPY_NS = 2_000.0
EXPERT_KERNELS = {
    "notify": "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*, int, int)",
    "cached_notify": "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)",
    "dispatch": "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*, int*)",
    "combine": "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*, int)",
}


def program(job: Job, stage: int) -> Iterator[Instruction]:
    """Yield one step of a stage; where the job's culprits run more kernels, these follow those that they repeat."""
    number = 0
    for each in _step(job, stage):
        yield each
        if isinstance(each, Compute) and job.fault.extra_kernels:
            number += 1
            if number * GOLDEN % 1 < job.fault.extra_kernels:
                yield replace(each, repeated=True)


def _step(job: Job, stage: int) -> Iterator[Instruction]:
    """Yield one step of a stage under 1F1B; a job without pipeline runs its microbatches in turn."""
    first, last = stage == 0, stage == job.layout.pp - 1
    yield Mark(what="step")
    yield Mark(what="load")
    warm = min(job.layout.pp - 1 - stage, job.microbatches)
    order = ["F"] * warm + ["F", "B"] * (job.microbatches - warm) + ["B"] * warm
    done = 0
    for each in order:
        if each == "F":
            if not first:
                yield Exchange(sends=False, to=-1, bytes=job.activation_bytes)
            yield from _forward(job, stage)
            if not last:
                yield Exchange(sends=True, to=1, bytes=job.activation_bytes)
        else:
            done += 1
            if not last:
                yield Exchange(sends=False, to=1, bytes=job.activation_bytes, backward=True)
            yield from _backward(job, stage, final=done == job.microbatches)
            if not first:
                yield Exchange(sends=True, to=-1, bytes=job.activation_bytes, backward=True)
    yield from _optimizer(job)
    yield Mark(what="end")


def _forward(job: Job, stage: int) -> Iterator[Instruction]:
    for layer in _layers(job, stage):
        yield from _gathered(job, layer, backward=False)
        yield from _layer(job, layer, backward=False)


def _backward(job: Job, stage: int, *, final: bool) -> Iterator[Instruction]:
    for layer in _layers(job, stage):
        yield from _gathered(job, layer, backward=True)
        yield from _layer(job, layer, backward=True)
        if job.fsdp or (final and not job.fault.tensors):
            yield Collective(
                dimension="dp",
                op="reduce_scatter" if job.fsdp else "all_reduce",
                bytes=job.layer_bytes,
                blocks=False,
                dtype="Float",
                backward=True,
            )


def _layers(job: Job, stage: int) -> range:
    return range(job.layers + (job.fault.stage_layers if stage == job.fault.stage else 0))


def _gathered(job: Job, layer: int, *, backward: bool) -> Iterator[Instruction]:
    """Wait for the parameters of a layer; those of the next are gathered meanwhile."""
    if not job.fsdp:
        return
    gather = Collective(
        dimension="dp", op="all_gather", bytes=job.layer_bytes, lane="gather", blocks=False, ready=False,
        backward=backward,
    )  # fmt: skip
    if layer == 0:
        yield gather
    yield WaitFor(lane="gather")
    if layer + 1 < job.layers:
        yield gather


def _layer(job: Job, layer: int, *, backward: bool) -> Iterator[Instruction]:
    blocks: list[Sequence[Kernel]] = [ATTENTION, MLP]
    if job.fault.offload_ns:
        yield Copy(name=TO_DEVICE, length_ns=job.fault.offload_ns, backward=backward)
    if job.fault.churn_ns:
        yield Mark(what="allocate")
    for kernels in reversed(blocks) if backward else blocks:
        if kernels is MLP and job.moe:
            yield from _experts(job, backward=backward)
        else:
            yield from _kernels(job, kernels, backward=backward)
        if kernels is ATTENTION and job.fault.reads and layer % job.fault.reads == 0:
            yield Copy(name=TO_HOST, length_ns=SMALL_COPY_NS, backward=backward)
            yield Mark(what="read")
        yield Collective(dimension="tp", op="all_reduce", bytes=job.activation_bytes, backward=backward)
    if job.fault.churn_ns:
        yield Mark(what="free")


def _experts(job: Job, *, backward: bool) -> Iterator[Instruction]:
    yield from _kernels(job, (NORM, ROUTER), backward=backward)
    yield from _exchanged(job, "notify", "dispatch", backward=backward)
    yield from _kernels(job, (PERMUTE, *EXPERTS), backward=backward)
    yield from _exchanged(job, "cached_notify", "combine", backward=backward)
    yield from _kernels(job, (ADD,), backward=backward)


def _exchanged(job: Job, notify: str, kernel: str, *, backward: bool) -> Iterator[Instruction]:
    """Exchange tokens between experts, behind a kernel in which ranks only wait for each other."""
    if job.fault.notify:
        yield Collective(dimension="ep", op="notify", bytes=0, backward=backward, kernel=EXPERT_KERNELS[notify])
    yield Collective(
        dimension="ep", op="all_to_all", bytes=job.activation_bytes, uneven=True, backward=backward,
        kernel=EXPERT_KERNELS[kernel] if job.expert_kernels else "",
    )  # fmt: skip


def _kernels(job: Job, kernels: Sequence[Kernel], *, backward: bool) -> Iterator[Instruction]:
    scale = BACKWARD if backward else 1.0
    named = (
        [replace(each, name=f"{each.name}_bwd", op=f"{each.op}_backward") for each in kernels] if backward else kernels
    )
    split = [replace(each, share=each.share / job.kernels_each) for each in named for _ in range(job.kernels_each)]
    if job.persistent:
        split = [replace(each, blocks=DEVICE_BLOCKS) if "gemm" in each.name else each for each in split]
    yield Compute(kernels=split, scale=scale, graph=job.graphs and not backward, backward=backward)


def _reduced_one_by_one(job: Job) -> Iterator[Instruction]:
    """Reduce each gradient by a call of its own: copied, reduced, copied back."""
    for _ in range(job.layers * job.fault.tensors):
        yield Mark(what="reduce")
        yield Copy(name=ON_DEVICE, length_ns=SMALL_COPY_NS, backward=True)
        yield Collective(
            dimension="dp", op="all_reduce", bytes=job.layer_bytes // job.fault.tensors // 4 * 4, blocks=True,
            dtype="Float", backward=True,
        )  # fmt: skip
        yield Copy(name=ON_DEVICE, length_ns=SMALL_COPY_NS, backward=True)


def _optimizer(job: Job) -> Iterator[Instruction]:
    if job.fault.tensors:
        yield from _reduced_one_by_one(job)
    yield WaitFor(lane="dp")
    yield Compute(kernels=(NORM_SQUARES,), scale=job.layers)
    if job.joint_norm:
        yield Collective(dimension="mp", op="all_reduce", bytes=4, dtype="Float")
    yield Mark(what="optimizer")
    yield Compute(kernels=(ADAM,) * job.kernels_each, scale=job.layers / job.kernels_each)
    yield Mark(what="optimized")
    if job.sync_steps:
        yield Mark(what="sync")
