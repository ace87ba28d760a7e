"""What the build computes for the gallery: the verdict on a run of traces/, with its step drawn to scale."""

import re
from html import escape
from pathlib import Path
from typing import Final

import overlapscope
from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.report.text.analysis import finding_kind

ROOT: Final = Path(__file__).parents[2]
MARK: Final = re.compile(r"<!-- computed: (\S+) -->\s*")


def computed(block: str) -> str:
    """Return the verdict on the run that a comment names, as HTML; any other HTML as it is."""
    found = MARK.fullmatch(block)
    return verdict(found[1]) if found else block


def verdict(path: str) -> str:
    """Return step bar, largest causes, findings and first recommendation of a run as HTML."""
    analysis = overlapscope.load(ROOT / path).analysis()
    head = analysis.headline
    step_ns = head.step_ns or 0
    bar, legend = [], []
    for label, css, ns in parts(head):
        share = 100 * ns / step_ns
        bar.append(f'<span class="{css}" style="width:{share:.3f}%"></span>')
        legend.append(
            f'<tr><th scope="row"><i class="{css}"></i>{escape(label)}</th>'
            f"<td>{ns / 1e6:.1f}</td><td>{share:.1f}</td></tr>"
        )
    lines = [
        '<div class="verdict">',
        f'<div class="stepbar" role="img" aria-label="The parts of a step of {step_ns / 1e6:.1f} ms, to scale">'
        f"{''.join(bar)}</div>",
        "<table><thead><tr><th>part of the step</th><th>ms</th><th>%</th></tr></thead>",
        f"<tbody>{''.join(legend)}</tbody></table>",
    ]
    if analysis.recommendations:
        first = analysis.recommendations[0]
        link = f'<a href="advice/{first.id}.html">{first.id}</a>'
        lines.append(f"<p>First recommendation of <code>analyze</code>: {link}. {escape(first.title)}.</p>")
    kinds = dict.fromkeys(finding_kind(each.id) for each in analysis.findings)
    named = ", ".join(f'<a href="findings/{each}.html">{each}</a>' for each in kinds) or "none"
    return "\n".join([*lines, f"<p>Findings: {named}.</p>", "</div>", ""])


def parts(head: Headline) -> list[tuple[str, str, int]]:
    """Return label, CSS class and nanoseconds of each part of a step of the job; medians, which need not add up."""
    exposed = sorted(head.causes.items(), key=lambda each: -each[1])
    found = [
        ("compute", "c-compute", head.compute_only_ns),
        ("communication, overlapped", "c-hidden", head.overlapped_ns),
        *((f"exposed: {CAUSES[name].label}", f"k-{name}", ns) for name, ns in exposed),
        ("memcpy", "c-copy", head.copy_only_ns),
        ("idle", "c-idle", head.idle_ns),
    ]
    return [(label, css, ns) for label, css, ns in found if ns]
