"""Recognise the files of NCCL profiler plugins."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

INSPECTOR, EVENT_LINES = "nccl-inspector", "nccl-profiler-events"
_BEGINS: Final = {
    INSPECTOR: (
        rb'\s*+(?:\[\s*+)?\{\s*"header"\s*:\s*\{[^{}]{0,2000}"n_ranks"\s*:[^{}]{0,2000}\}\s*,\s*'
        rb'(?:"metadata"\s*:\s*\{[^{}]{0,4000}\}\s*,\s*)?"(?:coll_perf|p2p_perf|dump_stats|proxy_trace)"\s*:'
    ),
    EVENT_LINES: (
        rb'\s*\{\s*(?:"recordType"\s*:\s*"(?:event|state|cuptiActivity)"\s*,\s*"(?:type|eventAddr)"\s*:'
        rb'|"type"\s*:\s*"ProfilerLifecycle"\s*,\s*"func"\s*:)'
    ),
}


def recognises(head: Head) -> bool:
    """Return whether the file begins with a record of a known profiler plugin."""
    return format_of(head.content) is not None


def format_of(content: bytes) -> str | None:
    """Return the plugin format that a file begins with; None for any other file."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    return next((name for name, begins in _BEGINS.items() if re.match(begins, content)), None)


READER = Reader(
    format="nccl-profiler",
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.nccl_profiler.reader:read_nccl_profiler"),
)
