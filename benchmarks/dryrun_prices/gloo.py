"""FSDP2 over gloo between namespaces, as `benchmarks.whatif_fsdp` measured it, priced from dry runs of the same jobs.

Each job's recorded step calibrates the pace of its CPU; the rate of the link is known; nothing else was measured.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import torch

import overlapscope
from benchmarks.whatif_fsdp import VARIANTS, WORLD_SIZE
from benchmarks.whatif_fsdp_training import SHAPES, model_of
from overlapscope.whatif.cost.curves import Curve, curve
from overlapscope.whatif.pricing.calibration import Measured, calibrated, priced_ns
from overlapscope.whatif.pricing.constants import usual
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links, Preset
from overlapscope.whatif.pricing.program import Program, program_of
from overlapscope.whatif.pricing.recipe import Recipe

MEASURED: Final = Path(__file__).parents[1] / "WHATIF_FSDP.md"
CORE: Final = Device(
    key="core", name="a core", peak_tflops={"float32": 0.1}, memory_gbs=10, memory_gb=0, power_w=0, host_computes=True,
    source="assumed: only the ratio of both rates counts, as the pace is fitted",
)  # fmt: skip
PAYLOAD: Final = 1448 / 1514
"""Bytes of a full Ethernet frame that are TCP's payload, over those that `tc tbf` counts."""
LATENCY_NS: Final = 2e5
ON_THE_LINK: Final = {"all_gather": 0.5, "reduce_scatter": 1.0, "all_reduce": 1.0}
"""Bytes that each of two ranks sends over the size; gloo reduces and scatters by an all-reduce."""
PLAIN = Recipe()


def link_of(rate_mbit: float) -> Links:
    """Return the link of a job."""
    gbs = rate_mbit / 8e3 * PAYLOAD
    preset = Preset(level="inside", ranks=WORLD_SIZE, gbs=gbs, latency_us=LATENCY_NS / 1e3,
                    source="tc tbf")  # fmt: skip
    return Links(name="gloo", inside=preset, between=None, curves=tuple(_curve(op, gbs) for op in ON_THE_LINK))


def _curve(op: str, gbs: float) -> Curve:
    sizes = np.geomspace(1 << 10, 1 << 30, 61)
    times = LATENCY_NS + sizes * ON_THE_LINK[op] / gbs
    return curve(op, sizes, times, ranks=WORLD_SIZE, measured=False, source="the link's rate")


def build(device: torch.device, *, shape: str, settings: dict[str, Any]) -> Callable[[], None]:
    """Return the step of `benchmarks.whatif_fsdp_training`."""
    width, blocks, rows = SHAPES[shape]
    model = model_of(settings, width, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(rows, width, device=device)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@cache
def _program(shape: str, settings: tuple[tuple[str, Any], ...]) -> Program:
    run = overlapscope.dryrun(partial(build, shape=shape, settings=dict(settings)), world_size=WORLD_SIZE)
    return program_of(run.run, 0, host_computes=True)


def table() -> str:
    """Return the errors of all settings of all jobs, as Markdown."""
    values = {**usual(), "slowed_comm": 0.0}  # gloo's transfers wait for the link, not for the CPU
    errors: dict[str, list[float]] = {name: [] for name, *_ in VARIANTS}
    plain: dict[str, list[float]] = {name: [] for name, *_ in VARIANTS}
    lines = ["| job | " + " | ".join(errors) + " |", "|---" * (len(errors) + 1) + "|"]
    for part in MEASURED.read_text(encoding="utf-8").split("\n## "):
        found = re.match(r"(\w+) at (\d+) Mbit/s", part)
        if found is None:
            continue
        shape, rate = found[1], float(found[2])
        recorded = sorted(map(float, re.findall(r"[\d.]+", part.split("Recorded ")[1].split(" ms")[0])))
        base = recorded[(len(recorded) - 1) // 2]
        step = Measured(program=_program(shape, ()), recipe=PLAIN, step_ns=base * 1e6, source=found[0])
        own = calibrated([step], CORE, link_of(rate), values).applied(values, PLAIN)
        cells = []
        for name, settings, share, _ in VARIANTS:
            program = _program(shape, tuple(settings.items()))
            predicted = priced_ns(program, CORE, link_of(rate * share), PLAIN, own) / 1e6
            measured = float(part.split(f"| {name} | ")[1].split(" ")[0])
            errors[name].append(predicted / measured - 1)
            plain[name].append(base / measured - 1)
            cells.append(f"{errors[name][-1]:+.1%}")
        lines.append(f"| {found[0]} | " + " | ".join(cells) + " |")
    for label, of in (("mean error", errors), ('"no change"', plain)):
        lines.append(f"| {label} | " + " | ".join(f"{mean(map(abs, each)):.1%}" for each in of.values()) + " |")
    both = [abs(each) for name, *_ in VARIANTS[:2] for each in errors[name]]
    lines += ["", f"Reshard and prefetch: {len(both)} rows, mean error {mean(both):.1%}, largest {max(both):.1%}."]
    return "\n".join(lines)
