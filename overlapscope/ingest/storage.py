"""What fsspec reaches, asked within limits of time: object storage, the web, other machines."""

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar, cast

from overlapscope.display_path import without_secrets
from overlapscope.errors import InputError
from overlapscope.ingest.storage_errors import meaning_of, scheme_of, unknown_scheme

WAIT_SECONDS: Final = 60.0
"""Without an answer for so long, a request is given up."""
SLOWEST_BYTES: Final = 16 << 10
"""A second: what gives less is given up, for it may be meant never to end."""
BLOCK_BYTES: Final = 2 << 20
T = TypeVar("T")


def opened(url: str) -> tuple[Any, str]:
    """Give the file system of a URL, and what the URL is called there. Raises InputError."""
    try:
        from fsspec import available_protocols  # noqa: PLC0415 - an extra
        from fsspec.core import url_to_fs  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            f"{without_secrets(url)}: reading from there needs fsspec: pip install 'overlapscope[remote]'"
        ) from error
    if scheme_of(url) not in available_protocols():
        raise InputError(f"{without_secrets(url)}: {unknown_scheme(url)}")
    found: tuple[Any, str] = answered(url, lambda: url_to_fs(url, **_patience(url)))
    return found


def is_web(url: str) -> bool:
    """Whether a URL is of a web server."""
    return url.startswith(("http://", "https://"))


def _patience(url: str) -> dict[str, Any]:
    """Let downloads last as long as they go on, not five minutes, and give what is sent: readers know where to stop."""
    if not is_web(url):
        return {}
    with suppress(ImportError):  # that it is missing fsspec says better
        from aiohttp import ClientTimeout  # noqa: PLC0415 - an extra's extra

        timeout = ClientTimeout(total=None, sock_connect=WAIT_SECONDS, sock_read=WAIT_SECONDS)
        return {"client_kwargs": {"timeout": timeout, "auto_decompress": False}}
    return {}


def opened_file(url: str, files: Any, name: str) -> Any:
    """Open a file to read it from its beginning to its end. Raises InputError."""
    if is_web(url):
        # As a stream: many servers give no parts.
        how = {"block_size": 0, "size": 1, "headers": {"Accept-Encoding": "identity"}}
        return answered(url, lambda: files.open(name, "rb", **how))
    return answered(url, lambda: files.open(name, "rb", block_size=BLOCK_BYTES))


def blocks_of(url: str, files: Any, name: str) -> Generator[bytes, None, None]:
    """Give what a file holds, block by block. Raises InputError."""
    source = opened_file(url, files, name)
    # Storage asks for the next block with each, and gives both or nothing.
    seconds = WAIT_SECONDS + 2 * BLOCK_BYTES / SLOWEST_BYTES
    begin, given = time.monotonic(), 0
    try:
        while block := answered(url, lambda: source.read(BLOCK_BYTES), seconds):
            yield block
            given += len(block)
            if (time.monotonic() - begin - WAIT_SECONDS) * SLOWEST_BYTES > given:
                raise InputError(
                    f"{without_secrets(url)}: gives less than {SLOWEST_BYTES >> 10} KiB a second: given up"
                )
    finally:
        with suppress(InputError):
            answered(url, source.close)


def answered(url: str, ask: Callable[[], T], seconds: float | None = None) -> T:
    """Give what a request gives; raises InputError when it fails, or takes longer than so many seconds."""
    answer: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
    patience = WAIT_SECONDS if seconds is None else seconds

    def wait() -> None:
        try:
            answer.put((ask(), None))
        except Exception as error:  # noqa: BLE001 - foreign code, in a thread: it is raised where the answer is awaited
            answer.put((None, error))

    Thread(target=wait, daemon=True).start()
    try:
        value, error = answer.get(timeout=patience)
    except Empty:
        raise InputError(f"{without_secrets(url)}: no answer within {patience:.0f} s") from None
    if error is not None:
        if isinstance(error, TimeoutError):
            raise InputError(f"{without_secrets(url)}: no answer within {WAIT_SECONDS:.0f} s") from error
        raise InputError(f"{without_secrets(url)}: cannot be read: {meaning_of(error, url)}") from error
    return cast("T", value)
