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


def main() -> None:
    torch.set_num_threads(1)
    results = {mode: globals()[HOST](mode) for mode in MODES}
    (FOLDER / f"{RANK}.json").write_text(json.dumps(results), encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
