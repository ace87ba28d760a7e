"""Read matrices of how a host's devices are connected: `nvidia-smi topo -m` and `-p2p`, `rocm-smi --showtopo`.

The header names the devices; each row names one device and its connection with every other. Cells contain no blanks, so
tabs and any number of spaces separate them. Columns behind the last device (affinities) are not read.
"""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import Facts, Links
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source

MAX_DEVICES: Final = 1024
MAX_LINE: Final = 64 << 10
MAX_NOTE: Final = 400
"""Rows of a matrix may be longer than this; titles, prompts and legends are not."""
_ANSI: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]|\[[04]m")
"""`nvidia-smi` underlines its header; text pasted into a report often lacks the escape character itself."""
_GPU: Final = re.compile(r"GPU\d{1,4}")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_OTHER: Final = re.compile(r"[A-Za-z][\w.-]*\d")
"""A network card: `NIC0`, `mlx5_0`, `rocep24s0`, `bnxt_re0`."""
_SELF: Final = frozenset({"X", "0", "SELF"})
_NVLINK: Final = re.compile(r"NV(\d{1,3})")
_PATHS: Final = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "XGMI", "PCIE", "N/A", "UNKNOWN"})
"""`SOC` is the name of `SYS` before 2018."""
_P2P: Final = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "U", "DR"})
_TITLE: Final = re.compile(r"=++(?:(.*?)=++)?\s*+|([A-Z][A-Z ]{2,40}TABLE):\s*")
_PROMPT: Final = re.compile(r"(?:.{0,200}[$#>%]\s*)?(?:\S{0,100}/)?(nvidia-smi\s+topo|rocm-smi|amd-smi)\b(.*)")
_LEGEND: Final = re.compile(
    r"\s*(?:(?:X|NV#|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|U|DR)\s*=\s.*|(?:NIC )?Legend:|NIC\d+:\s*\S+"
    r"|GPU\s?\[?\d+\]?\s*:\s*\(Topology\).*|WARNING: .*)"
)
_CARD: Final = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")


class MatrixLines(msgspec.Struct):
    """Collects the lines of a text in order; afterwards `links` holds the links of its matrices."""

    links: list[dict[str, Any]] = []
    broken: int = 0
    """Rows that do not fit their header."""
    rows: int = 0
    hops_left_out: bool = False
    _devices: list[str] = []
    _rows_left: int = 0
    _hosts: int = 0
    _counted: bool = False
    _title: str = ""
    _capability: str = ""
    _cards: dict[str, str] = {}

    def take(self, line: str) -> bool:
        """Parse one line and return whether it belongs to such an output."""
        text = _ANSI.sub("", line[:MAX_LINE]).rstrip()
        short = text.strip() if len(text) <= MAX_NOTE else ""
        title, prompt, card = _TITLE.fullmatch(short), _PROMPT.fullmatch(short), _CARD.fullmatch(short)
        if title:
            self._title, self._devices = (title[1] or title[2] or "").strip().lower(), []
            return True
        if prompt:
            capability = re.search(r"-p2p\s+(\w+)", prompt[2])
            self._capability = f" {capability[1]}" if capability else ""
            return True
        if card:
            self._cards[card[1]] = card[2]
            return True
        if _LEGEND.fullmatch(short):
            return True
        tokens = text.split()
        header = _header(tokens)
        if header:
            self._begin(header)
            return True
        return bool(tokens) and self._take_row(tokens)

    def finish(self) -> list[dict[str, Any]]:
        """Return the links; network cards are named as in the legend."""
        for link in self.links:
            for end in ("a", "b"):
                link[end] = self._cards.get(link[end], link[end])
        return self.links

    def _begin(self, header: list[str]) -> None:
        self._devices, self._rows_left, self._counted = header, len(header), False

    def _take_row(self, tokens: list[str]) -> bool:
        if not self._devices or tokens[0] not in self._devices or not self._rows_left:
            return False
        self._rows_left -= 1
        place, cells = self._devices.index(tokens[0]), tokens[1 : 1 + len(self._devices)]
        parsed = [_connection(cell, self._capability) for cell in cells]
        if len(cells) < len(self._devices) or cells[place] not in _SELF:
            self.broken += 1
            return True
        if any(word in self._title for word in ("weight", "hops", "access", "bw", "bandwidth")):
            self.rows += 1
            self.hops_left_out = True
            return True
        if any(each is None for at, each in enumerate(parsed) if at != place):
            self.broken += 1
            return True
        self.rows += 1
        ends = [(other, each) for other, each in enumerate(parsed) if other != place and each is not None]
        if not self._counted:  # a second matrix of links belongs to another host; one of P2P support does not
            self._counted = True
            self._hosts += not any(str(each["kind"]).startswith("P2P") for _, each in ends)
        host = f"matrix {self._hosts}" if self._hosts > 1 else None
        for other, each in ends:
            self.links.append({"host": host, "a": _named(tokens[0]), "b": _named(self._devices[other]), **each})
        return True


def _header(tokens: list[str]) -> list[str]:
    """Return the devices of a line that is a header; empty when it is not."""
    devices: list[str] = []
    for token in tokens:
        if _GPU.fullmatch(token) or _ADDRESS.fullmatch(token) or (devices and _OTHER.fullmatch(token)):
            devices.append(token)
        else:
            break
    rest = " ".join(tokens[len(devices) :])
    known = re.fullmatch(r"(?:CPU Affinity)?\s?(?:NUMA Affinity)?\s?(?:GPU NUMA ID)?", rest) is not None
    is_header = known and devices and len(set(devices)) == len(devices) <= MAX_DEVICES
    return devices if is_header and (len(devices) > 1 or rest) else []


def _connection(cell: str, capability: str) -> dict[str, Any] | None:
    nvlink = _NVLINK.fullmatch(cell)
    if nvlink:
        return {"kind": "NVLink", "lanes": int(nvlink[1])}
    if cell in _PATHS:
        return {"kind": None if cell in ("N/A", "UNKNOWN") else cell}
    return {"kind": f"P2P{capability} {cell}"} if cell in _P2P else None


def _named(device: str) -> str:
    return f"GPU {device}" if _ADDRESS.fullmatch(device) else device


def read_topo_matrix(path: Path, context: ReadContext) -> Reading:
    """Read one output. Raises InputError when it cannot be read or holds no matrix."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    collector = MatrixLines()
    for line in iter_lines(stream):
        collector.take(line.decode("utf-8", "replace"))
    links = collector.finish()
    if not collector.rows:
        raise InputError(f"{display_path(path)}: holds no matrix of devices; is it the output of nvidia-smi topo -m?")
    warnings = list(stream.warnings)
    if not links:
        warnings.append("it lists fewer than two devices, so there is no link")
    if collector.hops_left_out:
        warnings.append("hops, weights and access between devices are not read, only the type of their link")
    if collector.broken:
        warnings.append(f"rows that do not fit their header were left out: {collector.broken}")
    names = NameTable()
    table = fact_table(Links, links, names)
    return Reading(
        source=Source(
            path=display_path(path),
            events=len(links),
            dropped=collector.broken,
            truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
        facts=Facts(names=tuple(names.to_list()), links=table),
    )
