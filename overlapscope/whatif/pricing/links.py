"""How long collectives take on the links of a machine: measured tables first, then presets, then formulas."""

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pkgutil import get_data
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.errors import UsageError
from overlapscope.ingest.reference_bandwidth import preset_names, reference_bandwidths
from overlapscope.timeline.operations import POINT_TO_POINT, bus_factor
from overlapscope.whatif.cost.curves import ASSUMED, OTHERS, Curve, curve, other_curves, table_curve
from overlapscope.whatif.cost.formulas import LinkCost, ring, time_ns

INSIDE, BETWEEN = "inside", "between"
FAR_BYTES: Final = 1 << 34
"""Size up to which a measured curve is continued at the preset's bandwidth."""
_AS_RING: Final = {"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "broadcast"}
_RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One level of links in links.toml."""

    level: str
    gbs: float
    latency_us: float
    source: str
    ranks: int = 0
    """Ranks of a node, of links inside one."""
    reference: str = ""
    table: Mapping[str, tuple[tuple[float, float], ...]] = {}


class Links(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The links of a machine, inside a node and between nodes."""

    name: str
    inside: Preset
    between: Preset | None
    curves: tuple[Curve, ...]
    """Of measured operations over all ranks of a node."""
    recorded: tuple[Curve, ...] = ()
    """Of a recorded job's own groups, by operation and number of ranks; they go before all others."""

    def time_ns(self, op: str, ranks: Sequence[int], size_bytes: int) -> float:
        """Return the time of a collective among `ranks`. Raises UsageError for a group across nodes without links."""
        size = len(ranks)
        if size < 2:
            return 0.0
        found = self._measured(op, ranks)
        if found is not None and size_bytes:
            return float(found.at(size_bytes))
        if self.nodes(ranks) == 1:
            return _formula_ns(op, size, size_bytes, self.inside.gbs, self.inside.latency_us)
        return _formula_ns(op, size, size_bytes, self.across_gbs(ranks), self._between().latency_us)

    def nodes(self, ranks: Sequence[int]) -> int:
        """Return how many nodes these ranks are on; ranks fill nodes in order."""
        return len({rank // self.inside.ranks for rank in ranks})

    def across_gbs(self, ranks: Sequence[int]) -> float:
        """Return the bandwidth of a ring over nodes: of all cards that the group's ranks of a node have."""
        local = max(np.bincount(np.asarray(ranks) // self.inside.ranks))
        return float(min(local * self._between().gbs, self.inside.gbs))

    def known_from(self, op: str, ranks: Sequence[int], size_bytes: int) -> str:
        """Return how the time of such a collective is known: measured, interpolated, extrapolated or assumed."""
        found = self._measured(op, ranks)
        return found.known_from(size_bytes) if found is not None else ASSUMED

    def _between(self) -> Preset:
        if self.between is None:
            raise UsageError(
                f"--links {self.name}: a group is on several nodes of {self.inside.ranks} ranks; name the links "
                "between nodes too, such as roce-400"
            )
        return self.between

    def _measured(self, op: str, ranks: Sequence[int]) -> Curve | None:
        known = (*self.recorded, *(self.curves if self.nodes(ranks) == 1 else ()))
        return next((each for each in known if each.op == op and each.ranks == len(ranks)), None)


def _formula_ns(op: str, size: int, size_bytes: int, gbs: float, latency_us: float) -> float:
    if op in POINT_TO_POINT:
        return latency_us * 1e3 + size_bytes / gbs
    name = _AS_RING.get(op, op)
    stages = ring(name if name in _RINGS else "all_reduce", size, float(size_bytes))
    return time_ns(stages, {"intra": LinkCost(latency_ns=latency_us * 1e3, gbs=gbs)})


@cache
def link_presets() -> Mapping[str, Preset]:
    """Return the presets of links by name."""
    document = tomllib.loads((get_data(__package__, "links.toml") or b"").decode())
    return {key: msgspec.convert(entry, Preset) for key, entry in document.items()}


def links(text: str) -> Links:
    """Return the links of an option: `8xh100-nvswitch,roce-400`, or a table of nccl-tests in the place of the first.

    Raises UsageError for an unknown name, InputError where a table holds no bandwidths.
    """
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not 1 <= len(names) <= 2:
        raise UsageError(f"--links {text}: name the links inside a node, and after a comma those between nodes")
    known = link_presets()
    between = known.get(names[1]) if len(names) == 2 else None
    if len(names) == 2 and (between is None or between.level != BETWEEN):
        raise UsageError(f"--links {names[1]}: must be one of {_names(BETWEEN)}")
    if names[0] in known:
        inside = known[names[0]]
        if inside.level != INSIDE:
            raise UsageError(f"--links {names[0]}: connects nodes; name first the links inside one: {_names(INSIDE)}")
        return Links(name=text, inside=inside, between=between, curves=_preset_curves(names[0], inside))
    if "." not in names[0] and "/" not in names[0] and names[0] not in preset_names():
        raise UsageError(f"--links {names[0]}: no such preset, and no file; presets are {_names(INSIDE)}")
    return _from_table(text, names[0], between)


def with_recorded(links: Links, rows: Sequence[CollectiveRow]) -> Links:
    """Return the links with the times of a recorded job's collectives: matched transfers, without waiting."""
    kinds: dict[tuple[str, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.estimate == "matched" and row.group_size and row.bytes and row.transfer_ns_median:
            kinds[row.op, row.group_size].append(row)
    found = [
        curve(op, [each.bytes or 0 for each in own], [float(each.transfer_ns_median or 0) for each in own],
              ranks=ranks, source="the recording")
        for (op, ranks), own in kinds.items()
    ]  # fmt: skip
    return msgspec.structs.replace(links, recorded=(*found, *links.recorded))


def _names(level: str) -> str:
    return ", ".join(name for name, each in link_presets().items() if each.level == level)


def _preset_curves(name: str, preset: Preset) -> tuple[Curve, ...]:
    measured = {op: [(size, time_us * 1e3) for size, time_us in points] for op, points in preset.table.items()}
    if preset.reference:
        rows = reference_bandwidths(preset.reference).measurements
        measured["all_reduce"] = list(zip(rows.bytes.tolist(), rows.time_ns.tolist(), strict=True))
    return tuple(_continued(op, points, preset, name) for op, points in measured.items())


def _continued(op: str, points: Sequence[tuple[float, float]], preset: Preset, name: str) -> Curve:
    """Return the curve through measured points, continued at the preset's bandwidth, which is assumed."""
    sizes, times = (list(each) for each in zip(*sorted(points), strict=True))
    measured = [True] * len(sizes)
    factor = bus_factor(op, preset.ranks)
    reached = sizes[-1] * factor / times[-1]
    far = sizes[-1]
    while far < FAR_BYTES:
        far *= 2
        sizes.append(far)
        times.append(times[-1] + far / 2 * factor / max(preset.gbs, reached))
        measured.append(False)
    return curve(op, sizes, np.array(times), ranks=preset.ranks, measured=np.array(measured), source=name)


def _from_table(text: str, file: str, between: Preset | None) -> Links:
    facts = reference_bandwidths(file)
    rows = facts.measurements
    known = sorted({int(each) for each in rows.ranks.tolist() if each > 1})
    if not known:
        raise UsageError(f"--links {file}: does not state over how many ranks it was measured")
    ranks = known[-1]
    found: list[Curve] = list(other_curves(facts, ranks))
    if any(facts.name(code) == "all_reduce" for code in rows.op.tolist()):
        found.append(table_curve(facts, file, ranks)[0])
    if not found:
        raise UsageError(f"--links {file}: holds none of all_reduce, {', '.join(OTHERS)}")
    best = max(float(each.sizes_bytes[-1] / each.times_ns[-1]) * bus_factor(each.op, ranks) for each in found)
    preset = Preset(level=INSIDE, ranks=ranks, gbs=best, latency_us=2.0, source=file)
    return Links(name=text, inside=preset, between=between, curves=tuple(found))
