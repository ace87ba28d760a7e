"""Llama on torch's own FSDP2 and tensor parallelism, in the shapes of published benchmarks, as a step to dry-run.

overlapscope dryrun benchmarks.dryrun_prices.llama:build --world 8 -o RUN
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SIZES: Final = {
    "8b": {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "vocabulary": 128256},
    "2-13b": {"layers": 40, "width": 5120, "heads": 40, "kv_heads": 40, "hidden": 13824, "vocabulary": 32000},
    "2-70b": {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "hidden": 28672, "vocabulary": 32000},
}


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; keys and values are gathered over `context` where it is set."""

    context: ProcessGroup | None = None

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.repeated = heads // kv_heads
        self.wq = nn.Linear(width, heads * self.head, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wo = nn.Linear(heads * self.head, width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, self.head) for each in (self.wq, self.wk, self.wv))
        q, k = _rotated(q, turns), _rotated(k, turns)
        k, v = (each.repeat_interleave(self.repeated, dim=2) for each in (k, v))
        if self.context is not None:
            k, v = (all_gather_single_autograd(each.contiguous(), 1, self.context) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(found.transpose(1, 2).contiguous().view(batch, length, -1))


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None, :]).flatten(3).type_as(x)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The decoder."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocabulary: int,
                 sequence: int) -> None:  # fmt: skip
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleDict({str(at): Block(width, heads, kv_heads, hidden) for at in range(layers)})
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocabulary, bias=False)
        turns = torch.ones(sequence, width // heads // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x, self.turns)
        return self.output(self.norm(x))


def build(
    device: torch.device,
    *,
    size: str = "8b",
    tp: int = 1,
    cp: int = 1,
    batch: int = 2,
    sequence: int = 8192,
    checkpoint: str = "operations",
) -> Callable[[], None]:
    """Return the step of FSDP2, over `tp` ranks of tensor parallelism with sequence parallelism.

    `sequence` is that of a rank, of `cp` that attend to the keys and values of all of them. `checkpoint`: `none`;
    `operations` keeps attention, reduce-scatters and every second product, as torchtitan's selective option; `layers`
    keeps of every second block its input alone, `full` of each.
    """
    world = distributed.get_world_size()
    mesh = init_device_mesh(device.type, (world // tp, tp), mesh_dim_names=("fsdp", "tp"))
    around = init_device_mesh(device.type, (world // cp, cp), mesh_dim_names=("dp", "cp"))
    with device:
        model = Llama(sequence=sequence, **SIZES[size])
    if tp > 1:
        _tensor_parallel(model, mesh["tp"])
    if cp > 1:
        for block in model.layers.values():
            block.attention.context = around.get_group("cp")
    if checkpoint != "none":
        context = {"context_fn": _operations_kept} if checkpoint == "operations" else {}
        for name, block in list(model.layers.items())[:: 2 if checkpoint == "layers" else 1]:
            model.layers[name] = checkpoint_wrapper(block, preserve_rng_state=False, **context)
    sharded = mesh["fsdp"]
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = list(model.layers.values())
    for block in blocks:
        fully_shard(block, mesh=sharded, mp_policy=policy, reshard_after_forward=block is not blocks[-1])
    fully_shard(model, mesh=sharded, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, 1000, (batch, sequence), device=device)

    def backward() -> None:
        F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten(0, 1)).backward()

    def step() -> None:
        if tp > 1:
            with loss_parallel():
                backward()
        else:
            backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    whole = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, whole, src_data_rank=None)
    for block in model.layers.values():
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }  # fmt: skip
        parallelize_module(block, mesh, plan, src_data_rank=None)


def _operations_kept() -> Any:
    kept = {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    products = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        keep = operation in kept
        if operation is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
