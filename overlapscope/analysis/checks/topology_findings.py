"""Find links that one device of a host lacks and its other devices have: lost NVLinks, one-sided entries, narrow PCIe.

The rules, and why they accept designs that are only partly connected:

* A *mesh* is a set of GPUs that are all linked to each other by the same number of NVLink or XGMI lanes. A GPU outside
  a mesh of three or more that is more than half of the host's GPUs has lost links: no board connects all but one of its
  GPUs. Hybrid cubes, bridged pairs and two quads have no such mesh, nor do hosts without such links.
* A mesh of exactly 4, 8 or 16 GPUs is a whole board; a GPU without any link beside it may be a display adapter or
  another card and is not reported. A GPU that is linked to the mesh by fewer lanes is reported.
* A GPU outside the mesh that is linked to others outside it belongs to a separate island and is not reported.
* Behind NVSwitches the lanes of each GPU are counted over all switches; the most frequent number, if more than half
  of at least three GPUs have it, is the expected number.
* A PCIe link is narrow when more than half of at least three comparable devices of its host have a faster one.
  Comparable devices are GPUs, or network cards of the same network speed.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.facts import Facts

WHOLE_BOARDS = (4, 8, 16)
FAST = ("NVLink", "XGMI")
MAX_GPUS = 1024
_GPU = re.compile(r"GPU ?[0-9a-fA-F:.]+")
_PAIRS_SHOWN = 16

_Pairs = dict[tuple[str, str], tuple[str, int]]
"""(kind, lanes) by ordered pair of devices; lanes are 0 where the source does not report them."""


class _Host(msgspec.Struct, frozen=True, kw_only=True):
    """The links of one host."""

    name: str | None
    pairs: _Pairs
    speeds: dict[str, float]
    """GB/s of each network card."""
    pcie: dict[str, tuple[float, int]]
    """(GB/s, lanes) of each device's own PCIe link."""

    @property
    def gpus(self) -> list[str]:
        """The GPUs that have a link, sorted by name."""
        return sorted({end for pair in self.pairs for end in pair if _GPU.fullmatch(end)})


def topology_findings(facts: Facts) -> list[Finding]:
    """Return the findings about the links of the hosts; only clear cases are reported."""
    found: list[Finding] = []
    for host in _hosts(facts):
        found += _lost_links(host)
        found += _short_of_switches(host)
        found += _one_sided(host)
        found += _narrow(host)
    return found


def _hosts(facts: Facts) -> list[_Host]:
    """Return the hosts: separated by name, and without a name, where a link is reported a second time.

    The rows of one source are adjacent, so the first repeated link begins another source.
    """
    links = facts.links
    found = []
    for code in dict.fromkeys(links.host.tolist()):
        seen: set[tuple[str, str, str]] = set()
        parts: list[_Host] = []
        for row in np.flatnonzero(links.host == code).tolist():
            a, b, kind = (facts.name(column[row]) or "unknown" for column in (links.a, links.b, links.kind))
            if kind.startswith("P2P"):
                continue
            key = (a, b, kind if kind in ("PCIe", "network", "C2C") else "path")
            if not parts or key in seen:
                seen = set()
                parts.append(_Host(name=None, pairs={}, speeds={}, pcie={}))
            seen.add(key)
            _note(parts[-1], key, kind, int(links.lanes[row]), float(links.bandwidth_gbs[row]))
        found += [(facts.name(code), part) for part in parts]
    several = len(found) > 1
    return [
        replace(part, name=name or (f"host {number} of {len(found)}" if several else None))
        for number, (name, part) in enumerate(found, 1)
    ]


def _note(host: _Host, key: tuple[str, str, str], kind: str, lanes: int, rate: float) -> None:
    a, b, sort = key
    if sort == "network":
        host.speeds[a] = rate
    elif sort == "PCIe":
        host.pcie[a] = (rate, 0 if lanes == NONE else lanes)
    elif sort == "path":
        host.pairs[a, b] = (kind, 0 if lanes == NONE else lanes)


def _lost_links(host: _Host) -> Iterator[Finding]:
    gpus = host.gpus
    fast = {pair: lanes for pair, (kind, lanes) in host.pairs.items() if kind in FAST and pair[1] in gpus}
    usual = Counter(fast.values()).most_common(1)
    if not usual or len(gpus) > MAX_GPUS:
        return
    lanes = usual[0][0]
    mesh = _mesh(gpus, {pair for pair, count in fast.items() if count == lanes})
    if len(mesh) < 3 or 2 * len(mesh) <= len(gpus):
        return
    outside = [gpu for gpu in gpus if gpu not in mesh]
    for gpu in outside:
        to_mesh = {other: fast.get((gpu, other), 0) if (gpu, other) in fast else None for other in mesh}
        linked = {other: count for other, count in to_mesh.items() if count is not None}
        elsewhere = any((gpu, other) in fast for other in outside)
        if not linked and (elsewhere or len(mesh) in WHOLE_BOARDS):
            continue
        yield _lost(host, gpu, mesh, lanes, to_mesh, linked)


def _lost(
    host: _Host,
    gpu: str,
    mesh: Sequence[str],
    lanes: int,
    to_mesh: Mapping[str, int | None],
    linked: Mapping[str, int],
) -> Finding:
    missing = [other for other, count in to_mesh.items() if count is None]
    kind = next(kind for (a, b), (kind, _) in host.pairs.items() if kind in FAST and a in mesh and b in mesh)
    each = f"{lanes} {kind} lanes" if lanes else kind
    effect = "its links are down, and collectives over it run at the speed of the remaining path"
    if not linked:
        paths = sorted({host.pairs[gpu, other][0] for other in mesh if (gpu, other) in host.pairs})
        what = f"has no {kind} to any of the {len(mesh)} GPUs that are connected by {each}"
        what += f" (reaches them by {', '.join(paths)})" if paths else ""
    elif missing:
        what = f"has no {kind} to {', '.join(missing[:4])}, while the other {len(mesh)} GPUs are connected by {each}"
        effect = "links between them are down"
    else:
        fewest = min(linked.values())
        what = f"is connected by {fewest} {kind} lanes, the other {len(mesh)} GPUs by {lanes}"
        effect = "some of its links are down"
    return Finding(
        id=f"lost_links:{_place(host)}{gpu}",
        severity="warning",
        title=f"{_of(host)}{gpu} {what}: {effect}",
        evidence={
            "host": host.name,
            "device": gpu,
            "peers": list(mesh)[:_PAIRS_SHOWN],
            "lanes_of_peers": lanes or None,
            "links": {
                other: [host.pairs.get((gpu, other), (None, 0))[0], to_mesh[other]] for other in mesh[:_PAIRS_SHOWN]
            },
        },
        known_from="topology",
    )


def _mesh(gpus: Sequence[str], joined: set[tuple[str, str]]) -> list[str]:
    """Return the mesh: remove, one by one, the GPU with the most missing pairs until no pair is missing."""
    place = {gpu: at for at, gpu in enumerate(gpus)}
    missing = ~np.eye(len(gpus), dtype=np.bool_)
    for a, b in joined:
        if (b, a) in joined:
            missing[place[a], place[b]] = False
    kept = np.ones(len(gpus), np.bool_)
    while True:
        counts = (missing & kept).sum(1) * kept
        worst = int(np.argmax(counts))
        if not counts[worst]:
            return [gpu for gpu in gpus if kept[place[gpu]]]
        kept[worst] = False


def _short_of_switches(host: _Host) -> Iterator[Finding]:
    lanes: Counter[str] = Counter()
    for (a, b), (kind, count) in host.pairs.items():
        if kind == "NVLink" and b.startswith("NVSwitch"):
            lanes[a] += count
    if not lanes:
        return
    counts = {gpu: lanes[gpu] for gpu in host.gpus}
    for gpu, usual, equals in _below_most(counts):
        if counts[gpu] or equals not in WHOLE_BOARDS:
            yield Finding(
                id=f"lost_links:{_place(host)}{gpu}",
                severity="warning",
                title=f"{_of(host)}{gpu} has {counts[gpu]} NVLink lanes to the switches, {equals} other GPUs have "
                f"{usual:g}: some of its links are down",
                evidence={"host": host.name, "device": gpu, "lanes": counts[gpu], "lanes_of_peers": usual},
                known_from="topology",
            )


def _one_sided(host: _Host) -> Iterator[Finding]:
    """Report pairs whose two rows in the matrix disagree; a pair with only one row is no contradiction."""
    odd = sorted(
        (a, b) for (a, b), one in host.pairs.items() if a < b and (b, a) in host.pairs and host.pairs[b, a] != one
    )
    if odd:
        a, b = odd[0]
        yield Finding(
            id=f"one_sided_links:{_place(host)}".rstrip(":"),
            severity="warning",
            title=f"{_of(host)}{len(odd)} pairs of devices have different links in their two rows; the first is {a} "
            f"and {b}: {_link_text(host.pairs[a, b])} in one direction, {_link_text(host.pairs[b, a])} in the other",
            evidence={"host": host.name, "pairs": [list(pair) for pair in odd[:_PAIRS_SHOWN]], "count": len(odd)},
            known_from="topology",
        )


def _narrow(host: _Host) -> Iterator[Finding]:
    equals: dict[str, dict[str, float]] = defaultdict(dict)
    for device, (rate, _) in host.pcie.items():
        speed = host.speeds.get(device)
        family = "GPUs" if _GPU.fullmatch(device) else f"network cards of {speed:g} GB/s" if speed else None
        if family is not None and not math.isnan(rate):
            equals[family][device] = rate
    for family, rates in equals.items():
        for device, usual, count in _below_most(rates):
            own = f"{rates[device]:g} GB/s (x{host.pcie[device][1]})"
            yield Finding(
                id=f"narrow_pcie:{_place(host)}{device}",
                severity="warning",
                title=f"{_of(host)}the PCIe link of {device} has {own}, {count} other {family} have {usual:g} GB/s: is "
                "it in the right slot, or was the link trained down?",
                evidence={"host": host.name, "device": device, "gbs": rates[device], "gbs_of_peers": usual},
                known_from="topology",
            )


def _below_most(values: Mapping[str, float]) -> Iterator[tuple[str, float, int]]:
    """Yield (name, usual value, count) of each value below the usual one, which most and at least three must have."""
    if not values:
        return
    usual, count = Counter(values.values()).most_common(1)[0]
    if count < 3 or 2 * count <= len(values):
        return
    yield from ((name, usual, count) for name, value in values.items() if value < usual)


def _link_text(link: tuple[str, int]) -> str:
    return f"{link[0]}{f' x{link[1]}' if link[1] else ''}"


def _of(host: _Host) -> str:
    return f"{host.name}: " if host.name else ""


def _place(host: _Host) -> str:
    return f"{host.name}:" if host.name else ""
