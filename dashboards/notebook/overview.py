"""The overview of a run as a piece of HTML for the cell of a notebook: no script, no request, no colour of text.

Text and lines have the colour of the page around them, so that they can be read on a light and on a dark one.
"""

from collections.abc import Iterator
from html import escape
from typing import Final

from overlapscope.analysis.common.findings import titles
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.report.formats.svg import escaped
from overlapscope.report.formatting import EXPLAIN, count, inert, ms, percent
from overlapscope.report.text import analysis as text
from overlapscope.report.text import main_sentences, throughput
from overlapscope.report.text.advice import gain_with_cost
from overlapscope_dashboards.notebook.looks import background
from overlapscope_dashboards.views.overview import StepParts, step

MOST_ADVISED: Final = 3
MOST_WARNINGS: Final = 3
STYLE: Final = """
.overlapscope { max-width: 60rem; font: 13px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.overlapscope p, .overlapscope ol, .overlapscope ul { margin: 4px 0; }
.overlapscope .lead { font-size: 16px; font-weight: 600; }
.overlapscope .step { display: flex; height: 22px; margin: 8px 0; }
.overlapscope table { border-collapse: collapse; margin: 4px 0; font: inherit; }
.overlapscope th, .overlapscope td { padding: 1px 12px 1px 0; text-align: right; font-weight: 400; background: none; }
.overlapscope th.word { text-align: left; }
.overlapscope thead th { border-bottom: 1px solid; }
.overlapscope i { display: inline-block; width: 10px; height: 10px; margin-right: 8px; }
.overlapscope code { overflow-wrap: anywhere; color: inherit; background: none; }
"""


def overview_html(analysis: Analysis) -> str:
    """Return what was recorded, where a step goes (to scale), the first recommendations and warnings.

    Figures are those of `overlapscope analyze`, to the digit. A run without times is shown as that command prints it.
    """
    parts = step(analysis)
    shown = [f"<pre>{escape(inert(text.render(analysis)))}</pre>"] if parts is None else _overview(analysis, parts)
    return "\n".join([f'<div class="overlapscope"><style>{STYLE}</style>', *shown, "</div>"])


def _overview(analysis: Analysis, parts: StepParts) -> Iterator[str]:
    first, *others = [line for line in main_sentences.sentence(analysis).splitlines() if line]
    others += throughput.lines(analysis.throughput, analysis.headline, analysis.mean_step)
    yield f"<p>{escaped(text.headline(analysis))}</p>"
    yield f'<p class="lead">{escaped(first)}</p>'
    yield from (f"<p>{escaped(each)}</p>" for each in others)
    yield from _step(parts)
    if analysis.recommendations:
        yield f"<ol>{''.join(map(_advised, analysis.recommendations[:MOST_ADVISED]))}</ol>"
    warnings, _ = titles(analysis.findings)
    if warnings:
        more = len(warnings) - MOST_WARNINGS
        listed = [*warnings[:MOST_WARNINGS], *([f"{count(more, 'more warning')}"] if more > 0 else [])]
        yield f"<ul>{''.join(f'<li>{escaped(each)}</li>' for each in listed)}</ul>"


def _step(parts: StepParts) -> Iterator[str]:
    """Yield the bar, to scale, and the table that is its legend."""
    drawn_ns = max(parts.whole_ns, sum(each.ns for each in parts.segments))
    label = f"The parts of a {parts.what} of {ms(parts.whole_ns)} ms, to scale"
    bars = "".join(
        f'<span style="width:{100 * each.ns / drawn_ns:.4f}%;background:{background(each.kind)}"'
        f' title="{escaped(each.name)}: {ms(each.ns)} ms"></span>'
        for each in parts.segments
    )
    yield f'<div class="step" role="img" aria-label="{escaped(label)}">{bars}</div>'
    head = f'<th class="word">where a {parts.what} goes</th><th>ms</th><th>share</th>'
    yield f"<table><thead><tr>{head}</tr></thead><tbody>"
    for each in parts.segments:
        swatch = f'<i style="background:{background(each.kind)}"></i>'
        share = percent(each.ns / parts.whole_ns if parts.whole_ns else None)
        yield f'<tr><th class="word">{swatch}{escaped(each.name)}</th><td>{ms(each.ns)}</td><td>{share}</td></tr>'
    yield f'<tr><th class="word">{parts.what}</th><td>{ms(parts.whole_ns)}</td><td></td></tr></tbody></table>'
    if parts.basis.startswith("Medians"):
        yield f"<p>{escaped(parts.basis)}: parts need not add up.</p>"


def _advised(each: Recommendation) -> str:
    saves = gain_with_cost(each)
    said = f"{each.title} ({saves})" if saves else each.title
    return f"<li>{escaped(said)}<br><code>{escaped(f'{EXPLAIN} {each.id}')}</code></li>"
