"""The same training under Ray Train: `python ray_train.py`, on the cluster's head, beside train.py.

Ray's workers have the variables of `env://` and a process group already; each records on its own node's disk.
"""

import os

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from train import train_in_group


def loop(config: dict[str, str]) -> None:
    """Train on one worker."""
    os.environ["KEEP"] = config["keep"]
    train_in_group(config["run"])


if __name__ == "__main__":
    on_gpu = os.environ.get("GPUS", "1") != "0"
    TorchTrainer(
        loop,
        train_loop_config={"run": os.environ["RUN"], "keep": os.environ["KEEP"]},
        scaling_config=ScalingConfig(num_workers=int(os.environ.get("WORKERS", "16")), use_gpu=on_gpu),
        torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
    ).fit()
