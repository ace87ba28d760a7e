"""Inputs by URL: `s3://`, `gs://`, `https://`, whatever fsspec reaches.

Folders are listed and looked into from afar. A file is copied to the temporary folder of whoever reads it for as long
as that takes: some formats are read more than once, or from their end.
"""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from overlapscope.display import shown, size_text, without_secrets
from overlapscope.errors import InputError
from overlapscope.files.temporary_folder import WHILE_READING, held_folder
from overlapscope.ingest.reader import HEAD_BYTES
from overlapscope.ingest.registry import head_within, reader_of
from overlapscope.timeline.store.run_directory import MANIFEST

WAIT_SECONDS: Final = 60.0
"""Without an answer for so long, a request is given up."""
SLOWEST_BYTES: Final = 16 << 10
"""A second: what gives less is given up, for it may be meant never to end."""
BLOCK_BYTES: Final = 2 << 20
MAX_FILES: Final = 100_000
MAX_WEB_FOLDERS: Final = 1_000
MAX_NAME_BYTES: Final = 200
_WEB: Final = ("http://", "https://")
_AT_ONCE: Final = 16
_NOT_BELOW: Final = re.compile(r"[a-z]+:|[^#]*\?", re.IGNORECASE)
"""Links of a page that lead to no file below it: `mailto:`, or the same page in another order."""
_VERSIONS: Final = (
    "etag", "ETag", "Content-MD5", "Digest", "md5Hash", "generation", "Last-Modified", "LastModified", "last_modified",
    "mtime", "updated", "created", "ino",
)  # fmt: skip
"""What filesystems call that by which a file's content is told from an earlier one's."""
PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "http": "aiohttp", "https": "aiohttp", "github": "requests", "webhdfs": "requests", "sftp": "paramiko",
    "ssh": "paramiko", "smb": "smbprotocol", "webdav": "webdav4", "hf": "huggingface_hub", "oci": "ocifs",
}  # fmt: skip
"""What has to be installed beside fsspec, by the scheme of a URL."""
_NO_FILE: Final = "no such file or folder"
_CAUSES: Final = (
    (r"^SSLCertVerificationError: (.*)", "the certificate of {host} is not trusted: {0}"),
    (r"connection ?refused", "{host} refuses the connection: is the server running, and is the port the right one?"),
    (r"gaierror|name or service not known|failed to resolve|nodename nor servname|name resolution",
     "{host} is a name that no machine is known by: check the URL, and the network of this machine"),
    (r"\[Errno (?:101|113)\]", "{host} cannot be reached from this machine: check its network, or a proxy"),
    (r"^status (?:404|410)", _NO_FILE),
    (r"^status (40[13].*)", "access is denied ({0}): does the URL lack a token, or has it run out?"),
    (r"^status (5\d\d.*)", "the server fails ({0}): try again later"),
    (r"^\w*timeout\w*:", "no answer within {seconds:.0f} s"),
    (r"^\w*credential\w*:",
     "no credentials were found: set them as {package} documents, in the environment or its own files"),
    (r"^PermissionError: (.*)", "access is denied: check the credentials and the name ({0})"),
    (r"^ValueError: Protocol not known",
     "nothing reads {scheme}://: known are s3://, gs://, az://, https:// and what else fsspec reaches; "
     "what lies on this machine is named by its path alone"),
)  # fmt: skip
"""What the errors of storage, each a line `Type: text` or `status number text`, mean; the first that matches counts."""
Version = tuple[str | int, ...]
T = TypeVar("T")


def list_url(path: Path, url: str) -> tuple[dict[Path, Version], list[Path]]:
    """Return the file at a URL or the files below it that a reader knows, with their versions, and the others below.

    Hidden files are left out. Raises InputError when there is none, nobody answers, or what reaches such URLs is not
    installed.
    """
    files, root = _open_storage(url, WAIT_SECONDS)
    info: dict[str, Any] = _answer(url, lambda: files.info(root))
    below: Mapping[str, Mapping[str, Any]]
    if url.startswith(_WEB):
        if info.get("mimetype") != "text/html" or _first_bytes(url, files, root, 512).lstrip()[:1] != b"<":
            return {path: _version(info)}, []
        root = _folder_of_page(str(info.get("url", url)))
        below = {name: {} for name in _files_on_pages(url, files, root)}
    elif info.get("type") == "directory":
        below = _answer(url, lambda: files.find(root, detail=True))
    else:
        return {path: _version(info)}, []
    parts = {name: Path(name.removeprefix(root).lstrip("/")).parts for name in below}
    names = sorted(name for name in below if not any(part.startswith(".") for part in parts[name]))
    if len(names) > MAX_FILES:
        raise InputError(f"{shown(path)}: holds {len(names)} files, more than {MAX_FILES}; name a folder in it")
    if not names:
        raise InputError(f"{shown(path)}: holds no file")
    if (MANIFEST,) in parts.values():
        raise InputError(f"{shown(path)}: is a run directory: copy it to this machine; it is small")
    known: dict[Path, Version] = {}
    others: list[Path] = []
    look = _look_into_web if url.startswith(_WEB) else partial(_look_into, url, below)
    for name, (told, head) in zip(names, look(files, names), strict=True):
        place = Path(files.unstrip_protocol(name))
        if head is not None and reader_of(head_within(place, head[:HEAD_BYTES])) is None:
            others.append(place)
        else:  # reading a file that cannot be looked into reports why
            known[place] = _version(told)
    return known, others


@contextmanager
def local_copy(path: Path, url: str, max_bytes: int) -> Iterator[Path]:
    """Return a copy of the file for as long as the context lasts, under its own name and its folder's.

    Raises InputError when it cannot be read, or is larger than `max_bytes` or half of the room there is.
    """
    files, root = _open_storage(url, None)
    with held_folder(Path(tempfile.gettempdir()), WHILE_READING) as folder:
        place = Path(folder, _short(path.parent.name) or "folder", _short(path.name.partition("?")[0]) or "file")
        place.parent.mkdir()
        room = min(max_bytes, shutil.disk_usage(folder).free // 2)
        try:
            with open(place, "wb") as copy, closing(_blocks(url, files, root)) as blocks:
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
    """Return the end of a name, as long as names of files may be: on storage, and signed, they are longer."""
    return os.fsdecode(os.fsencode(name)[-MAX_NAME_BYTES:])


def _version(info: Mapping[str, Any]) -> Version:
    found = [str(info[key]) for key in _VERSIONS if info.get(key) is not None]
    # Without any of them nobody knows whether the file is the one of before.
    return (int(info.get("size") or 0), *(found or [secrets.token_hex(8)]))


def _look_into(
    url: str, below: Mapping[str, Mapping[str, Any]], files: Any, names: list[str]
) -> Iterator[tuple[Mapping[str, Any], bytes | None]]:
    """Yield what is known of each file, and its first bytes; None for one that cannot be read."""
    for begin in range(0, len(names), 4 * _AT_ONCE):
        some = names[begin : begin + 4 * _AT_ONCE]
        ask = partial(files.cat_ranges, some, [0] * len(some), [HEAD_BYTES] * len(some), on_error="return")
        for name, head in zip(some, _answer(url, ask), strict=True):
            yield below[name], head if isinstance(head, bytes) else None


def _look_into_web(files: Any, names: list[str]) -> Iterator[tuple[Mapping[str, Any], bytes | None]]:
    """Yield the same of files on a web server, which need not give parts of files."""

    def look(name: str) -> tuple[Mapping[str, Any], bytes | None]:
        try:
            return _answer(name, lambda: files.info(name)), _first_bytes(name, files, name, HEAD_BYTES)
        except InputError:
            return {}, None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(look, names)


def _folder_of_page(url: str) -> str:
    """Return the URL of the folder that a page lists: its own, or that of an index file."""
    plain = urlsplit(url)._replace(query="", fragment="").geturl()
    return plain.rpartition("/")[0] + "/" if plain.endswith((".html", ".htm")) else plain


def _files_on_pages(url: str, files: Any, root: str) -> list[str]:
    """Return the files below `root` that its page and those of the folders on it link to; no other link is followed.

    Raises InputError where there is none, or no end of files or folders.
    """
    folders, found = [root], dict[str, None]()
    for folder in folders:  # grows meanwhile
        here = folder.rstrip("/") + "/"
        for name in _answer(url, partial(files.ls, folder, detail=False)):
            if _NOT_BELOW.match(name.removeprefix(here)):
                continue
            link = urljoin(here, urlsplit(unescape(name)).path)
            if link.startswith(here) and not link.endswith("/"):
                found[link] = None
            elif link.startswith(here) and link not in (here, *folders):
                folders.append(link)
        if len(folders) > MAX_WEB_FOLDERS or len(found) > MAX_FILES:
            raise InputError(
                f"{without_secrets(url)}: more than {MAX_WEB_FOLDERS} folders or {MAX_FILES} files; name one"
            )
    if not found:
        raise InputError(
            f"{without_secrets(url)}: is a web page without links to files below it: of a folder, or to log in?"
        )
    return list(found)


def _open_storage(url: str, seconds: float | None) -> tuple[Any, str]:
    """Return the file system of a URL, whose web requests may take so long in all, and the URL's name in it."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError(
            f"{without_secrets(url)}: reading from there needs fsspec: pip install 'overlapscope[remote]'"
        ) from error
    options = {}
    with suppress(ImportError):  # fsspec reports what is missing
        if url.startswith(_WEB):
            from aiohttp import ClientTimeout  # noqa: PLC0415 - an extra's extra

            timeout = ClientTimeout(total=seconds, sock_connect=WAIT_SECONDS, sock_read=WAIT_SECONDS)
            # What is stored, as it is stored: readers limit decompression.
            as_stored = {"headers": {"Accept-Encoding": "identity"}, "auto_decompress": False}
            options["client_kwargs"] = {"timeout": timeout, **as_stored}
    found: tuple[Any, str] = _answer(url, lambda: url_to_fs(url, **options))
    return found


def _first_bytes(url: str, files: Any, name: str, size: int) -> bytes:
    """Return the first bytes of a file, without the rest of it. Raises InputError."""
    content = b""
    with closing(_blocks(url, files, name)) as blocks:
        while len(content) < size and (block := next(blocks, b"")):
            content += block
    return content[:size]


def _blocks(url: str, files: Any, name: str) -> Generator[bytes, None, None]:
    """Yield the content of a file, block by block. Raises InputError.

    Not by `get`, which has no limits: neither on size nor on time.
    """
    # Of the web as one stream: many servers give no parts of files.
    how = {"block_size": 0, "size": 1} if url.startswith(_WEB) else {"block_size": BLOCK_BYTES}
    source = _answer(url, lambda: files.open(name, "rb", **how))
    # Storage asks for the next block with each, and gives both or nothing.
    seconds = WAIT_SECONDS + 2 * BLOCK_BYTES / SLOWEST_BYTES
    begin, given = time.monotonic(), 0
    try:
        while block := _answer(url, lambda: source.read(BLOCK_BYTES), seconds):
            yield block
            given += len(block)
            if (time.monotonic() - begin - WAIT_SECONDS) * SLOWEST_BYTES > given:
                raise InputError(
                    f"{without_secrets(url)}: gives less than {SLOWEST_BYTES >> 10} KiB a second: given up"
                )
    finally:
        with suppress(InputError):
            _answer(url, source.close)


def _answer(url: str, ask: Callable[[], T], seconds: float | None = None) -> T:
    """Return what a request returns. Raises InputError when it fails, or takes longer than so many seconds."""
    answer: Future[T] = Future()
    patience = WAIT_SECONDS if seconds is None else seconds

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - foreign code, in a thread: it is raised where the answer is awaited
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()  # no executor's, for the end of the process would wait for it
    if not wait([answer], patience).done:
        raise InputError(f"{without_secrets(url)}: no answer within {patience:.0f} s")
    error = answer.exception()
    if error is not None:
        raise InputError(f"{without_secrets(url)}: cannot be read: {explain(error, url)}") from error
    return answer.result()


def explain(error: BaseException, url: str) -> str:
    """Return what an error of storage means and what to do, else its own words; without secrets."""
    scheme = url.partition(":")[0]
    package = PACKAGES.get(scheme)
    if isinstance(error, ImportError):
        if package is None or find_spec(package) is not None:
            return f"{_words(error)} (pip install it beside overlapscope)"
        return f"{scheme}:// needs {package}: pip install {package.replace('_', '-')}"
    host = re.search(r"//(?:[^/?#]*@)?([^/?#]+)", url)
    facts = {"host": host[1] if host else "the server", "scheme": scheme, "seconds": WAIT_SECONDS}
    facts["package"] = package or "the package that reaches it"
    lines = "\n".join(_chain(error))
    for pattern, meaning in _CAUSES:
        if (found := re.search(pattern, lines, re.IGNORECASE | re.MULTILINE)) is not None:
            return meaning.format(*found.groups(), **facts)
    if isinstance(error, FileNotFoundError):
        why = error.__cause__
        # Of the web fsspec says of everything that it is not found: a redirection, an answer that is none.
        return _NO_FILE if why is None or isinstance(why, FileNotFoundError) else f"{type(why).__name__}: {_words(why)}"
    return _words(error) or type(error).__name__


def _chain(error: BaseException) -> Iterator[str]:
    """Yield an error and what led to it, a line each."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is not None and each not in seen:
            seen.append(each)
            status = getattr(each, "status", None)
            yield (
                f"status {status} {getattr(each, 'message', '')}"
                if status
                else f"{type(each).__name__}: {_words(each)}"
            )
            waiting += [each.__cause__, each.__context__]


def _words(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]
