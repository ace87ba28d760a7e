"""Know `profiler_info_N.json` and `profiler_metadata.json` of an Ascend profile."""

from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "ascend_info"


def recognises(head: Head) -> bool:
    """Whether the file is the profiler's note of how it was set, or of the job's environment and groups."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text:
        return False
    noted = b'"start_info"' in text and (b'"rank_id"' in text or b'"experimental_config"' in text)
    return noted or b'"parallel_group_info"' in text or (b'"ENV_VARIABLES"' in text and b'"HCCL_' in text)


READER = Reader(format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.ascend_info:read_info"))
