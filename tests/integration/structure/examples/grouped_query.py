"""A decoder with grouped queries and gated feed-forwards under tensor parallelism, the loss too."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

BATCH, LENGTH, LAYERS, DIM, QUERIES, KEYS, HIDDEN, WORDS = 2, 64, 3, 256, 16, 4, 512, 2048
SIZE = DIM // QUERIES


class Norm(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM, device=device, dtype=torch.bfloat16))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return (x * scale).type_as(x) * self.weight


def rotated(x):
    first, second = x.chunk(2, dim=-1)
    angle = torch.arange(x.shape[1], device=x.device)[:, None, None] / (torch.arange(SIZE // 2, device=x.device) + 1)
    sine, cosine = angle.sin().type_as(x), angle.cos().type_as(x)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Layer(nn.Module):
    def __init__(self, device):
        super().__init__()
        kind = {"bias": False, "device": device, "dtype": torch.bfloat16}
        self.before_attention, self.before_gate = Norm(device), Norm(device)
        self.query = nn.Linear(DIM, QUERIES * SIZE, **kind)
        self.key = nn.Linear(DIM, KEYS * SIZE, **kind)
        self.value = nn.Linear(DIM, KEYS * SIZE, **kind)
        self.mix = nn.Linear(QUERIES * SIZE, DIM, **kind)
        self.gate = nn.Linear(DIM, HIDDEN, **kind)
        self.up = nn.Linear(DIM, HIDDEN, **kind)
        self.down = nn.Linear(HIDDEN, DIM, **kind)

    def attend(self, x):
        query = rotated(self.query(x).unflatten(-1, (-1, SIZE)))
        key = rotated(self.key(x).unflatten(-1, (-1, SIZE)))
        value = self.value(x).unflatten(-1, (-1, SIZE))
        shared = query.shape[2] // key.shape[2]
        key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
        heads = (each.transpose(1, 2) for each in (query, key, value))
        return self.mix(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.before_attention(x))
        y = self.before_gate(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM, device=device, dtype=torch.bfloat16)
        self.layers = nn.ModuleList([Layer(device) for _ in range(LAYERS)])
        self.norm = Norm(device)
        self.output = nn.Linear(DIM, WORDS, bias=False, device=device, dtype=torch.bfloat16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def build(device):
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = Model(device)
    for layer in model.layers:
        plan = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
        plan |= {name: RowwiseParallel() for name in ("mix", "down")}
        parallelize_module(layer, mesh, plan, src_data_rank=None)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan, src_data_rank=None)
    norms = [each.weight for each in model.modules() if isinstance(each, Norm)]
    products = [each.weight for each in model.modules() if isinstance(each, nn.Linear | nn.Embedding)]
    optimizer = torch.optim.AdamW([{"params": products}, {"params": norms, "weight_decay": 0.0}], lr=1e-3)
    tokens = torch.randint(WORDS, (BATCH, LENGTH), device=device)

    def step():
        with loss_parallel():
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
