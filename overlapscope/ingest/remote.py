"""Inputs on object storage and the web, by their URL: `s3://`, `gs://`, `https://`, whatever fsspec reaches.

Folders are listed and looked into from afar. A file is copied to the temporary folder of whoever reads it for as long
as that takes: some formats are read more than once, or from their end.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.readers import head_within, reader_of
from overlapscope.ingest.reading import HEAD_BYTES
from overlapscope.ingest.storage import answered, blocks_of, is_web, opened
from overlapscope.timeline.held_folder import WHILE_READING, held_folder
from overlapscope.timeline.run_directory import MANIFEST
from overlapscope.timeline.size_text import size_text
from overlapscope.values import dataclass

MAX_FILES: Final = 100_000
HEADS_AT_ONCE: Final = 64
MAX_NAME_BYTES: Final = 200
_VERSIONS: Final = (
    "etag",
    "ETag",
    "Content-MD5",
    "Digest",
    "md5Hash",
    "generation",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "mtime",
    "updated",
    "created",
    "ino",
)
"""What filesystems call that by which a file's content is told from an earlier one's."""
Version = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Files behind a URL, with that by which a changed one is told."""

    files: Mapping[Path, Version]
    passed_over: tuple[Path, ...] = ()


def listed(path: Path, url: str) -> Listed:
    """Give the file at a URL, or the files below it that a reader knows; hidden ones are left out.

    Raises InputError when there is none, nobody answers, or what reaches such URLs is not installed.
    """
    files, root = opened(url)
    told: dict[str, Any] = answered(url, lambda: files.info(root))
    below: Mapping[str, Mapping[str, Any]] = {}
    if is_web(url):
        from overlapscope.ingest.web_folder import files_below, is_page, place_of  # noqa: PLC0415 - for few

        if not is_page(url, files, root, told):
            return Listed(files={path: _version(told)})
        page, root = root, place_of(url, told)
        names = files_below(url, files, page, root, MAX_FILES)
    elif told.get("type") == "directory":
        below = answered(url, lambda: files.find(root, detail=True))
        names = list(below)
    else:
        return Listed(files={path: _version(told)})
    names = sorted(name for name in names if not any(part.startswith(".") for part in _parts(name, root)))
    if len(names) > MAX_FILES:
        raise InputError(f"{shown(path)}: holds {len(names)} files, more than {MAX_FILES}; name a folder in it")
    if not names:
        raise InputError(f"{shown(path)}: holds no file")
    if any(_parts(name, root) == (MANIFEST,) for name in names):
        raise InputError(f"{shown(path)}: is a run directory: copy it to this machine; it is small")
    known: dict[Path, Version] = {}
    others: list[Path] = []
    for begin in range(0, len(names), HEADS_AT_ONCE):
        chosen = names[begin : begin + HEADS_AT_ONCE]
        for name, (there, head) in zip(chosen, _looked_into(url, files, chosen, below), strict=True):
            place = Path(files.unstrip_protocol(name))
            if head is not None and reader_of(head_within(place, head[:HEAD_BYTES])) is None:
                others.append(place)
            else:
                known[place] = _version(there)  # of one that cannot be read, reading it will tell why
    return Listed(files=known, passed_over=tuple(others))


def _looked_into(
    url: str, files: Any, names: list[str], below: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], bytes | None]]:
    """Give what is told of files, and how each begins; None for one that cannot be read."""
    if is_web(url):
        from overlapscope.ingest.web_folder import looked_into  # noqa: PLC0415 - for few

        return looked_into(files, names, HEAD_BYTES)
    heads = answered(url, partial(_heads, files, names))
    return [(below[name], head if isinstance(head, bytes) else None) for name, head in zip(names, heads, strict=True)]


@contextmanager
def local_copy(path: Path, url: str, max_bytes: int) -> Iterator[Path]:
    """Give a copy of the file for as long as the context lasts, under its own name and its folder's.

    Raises InputError when it cannot be read, or is larger than `max_bytes` or half of the room there is.
    """
    files, root = opened(url)
    with held_folder(Path(tempfile.gettempdir()), WHILE_READING) as folder:
        place = Path(folder, _short(path.parent.name) or "folder", _short(path.name.partition("?")[0]) or "file")
        place.parent.mkdir()
        room = min(max_bytes, shutil.disk_usage(folder).free // 2)
        try:
            with open(place, "wb") as copy, closing(blocks_of(url, files, root)) as blocks:
                for block in blocks:
                    if copy.tell() + len(block) > room:
                        raise InputError(
                            f"{shown(path)}: holds more than {size_text(room)}, which is what may be copied"
                        )
                    copy.write(block)
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be copied to {folder}: {error.strerror or error}") from error
        yield place


def _short(name: str) -> str:
    """Give the end of a name, as long as names of files may be: on storage, and signed, they are longer."""
    return os.fsdecode(os.fsencode(name)[-MAX_NAME_BYTES:])


def _heads(files: Any, names: list[str]) -> list[Any]:
    heads: list[Any] = files.cat_ranges(names, [0] * len(names), [HEAD_BYTES] * len(names), on_error="return")
    return heads


def _parts(name: str, root: str) -> tuple[str, ...]:
    return Path(name.removeprefix(root).lstrip("/")).parts


def _version(told: Mapping[str, Any]) -> Version:
    told_by = [str(told[key]) for key in _VERSIONS if told.get(key) is not None]
    # Of a file that is told by nothing nobody knows whether it is the one of before.
    return (int(told.get("size") or 0), *(told_by or [secrets.token_hex(8)]))
