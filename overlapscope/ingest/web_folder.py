"""Folders of web servers: a page with links to what is in them, without sizes or times."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from overlapscope.display_path import without_secrets
from overlapscope.errors import InputError
from overlapscope.ingest.storage import answered, blocks_of

HEAD_BYTES: Final = 512
"""By which a page is known."""
MAX_PAGE_BYTES: Final = 8 << 20
MAX_FOLDERS: Final = 1_000
AT_ONCE: Final = 16


def is_page(url: str, files: Any, name: str, told: Mapping[str, Any]) -> bool:
    """Whether what a server tells of a URL, and how its content begins, is that of a page for people."""
    return told.get("mimetype") == "text/html" and first_bytes(url, files, name, HEAD_BYTES).lstrip()[:1] == b"<"


def place_of(url: str, told: Mapping[str, Any]) -> str:
    """Give a page's own folder: it is that of a folder, or in one as its index. A server may have led on to it."""
    plain = urlsplit(str(told.get("url", url)))._replace(query="", fragment="").geturl()
    if plain.endswith((".html", ".htm")):
        return plain.rpartition("/")[0] + "/"
    return plain if plain.endswith("/") else plain + "/"


def files_below(url: str, files: Any, page: str, root: str, most: int) -> list[str]:
    """Give the files below `root` that a page and those of the folders on it link to; nothing else is looked at.

    Raises InputError where there is none, or more than `most`, or no end of folders.
    """
    waiting, seen, found = [(page, root)], {root}, dict[str, None]()
    while waiting:
        if len(seen) > MAX_FOLDERS or len(found) > most:
            raise InputError(f"{without_secrets(url)}: more than {MAX_FOLDERS} folders or {most} files; name one")
        page, here = waiting.pop(0)
        for link in _links(_page(url, files, page), here):
            if not link.startswith(here) or link == here:
                continue  # up, or elsewhere
            if not link.endswith("/"):
                found[link] = None
            elif link not in seen:
                seen.add(link)
                waiting.append((link, link))
    if not found:
        raise InputError(
            f"{without_secrets(url)}: is a web page without links to files below it: of a folder, or to log in?"
        )
    return list(found)


def looked_into(files: Any, names: Sequence[str], size: int) -> list[tuple[Mapping[str, Any], bytes | None]]:
    """Give what a server tells of files, and the first bytes of each; None for one that cannot be read."""

    def look(name: str) -> tuple[Mapping[str, Any], bytes | None]:
        try:
            return answered(name, lambda: files.info(name)), first_bytes(name, files, name, size)
        except InputError:
            return {}, None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(look, names))


def first_bytes(url: str, files: Any, name: str, size: int) -> bytes:
    """Give the first bytes of a file, without the rest of it. Raises InputError."""
    content = b""
    blocks = blocks_of(url, files, name)
    try:
        while len(content) < size and (block := next(blocks, b"")):
            content += block
    finally:
        blocks.close()
    return content[:size]


def _page(url: str, files: Any, name: str) -> str:
    content = first_bytes(url, files, name, MAX_PAGE_BYTES + 1)
    if len(content) > MAX_PAGE_BYTES:
        raise InputError(f"{without_secrets(url)}: lists more than {MAX_PAGE_BYTES >> 20} MiB; name a folder in it")
    return content.decode("utf-8", "replace")


def _links(page: str, base: str) -> list[str]:
    reader = _Reader()
    reader.feed(page)
    links = []
    for each in reader.links:
        try:
            link = urlsplit(urljoin(base, each))
        except ValueError:  # what is no URL
            continue
        if not link.query:  # the same once more, in another order
            links.append(link._replace(fragment="").geturl())
    return links


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
