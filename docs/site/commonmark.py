"""Markdown into HTML: headings with the anchors that GitHub gives them, highlighted code, resolved links."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LEXERS: Final = {"py": "python", "text": "text", "console": "console", "": "text"}
"""Names of code blocks that Pygments calls otherwise."""
SHORT: Final = 28
"""Code of so many characters is not broken: an option breaks at its hyphens."""
_SPACES: Final = re.compile(r'<span class="w">(\s+)</span>')
"""Blanks between tokens: they have no colour, and a page is smaller without their marks."""
TYPED: Final = ("bash", "python", "py", "toml", "yaml", "json")
"""Languages of blocks that a reader copies; others are output."""


class Link(NamedTuple):
    """Where a link leads."""

    address: str
    title: str = ""
    """Title of the page there; empty for what is no page."""


class Section(NamedTuple):
    """A heading and the text below it, up to the next one."""

    level: int
    title: str
    anchor: str
    text: str


class Rendered(NamedTuple):
    """A page as HTML."""

    html: str
    title: str
    sections: list[Section]


def render(
    text: str, *, link: Callable[[str], Link], image: Callable[[str, str], str], comment: Callable[[str], str]
) -> Rendered:
    """Return the HTML of Markdown, whose first heading is the title of the page.

    `link` resolves the target of a link, `image` maps target and description of an image to HTML, `comment` a block of
    raw HTML to what stands there instead. A link whose words are its target gets the title of the page instead.
    """
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(text)
    given = Counter[str]()
    sections: list[Section] = []
    words: list[str] = []

    def close() -> None:
        if sections:
            sections[-1] = sections[-1]._replace(text=" ".join(" ".join(words).split()))
        words.clear()

    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            close()
            title = plain(tokens[at + 1])
            slug = anchor(title)
            unique = f"{slug}-{given[slug]}" if given[slug] else slug
            given[slug] += 1
            token.attrSet("id", unique)
            sections.append(Section(int(token.tag[1]), title, unique, ""))
        elif token.type == "inline" and tokens[at - 1].type != "heading_open":
            words.append(plain(token))
        elif token.type == "fence":
            words.append(token.content)
        elif token.type == "html_block":
            token.content = comment(token.content)
    close()
    for each, below in pairwise(inline(tokens)):
        if each.type == "link_open":
            target = str(each.attrGet("href"))
            found = link(target)
            each.attrSet("href", found.address)
            if below.content == target.partition("#")[0] and found.title:
                below.content = found.title
    parser.add_render_rule("image", _image_rule(image))
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_inline", _code_inline)
    parser.add_render_rule("heading_close", _heading_close)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    html = parser.renderer.render(tokens, parser.options, {})
    html = re.sub(r"<p>(<figure>.*?</figure>)</p>", r"\1", html, flags=re.DOTALL)
    return Rendered(html, sections[0].title if sections else "", sections)


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def plain(token: Token) -> str:
    """Return the words of an inline token without markup."""
    children = token.children or []
    return "".join(
        " " if each.type in ("softbreak", "hardbreak") else each.content
        for each in children
        if each.type in ("text", "code_inline", "softbreak", "hardbreak")
    )


def inline(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield every token inside paragraphs, headings and cells."""
    for each in tokens:
        yield from each.children or ()


def code(text: str, language: str) -> str:
    """Return a block of code as HTML with classes for its colours."""
    try:
        lexer = get_lexer_by_name(LEXERS.get(language, language))
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    inner = _SPACES.sub(r"\1", highlight(text, lexer, HtmlFormatter(nowrap=True)))
    kind = "typed" if language in TYPED else "output"
    return f'<div class="code {kind}"><pre tabindex="0"><code>{inner}</code></pre></div>\n'


def _code_inline(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    words = tokens[at].content
    kind = ' class="short"' if len(words) <= SHORT else ""
    return f"<code{kind}>{escape(words)}</code>"


def _fence(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return code(tokens[at].content, tokens[at].info.strip())


def _heading_close(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    opened = tokens[at - 2]
    label = escape(plain(tokens[at - 1]), quote=True)
    sign = f'<a class="here" href="#{opened.attrGet("id")}" aria-label="Link to {label}">#</a>'
    return f"{sign}</{tokens[at].tag}>\n"


def _image_rule(image: Callable[[str, str], str]) -> Callable[..., str]:
    def rule(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
        return image(str(tokens[at].attrGet("src")), tokens[at].content)

    return rule
