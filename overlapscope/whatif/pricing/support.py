"""What a price may be called: an estimate, a range only, or nothing, with the reason."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.whatif.pricing.calibration import Measured
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.program import Call, Program
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.result import Kind

ESTIMATE: Final = "estimate"
RANGE: Final = "range"
NONE: Final = "none"
_ORDER: Final[tuple[Kind, ...]] = (ESTIMATE, RANGE, NONE)
CONTEXT: Final = "context"
LONG_KEYS: Final = 2.1
"""Above 2, because what attention writes besides its output is small but not nothing."""
HOST_NS: Final = 6e3
"""Time of the host for one operation, as an order of magnitude: PyTorch's eager mode takes 5 to 10 microseconds."""


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """How far a price can be trusted."""

    kind: Kind
    reasons: tuple[str, ...]


def support(program: Program, recipe: Recipe, measured: Sequence[Measured], missed: Sequence[str] = ()) -> Support:
    """Return what a price of this step may be called when it rests on these measured steps.

    `missed` are the sources of those that calibration could not meet.
    """
    found: list[tuple[Kind, str]] = [
        (
            NONE,
            f"no pace meets the measured step {each}: device, links or recipe are not those that it was measured with",
        )
        for each in missed
    ]
    if any(call.op in POINT_TO_POINT for call in program.calls):
        found.append((NONE, "it sends between pipeline stages or ring neighbours, whose time rests on what other ranks "
                            "do: a measured step of the same layout would be needed"))  # fmt: skip
    context = max((len(call.ranks) for call in program.calls if _of_context(call, program)), default=1)
    if context > 2:
        found.append((NONE, f"context parallelism over {context} ranks was off by 30 % or more where it was tried"))
    own = [each for each in measured if each.device is None]
    if recipe.float8 == "rowwise" and not any(each.recipe.float8 == "rowwise" for each in own):
        found.append((NONE, "float8 with a scale a row depends on kernels that no other recipe shows: calibrate with a "
                            "measured step of it"))  # fmt: skip
    if not own:
        here = "no measured step" if not measured else "only a step of another device"
        found.append((RANGE, f"it rests on {here}: --calibrate with one of this device and power limit"))
    if any(call.op == "all_to_all" for call in program.calls):
        found.append((RANGE, "an all-to-all takes as long as its most loaded rank, and the routing is assumed"))
    kind: Kind = max((each for each, _ in found), key=_ORDER.index, default=ESTIMATE)
    return Support(kind=kind, reasons=tuple(why for _, why in found))


def _of_context(call: Call, program: Program) -> bool:
    """Return whether a call shares the keys of a sequence.

    A dimension of the mesh that has all ranks has no group of its own, and so no name: then keys that are longer than
    their queries, beside a gather of activations, say it.
    """
    if call.dimension is not None:
        return call.dimension == CONTEXT
    return program.keys_over_queries > LONG_KEYS and call.op == "all_gather" and not call.of_parameters


def memory_notes(recorded: Mapping[str, Any], device: Device) -> list[str]:
    """Return a note where a dry run, of which this is recorded, needs more memory at its peak than the device has."""
    peak_bytes = (recorded.get("memory") or {}).get("peak_bytes") or 0
    if peak_bytes <= device.memory_gb * 1e9:
        return []
    return [f"it needs {peak_bytes / 1e9:.0f} GB at the peak, and the device has {device.memory_gb:g}"]


def host_notes(program: Program, recipe: Recipe, step_ns: float) -> list[str]:
    """Return notes on what the host may add, which a price leaves out."""
    notes = []
    launched = int(((program.rows.moved_bytes > 0) | (program.rows.flops > 0)).sum()) + len(program.calls)
    if recipe.compiled is None and launched * HOST_NS > step_ns:
        notes.append(
            f"{launched} operations may be launch-bound: a host that needs {HOST_NS / 1e3:.0f} us for each takes "
            "longer than the step; the price assumes a host that is always ahead"
        )
    if program.host_syncs:
        notes.append(
            f"the host waits for the device {program.host_syncs} times; what it then needs to launch is left out"
        )
    return notes
