"""Recognise a dump of torch's flight recorder."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

PICKLE: Final = b"\x80"
"""First byte of a pickle; other dumps are JSON."""
_TELLING: Final = (
    b"collective_seq_id", b"p2p_seq_id", b"record_id", b"profiling_name", b"time_created_ns", b"input_sizes",
    b"output_sizes", b"time_discovered_started_ns", b"pg_status", b"pg_config", b"last_enqueued_collective",
    b"nccl_comm_state", b"comm_lib_version", b"nccl_version", b"retired",
)  # fmt: skip
_ENOUGH_TELLING: Final = 3
_RANKS_AS_TEXT: Final = re.compile(rb'ranks(?:"\s*:\s*"|(?:q.|r.{4}|\x94)?(?:X.{4}|\x8c.))\[', re.DOTALL)
"""A group in the recorder's own form, as JSON or as a pickle.

The list of 10,000 ranks leaves room for little else in the head of the file.
"""


def recognises(head: Head) -> bool:
    """Return whether the file begins as a pickle or JSON object and holds several keys, or a group, of the recorder."""
    content = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if content[:1] not in (b"{", PICKLE) or b'"traceEvents"' in content:
        return False
    quote = b"" if content[:1] == PICKLE else b'"'
    telling = sum(quote + key + quote in content for key in _TELLING)
    in_group = quote + b"pg_config" + quote in content and _RANKS_AS_TEXT.search(content) is not None
    return in_group or telling >= _ENOUGH_TELLING


READER = Reader(
    format="flight_recorder",
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.flight_recorder.reader:read_flight_recorder"),
)
