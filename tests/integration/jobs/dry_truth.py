"""One rank of a real job over gloo that runs every kind of step of `dry_steps`, each recorded into its own run.

python -m tests.integration.jobs.dry_truth RANK WORLD_SIZE STORE FOLDER KIND...
"""

import faulthandler
import json
import sys
import traceback
from pathlib import Path

import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import overlapscope
from overlapscope.capture.host.environment import groups
from tests.integration.jobs import dry_steps
from tests.support.old_torch import rest_before_groups_are_destroyed

WARM_UP = 4
"""DDP rebuilds its buckets after the first step; PowerSGD of these jobs compresses from the third."""
PRODUCTS = ("mm", "addmm")
"""Not `bmm`: that of a communication hook runs in a thread of gloo's."""


class Program(TorchDispatchMode):
    """Keeps the order of matrix products, functional collectives, and first waits for these."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self._calls: dict[int, int] = {}
        self._made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if any(each not in (torch.Tensor, torch.nn.Parameter) for each in types):
            return NotImplemented  # its own dispatch makes operations on plain tensors
        name, result = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if func.namespace != "_c10d_functional":
            self.rows += [name] if name in PRODUCTS else []
        elif name == "wait_tensor":
            call = self._calls.pop(args[0].untyped_storage()._cdata, None)
            self.rows += [] if call is None else [f"wait {call}"]
        elif name != "_wrap_tensor_autograd":  # what torch puts around a result
            self.rows.append(f"call {self._made}")
            self._calls[result.untyped_storage()._cdata] = self._made
            self._made += 1
        return result


def main() -> None:
    faulthandler.dump_traceback_later(540, exit=True)
    rest_before_groups_are_destroyed()
    rank, world, store, folder, *kinds = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world))
    torch.set_num_threads(1)
    for kind in kinds:
        try:
            step = dry_steps.build_of(kind)(torch.device("cpu"))
            with overlapscope.profile(
                f"{folder}/{kind}", mode="events", warmup=WARM_UP, events_every=1, measure_overhead=False
            ) as scope:
                for _ in range(WARM_UP + 1):
                    with scope.step():
                        step()
            with Program() as program:
                step()
            Path(folder, f"{kind}.program{rank}.json").write_text(json.dumps(program.rows))
        except Exception:  # noqa: BLE001 - the other kinds are still to be tried
            traceback.print_exc()
            sys.stderr.write(f"FAILED {kind}\n")
        names = {group.name: group.ranks for group in groups()}
        Path(folder, f"{kind}.groups{rank}.json").write_text(json.dumps(names))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
