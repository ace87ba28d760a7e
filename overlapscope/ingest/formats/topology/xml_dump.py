"""Read the XML file of a host's topology that NCCL and RCCL write and read (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE).

Written by src/graph/xml.cc, read by topo.cc.
"""

import math
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, ParseError

import msgspec
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import iterparse

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import Facts, Links
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source

MAX_BYTES: Final = 4 << 20
"""A topology of 8 GPUs takes 12 KB."""
MAX_DEPTH: Final = 64
LANE_100MBPS: Final = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""GT/s to the bandwidth that NCCL assumes per PCIe lane, in 100 Mbit/s: three quarters of the rate.

Source: `kvDictPciGen` in topo.cc.
"""
MAX_PAIRS: Final = 250_000
_WHOLE: Final = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,18})", re.ASCII)
_REAL: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e[+-]?[0-9]{1,3})?", re.ASCII)


def read_topo_xml(path: Path, context: ReadContext) -> Reading:
    """Read one file. Raises InputError for anything but such XML, and for XML that declares entities."""
    stream = ByteStream(path, min(context.max_bytes, MAX_BYTES), context.progress)
    root, cut = _parse(path, b"".join(stream.blocks()))
    if root.tag != "system":
        raise InputError(
            f"{display_path(path)}: its root is <{root.tag[:40]}>, not <system>: this is not an NCCL topology"
        )
    names = NameTable()
    warnings = [*stream.warnings]
    if cut:
        warnings.append("the XML is damaged or ends early; read up to there")
    links = _links(root, warnings)
    if not links:
        raise InputError(f"{display_path(path)}: holds no link")
    table = fact_table(Links, links, names)
    source = Source(
        path=display_path(path), events=len(links), truncated=cut or stream.truncated, warnings=tuple(warnings)
    )
    return Reading(source=source, facts=Facts(links=table, names=tuple(names.to_list())))


def _parse(path: Path, content: bytes) -> tuple[Element, bool]:
    """Return the root element, and whether the XML is damaged behind it or ends before it is closed.

    Raises InputError for a document type declaration, the only place where entities can be declared, and for text that
    is not XML before any element began.
    """
    root: Element | None = None
    depth = 0
    try:
        for event, element in iterparse(BytesIO(content), events=("start", "end"), forbid_dtd=True):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > MAX_DEPTH:
                raise InputError(f"{display_path(path)}: holds more than {MAX_DEPTH} levels; this is not a topology")
    except DefusedXmlException as error:
        raise InputError(
            f"{display_path(path)}: declares a document type or an entity, which topology files never do; remove it"
        ) from error
    except (ParseError, ValueError, LookupError) as error:  # the latter two: unknown encoding
        if root is None:
            raise InputError(f"{display_path(path)}: is not XML: {error}") from error
        return root, True
    assert root is not None, "the parser refuses a document without an element"
    return root, False


class _Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or a network card; `above` are the elements from the CPU down to its PCI function."""

    name: str
    host: str | None
    element: Element
    above: tuple[Element, ...]
    is_gpu: bool


def _links(system: Element, warnings: list[str]) -> list[dict[str, Any]]:
    devices = [device for cpu in system.findall("cpu") for device in _devices(cpu, (cpu,))]
    gpus = {(each.host, _address(each)): each.name for each in devices if each.is_gpu}
    links: list[dict[str, Any]] = []
    own = 0
    for device in devices:
        links += _pci_link(device) + _network(device)
        gpu_links, to_itself = _gpu_links(device, gpus)
        links += gpu_links
        own += to_itself
    if own:
        warnings.append(f"{own} GPUs have NVLinks to themselves, not to another device; left out")
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
    """Yield the devices below an element: PCI functions that contain a GPU or networks, or are of such a class."""
    host = _get(above[0], "host_hash")
    for child in element:
        if child.tag == "pci":
            inner = (*above, child)
            gpu = child.find("gpu")
            klass = (_get(child, "class") or "").lower()
            if gpu is not None or (klass.startswith("0x03") and child.find("nic") is None):
                dev = _get(gpu, "dev") if gpu is not None else None
                name = f"GPU{dev}" if dev else f"GPU {_get(child, 'busid')}"
                yield _Device(name=name, host=host, element=child, above=inner, is_gpu=True)
            elif klass.startswith("0x02") and child.find("nic") is None:
                yield _Device(name=f"NIC {_get(child, 'busid')}", host=host, element=child, above=inner, is_gpu=False)
            yield from _devices(child, inner)
        elif child.tag == "nic":
            for net in child.findall("net"):
                name = _get(net, "name") or f"net {_get(net, 'dev')}"
                yield _Device(name=name, host=host, element=net, above=above, is_gpu=False)


def _get(element: Element, name: str) -> str | None:
    """Return an attribute's text; None where it is absent or blank."""
    return element.get(name, "").strip() or None


def _address(device: _Device) -> str:
    return (_get(device.above[-1], "busid") or "").lower()


def _pci_link(device: _Device) -> list[dict[str, Any]]:
    """Return the link from the device's PCI function to its parent; empty where the file does not state its width."""
    function = device.above[-1]
    width, speed = _whole(_get(function, "link_width")), _get(function, "link_speed")
    if function.tag != "pci" or not width or not 0 < width <= 32:
        return []
    lane = LANE_100MBPS.get(re.sub(r"(?:\.0)?\s*GT/s.*", "", speed or "").strip())
    above = device.above[-2]
    parent = f"CPU{_get(above, 'numaid') or ''}" if above.tag == "cpu" else f"PCI {_get(above, 'busid')}"
    # width x speed / 80: ncclTopoAddPci in topo.cc, from 100 Mbit/s per lane to GB/s.
    bandwidth = width * lane / 80 if lane else None
    return [
        {"host": device.host, "a": device.name, "b": parent, "kind": "PCIe", "lanes": width, "bandwidth_gbs": bandwidth}
    ]


def _network(device: _Device) -> list[dict[str, Any]]:
    """Return a network card's own speed, written in Mbit/s."""
    speed = _real(_get(device.element, "speed")) if device.element.tag == "net" else None
    if not speed:
        return []
    return [{"host": device.host, "a": device.name, "b": "network", "kind": "network", "bandwidth_gbs": speed / 8000}]


def _gpu_links(device: _Device, gpus: dict[tuple[str | None, str], str]) -> tuple[list[dict[str, Any]], bool]:
    """Return NVLink, XGMI and C2C links of a GPU, those to one partner as one; and whether one leads to itself."""
    lanes: dict[tuple[str, str], int] = {}
    bandwidth: dict[tuple[str, str], float] = {}
    to_itself = False
    for gpu in device.element.findall("gpu") if device.is_gpu else ():
        for link in gpu:
            count = _whole(_get(link, "count"))
            if link.tag not in ("nvlink", "xgmi", "c2c") or not count or not 0 < count < 10_000:
                continue
            target = (_get(link, "target") or "").lower()
            if link.tag == "c2c":
                key = (f"CPU{_get(device.above[0], 'numaid') or ''}", "C2C")
                rate = _real(_get(link, "bw"))
                if rate is not None:  # MB/s of one link: ncclTopoAddC2c
                    bandwidth[key] = bandwidth.get(key, 0.0) + rate * count / 1000
            elif target == _address(device):
                to_itself = True
                continue
            else:
                switch = (_get(link, "tclass") or "").startswith("0x0680")
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
    """Return the path between two devices under NCCL's name (`ncclTopoSetPaths` in paths.cc): PIX, PXB, PHB or SYS."""
    common = 0
    while common < min(len(one), len(other)) and one[common] is other[common]:
        common += 1
    if common == 0:
        return "SYS"
    if common == 1:
        return "PHB"
    # PXB needs two adjacent bridges on the way; the functions at both ends are not bridges.
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
