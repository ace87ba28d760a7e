"""An encoder of images sharded inside nodes and replicated between them (HSDP), two micro-batches a step."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH, PATCHES, DIM, HEADS, LAYERS, MICRO_BATCHES = 4, 49, 192, 4, 4, 2
NODES = 2


class Encoder(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.patches = nn.Linear(3 * 16 * 16, DIM, device=device)
        self.positions = nn.Parameter(torch.zeros(PATCHES, DIM, device=device))
        kind = {"dropout": 0.0, "batch_first": True, "norm_first": True, "device": device}
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, **kind)
            for _ in range(LAYERS)
        ])  # fmt: skip
        self.head = nn.Linear(DIM, 1000, device=device)

    def forward(self, images):
        x = self.patches(images) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def build(device):
    torch.manual_seed(0)
    sizes = (NODES, dist.get_world_size() // NODES)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("replicate", "shard"))
    model = Encoder(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(MICRO_BATCHES, BATCH, PATCHES, 3 * 16 * 16, device=device)
    labels = torch.randint(1000, (MICRO_BATCHES, BATCH), device=device)

    def step():
        for number in range(MICRO_BATCHES):
            model.set_requires_all_reduce(number == MICRO_BATCHES - 1)
            loss = F.cross_entropy(model(images[number]), labels[number])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
