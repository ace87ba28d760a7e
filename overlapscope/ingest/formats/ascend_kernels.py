"""Know `kernel_details.csv`, what ran on an Ascend device."""

from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "ascend_kernels"
_TITLES: Final = {"Name", "Accelerator Core", "Start Time(us)", "Duration(us)"}


def recognises(head: Head) -> bool:
    """Whether the titles are those of this table."""
    if b"Accelerator Core" not in head.content:
        return False
    from overlapscope.ingest.ascend_tables import header_of  # noqa: PLC0415 - loaded for what may be such a table

    return set(header_of(head.text)) >= _TITLES


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.ascend_kernels`."""
    from overlapscope.ingest.ascend_kernels import read_kernels  # noqa: PLC0415 - loaded for such a file

    return read_kernels(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)
