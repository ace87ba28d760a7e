"""Differences between dry runs in words, and as a table."""

from collections.abc import Collection, Sequence
from typing import Final

from overlapscope.analysis.common.wording import first_and_count, rank_list, short
from overlapscope.analysis.structure.compare_structure import StructureComparison
from overlapscope.analysis.structure.kinds import KINDS, ChangeKind, StructureChange
from overlapscope.report.formatting import NOT_APPLICABLE, aligned, count, signed_percent, signed_size, size
from overlapscope.report.model import Table

MAX_ROWS: Final = 12
MAX_PLACES: Final = 3
MAX_PRINTED: Final = 4
NO_TIMES: Final = (
    "Dry runs have no times: what their steps do is compared, exactly; n/a is what a price would be needed for."
)
NOT_COMPARED: Final = (
    "What dry runs do is compared, exactly, and no times: where both are priced, `overlapscope gate` judges these."
)
PRICED_TIMES: Final = (
    "Times are priced, not measured: they are estimated from a data sheet. What the steps do is compared exactly."
)


def change_words(change: StructureChange, *, places: bool = True, of_recording: bool = False) -> str:
    """Return a difference in one line: what, of which calls, how much, and where it is launched."""
    what, calls = words_of(change.kind, of_recording=of_recording), count(change.count, "call")
    if change.op is None:
        words = f"{what}{_amounts(change)}"
    else:
        how = {"collective_added": f"{calls} more", "collective_removed": f"{calls} fewer"}
        words = f"{_call(change)}: {how.get(change.kind, f'{what} ({calls})')}{_amounts(change)}"
    if change.kind in ("host_sync_added", "host_sync_removed"):
        words = f"{what}, {count(change.count, 'time')} a step"
    if places and change.modules:
        words += f"; in {modules_words(change)}"
    if places and change.sources:
        words += f"; {lines_words(change)}"
    return words


def words_of(kind: ChangeKind, *, of_recording: bool = False) -> str:
    """Return what a kind of difference is, in a few words; `of_recording`: of a recorded job and its dry run."""
    return _OF_RECORDING.get(kind, KINDS[kind].words) if of_recording else KINDS[kind].words


_OF_RECORDING: Final[dict[ChangeKind, str]] = {
    "prefetch_lost": "was to overlap with compute (prefetch), and did not",
    "overlap_lost": "was to overlap with compute, and did not",
    "moved_behind_backward": "was to be reduced during backward",
    "reduction_removed": "gradients not reduced",
}


def modules_words(change: StructureChange) -> str:
    """Return the modules of a difference."""
    return first_and_count([short(each) for each in change.modules], MAX_PLACES, ", ")


def lines_words(change: StructureChange) -> str:
    """Return the lines that launch what differs, and those that wrapped its modules."""
    words = first_and_count([short(each) for each in change.sources], MAX_PLACES, ", ")
    if change.set_up:
        words += f" (wrapped at {first_and_count([short(each) for each in change.set_up], MAX_PLACES, ', ')})"
    return words


def _call(change: StructureChange) -> str:
    group = f"{change.group_size} ranks" if change.group_size is not None else "? ranks"
    where = f"{change.dimension}, {group}" if change.dimension else group
    return " ".join(filter(None, [change.op, change.dtype, f"in {change.phase}" if change.phase else "", f"({where})"]))


def _amounts(change: StructureChange) -> str:
    if change.base_is is not None and change.candidate_is is not None:
        return f", {change.base_is} became {change.candidate_is}"
    ours, theirs = change.base, change.candidate
    if change.unit == "bytes" and ours is None and theirs is not None:
        return f", {signed_size(theirs)}"
    if change.unit == "bytes" and theirs is None and ours is not None:
        return f", {signed_size(-ours)}"
    if ours is None or theirs is None or ours == theirs:
        return ""
    share = f" ({signed_percent((theirs - ours) / ours)})" if ours else ""
    if change.unit == "bytes":
        most = f", most of it {change.candidate_is}" if change.candidate_is and change.op is None else ""
        return f", {size(ours)} became {size(theirs)}{share}{most}"
    return f", {ours:,} became {theirs:,}{share}"


def structure_table(structure: StructureComparison, failed: Collection[int] = (), *, all_rows: bool = True) -> Table:
    """Return the differences as a table, those that fail the gate first."""
    rows = sorted(range(len(structure.changes)), key=lambda at: at not in failed)
    cells = []
    for at in rows if all_rows else rows[:MAX_ROWS]:
        each = structure.changes[at]
        ranks = rank_list(each.ranks) if list(each.ranks) != structure.ranks else ""
        where = "; ".join(filter(None, [modules_words(each), ranks]))
        mark = ("fails" if at in failed else "") if failed else ""
        cells.append(
            (mark, change_words(each, places=False, of_recording=structure.of_recording), where, lines_words(each))
        )
    more = len(rows) - len(cells)
    note = f"{count(more, 'more difference')}: --all" if more else ""
    return Table(head=("", "what differs", "module", "launched at"), rows=tuple(cells), left=4, note=note)


def structure_sentence(structure: StructureComparison) -> str:
    """Return in a few words whether two dry runs differ."""
    ranks = rank_list(structure.ranks)
    other = structure.workload not in (None, 1.0)
    batch = f" of {structure.workload:g} times the batch or sequence" if other else ""
    if structure.of_recording:
        differ = f"differs from it in {count(len(structure.changes), 'way')}" if structure.changes else "does the same"
        return f"Held against its dry run, the usual step {differ}: {ranks}, {_calls(structure)} on all of them."
    if not structure.changes:
        return f"The steps{batch} do the same: {ranks}, {_calls(structure)}."
    return f"The steps{batch} differ in {count(len(structure.changes), 'way')}: {ranks}, {_calls(structure)}."


def _calls(structure: StructureComparison) -> str:
    ours, theirs = (sum(getattr(each, f"{side}_count") for each in structure.totals) for side in ("base", "candidate"))
    sizes = [sum(getattr(each, f"{side}_bytes") for each in structure.totals) for side in ("base", "candidate")]
    if (ours, sizes[0]) == (theirs, sizes[1]):
        return f"{count(ours, 'collective')} of {size(sizes[0])}"
    return f"{ours} collectives of {size(sizes[0])} became {theirs} of {size(sizes[1])}"


def totals_table(structure: StructureComparison) -> Table:
    """Return what both steps do in all: calls and bytes of each operation, FLOPs, and memory at the peak."""
    rows = []
    for each in structure.totals:
        group = f"{each.dimension or ''} {each.group_size if each.group_size is not None else '?'} ranks".strip()
        sides = [(each.base_count, each.base_bytes), (each.candidate_count, each.candidate_bytes)]
        rows.append((each.op, group, *(f"{calls} of {size(moved)}" if calls else "none" for calls, moved in sides)))
    if structure.base_flops is not None and structure.candidate_flops is not None:
        rows.append(("FLOPs", "", f"{structure.base_flops:,}", f"{structure.candidate_flops:,}"))
    peaks = [NOT_APPLICABLE if each is None else size(each)
             for each in (structure.base_peak_bytes, structure.candidate_peak_bytes)]  # fmt: skip
    if not structure.of_recording:
        rows.append(("memory at the peak", "", *peaks))
    return Table(head=("a step", "group", "base", "candidate"), rows=tuple(rows), left=2)


def tables(structure: StructureComparison | None) -> tuple[Table, ...]:
    """Return the differences of two dry runs and what both do in all; nothing for other runs."""
    return () if structure is None else (structure_table(structure), totals_table(structure))


def conformance_lines(found: StructureComparison | None, name: str) -> list[str]:
    """Return the few lines that a recording prints of how it conforms to the dry run `name`."""
    if found is None:
        return [f"  dry run       {name}: no complete step to hold against it"]
    lines = [f"  dry run       {name}: {structure_sentence(found)}"]
    changes = [change_words(each, of_recording=True) for each in found.changes]
    lines += [f"    {each}" for each in changes[:MAX_PRINTED]]
    if len(changes) > MAX_PRINTED:
        lines.append(f"    {count(len(changes) - MAX_PRINTED, 'more difference')}: overlapscope compare")
    return lines


def render(structure: StructureComparison, *, all_rows: bool) -> str:
    """Return the differences of two dry runs as text, without a line feed at the end."""
    found = [structure_sentence(structure)]
    for table in (structure_table(structure, all_rows=all_rows), totals_table(structure)):
        if table.rows:
            lines: Sequence[str] = list(aligned([table.head, *table.rows], table.left))
            found.append("\n".join([*lines, *([table.note] if table.note else [])]))
    found += [*structure.not_comparable, *structure.notes]
    return "\n\n".join(found)
