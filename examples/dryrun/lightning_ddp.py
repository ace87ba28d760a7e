"""Lightning under DDP: its own loop, of which one step is recorded.

overlapscope dryrun examples/dryrun/lightning_ddp.py:build --world 64 -o runs/lightning
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer

import overlapscope.frameworks.lightning


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])

    def training_step(self, batch, index):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def build(device):
    recorder = overlapscope.frameworks.lightning.callback("runs/lightning", mode="events")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    ranks = {"devices": int(os.environ["WORLD_SIZE"]), "strategy": "ddp"}
    trainer = Trainer(accelerator="auto", max_steps=8, callbacks=[recorder], **ranks, **quiet)
    batches = torch.utils.data.DataLoader(torch.randn(4096, 512), batch_size=4)
    return lambda: trainer.fit(Model(), batches)
