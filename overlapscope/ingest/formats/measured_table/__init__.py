"""Recognise a user's own table of measured collectives, steps or buckets."""

from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

FORMAT: Final = "measured-table"


def recognises(head: Head) -> bool:
    """Return whether the first lines are a known header and a row with numbers in the columns that need them."""
    text = head.text
    if text.lstrip()[:1] in ("{", "[", "<", "") or "\x00" in text:
        return False
    from overlapscope.ingest.formats.measured_table.reader import begins_a_table  # noqa: PLC0415 - loaded only for tables

    return begins_a_table(text)


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.measured_table.reader:read_measured_table"),
)
