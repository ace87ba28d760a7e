"""Build the site: `python -m docs.site.build [FOLDER]`.

Pages are the Markdown files that docs/site/navigation.toml names, whatever else of the repository they link to, and the
generated reference. Ends with code 1, and a line for each fault: a link or an anchor leads nowhere, a page of docs/
is not in the navigation, a picture has no description.
"""

import json
import posixpath
import re
import shutil
import struct
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, StrictUndefined

from docs.site import commands, gallery, json_fields, python_api
from docs.site.commonmark import Link, Rendered, code, render
from overlapscope.version import __version__
from overlapscope_dashboards.server.shell import THEME_SCRIPT
from overlapscope_dashboards.theme import palette_rules

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
HERE: Final = Path(__file__).parent
SITE: Final = ROOT / "dashboards" / "site"
"""From where the wheel takes it, and `overlapscope serve` in a checkout."""
GENERATED: Final = {
    "reference/commands.md": commands.text,
    "reference/python.md": python_api.text,
    "reference/json_fields.md": json_fields.text,
}
"""Pages that the code writes, by the path that they would have below docs/."""
COPIED: Final = (".json", ".svg", ".png", ".webp")
LONG_GROUP: Final = 12
"""A group of more pages shows them only beside its own pages."""
LONGEST_TEXT: Final = 6_000
"""Most characters of a section that the search looks through."""


class Page(NamedTuple):
    """One page of the site."""

    source: str
    """Path of the Markdown (or of the file that is shown), from the root of the repository."""
    target: str
    """Path of the HTML file in the site."""
    rendered: Rendered


class Problems(list[str]):
    """What is wrong with the sources, a line each."""


def main() -> int:
    """Build the site and return the exit code."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SITE
    problems = build(folder)
    for each in problems:
        print(each, file=sys.stderr)
    if problems:
        return 1
    files = [each for each in folder.rglob("*") if each.is_file()]
    size_mb = sum(each.stat().st_size for each in files) / 1e6
    print(f"docs: {len(list(folder.rglob('*.html')))} pages, {size_mb:.1f} MB, in {folder}; open index.html")
    return 0


def build(folder: Path) -> Problems:
    """Write the site into a folder, and return what is wrong; then nothing is written.

    A site that is there is replaced; a folder with anything else is left alone.
    """
    problems = Problems()
    if folder.exists() and any(folder.iterdir()) and not (folder / "search.js").is_file():
        problems.append(f"{folder}: holds something else than a site; name another folder")
        return problems
    pages = collect(problems)
    groups = navigation()
    listed = [each for group in groups.values() for each in group]
    missing = {f"docs/{each.relative_to(DOCS)}" for each in DOCS.rglob("*.md")} - set(listed)
    problems += [f"{each}: name it in docs/site/navigation.toml" for each in sorted(missing)]
    problems += dead_links(pages)
    if problems:
        return problems
    shutil.rmtree(folder, ignore_errors=True)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (HERE / "page.html").read_text(encoding="utf-8")
    )
    order = [each for each in listed if each in pages]
    for page in pages.values():
        write(folder / page.target, template.render(**_values(page, pages, groups, order)))
    shutil.copyfile(HERE / "site.js", folder / "site.js")
    write(folder / "site.css", palette_rules() + "\n" + (HERE / "site.css").read_text(encoding="utf-8"))
    write(folder / "search.js", f"window.overlapscopeSearch={search_index(pages, order)};")
    for source in sorted({*_pictures(pages), *DOCS.glob("*.json")}):
        place = folder / source.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
    return problems


def navigation() -> dict[str, list[str]]:
    """Return the sources of each group of pages, by the group's title, in the order of the navigation."""
    table = tomllib.loads((HERE / "navigation.toml").read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {}
    for title, entries in table.items():
        found: list[str] = []
        for each in entries:
            if each.endswith("/"):
                index = (ROOT / each / "README.md").read_text(encoding="utf-8")
                found += [f"{each}README.md", *(f"{each}{name}" for name in re.findall(r"\]\((\w+\.md)\)", index))]
            else:
                found.append(each)
        groups[title] = list(dict.fromkeys(found))
    return groups


def collect(problems: Problems) -> dict[str, Page]:
    """Return every page by its source: those of the navigation, and the files that they link to."""
    waiting = [each for group in navigation().values() for each in group]
    pages: dict[str, Page] = {}
    while waiting:
        source = waiting.pop(0)
        if source in pages:
            continue
        links: list[str] = []
        pages[source] = Page(source, target_of(source), _rendered(source, links, problems))
        waiting += links
    return pages


def target_of(source: str) -> str:
    """Return where the page of a source lies: below docs/ at its own path, else below project/."""
    path = source.removeprefix("docs/") if source.startswith("docs/") else f"project/{source}"
    if path.endswith("README.md") and source.startswith("docs/"):
        return path.removesuffix("README.md") + "index.html"
    return path.removesuffix(".md") + ".html"


def _rendered(source: str, links: list[str], problems: Problems) -> Rendered:
    """Return the HTML of a source; `links` gets the sources that it leads to."""
    here = posixpath.dirname(source)
    own = target_of(source)

    def link(target: str) -> Link:
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return Link(target)
        path, hash_sign, fragment = target.partition("#")
        leads_to = posixpath.normpath(posixpath.join(here, path))
        place = ROOT / leads_to
        if leads_to.removeprefix("docs/") in GENERATED:
            pass
        elif place.is_dir() and (place / "README.md").exists():
            leads_to += "/README.md"
        elif not place.is_file() or leads_to.startswith(".."):
            problems.append(f"{source}: the link {target} leads nowhere")
            return Link(target)
        if leads_to.endswith(COPIED):
            return Link(_relative(leads_to.removeprefix("docs/"), own))
        links.append(leads_to)
        title = re.match(r"# (.*)", text_of(leads_to))
        words = title[1].replace("`", "") if title and leads_to.endswith(".md") else ""
        return Link(_relative(target_of(leads_to), own) + hash_sign + fragment, words)

    def image(target: str, alt: str) -> str:
        file = ROOT / here / target
        if not alt or not file.is_file():
            problems.append(f"{source}: the picture {target} {'is not there' if alt else 'has no description'}")
            return ""
        if file.suffix == ".svg":
            drawing = re.sub(r"<\?xml.*?\?>", "", file.read_text(encoding="utf-8"))
            return f'<figure class="drawing" role="img" aria-label="{escape(alt, quote=True)}">{drawing}</figure>'
        path = _relative(posixpath.normpath(posixpath.join(here, target)).removeprefix("docs/"), own)
        width, height = size_of(file.read_bytes())
        shown = escape(alt, quote=True)
        picture = f'<img src="{path}" alt="{shown}" width="{width}" height="{height}" loading="lazy">'
        return f'<figure><a href="{path}">{picture}</a><figcaption>{shown}</figcaption></figure>'

    text = text_of(source)
    if not source.endswith(".md"):
        return Rendered(f"<h1>{escape(source)}</h1>\n{code(text, Path(source).suffix[1:])}", source, [])
    return render(text, link=link, image=image, comment=gallery.computed)


@cache
def text_of(source: str) -> str:
    """Return the text of a source, generated or from its file."""
    generated = GENERATED.get(source.removeprefix("docs/"))
    return generated() if generated else (ROOT / source).read_text(encoding="utf-8")


def size_of(picture: bytes) -> tuple[int, int]:
    """Return width and height of a PNG or of a lossy WebP in pixels."""
    if picture.startswith(b"\x89PNG"):
        width, height = struct.unpack(">II", picture[16:24])
        return width, height
    kind, at = picture[12:16], 26
    if kind == b"VP8X":
        return int.from_bytes(picture[24:27], "little") + 1, int.from_bytes(picture[27:30], "little") + 1
    width, height = struct.unpack("<HH", picture[at : at + 4])
    return width & 0x3FFF, height & 0x3FFF


def dead_links(pages: Mapping[str, Page]) -> Iterator[str]:
    """Yield a line for each link of a page to an anchor that no page has."""
    anchors = {page.target: {each.anchor for each in page.rendered.sections} for page in pages.values()}
    for page in pages.values():
        for path, fragment in re.findall(r'href="(?![a-z]+:)([^"#]*)#([^"]+)"', page.rendered.html):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page.target), path)) if path else page.target
            if fragment not in anchors.get(target, ()):
                yield f"{page.source}: the anchor {path}#{fragment} leads nowhere"


def search_index(pages: Mapping[str, Page], order: list[str]) -> str:
    """Return JSON: for each section its page's title, its own, its address, and its text."""
    rows = []
    for source in order:
        page = pages[source]
        for at, each in enumerate(page.rendered.sections):
            address = page.target + ("" if at == 0 else f"#{each.anchor}")
            rows.append([page.rendered.title, "" if at == 0 else each.title, address, each.text[:LONGEST_TEXT]])
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def _values(page: Page, pages: Mapping[str, Page], groups: Mapping[str, list[str]], order: list[str]) -> dict[str, Any]:
    """Return what the template needs to know."""

    def entry(source: str) -> dict[str, Any]:
        other = pages[source]
        title = other.rendered.title.partition(": ")[0].replace("`", "")
        return {"title": title, "href": _relative(other.target, page.target), "current": source == page.source}

    tree = []
    for title, sources in groups.items():
        inside = page.source in sources
        long = len(sources) > LONG_GROUP
        shown = [entry(each) for each in (sources[:1] if long and not inside else sources)]
        tree.append({"title": title, "open": inside or (page.source == order[0] and not long), "pages": shown})
    at = order.index(page.source) if page.source in order else None
    sections = [each for each in page.rendered.sections[1:] if each.level in (2, 3)]
    return {
        "title": page.rendered.title,
        "root": _relative("", page.target) or "",
        "html": page.rendered.html,
        "groups": tree,
        "sections": sections if len(sections) > 1 else [],
        "previous": None if not at else entry(order[at - 1]),
        "next": None if at is None or at + 1 == len(order) else entry(order[at + 1]),
        "version": __version__,
        "theme_script": THEME_SCRIPT,
    }


def _pictures(pages: Mapping[str, Page]) -> Iterator[Path]:
    for page in pages.values():
        for path in re.findall(r'<img src="([^"]+)"', page.rendered.html):
            yield DOCS / posixpath.normpath(posixpath.join(posixpath.dirname(page.target), path))


def _relative(target: str, own: str) -> str:
    here = posixpath.dirname(own)
    if not target:
        return "../" * (here.count("/") + 1 if here else 0)
    return posixpath.relpath(target, here or ".")


def write(place: Path, text: str) -> None:
    """Write a text file and the folders that it needs."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
