"""Inputs by URL: `s3://`, `gs://`, `https://` and everything else that fsspec supports.

Folders are listed remotely, and only the beginning of each file is fetched to recognise it. To be read, a file is
copied to the temporary folder of the reading machine and deleted afterwards, because some formats are read more than
once, or from their end.
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
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from overlapscope.display import display_path, hide_secrets, size_text
from overlapscope.errors import InputError
from overlapscope.files.temporary_folder import READER_PREFIX, locked_folder
from overlapscope.ingest.reader import HEAD_BYTES
from overlapscope.ingest.registry import find_reader, head_within
from overlapscope.timeline.store.run_directory import MANIFEST

WAIT_SECONDS: Final = 60.0
"""A request without an answer for this long is abandoned."""
SLOWEST_BYTES: Final = 16 << 10
"""Bytes a second: a slower source is abandoned, because a hostile one may never end."""
BLOCK_BYTES: Final = 2 << 20
MAX_FILES: Final = 100_000
MAX_WEB_FOLDERS: Final = 1_000
MAX_PAGE_BYTES: Final = 8 << 20
MAX_NAME_BYTES: Final = 200
_WEB: Final = ("http://", "https://")
_AT_ONCE: Final = 16
_VERSIONS: Final = (
    "etag", "ETag", "Content-MD5", "Digest", "md5Hash", "generation", "Last-Modified", "LastModified", "last_modified",
    "mtime", "updated", "created", "ino",
)  # fmt: skip
"""Names that file systems use for the version of a file's content."""
PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "http": "aiohttp", "https": "aiohttp", "github": "requests", "webhdfs": "requests", "sftp": "paramiko",
    "ssh": "paramiko", "smb": "smbprotocol", "webdav": "webdav4", "hf": "huggingface_hub", "oci": "ocifs",
}  # fmt: skip
"""Package to install in addition to fsspec, by the scheme of a URL."""
_NO_FILE: Final = "no such file or folder"
_CAUSES: Final = (
    (r"^SSLCertVerificationError: (.*)", "the certificate of {host} is not trusted: {0}"),
    (r"connection ?refused", "{host} refuses the connection: is the server running, and is the port the right one?"),
    (r"gaierror|name or service not known|failed to resolve|nodename nor servname|name resolution",
     "the host name {host} cannot be resolved: check the URL, and the network of this machine"),
    (r"\[Errno (?:101|113)\]", "{host} cannot be reached from this machine: check its network, or a proxy"),
    (r"^status (?:404|410)", _NO_FILE),
    (r"^status (40[13].*)", "access is denied ({0}): does the URL lack a token, or has it expired?"),
    (r"^status (5\d\d.*)", "the server fails ({0}): try again later"),
    (r"^\w*timeout\w*:", "no answer within {seconds:.0f} s"),
    (r"^\w*credential\w*:",
     "no credentials were found: set them as {package} documents, in the environment or its own files"),
    (r"^PermissionError: (.*)", "access is denied: check the credentials and the name ({0})"),
    (r"^ValueError: Protocol not known",
     "{scheme}:// is not supported: use s3://, gs://, az://, https:// or another scheme of fsspec; "
     "name a file on this machine by its path alone"),
)  # fmt: skip
"""Meaning of storage errors, each line `Type: text` or `status number text`; the first pattern that matches counts."""
Version = tuple[str | int, ...]
T = TypeVar("T")


def list_url(path: Path, url: str) -> tuple[dict[Path, Version], list[Path]]:
    """Return the file at a URL, or the files below it that a reader recognises, with their versions; and the others.

    Hidden files are skipped. Raises InputError when there is no file, no answer, or the package for such URLs is not
    installed.
    """
    files, root = _open_storage(url, WAIT_SECONDS)
    info: dict[str, Any] = _answer(url, lambda: files.info(root))
    below: Mapping[str, Mapping[str, Any]]
    if url.startswith(_WEB):
        if info.get("mimetype") != "text/html" or _first_bytes(url, files, root, 512).lstrip()[:1] != b"<":
            return {path: _version(info)}, []
        page, root = root, _folder_of_page(str(info.get("url", url)))
        below = {name: {} for name in _files_on_pages(url, files, page, root)}
    elif info.get("type") == "directory":
        below = _answer(url, lambda: files.find(root, detail=True))
    else:
        return {path: _version(info)}, []
    parts = {name: Path(name.removeprefix(root).lstrip("/")).parts for name in below}
    names = sorted(name for name in below if not any(part.startswith(".") for part in parts[name]))
    if len(names) > MAX_FILES:
        raise InputError(f"{display_path(path)}: holds {len(names)} files, more than {MAX_FILES}; name a folder in it")
    if not names:
        raise InputError(f"{display_path(path)}: holds no file")
    if (MANIFEST,) in parts.values():
        raise InputError(f"{display_path(path)}: is a run directory: copy it to this machine; it is small")
    known: dict[Path, Version] = {}
    others: list[Path] = []
    read_heads = _web_heads if url.startswith(_WEB) else partial(_heads, url, below)
    for name, (properties, head) in zip(names, read_heads(files, names), strict=True):
        file = Path(files.unstrip_protocol(name))
        if head is not None and find_reader(head_within(file, head[:HEAD_BYTES])) is None:
            others.append(file)
        else:  # if the head cannot be read, reading the file reports why
            known[file] = _version(properties)
    return known, others


@contextmanager
def local_copy(path: Path, url: str, max_bytes: int) -> Iterator[Path]:
    """Yield a temporary copy of the file, under its own name and its folder's name.

    Raises InputError when it cannot be read, or is larger than `max_bytes` or half of the free disk space.
    """
    files, root = _open_storage(url, None)
    with locked_folder(Path(tempfile.gettempdir()), READER_PREFIX) as folder:
        target = Path(folder, _short(path.parent.name) or "folder", _short(path.name.partition("?")[0]) or "file")
        target.parent.mkdir()
        limit = min(max_bytes, shutil.disk_usage(folder).free // 2)
        try:
            with open(target, "wb") as copy, closing(_blocks(url, files, root)) as blocks:
                for block in blocks:
                    if copy.tell() + len(block) > limit:
                        raise InputError(
                            f"{display_path(path)}: holds more than {size_text(limit)}, the most that may be copied"
                        )
                    copy.write(block)
        except OSError as error:
            raise InputError(
                f"{display_path(path)}: cannot be copied to {folder}: {error.strerror or error}"
            ) from error
        yield target


def _short(name: str) -> str:
    """Return the end of a name, short enough for a file name: remote and signed names may be longer."""
    return os.fsdecode(os.fsencode(name)[-MAX_NAME_BYTES:])


def _version(info: Mapping[str, Any]) -> Version:
    found = [str(info[key]) for key in _VERSIONS if info.get(key) is not None]
    # Without a version every read counts as a new file: a random token never matches an earlier one.
    return (int(info.get("size") or 0), *(found or [secrets.token_hex(8)]))


def _heads(
    url: str, below: Mapping[str, Mapping[str, Any]], files: Any, names: list[str]
) -> Iterator[tuple[Mapping[str, Any], bytes | None]]:
    """Yield the listed properties and the first bytes of each file; None for bytes that cannot be read."""
    for first in range(0, len(names), 4 * _AT_ONCE):
        some = names[first : first + 4 * _AT_ONCE]
        ask = partial(files.cat_ranges, some, [0] * len(some), [HEAD_BYTES] * len(some), on_error="return")
        for name, head in zip(some, _answer(url, ask), strict=True):
            yield below[name], head if isinstance(head, bytes) else None


def _web_heads(files: Any, names: list[str]) -> Iterator[tuple[Mapping[str, Any], bytes | None]]:
    """Yield the same for files on a web server, which may not support requests for parts of files."""

    def read_head(name: str) -> tuple[Mapping[str, Any], bytes | None]:
        try:
            return _answer(name, lambda: files.info(name)), _first_bytes(name, files, name, HEAD_BYTES)
        except InputError:
            return {}, None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(read_head, names)


def _folder_of_page(url: str) -> str:
    """Return the URL of the folder that a page lists: its own, or that of a page `*.html` in the folder."""
    plain = urlsplit(url)._replace(query="", fragment="").geturl()
    return (plain.rpartition("/")[0] if plain.endswith((".html", ".htm")) else plain.rstrip("/")) + "/"


def _files_on_pages(url: str, files: Any, page: str, root: str) -> list[str]:
    """Return the files below the folder `root` to which the `page` at a URL links, or the page of a subfolder.

    No other link is followed. Raises InputError if there is no file, or too many files or folders.
    """
    folders, found = [root], dict[str, None]()
    for folder in folders:  # grows during the loop
        for link in _links(_page(url, files, page if folder == root else folder), folder):
            if link.startswith(folder) and not link.endswith("/"):
                found[link] = None
            elif link.startswith(folder) and link not in folders:
                folders.append(link)
            if len(folders) > MAX_WEB_FOLDERS or len(found) > MAX_FILES:
                most = f"more than {MAX_WEB_FOLDERS} folders or {MAX_FILES} files"
                raise InputError(f"{hide_secrets(url)}: {most}; name one")
    if not found:
        raise InputError(f"{hide_secrets(url)}: is a web page without links to files below it: is it a log-in page?")
    return list(found)


def _page(url: str, files: Any, name: str) -> bytes:
    """Return a page whole. Raises InputError.

    fsspec's `ls` is not used: it reads a page of any size, and loses all links of a page where one is no URL.
    """
    content = _first_bytes(url, files, name, MAX_PAGE_BYTES + 1)
    if len(content) > MAX_PAGE_BYTES:
        raise InputError(
            f"{hide_secrets(name)}: is a page of more than {MAX_PAGE_BYTES >> 20} MiB; name a file, or a folder in it"
        )
    return content


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]


def _links(page: bytes, base: str) -> Iterator[str]:
    """Yield the links of a page without their fragments, and none with a query: the same page sorted differently."""
    parser = _LinkParser()
    parser.feed(page.decode("utf-8", "replace").replace("<![", "<!"))  # a section; a damaged one ends the parser
    for each in parser.links:
        with suppress(ValueError):  # such as an address in brackets that is none
            link = urlsplit(urljoin(base, each))
            if not link.query:
                yield link._replace(fragment="").geturl()


def _open_storage(url: str, seconds: float | None) -> tuple[Any, str]:
    """Return the file system of a URL and the URL's name in it; a web request may take `seconds` in total."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError(
            f"{hide_secrets(url)}: reading from there needs fsspec: pip install 'overlapscope[remote]'"
        ) from error
    options = {}
    with suppress(ImportError):  # fsspec reports what is missing
        if url.startswith(_WEB):
            from aiohttp import ClientTimeout  # noqa: PLC0415 - an extra's extra

            timeout = ClientTimeout(total=seconds, sock_connect=WAIT_SECONDS, sock_read=WAIT_SECONDS)
            # The stored bytes without decompression, because the readers limit that.
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

    fsspec's `get` is not used, because it limits neither size nor time.
    """
    # From the web as one stream, because many servers do not support requests for parts of files.
    options = {"block_size": 0, "size": 1} if url.startswith(_WEB) else {"block_size": BLOCK_BYTES}
    source = _answer(url, lambda: files.open(name, "rb", **options))
    # fsspec requests the next block together with each block, and returns both or nothing.
    seconds = WAIT_SECONDS + 2 * BLOCK_BYTES / SLOWEST_BYTES
    start, received_bytes = time.monotonic(), 0
    try:
        while block := _answer(url, lambda: source.read(BLOCK_BYTES), seconds):
            yield block
            received_bytes += len(block)
            if (time.monotonic() - start - WAIT_SECONDS) * SLOWEST_BYTES > received_bytes:
                raise InputError(f"{hide_secrets(url)}: sends less than {SLOWEST_BYTES >> 10} KiB a second: stopped")
    finally:
        with suppress(InputError):
            _answer(url, source.close)


def _answer(url: str, ask: Callable[[], T], seconds: float | None = None) -> T:
    """Return the result of a request. Raises InputError when it fails, or takes longer than `seconds`."""
    answer: Future[T] = Future()
    timeout = WAIT_SECONDS if seconds is None else seconds

    def run() -> None:
        try:
            answer.set_result(ask())
        # Each file system raises exceptions of its own package; one left in this thread would pass for no answer.
        except Exception as error:  # noqa: BLE001 - raised again below, as an InputError
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()  # not an executor's thread: the process would wait for it at its end
    if not wait([answer], timeout).done:
        raise InputError(f"{hide_secrets(url)}: no answer within {timeout:.0f} s")
    error = answer.exception()
    if error is not None:
        raise InputError(f"{hide_secrets(url)}: cannot be read: {explain(error, url)}") from error
    return answer.result()


def explain(error: BaseException, url: str) -> str:
    """Return what a storage error means and what to do, else its own message; without secrets."""
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
        # For the web fsspec raises FileNotFoundError for every failure: a redirection, an invalid answer.
        return _NO_FILE if why is None or isinstance(why, FileNotFoundError) else f"{type(why).__name__}: {_words(why)}"
    return _words(error) or type(error).__name__


def _chain(error: BaseException) -> Iterator[str]:
    """Yield an error and its causes, a line each."""
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
    return hide_secrets(" ".join(str(error).split()))[:300]
