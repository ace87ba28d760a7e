"""torchtitan's Llama of 8 billion parameters under its own FSDP2 and tensor parallelism (torchtitan 0.3).

overlapscope dryrun examples/dryrun/torchtitan_llama.py:build --world 64 -o runs/titan
"""

from types import SimpleNamespace

import torch
from torch import distributed as dist
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common.attention import VarlenMetadata
from torchtitan.models.llama3 import model_registry


def build(device):
    parallel_dims.device_type = device.type  # where it sees no device, torchtitan takes CUDA
    parallelism = ParallelismConfig(tensor_parallel_degree=8, spmd_backend="partial_dtensor")
    set_spmd_backend(parallelism.spmd_backend)
    spec = model_registry("8B", attn_backend="varlen")
    spec.model.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    model = spec.model.build().to(device)
    dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    settings = {"training": TrainingConfig(), "compile_config": CompileConfig(), "ac_config": None, "dump_folder": ""}
    spec.parallelize_fn(model, parallel_dims=dims, parallelism=parallelism, **settings)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, ends = torch.zeros(1, 8192, dtype=torch.int64, device=device), torch.tensor([0, 8192], dtype=torch.int32)
    one_document = VarlenMetadata(ends.to(device), ends.to(device), 8192, 8192)

    def step():
        cross_entropy_loss(model(tokens, None, one_document), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
