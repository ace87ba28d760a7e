"""Inputs on object storage and the web, by their URL: `s3://`, `gs://`, `https://`, whatever fsspec reaches.

Folders are listed and looked into from afar. A file is copied to the temporary folder of whoever reads it for as long
as that takes: some formats are read more than once, or from their end.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar, cast

from overlapscope.errors import InputError
from overlapscope.ingest.readers import head_within, reader_of
from overlapscope.ingest.reading import HEAD_BYTES
from overlapscope.ingest.shown import shown, without_secrets
from overlapscope.timeline.run import MANIFEST

WAIT_SECONDS: Final = 60.0
"""Without an answer for so long, a request is given up."""
BLOCK_BYTES: Final = 8 << 20
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
T = TypeVar("T")
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
    files, root = _opened(url)
    told: dict[str, Any] = _answered(url, lambda: files.info(root))
    if told.get("type") != "directory":
        return Listed(files={path: _version(told)})
    below: dict[str, dict[str, Any]] = _answered(url, lambda: files.find(root, detail=True))
    names = sorted(name for name in below if not any(part.startswith(".") for part in _parts(name, root)))
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
        heads = _answered(url, partial(_heads, files, chosen))
        for name, head in zip(chosen, heads, strict=True):
            place = Path(files.unstrip_protocol(name))
            if isinstance(head, bytes) and reader_of(head_within(place, head[:HEAD_BYTES])) is None:
                others.append(place)
            else:
                known[place] = _version(below[name])  # of one that cannot be read, reading it will tell why
    return Listed(files=known, passed_over=tuple(others))


@contextmanager
def local_copy(path: Path, url: str, max_bytes: int) -> Iterator[Path]:
    """Give a copy of the file for as long as the context lasts, under its own name and its folder's.

    Raises InputError when it cannot be read, or is larger than `max_bytes` or half of the room there is.
    """
    files, root = _opened(url)
    with tempfile.TemporaryDirectory(prefix="overlapscope-") as folder:
        place = Path(folder, _short(path.parent.name) or "folder", _short(path.name.partition("?")[0]) or "file")
        place.parent.mkdir()
        room = min(max_bytes, shutil.disk_usage(folder).free // 2)
        source = _answered(url, lambda: files.open(root, "rb", block_size=BLOCK_BYTES))
        try:
            with open(place, "wb") as copy:
                while block := _answered(url, lambda: source.read(BLOCK_BYTES)):
                    if copy.tell() + len(block) > room:
                        raise InputError(
                            f"{shown(path)}: holds more than {room >> 20} MiB, which is what may be copied"
                        )
                    copy.write(block)
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be copied to {folder}: {error.strerror or error}") from error
        finally:
            _answered(url, source.close)
        yield place


def _short(name: str) -> str:
    """Give the end of a name, as long as names of files may be: on storage, and signed, they are longer."""
    return os.fsdecode(os.fsencode(name)[-MAX_NAME_BYTES:])


def _opened(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError(
            f"{without_secrets(url)}: reading from there needs fsspec: pip install 'overlapscope[remote]'"
        ) from error
    opened: tuple[Any, str] = _answered(url, lambda: url_to_fs(url))
    return opened


def _answered(url: str, ask: Callable[[], T]) -> T:
    """Give what a request gives; raises InputError when it fails, or takes too long."""
    answer: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

    def wait() -> None:
        try:
            answer.put((ask(), None))
        except Exception as error:  # foreign code: each storage has errors of its own
            answer.put((None, error))

    Thread(target=wait, daemon=True).start()
    try:
        value, error = answer.get(timeout=WAIT_SECONDS)
    except Empty:
        raise InputError(f"{without_secrets(url)}: no answer within {WAIT_SECONDS:.0f} s") from None
    if error is not None:
        raise InputError(f"{without_secrets(url)}: cannot be read: {_said(error)}") from error
    return cast("T", value)


def _said(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    words = without_secrets(" ".join(str(error).split()))[:300]
    if isinstance(error, ImportError):
        return f"{words} (pip install it beside overlapscope)"
    return words or type(error).__name__


def _heads(files: Any, names: list[str]) -> list[Any]:
    heads: list[Any] = files.cat_ranges(names, [0] * len(names), [HEAD_BYTES] * len(names), on_error="return")
    return heads


def _parts(name: str, root: str) -> tuple[str, ...]:
    return Path(name.removeprefix(root).lstrip("/")).parts


def _version(told: Mapping[str, Any]) -> Version:
    told_by = [str(told[key]) for key in _VERSIONS if told.get(key) is not None]
    # Of a file that is told by nothing nobody knows whether it is the one of before.
    return (int(told.get("size") or 0), *(told_by or [secrets.token_hex(8)]))
