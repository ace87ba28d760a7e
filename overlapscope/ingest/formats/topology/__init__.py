"""Recognise how a host's devices are linked: matrices of `nvidia-smi topo -m`, XML of `NCCL_TOPO_DUMP_FILE`."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read


def holds_some(head: Head) -> bool:
    """Return whether a text holds a matrix, with a row that fits its header, whatever else it holds."""
    if b"GPU0" not in head.content:
        return False
    from overlapscope.ingest.formats.topology.matrix import MatrixLines  # noqa: PLC0415 - loaded only for a matrix

    collector = MatrixLines()
    for line in head.text.splitlines():
        collector.take(line)
    return collector.rows > 0


def is_matrix(head: Head) -> bool:
    """Return whether at least half of a text is such a matrix, with a row that fits its header."""
    if b"GPU0" not in head.content and b"TABLE:" not in head.content:
        return False
    from overlapscope.ingest.formats.topology.matrix import MatrixLines  # noqa: PLC0415 - loaded only for a matrix

    collector = MatrixLines()
    recognised = [collector.take(line) for line in head.text.splitlines() if line.strip()]
    return collector.rows > 0 and 2 * sum(recognised) >= len(recognised)


MATRIX = Reader(
    format="topo-matrix",
    recognises=is_matrix,
    read=lazy_read("overlapscope.ingest.formats.topology.matrix:read_topo_matrix"),
    holds_some=holds_some,
)
_BEGIN: Final = r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*-->\s*)*<system\s+version\s*="


def is_xml(head: Head) -> bool:
    """Return whether the root element is NCCL's: `<system version=...>` with CPUs."""
    return re.match(_BEGIN, head.text) is not None and re.search(r"<cpu\b", head.text) is not None


XML = Reader(
    format="nccl-topology",
    recognises=is_xml,
    read=lazy_read("overlapscope.ingest.formats.topology.xml_dump:read_topo_xml"),
)
