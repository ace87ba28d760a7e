"""Know NCCL's own view of a machine, as `NCCL_TOPO_DUMP_FILE` writes it."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "nccl-topology"
_BEGIN: Final = r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<system\s+version\s*="


def recognises(head: Head) -> bool:
    """Whether the root element is NCCL's: `<system version=...>` with CPUs."""
    return re.match(_BEGIN, head.text) is not None and re.search(r"<cpu\b", head.text) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.topo_xml`."""
    from overlapscope.ingest.topo_xml import read_topo_xml  # noqa: PLC0415 - loaded for such a file

    return read_topo_xml(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)
