"""Published peak FLOP/s of devices, for model FLOPs utilization: dense, that is without structured sparsity.

One row for each device name that drivers report, matched whole: a variant that is not listed (a MIG slice, a card with
fewer multiprocessors) has no figure. Data sheets of Hopper and Blackwell state figures with sparsity: half of them is
dense. Sources: NVIDIA Tesla V100, A100, H100 NVL and H200 data sheets, NVIDIA H100 architecture white paper, NVIDIA
Blackwell architecture brief (HGX B200, GB200); AMD Instinct MI210, MI250, MI250X, MI300X and MI325X data sheets. A
rank of an MI250 or MI250X runs on one of its two dies, so its peak is half of that of the data sheet.
"""

import re
from typing import Final

DTYPES: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")
_MI250X, _MI250 = 383.0 / 2, 362.1 / 2
_PUBLISHED: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    (r"Tesla V100-SXM[23]-(?:16|32)GB", {"fp16": 125.0}),
    (r"Tesla V100-PCIE-(?:16|32)GB", {"fp16": 112.0}),
    (
        r"A100(?:-SXM4?-(?:40|80)GB|-PCI[Ee]-(?:40|80)GB| (?:40|80)GB PCIe)",
        {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0},
    ),
    (r"H100 80GB HBM3", {"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9}),
    (r"H100 PCIe", {"fp32": 51.2, "tf32": 378.0, "fp16": 756.0, "bf16": 756.0, "fp8": 1513.0}),
    (r"H(?:100|200) NVL", {"fp16": 835.5, "bf16": 835.5, "fp8": 1670.5}),
    (r"H200", {"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9}),
    (r"B200", {"fp16": 2250.0, "bf16": 2250.0, "fp8": 4500.0}),
    (r"GB200", {"tf32": 1250.0, "fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0}),
    (r"Instinct MI210", {"fp16": 181.0, "bf16": 181.0}),
    (r"Instinct MI250", {"fp16": _MI250, "bf16": _MI250}),
    (r"Instinct MI250X", {"fp16": _MI250X, "bf16": _MI250X}),
    (r"Instinct MI3(?:00|25)X(?: OAM)?", {"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9}),
)
"""(pattern of the name without its maker, dense TFLOP/s by dtype)."""


def published_peak_tflops(device: str, dtype: str) -> float | None:
    """Return the dense peak of one device in TFLOP/s (1e12); None for a device or dtype without a published figure."""
    name = re.sub(r"^(?:NVIDIA|AMD) ", "", " ".join(device.split()))
    return next((peaks.get(dtype) for pattern, peaks in _PUBLISHED if re.fullmatch(pattern, name)), None)
