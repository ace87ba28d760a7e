"""Know NCCL's own view of a machine, as `NCCL_TOPO_DUMP_FILE` and `NCCL_GRAPH_DUMP_FILE` write it."""

import re
from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "nccl-topology"
_BEGIN: Final = r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<(system|graphs)\s+version\s*="


def recognises(head: Head) -> bool:
    """Whether the root element is NCCL's: `<system version=...>` with CPUs, or `<graphs version=...>` with graphs."""
    found = re.match(_BEGIN, head.text)
    return found is not None and re.search(r"<cpu\b" if found[1] == "system" else r"<graph\b", head.text) is not None


READER = Reader(format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.topo_xml:read_topo_xml"))
