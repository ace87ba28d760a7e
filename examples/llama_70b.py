"""A Llama of 70 billion parameters under FSDP2 and tensor parallelism, for a dry run: no device, no weights.

    overlapscope dryrun examples/llama_70b.py:build --world 1024 -o runs/llama-70b

`build(device)` trains for real where torchrun starts enough devices.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY = 80, 8192, 64, 8, 28672, 128256
HEAD_WIDTH = WIDTH // HEADS
BATCH, LENGTH = 1, 8192
TENSOR = 8


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.wv = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.wo = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        k, v = (each.repeat_interleave(HEADS // KEY_HEADS, dim=1) for each in (k, v))
        return self.wo(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.ffn_norm, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.layers:
            x = block(x, cosine, sine)
        return self.output(self.norm(x))


def parallelized(model: Llama, mesh: DeviceMesh) -> None:
    """Split the model over `mesh`, with activations between the blocks split along the sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
        src_data_rank=None,
    )
    for block in model.layers:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w3": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
            src_data_rank=None,
        )


def build(device: torch.device, layers: int = LAYERS):
    mesh = init_device_mesh(device.type, (dist.get_world_size() // TENSOR, TENSOR), mesh_dim_names=("dp", "tp"))
    with torch.device(device):
        model = Llama(layers)
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        angle = torch.arange(LENGTH)[:, None] / 500000 ** (torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
        cosine, sine = (torch.cat((each, each), dim=-1).to(torch.bfloat16) for each in (angle.cos(), angle.sin()))
    parallelized(model, mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.layers:
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        logits = model(tokens, cosine, sine)
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_8_layers(device: torch.device):
    return build(device, layers=8)
