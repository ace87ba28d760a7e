"""Know an Ascend profiler's `trace_view.json`."""

import re
from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "ascend"
_MARKS: Final = (
    rb'"ts"\s*:\s*"\d+(?:\.\d+)?(?:\\t)?"'
    rb'|"name"\s*:\s*"(?:Ascend Hardware|Overlap Analysis|CANN)"'
    rb'|"labels"\s*:\s*"NPU'
    rb'|"cat"\s*:\s*"(?:async_npu|async_task_queue|HostToDevice|enqueue|dequeue)"'
    rb'|"Input (?:Dims|type)"\s*:\s*"'
)
"""What only this profiler writes: times as text, its processes, its flows, shapes as text."""


def recognises(head: Head) -> bool:
    """Whether the file is a bare array of events with marks that only this profiler makes."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n\x00")
    return text[:1] == b"[" and b'"ph"' in text and re.search(_MARKS, text) is not None


READER = Reader(format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.ascend:read_ascend"))
