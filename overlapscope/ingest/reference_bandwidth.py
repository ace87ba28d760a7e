"""Reference bandwidths of collectives: the user's own measurements, or a preset of a machine that others measured."""

import tomllib
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import Any

from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import size
from overlapscope.timeline.facts import Facts, Measurements
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import bus_factor


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads((get_data(__package__, "reference_bandwidth.toml") or b"").decode())


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return list(_presets())


def bandwidths_elsewhere(device: str, ranks: int) -> Facts:
    """Return the presets of one host with as many such devices, measured on other machines; empty without any."""
    found = [name for name, each in _presets().items() if each["ranks"] == ranks and each.get("device", "\n") in device]
    return _preset(found[0]) if found else Facts()


def reference_bandwidths(name: str) -> Facts:
    """Return the measurements of a preset, or of a file in any supported form: nccl-tests' output, a CSV table, ...

    Raises UsageError where there is no such preset or file, InputError where the file holds no bandwidths.
    """
    if name in _presets():
        return _preset(name)
    path = Path(name)
    if not path.exists():
        raise UsageError(f"--bandwidth {name}: no such file, and no preset; presets are {', '.join(preset_names())}")
    facts = read_inputs([path]).facts
    if not size(facts.measurements):
        raise InputError(
            f"--bandwidth {name}: holds no measured bandwidths; give what nccl-tests prints, or a CSV table"
        )
    if (facts.measurements.op < 0).all():
        raise InputError(
            f"--bandwidth {name}: does not say which operation was measured; name the file after it, such as "
            "all_reduce.txt"
        )
    return facts


def _preset(name: str) -> Facts:
    preset = _presets()[name]
    names = NameTable()
    factor = bus_factor(preset["op"], preset["ranks"])
    rows = [
        {
            "source": f"{name}: {preset['machine']} ({preset['source']})",
            "op": preset["op"],
            "ranks": preset["ranks"],
            "bytes": volume,
            "busbw_gbs": busbw,
            "algbw_gbs": busbw / factor,
            "time_ns": volume * factor / busbw,
        }
        for volume, busbw in preset["busbw_gbs"]
    ]
    return Facts(measurements=fact_table(Measurements, rows, names), names=tuple(names.to_list()))
