"""The Trainer of transformers, whose model is under DDP: its own loop, of which one step is recorded.

overlapscope dryrun examples/dryrun/trainer.py:build --world 64 -o runs/trainer
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import overlapscope.frameworks.transformers


def build(device):
    config = LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4)
    rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)}] * 4096
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments("runs/output", per_device_train_batch_size=2, max_steps=8, **quiet)
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows)
    trainer.add_callback(overlapscope.frameworks.transformers.callback("runs/trainer", mode="events"))
    return trainer.train
