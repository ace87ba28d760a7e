"""Convert any document to a sheet; the sheets of an analysis and of a comparison are built here."""

from overlapscope.analysis.common.findings import titles
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.result import Analysis
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import NOT_APPLICABLE, count, ms, percent, size
from overlapscope.report.model import Sheet, Table
from overlapscope.report.rank_columns import COLUMNS, complete_steps, rank_label, typical_windows
from overlapscope.report.sheet.document import Document
from overlapscope.report.sheet.gate import grown_table, sheet_of_gate
from overlapscope.report.sheet.history import sheet_of_history
from overlapscope.report.sheet.scaling import sheet_of_scaling
from overlapscope.report.sheet.waiting import cross_rank_sentences, straggler_table, wait_table
from overlapscope.report.text import analysis as text
from overlapscope.report.text import compare as compare_text
from overlapscope.report.text import idle_time, main_sentences
from overlapscope.report.text import predictions as predictions_text
from overlapscope.report.text import structure as structure_text
from overlapscope.report.text import throughput as throughput_text

MAX_RANKS = 64
MAX_COLLECTIVES = 12
MAX_FINDINGS = 30


def sheet_of(document: Document) -> Sheet:
    """Return the sheet of an analysis, a comparison, a gate result, a history or a scaling study."""
    if isinstance(document, Gate):
        return sheet_of_gate(document)
    if isinstance(document, History):
        return sheet_of_history(document)
    if isinstance(document, Scaling):
        return sheet_of_scaling(document)
    return _of_comparison(document) if isinstance(document, Comparison) else _of_analysis(document)


def _of_comparison(comparison: Comparison) -> Sheet:
    by_name = {each.name: each for each in comparison.metrics}
    known = [by_name[name] for name in compare_text.METRIC_LABELS if name in by_name]
    rates = compare_text.rate_rows(comparison)
    both = ("base", comparison.base), ("candidate", comparison.candidate)
    sides = ((side, [short(run.name) for run in runs]) for side, runs in both)
    title = ", ".join(f"{side} {names[0] if len(names) == 1 else count(len(names), 'run')}" for side, names in sides)
    head = (f"ms a {comparison.window or 'step'}", "base", "candidate", "difference", "%")
    warnings, notes = titles(comparison.findings)
    return Sheet(
        title=f"Compared: {title}",
        lead=tuple(compare_text.sentence(comparison).splitlines()),
        tables=(
            *structure_text.tables(comparison.structure),
            Table(head=head, rows=(*map(compare_text.metric_cells, known[: compare_text.SHORT]), *rates)),
            grown_table(comparison),
            *predictions_text.tables(comparison.predictions),
        ),
        warnings=tuple(warnings[:MAX_FINDINGS]),
        notes=tuple(notes[:MAX_FINDINGS]),
    )


def _of_analysis(analysis: Analysis) -> Sheet:
    warnings, notes = titles(analysis.findings)
    return Sheet(
        title=text.headline(analysis),
        lead=(
            *text.recording_lines(analysis),
            *(line for line in main_sentences.sentence(analysis).splitlines() if line),
            *filter(
                None, (idle_time.idle_text(analysis), text.host_events_text(analysis), text.interference_text(analysis))
            ),
            *throughput_text.lines(analysis.throughput, analysis.headline, analysis.mean_step),
        ),
        why=cross_rank_sentences(analysis),
        why_table=straggler_table(analysis),
        tables=(_rank_table(analysis), wait_table(analysis), _collective_table(analysis)),
        warnings=tuple(warnings[:MAX_FINDINGS]),
        notes=tuple(notes[:MAX_FINDINGS]),
    )


def _rank_table(analysis: Analysis) -> Table:
    columns = [each for each in COLUMNS if each.in_report]
    mean = analysis.mean_step
    rows = [
        (rank_label(info), *(each.cell_of(typical_windows(info, mean), of_mean=mean is not None) for each in columns))
        for info in analysis.ranks[:MAX_RANKS]
    ]
    of_steps = any(map(complete_steps, analysis.ranks))
    typical = "Medians over complete steps; columns need not add up."
    typical = typical if mean is None else f"Means of {count(mean.steps, 'step')}."
    note = typical if of_steps else "Whole recordings."
    if len(analysis.ranks) > MAX_RANKS:
        note += f" {len(analysis.ranks) - MAX_RANKS} more ranks: overlapscope analyze --all"
    head = ("ms a step" if of_steps else "ms", *(each.label for each in columns))
    return Table(head=head, rows=tuple(rows), note=note)


def call_name(row: CollectiveRow) -> str:
    """Return operation, data type and group of a kind of collective, in one line."""
    return short(" ".join(filter(None, (row.op, row.dtype, f"group {row.group}" if row.group else ""))))


def _collective_table(analysis: Analysis) -> Table:
    chosen = sorted(analysis.collectives, key=lambda each: -(each.exposed_ns or 0))
    rows = [
        (
            call_name(each),
            NOT_APPLICABLE if each.bytes is None else size(each.bytes),
            str(each.count),
            ms(each.exposed_ns),
            ms(each.transfer_ns_median),
            percent(each.wait_fraction),
        )
        for each in chosen[:MAX_COLLECTIVES]
    ]
    more = len(chosen) - len(rows)
    note = "Exposed time: sum over all calls, mean over ranks."
    if more > 0:
        note += f" {count(more, 'more collective')}: overlapscope analyze --all"
    head = ("collective", "size", "calls", "exposed ms", "transfer ms", "wait share")
    return Table(head=head, rows=tuple(rows), note=note)
