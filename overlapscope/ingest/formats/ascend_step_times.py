"""Know `step_trace_time.csv`, the Ascend profiler's own sums of each step."""

from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "ascend_step_times"
_TITLES: Final = {"Step", "Computing", "Communication(Not Overlapped)", "Overlapped"}


def recognises(head: Head) -> bool:
    """Whether the titles are those of this table."""
    if b"Communication(Not Overlapped)" not in head.content:
        return False
    from overlapscope.ingest.ascend_tables import header_of  # noqa: PLC0415 - loaded for what may be such a table

    return set(header_of(head.text)) >= _TITLES


READER = Reader(
    format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.ascend_step_times:read_step_times")
)
