"""Know `communication.json` and `communication_matrix.json`, what HCCL measured."""

from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "ascend_communication"


def recognises(head: Head) -> bool:
    """Whether the file is an object that holds the profiler's communication times or links."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text:
        return False
    return b'"Communication Time Info"' in text or (b'"Transport Type"' in text and b'"Transit Size(MB)"' in text)


READER = Reader(
    format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.ascend_communication:read_communication")
)
