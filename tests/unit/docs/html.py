"""What tests look at in a page of the site: ids, links, what it loads. Parsed by the standard library."""

from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple


class Heading(NamedTuple):
    """A heading of a page."""

    level: int
    title: str


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.loaded: list[str] = []
        """Addresses that a browser fetches without a click."""
        self.headings: list[Heading] = []
        self.links_of_text: list[tuple[str, str]] = []
        """Address and words of each link in the text of the page, without navigation."""
        self.handlers: list[str] = []
        self.without_alt = 0
        self._open: list[str] = []
        self._heading: tuple[int, list[str]] | None = None
        self._link: tuple[str, list[str]] | None = None

    @classmethod
    def of(cls, file: Path) -> "Page":
        """Parse a file."""
        page = cls()
        page.feed(file.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in ("meta", "link", "img", "input", "br", "hr"):
            self._open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.handlers += [name for name in given if name.startswith("on")]
        if tag in ("a", "link"):
            (self.hrefs if tag == "a" else self.loaded).append(given.get("href", ""))
        self.loaded += [given["src"]] if "src" in given else []
        self.without_alt += tag == "img" and not given.get("alt")
        if tag in ("h1", "h2", "h3", "h4"):
            self._heading = int(tag[1]), []
        if tag == "a" and "main" in self._open and "nav" not in self._open and given.get("class") != "here":
            self._link = given.get("href", ""), []

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if self._heading and tag == f"h{self._heading[0]}":
            self.headings.append(Heading(self._heading[0], "".join(self._heading[1]).removesuffix("#").strip()))
            self._heading = None
        if self._link and tag == "a":
            self.links_of_text.append((self._link[0], "".join(self._link[1])))
            self._link = None

    def handle_data(self, data: str) -> None:
        if self._heading:
            self._heading[1].append(data)
        if self._link:
            self._link[1].append(data)
