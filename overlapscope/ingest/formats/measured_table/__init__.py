"""Know a user's own table of measured collectives, steps or buckets."""

from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy

FORMAT: Final = "measured-table"


def recognises(head: Head) -> bool:
    """Return whether the first lines are a header that is understood and a row that has numbers where it says so."""
    text = head.text
    if text.lstrip()[:1] in ("{", "[", "<", "") or "\x00" in text:
        return False
    from overlapscope.ingest.formats.measured_table.reader import begins_a_table  # noqa: PLC0415 - loaded for what may be a table

    return begins_a_table(text)


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy("overlapscope.ingest.formats.measured_table.reader:read_measured_table"),
)
