"""Read one file, with every reader that recognises it."""

import re
from pathlib import Path

from msgspec.structs import replace

from overlapscope.display import display_path, url_of
from overlapscope.errors import InputError
from overlapscope.ingest.formats import kineto
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import Head, ReadContext, Reading
from overlapscope.ingest.registry import (
    MAX_SEARCHED_BYTES,
    describe_unread_form,
    is_text,
    named_readers_of,
    read_head,
    readers_of,
)

NO_MEMORY = "not enough memory to read it"


def read_file(path: Path, context: ReadContext) -> list[Reading]:
    """Read a file with the readers that recognise it; at least one reading.

    A file that no reader recognises is tried as a Kineto trace, whose error names what is missing. A log that several
    readers recognise gives one reading for each; a reader that then finds nothing becomes a warning. Raises InputError,
    whose message begins with the path, when no reader finds anything.
    """
    url = url_of(path)
    if url is None:
        return _read_local(path, context)
    from overlapscope.ingest.inputs.remote import local_copy  # noqa: PLC0415 - only for URLs

    with local_copy(path, url, context.max_bytes) as copy:
        if read_head(copy).is_archive:
            raise InputError(f"{display_path(path)}: is an archive on remote storage: copy it to this machine")
        try:
            readings = _read_local(copy, context)
        except InputError as error:
            raise InputError(f"{display_path(path)}: {message_without_path(error, copy)}") from error
        return [reading.relabel_paths([(display_path(copy), display_path(path))]) for reading in readings]


def _read_local(path: Path, context: ReadContext) -> list[Reading]:
    try:
        head = read_head(path)
        known = readers_of(head)
        if not head.content and _is_cut_gzip(path):
            raise InputError(
                f"{display_path(path)}: is gzip data that is cut before anything of it can be read: copy it again"
            )
        # Some unsupported forms are JSON, which the Kineto reader accepts as the last guess.
        if known in ([], [kineto.READER]) and (unread := describe_unread_form(head.content)) is not None:
            raise InputError(f"{display_path(path)}: {unread}")
        known = known or named_readers_of(head)
        if not known and _is_other_text(head):
            raise InputError(
                f"{display_path(path)}: holds nothing that can be read: no trace, "
                f"and in its first {MAX_SEARCHED_BYTES >> 20} MiB no line of a known log or table"
            )
        known = known or [kineto.READER]
    except OSError as error:
        raise InputError(f"{display_path(path)}: cannot be read: {error.strerror or error}") from error
    readings: list[Reading] = []
    failed: list[InputError] = []
    for reader in known:
        try:
            readings.append(_with_format(reader.read(path, context), reader.format))
        except InputError as error:
            failed.append(error)
    if not readings:
        raise failed[0]
    first = readings[0]
    warnings = (*first.source.warnings, *(message_without_path(error, path) for error in failed))
    return [replace(first, source=replace(first.source, warnings=warnings)), *readings[1:]]


def _with_format(reading: Reading, name: str) -> Reading:
    """Return a reading whose source names its format: the reader's name, unless the reading names a more exact one."""
    return reading if reading.source.format else replace(reading, source=replace(reading.source, format=name))


def message_without_path(error: Exception, path: Path) -> str:
    """Return the message of an error without the path at its beginning."""
    return str(error).removeprefix(f"{display_path(path)}: ")


def _is_cut_gzip(path: Path) -> bool:
    """Return whether a file is gzip data cut before its first byte; False for the gzip data of an empty file."""
    stream = ByteStream(path)
    return not any(stream.blocks()) and stream.truncated


def _is_other_text(head: Head) -> bool:
    """Return whether a file is plain text that cannot be a trace, because it does not begin as JSON does."""
    beginning = head.text.lstrip()[:64]
    return is_text(head.content) and re.match(r"\{|\[\s*(?:[\[{\]\",]|$)|$", beginning) is None
