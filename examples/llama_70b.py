"""A Llama of 70 billion parameters under FSDP2 and tensor parallelism, for a dry run: no device, no weights.

    overlapscope dryrun examples/llama_70b.py:build --world 1024 -o runs/llama-70b

`build_pipeline(device)` has 8 pipeline stages, too: `--rank 0,128,256,384,512,640,768,896` is a rank of each.
Both train for real where torchrun starts enough devices.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
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
TENSOR, STAGES, MICRO_BATCHES = 8, 8, 8


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
    """All layers, or those of one pipeline stage: the first one embeds, the last one has the logits."""

    def __init__(self, layers: int, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH) if last else None
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for block in self.layers:
            x = block(x, cosine, sine)
        return x if self.output is None or self.norm is None else self.output(self.norm(x))


def parallelized(model: Llama, mesh: DeviceMesh) -> None:
    """Split the model over `mesh`, with activations between the blocks split along the sequence."""
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    present = {name: style for name, style in ends.items() if getattr(model, name) is not None}
    parallelize_module(model, mesh, present, src_data_rank=None)
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


def sharded(model: Llama, mesh: DeviceMesh) -> None:
    """Split the model over `mesh["tp"]`, and shard it over `mesh["dp"]`."""
    parallelized(model, mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.layers:
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)


def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, and the tables of the rotary embedding."""
    angle = torch.arange(LENGTH)[:, None] / 500000 ** (torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    cosine, sine = (torch.cat((each, each), dim=-1).to(torch.bfloat16) for each in (angle.cos(), angle.sin()))
    return torch.zeros(batch, LENGTH, dtype=torch.int64), cosine, sine


def loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def build(device: torch.device, layers: int = LAYERS):
    mesh = init_device_mesh(device.type, (dist.get_world_size() // TENSOR, TENSOR), mesh_dim_names=("dp", "tp"))
    with torch.device(device):
        model = Llama(layers)
        tokens, cosine, sine = inputs(BATCH)
    sharded(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss(model(tokens, cosine, sine), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_8_layers(device: torch.device):
    return build(device, layers=8)


def build_pipeline(device: torch.device):
    shape = (STAGES, dist.get_world_size() // STAGES // TENSOR, TENSOR)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
    rank = mesh["pp"].get_local_rank()
    first, last = rank == 0, rank == STAGES - 1
    with torch.device(device):
        model = Llama(LAYERS // STAGES, first=first, last=last)
        tokens, cosine, sine = inputs(MICRO_BATCHES)
        between = torch.zeros(1, LENGTH // TENSOR, WIDTH, dtype=torch.bfloat16).requires_grad_()
        logits = torch.zeros(1, LENGTH, VOCABULARY, dtype=torch.bfloat16).requires_grad_()
    sharded(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    stage = PipelineStage(
        model, rank, STAGES, device,
        input_args=(tokens[:1] if first else between,), output_args=(logits if last else between,),
        group=mesh["pp"].get_group(),
    )  # fmt: skip
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss)
    tables = {"cosine": cosine.repeat(MICRO_BATCHES, 1), "sine": sine.repeat(MICRO_BATCHES, 1)}  # split like tokens

    def step() -> None:
        given = (tokens,) if first else ()
        schedule.step(*given, target=tokens if last else None, **tables)
        optimizer.step()
        optimizer.zero_grad()

    return step
