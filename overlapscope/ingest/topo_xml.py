"""Read NCCL's and RCCL's XML: a host's topology (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) and the graphs they search
in it (NCCL_GRAPH_DUMP_FILE). Written by src/graph/xml.cc and search.cc, read by topo.cc.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.fact_tables import fact_table
from overlapscope.ingest.formats.topo_xml import FORMAT
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.shown import shown
from overlapscope.ingest.xml_tree import Element, read_xml
from overlapscope.timeline.facts import Facts, Figures, Links, Paths
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source
from overlapscope.values import dataclass

LANE_100MBPS: Final = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""GT/s to what NCCL counts on per PCIe lane, in 100 Mbit/s (`kvDictPciGen` in topo.cc): three quarters of the rate."""
MAX_PAIRS: Final = 250_000
_WHOLE: Final = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,18})", re.ASCII)
_REAL: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e[+-]?[0-9]{1,3})?", re.ASCII)
_PATTERNS: Final = {1: "tree", 2: "tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet"}
"""`NCCL_TOPO_PATTERN_*` of graph.h; the first three are kinds of trees."""


def read_topo_xml(path: Path, context: ReadContext) -> Reading:
    """Read one file. Raises InputError for what is no such XML, and for XML that declares entities."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    root, cut = read_xml(path, stream)
    names = NameTable()
    warnings = [*stream.warnings]
    if cut:
        warnings.append("the XML is damaged or ends early; read up to there")
    if root.tag == "system":
        links = _links(root, warnings)
        rows, facts = len(links), Facts(links=fact_table(Links, links, names), names=())
    elif root.tag == "graphs":
        paths, figures = _paths(root), _figures(root, shown(path))
        rows = len(paths)
        facts = Facts(paths=fact_table(Paths, paths, names), figures=fact_table(Figures, figures, names))
    else:
        raise InputError(
            f"{shown(path)}: its root <{root.tag[:40]}> is neither <system> nor <graphs>: no NCCL topology"
        )
    if not facts:
        raise InputError(f"{shown(path)}: holds no link and no channel")
    source = Source(
        path=shown(path), format=FORMAT, events=rows, truncated=cut or stream.truncated, warnings=tuple(warnings)
    )
    return Reading(source=source, facts=replace(facts, names=tuple(names.to_list())))


# --- topology -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A GPU or a network card; `above` are the elements from the CPU down to its PCI function."""

    name: str
    host: str | None
    element: Element
    above: tuple[Element, ...]
    is_gpu: bool


def _links(system: Element, warnings: list[str]) -> list[dict[str, Any]]:
    devices = [device for cpu in system.all("cpu") for device in _devices(cpu, (cpu,))]
    gpus = {(each.host, _address(each)): each.name for each in devices if each.is_gpu}
    links: list[dict[str, Any]] = []
    own = 0
    for device in devices:
        links += _pci_link(device) + _network(device)
        told, to_itself = _gpu_links(device, gpus)
        links += told
        own += to_itself
    if own:
        warnings.append(f"{own} GPUs have NVLinks to themselves, which is no link between devices; left out")
    linked = {(each["host"], each["a"], each["b"]) for each in links if each["kind"] in ("NVLink", "XGMI")}
    if len(devices) ** 2 > MAX_PAIRS:
        warnings.append(f"{len(devices)} devices: paths between them were left out")
        return links
    for one in devices:
        for other in devices:
            if one is not other and one.host == other.host and (one.host, one.name, other.name) not in linked:
                links.append({"host": one.host, "a": one.name, "b": other.name, "kind": _path(one.above, other.above)})
    return links


def _devices(element: Element, above: tuple[Element, ...]) -> Iterator[_Device]:
    """Yield the devices below an element: PCI functions with a GPU or networks in them, or of such a class."""
    host = above[0].get("host_hash")
    for child in element.children:
        if child.tag == "pci":
            inner = (*above, child)
            gpu = next(child.all("gpu"), None)
            klass = (child.get("class") or "").lower()
            if gpu is not None or (klass.startswith("0x03") and not any(child.all("nic"))):
                name = f"GPU{gpu.get('dev')}" if gpu is not None and gpu.get("dev") else f"GPU {child.get('busid')}"
                yield _Device(name=name, host=host, element=child, above=inner, is_gpu=True)
            elif klass.startswith("0x02") and not any(child.all("nic")):
                yield _Device(name=f"NIC {child.get('busid')}", host=host, element=child, above=inner, is_gpu=False)
            yield from _devices(child, inner)
        elif child.tag == "nic":
            for net in child.all("net"):
                name = net.get("name") or f"net {net.get('dev')}"
                yield _Device(name=name, host=host, element=net, above=above, is_gpu=False)


def _address(device: _Device) -> str:
    return (device.above[-1].get("busid") or "").lower()


def _pci_link(device: _Device) -> list[dict[str, Any]]:
    """Give the link from the device's PCI function to what it hangs on; none where the file does not tell its width."""
    function = device.above[-1]
    width, speed = _whole(function.get("link_width")), function.get("link_speed")
    if function.tag != "pci" or not width or not 0 < width <= 32:
        return []
    lane = LANE_100MBPS.get(re.sub(r"(?:\.0)?\s*GT/s.*", "", speed or "").strip())
    above = device.above[-2]
    parent = f"CPU{above.get('numaid') or ''}" if above.tag == "cpu" else f"PCI {above.get('busid')}"
    # width x speed / 80: ncclTopoAddPci in topo.cc, from 100 Mbit/s per lane to GB/s.
    bandwidth = width * lane / 80 if lane else None
    return [
        {"host": device.host, "a": device.name, "b": parent, "kind": "PCIe", "lanes": width, "bandwidth_gbs": bandwidth}
    ]


def _network(device: _Device) -> list[dict[str, Any]]:
    """Give a network card's own speed, written in Mbit/s."""
    speed = _real(device.element.get("speed")) if device.element.tag == "net" else None
    if not speed:
        return []
    return [{"host": device.host, "a": device.name, "b": "network", "kind": "network", "bandwidth_gbs": speed / 8000}]


def _gpu_links(device: _Device, gpus: dict[tuple[str | None, str], str]) -> tuple[list[dict[str, Any]], bool]:
    """Give NVLink, XGMI and C2C links of a GPU, those to one partner as one; and whether it names itself as partner."""
    lanes: dict[tuple[str, str], int] = {}
    bandwidth: dict[tuple[str, str], float] = {}
    to_itself = False
    for gpu in device.element.all("gpu") if device.is_gpu else ():
        for link in gpu.children:
            count = _whole(link.get("count"))
            if link.tag not in ("nvlink", "xgmi", "c2c") or not count or not 0 < count < 10_000:
                continue
            target = (link.get("target") or "").lower()
            if link.tag == "c2c":
                key = (f"CPU{device.above[0].get('numaid') or ''}", "C2C")
                rate = _real(link.get("bw"))
                if rate is not None:  # Mbyte/s of one link: ncclTopoAddC2c
                    bandwidth[key] = bandwidth.get(key, 0.0) + rate * count / 1000
            elif target == _address(device):
                to_itself = True
                continue
            else:
                switch = (link.get("tclass") or "").startswith("0x0680")
                partner = gpus.get((device.host, target)) or (f"NVSwitch {target}" if switch else f"GPU {target}")
                key = (partner, "NVLink" if link.tag == "nvlink" else "XGMI")
            lanes[key] = lanes.get(key, 0) + count
    rows = [
        {
            "host": device.host,
            "a": device.name,
            "b": b,
            "kind": kind,
            "lanes": count,
            "bandwidth_gbs": bandwidth.get((b, kind)),
        }
        for (b, kind), count in lanes.items()
    ]
    return rows, to_itself


def _path(one: tuple[Element, ...], other: tuple[Element, ...]) -> str:
    """Name the path between two devices as NCCL does (`ncclTopoSetPaths` in paths.cc): PIX, PXB, PHB or SYS."""
    common = 0
    while common < min(len(one), len(other)) and one[common] is other[common]:
        common += 1
    if common == 0:
        return "SYS"
    if common == 1:
        return "PHB"
    # Two bridges next to each other on the way: the functions at both ends are no bridges.
    ends = [each[-1] for each in (one, other)]
    between = [
        each for chain in (one[common:], other[common:]) for each in chain if not any(each is end for end in ends)
    ]
    return "PXB" if between else "PIX"


def _whole(text: str | None) -> int | None:
    if text is None or not _WHOLE.fullmatch(text):
        return None
    return int(text, 16 if "0x" in text else 10)


def _real(text: str | None) -> float | None:
    value = float(text) if text is not None and _REAL.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


# --- graphs ---------------------------------------------------------------------------------------------------------


def _graphs(root: Element) -> Iterator[tuple[str, str, Element]]:
    """Yield (name, pattern, element) of each graph."""
    for place, graph in enumerate(root.all("graph")):
        pattern = _PATTERNS.get(_whole(graph.get("pattern")) or 0, "unknown")
        yield f"graph {graph.get('id') or place} {pattern}", pattern, graph


def _paths(root: Element) -> list[dict[str, Any]]:
    """Give each channel's GPUs in order. A ring that meets no network closes on the host; its members are device
    numbers, for ranks do not stand here.
    """
    rows: list[dict[str, Any]] = []
    for name, pattern, graph in _graphs(root):
        for channel, element in enumerate(graph.all("channel")):
            devices = [_device_number(gpu) for gpu in element.all("gpu")]
            closes = pattern == "ring" and not any(element.all("net"))
            following = [*devices[1:], devices[0] if closes and len(devices) > 1 else None] if devices else []
            for member, after in zip(devices, following, strict=True):
                rows.append(
                    {"communicator": name, "pattern": pattern, "channel": channel, "member": member, "next": after}
                )
    return rows


def _device_number(gpu: Element) -> int | None:
    number = _whole(gpu.get("dev"))
    # Since 2.21 the upper 8 bits hold the host (NCCL_TOPO_ID in topo.h).
    return number & ((1 << 56) - 1) if number is not None and number >= 0 else None


def _figures(root: Element, source: str) -> list[dict[str, Any]]:
    """Give what NCCL expects of each graph: channels, and GB/s of one channel."""
    wanted = (("nchannels", "channels"), ("speedintra", "intra_node_gbs"), ("speedinter", "inter_node_gbs"))
    rows = []
    for name, _, graph in _graphs(root):
        for attribute, figure in wanted:
            value = _real(graph.get(attribute))
            if value is not None:
                rows.append({"source": source, "subject": name, "name": figure, "value": value})
    return rows
