"""Render a document as one self-contained HTML file: no network, no other file, readable without JavaScript.

Charts are SVG drawn by `svg`: a page has tens of kilobytes, where a chart library alone would have five megabytes. A
small script adds tooltips, legends that highlight a series, and sortable tables. The Content Security Policy allows
this script and this style by their hashes and nothing else, so that a name that was not escaped could still do nothing.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from overlapscope.gate.verdict import Gate
from overlapscope.report.formats.svg import colour_of, escaped, svg
from overlapscope.report.model import Chart, Sheet, Table
from overlapscope.report.palette import PALETTE
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.charts import charts_of
from overlapscope.report.sheet.document import Document
from overlapscope.report.sheet.next_steps import NextStep, next_steps
from overlapscope.report.verdicts import GATE, TONES, tone_of
from overlapscope.version import __version__


def render(document: Document) -> str:
    """Return the page, ending in a newline. The same document always results in the same bytes."""
    return page(sheet_of(document), charts_of(document), next_steps(document), _state(document))


def page(sheet: Sheet, charts: tuple[Chart, ...], steps: tuple[NextStep, ...], state: str = "") -> str:
    """Return the page of a sheet; `state` is the class of its header in the style sheet."""
    style, script = _style(), _asset("page.js")
    rules = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [each for each in _sections(sheet, charts, steps) if each.content]
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">',
        f"<title>{escaped(sheet.title)}</title>\n<style>{style}</style>\n</head>\n<body>",
        f'<header class="{state}">\n<h1>{escaped(sheet.title)}</h1>',
        *(f'<p class="lead">{escaped(line)}</p>' for line in sheet.lead),
        f"</header>\n{_navigation(sections)}\n{_patterns()}\n<main>",
        *(_section(each) for each in sections),
        "</main>",
        f'<footer class="note"><p>OverlapScope {__version__}. Times are in milliseconds; n/a: not known.</p></footer>',
        f'<div id="tip" aria-hidden="true" hidden></div>\n<script>{script}</script>\n</body>\n</html>',
    ]
    return "\n".join(lines) + "\n"


class _Section(NamedTuple):
    id: str
    title: str
    content: tuple[str, ...]


def _sections(sheet: Sheet, charts: tuple[Chart, ...], steps: tuple[NextStep, ...]) -> Iterator[_Section]:
    """Yield the sections in reading order: how much, why, warnings, what to do; then all figures and notes."""
    numbered = list(enumerate(charts))
    shown = {kind: [_figure(each, at) for at, each in numbered if each.section == kind] for kind in ("how much", "why")}
    yield _Section("how-much", "How much", tuple(shown["how much"]))
    evidence = [_table(sheet.why_table)] if sheet.why_table and sheet.why_table.rows else []
    why = [*_listed(sheet.why), *evidence, *shown["why"]]
    yield _Section("why", "Why", tuple(why))
    yield _Section("warnings", "Warnings", tuple(_listed(sheet.warnings)))
    yield _Section("what-to-do", "What to do next", tuple(_next(steps)))
    yield _Section("figures", "Figures", tuple(_table(table) for table in sheet.tables if table.rows))
    yield _Section("notes", "Notes", tuple(_listed(sheet.notes)))


def _section(section: _Section) -> str:
    head = f'<section id="{section.id}" aria-labelledby="{section.id}-head">\n<h2 id="{section.id}-head">'
    return "\n".join([f"{head}{section.title}</h2>", *section.content, "</section>"])


def _navigation(sections: Sequence[_Section]) -> str:
    """Return links to all sections, as charts may push the next one off the screen."""
    links = "".join(f'<li><a href="#{each.id}">{each.title}</a></li>' for each in sections)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _state(document: Document) -> str:
    if not isinstance(document, Gate):
        return ""
    decided = GATE[document.verdict].tone in ("good", "bad")
    return document.verdict if decided else "failed" if document.exit_code else ""


@cache
def _asset(name: str) -> str:
    return (files("overlapscope.report.formats") / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """Return the style sheet: the colours of `PALETTE`, and `@bad-light` and the like replaced by those of `TONES`."""
    palette = "".join(f"--c-{name}: {each.rgb}; " for name, each in PALETTE.items())
    rules = "".join(
        f".s-{name} {{ fill: url(#p-{name}); stroke: var(--c-{name}); }} .l-{name} {{ stroke: var(--c-{name}); }}\n"
        f".k-{name} {{ fill: var(--c-{name}); }}\n"
        for name in PALETTE
    )
    style = f":root {{ {palette}}}\n{rules}{_asset('page.css')}"
    for name, (light, dark) in TONES.items():
        style = style.replace(f"@{name}-light", light).replace(f"@{name}-dark", dark)
    return style


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _patterns() -> str:
    drawn = "".join(
        f'<pattern id="p-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="k-{name}" width="8" height="8"/>'
        f'<g fill="#fff" stroke="#fff" stroke-width="1.2" opacity=".6">{each.pattern}</g></pattern>'
        for name, each in PALETTE.items()
    )
    return f'<svg class="patterns" aria-hidden="true"><defs>{drawn}</defs></svg>'


def _listed(lines: tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield "<ul>\n" + "".join(f"<li>{escaped(each)}</li>\n" for each in lines) + "</ul>"


def _next(steps: tuple[NextStep, ...]) -> Iterator[str]:
    if steps:
        items = "".join(f"<li>{escaped(e.words)}: <code>{escaped(e.command)}</code></li>\n" for e in steps)
        yield f"<ol>\n{items}</ol>"


def _figure(chart: Chart, number: int) -> str:
    lines = [f"<figure>\n<figcaption>{escaped(chart.title)}</figcaption>\n<p>{escaped(chart.words)}</p>"]
    if len(chart.series) > 1:
        lines.append(_legend(chart))
    lines.append(svg(chart, number))
    lines.append(f"<details><summary>As a table</summary>\n{_table(_table_of(chart))}\n</details>\n</figure>")
    return "\n".join(lines)


def _legend(chart: Chart) -> str:
    items = "".join(
        f'<li><button type="button" aria-pressed="false" data-s="{at}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        f'<rect class="s-{colour_of(each, at)}" width="16" height="16"/></svg>{escaped(each.name)}</button></li>\n'
        for at, each in enumerate(chart.series)
    )
    return f'<ul class="legend" aria-label="Highlight a series">\n{items}</ul>'


def _table_of(chart: Chart) -> Table:
    rows = tuple(
        (name, *("n/a" if s.values[at] is None else f"{s.values[at]:,.3f}" for s in chart.series))
        for at, name in enumerate(chart.categories)
    )
    return Table(head=(chart.axis, *(each.name for each in chart.series)), rows=rows)


def _table(table: Table) -> str:
    head = "".join(_head(cell, word=at < table.left) for at, cell in enumerate(table.head))
    rows = "\n".join(
        f"<tr>{''.join(_cell(c, word=at < table.left) for at, c in enumerate(row))}</tr>" for row in table.rows
    )
    note = f'\n<p class="note">{escaped(table.note)}</p>' if table.note else ""
    name = escaped(table.head[0]) or "table"
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>{note}"
    )


def _head(text: str, *, word: bool) -> str:
    kind = ' class="word"' if word else ""
    return f'<th scope="col"{kind}><button type="button">{escaped(text) or "name"}</button></th>'


def _cell(text: str, *, word: bool) -> str:
    kind = f"word {tone_of(text)}".rstrip() if word else ""
    return f'<td class="{kind}">{escaped(text)}</td>' if kind else f"<td>{escaped(text)}</td>"
