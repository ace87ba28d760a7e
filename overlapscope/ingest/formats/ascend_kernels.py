"""Know `kernel_details.csv`, what ran on an Ascend device."""

from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "ascend_kernels"
_TITLES: Final = {"Name", "Accelerator Core", "Start Time(us)", "Duration(us)"}


def recognises(head: Head) -> bool:
    """Whether the titles are those of this table."""
    if b"Accelerator Core" not in head.content:
        return False
    from overlapscope.ingest.ascend_tables import header_of  # noqa: PLC0415 - loaded for what may be such a table

    return set(header_of(head.text)) >= _TITLES


READER = Reader(format=FORMAT, recognises=recognises, read=lazy("overlapscope.ingest.ascend_kernels:read_kernels"))
