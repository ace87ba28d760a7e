"""Know NCCL's own view of a machine, as `NCCL_TOPO_DUMP_FILE` writes it."""

import re
from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "nccl-topology"
_BEGIN: Final = r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<system\s+version\s*="


def recognises(head: Head) -> bool:
    """Whether the root element is NCCL's: `<system version=...>` with CPUs."""
    return re.match(_BEGIN, head.text) is not None and re.search(r"<cpu\b", head.text) is not None


READER = Reader(format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.topo_xml:read_topo_xml"))
