"""One rank of a training inside a real framework, started by torchrun.

    python -m torch.distributed.run ... -m tests.integration.jobs.training_hosts HOST FOLDER

Trains three times from the same start: without us, and recorded in both modes into FOLDER/events and FOLDER/trace; then
writes what the host itself knows to FOLDER/RANK.json.
"""

import hashlib
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import overlapscope
from tests.integration.host_facts import ACCUMULATES, BATCH, MODES, STEPS, TOKENS, WARMUP, WIDTH

HOST, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def options(mode: str) -> dict[str, Any]:
    return {"mode": mode, "warmup": WARMUP, "steps": STEPS - WARMUP, "measure_overhead": False, "wait_seconds": 20}


def profiled(mode: str, model: nn.Module) -> Any:
    return nullcontext() if mode == "without" else overlapscope.profile(FOLDER / mode, model=model, **options(mode))


def layers() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def data() -> torch.Tensor:
    """The samples of all ranks."""
    return torch.randn(BATCH * ACCUMULATES * STEPS * WORLD, WIDTH, generator=torch.Generator().manual_seed(5))


def known(model: nn.Module, steps: int, **others: float) -> dict[str, Any]:
    """What the host knows after its training."""
    parts = hashlib.sha256()
    for parameter in model.parameters():
        parts.update(parameter.detach().numpy().tobytes())
    elements = sum(parameter.numel() for parameter in model.parameters())
    return {"digest": parts.hexdigest(), "steps": steps, "parameters": elements, **others}


def lightning(mode: str) -> dict[str, Any]:
    import lightning.pytorch as host

    from overlapscope.frameworks import lightning as ours

    class Module(host.LightningModule):
        flops_per_batch = 6 * BATCH * 2 * WIDTH * WIDTH

        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = host.Trainer(
        accelerator="cpu", devices=WORLD, strategy="ddp", max_epochs=1, accumulate_grad_batches=ACCUMULATES,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[] if mode == "without" else [ours.callback(FOLDER / mode, **options(mode))],
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), batch_size=BATCH))
    return known(module, trainer.global_step, flops=Module.flops_per_batch * ACCUMULATES)


def transformers(mode: str) -> dict[str, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from overlapscope.frameworks import transformers as ours

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    ids = (data() * 1000).long().abs() % 128
    arguments = TrainingArguments(
        output_dir=str(FOLDER / "output"), per_device_train_batch_size=BATCH, max_steps=STEPS, use_cpu=True,
        gradient_accumulation_steps=ACCUMULATES, ddp_backend="gloo", report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rows = [{"input_ids": row[:TOKENS], "labels": row[:TOKENS]} for row in ids]
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    if mode != "without":
        trainer.add_callback(ours.callback(FOLDER / mode, **options(mode)))
    trainer.train()
    # The Trainer's own count is of all ranks.
    return known(model, trainer.state.global_step, flops=trainer.state.total_flos / STEPS / WORLD)


def accelerate(mode: str) -> dict[str, Any]:
    from accelerate import Accelerator

    from overlapscope.frameworks import accelerate as ours

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATES)
    bare = layers()
    model, optimizer, loader = accelerator.prepare(
        bare, torch.optim.SGD(bare.parameters(), lr=0.1), DataLoader(data(), batch_size=BATCH)
    )
    steps = 0
    with profiled(mode, model) as scope:
        batch_of_step = ours.batches(scope, accelerator) if scope else lambda **_: nullcontext()
        for batch in loader:
            with batch_of_step(samples=len(batch)), accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                steps += accelerator.sync_gradients
    return known(bare, steps)


def deepspeed(mode: str, stage: int = 1) -> dict[str, Any]:
    import deepspeed as host

    from overlapscope.frameworks import deepspeed as ours

    module = layers()
    engine, *_ = host.initialize(
        model=module,
        model_parameters=module.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": ACCUMULATES,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True, "steps_per_print": 10_000,
        },
    )  # fmt: skip
    with profiled(mode, engine) as scope:
        batch_of_step = ours.batches(scope, engine) if scope else lambda **_: nullcontext()
        for batch in data().split(BATCH)[RANK::WORLD]:
            with batch_of_step(samples=len(batch)):
                engine.backward(engine(batch).square().mean())
                engine.step()
    with host.zero.GatheredParameters(list(module.parameters())) if stage == 3 else nullcontext():
        return known(module, engine.global_steps)


def zero3(mode: str) -> dict[str, Any]:
    return deepspeed(mode, stage=3)


def torchtitan(mode: str, tensor_parallel: int = 1) -> dict[str, Any]:
    titan_on_the_cpu()
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry
    from torchtitan.trainer import Trainer

    from overlapscope.frameworks import torchtitan as ours
    from tests.integration.jobs.titan_data import Tokens, WordCount

    spec = model_registry("debugmodel", attn_backend="varlen")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:  # what it offers for a Llama needs a GPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    trainer = Trainer.Config(
        model_spec=spec, dump_folder=str(FOLDER / "output"), tokenizer=WordCount.Config(), dataloader=Tokens.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size), optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2), checkpoint=CheckpointManager.Config(enable=False),
        training=TrainingConfig(
            local_batch_size=BATCH, global_batch_size=BATCH * ACCUMULATES * WORLD // tensor_parallel, seq_len=TOKENS,
            steps=STEPS, disable_cuda_graphs=True, mixed_precision_param="float32",
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", tensor_parallel_degree=tensor_parallel),
        debug=DebugConfig(seed=7),
    ).build()  # fmt: skip
    (model,) = trainer.model_parts
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
    with profiled(mode, model) as scope:
        if scope:
            trainer.train_step = ours.train_step(scope, trainer)
        trainer.train()
    trainer.close()
    flops = trainer.metrics_processor.num_flops_per_token * ACCUMULATES * BATCH * TOKENS / tensor_parallel
    whole = nn.ParameterList(each.full_tensor() for each in model.parameters())
    return known(whole, trainer.step, flops=flops)


def torchtitan_tp(mode: str) -> dict[str, Any]:
    return torchtitan(mode, tensor_parallel=WORLD)


def titan_on_the_cpu() -> None:
    """Put the CPU where torchtitan 0.3 takes CUDA if it finds no device; it asks a device for more than torch.cpu has.

    torch 2.13 does not have torch.distributed.set_timeout, which it calls.
    """
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = "cpu", SimpleNamespace(
        device_count=lambda: 1, current_device=lambda: 0, set_device=lambda _: None, synchronize=lambda: None,
        get_device_name=lambda _: "CPU", get_device_properties=lambda _: SimpleNamespace(total_memory=1 << 34),
        memory_stats=lambda _: {}, reset_peak_memory_stats=lambda: None, empty_cache=lambda: None,
    )  # fmt: skip
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = dist.distributed_c10d._set_pg_timeout


def main() -> None:
    torch.set_num_threads(1)
    results = {mode: globals()[HOST](mode) for mode in MODES}
    (FOLDER / f"{RANK}.json").write_text(json.dumps(results), encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
