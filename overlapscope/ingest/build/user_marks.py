"""Ranges that a user or the profiler sets: communication marks, training steps, and names of NVTX and roctx ranges.

Communication that torch does not record is marked by our range `overlapscope.comm:NAME`. The thread waits inside the
mark for the communication, so the mark's own time is communication, and so is device work launched inside it; the
thread's other ranges inside it compute nothing.

Steps are annotated (`ProfilerStep#4`, `overlapscope.step#4`), or found among NVTX, roctx or `record_function` ranges. A
family is the ranges of one thread whose names are equal except for a number at the end: `train_step/3`, `step 12`,
`iteration 7/100`. It marks steps when

- its name's last word is step, iteration, iter or batch;
- nothing in the name refers to a part of a step or something else: optimizer, micro batch, validation, ...;
- it is not a method's name, such as `AdamW.step`;
- its ranges do not overlap; they may touch;
- without a number (`train_step`), it is repeated and covers at least half of the time from the first to the last: a
  range `step` around the optimizer alone does not.

vLLM's ranges of a batch (`execute_context_0(0)_generation_112(112)`) mark steps, too, where they cover nearly all of
the time, one after the other, and all of them fill prompts, none does, or they are of two lengths, as the mean step is
shown first then. Of others the median step would be one that fills no prompts, and such may take less of the time.

Of several families, our own marks come first, then the profiler's, then numbered ones, then the one that covers the
most time. Rising numbers are the steps' numbers; otherwise steps are counted from 0 in order.

`torch.autograd.profiler.emit_nvtx` writes `aten::mul, seq = 12, op_id = 990346, sizes = [[8, 8]]`: a different name for
each call. The additions are cut off, because a long recording would otherwise hold millions of names.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.ingest.build.kernel_names import RECORD_PARAM_COMMS
from overlapscope.ingest.build.profiler_names import COMM_MARK, STEP_MARK
from overlapscope.ingest.build.trace_columns import Mask, Ranges, TraceColumns
from overlapscope.timeline.columns import COMM, NONE, Ints, Spans, Steps, concat, make, size
from overlapscope.timeline.names import NameTable, rows_named
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.two_lengths import first_long

_MARK: Final = re.compile(
    r"(?P<family>(?:.{0,200}[^a-z])?(?:train|training|global|profiler)?(?:step|iteration|iter|batch)s?)"
    r"(?:[^a-z0-9]{0,4}(?P<number>[0-9]{1,12})[^a-z]{0,40})?",
    re.DOTALL,
)
_OTHER: Final = re.compile(
    r"optim|micro|mini|accum|warm|sched|scaler|denois|decod|prefill|eval|valid|test|data|load|fetch|ckpt|checkpoint|save"
    r"|get|next|prepare|move|sampl|zero|log|fwd|bwd|forward(?!.{0,5}backward)"
    r"|(?<!forward)(?<!forward.)(?<!forward.{2})(?<!forward.{3})(?<!forward.{4})(?<!forward.{5})backward"
)
_METHOD: Final = re.compile(r"[a-z0-9_)\]]\.[a-z]*$")
_BATCH: Final = re.compile(
    r"execute_(?:context_(?P<context>[0-9]+)(?:\([0-9]+\))?_generation|new_(?P<new>[0-9]+)_cached)_[0-9]+(?:\([0-9]+\))?"
)
"""What vLLM calls its ranges of a batch: how many requests fill their prompts in it, and how many go on."""
_FILLS, _GOES_ON = "vllm batch with prompts", "vllm batch without prompts"
_BOTH: Final = "vllm batch"
_OF_BATCHES: Final = (_FILLS, _GOES_ON, _BOTH)
_NEARLY_ALL, _HALF = 0.95, 0.5
"""Least share of the time from the first to the last that ranges of batches, and others, cover. A choice: a server that
does other things between its batches has no steps."""
_DIGITS: Final = re.compile(r"[0-9]+")
_FAVOURED: Final = ("overlapscope.step", "profilerstep")
_ADDED: Final = re.compile(r", (?:stashed[ _])?(?:seq|op_id|sizes|input_op_ids|trace_id) = .*", re.DOTALL)
_SEQUENCE: Final = re.compile(r", (?:stashed[ _])?seq = ")
_OPERATION: Final = re.compile(rf"(?:[a-z_][a-z0-9_]*::|nccl[A-Z]|{RECORD_PARAM_COMMS}$)")
"""Operations of torch and calls of NCCL; `FSDP::pre_forward` and the like are annotations."""


def comm_marks(columns: TraceColumns) -> Mask:
    """Return a mask of the host ranges that are communication marks."""
    named = rows_named(columns.host.name, columns.names.to_list(), COMM_MARK.match)
    return np.asarray(named & columns.host.is_annotation, np.bool_)


def launched_inside(columns: TraceColumns, launch_lane: Ints, launch_ns: Ints) -> Mask:
    """Return a mask of the launches (lane and time) inside a communication mark on their own thread."""
    return np.asarray(innermost_range(columns.host, launch_lane, launch_ns, comm_marks(columns)) != NOWHERE, np.bool_)


def add_comm_marks(spans: Spans, columns: TraceColumns, steps: Steps, base_ns: int) -> Spans:
    """Return the spans and the communication marks, as communication spans on the lanes of their threads.

    `base_ns` is added to the times of the marks; it is already in spans and steps.
    """
    rows = np.flatnonzero(comm_marks(columns))
    if rows.size == 0:
        return spans
    host, names = columns.host, columns.names.to_list()
    found = [COMM_MARK.match(names[code]) for code in host.name[rows].tolist()]
    start_ns = host.start_ns[rows] + base_ns
    marked = make(
        Spans,
        rows.size,
        recording=0,
        lane=host.lane[rows],
        kind=COMM,
        name=columns.names.encode([each["name"] for each in found if each]),
        start_ns=start_ns,
        end_ns=host.end_ns[rows] + base_ns,
        launch_ns=start_ns,
        step=step_at(steps, start_ns),
    )
    return concat([spans, marked])


def host_steps(host: Ranges, names: list[str], base_ns: int = 0) -> tuple[Steps, list[str]]:
    """Return the annotated steps in order of time, and warnings: our own marks if there are any, else the profiler's,
    else the job's own ranges that mark steps (`step_ranges`).

    `base_ns` is added to all times.
    """
    marks = {code: found for code in values_in(host.name).tolist() if (found := STEP_MARK.match(names[code]))}
    if not marks:
        return _named_steps(host, names, base_ns)
    ours = [code for code, found in marks.items() if found["by"] == "overlapscope.step"]
    of_steps = np.zeros(len(names), np.bool_)
    of_steps[ours or list(marks)] = True
    rows = np.flatnonzero(of_steps[host.name])
    number = np.array([int(marks[code]["number"]) for code in host.name[rows].tolist()], np.int64)
    order = np.lexsort((number, host.start_ns[rows]))
    rows, number = rows[order], number[order]
    start_ns, end_ns = host.start_ns[rows], host.end_ns[rows]
    # The same step marked on two threads is one step.
    _, first, of_number = np.unique(number, return_index=True, return_inverse=True)
    first_mark = first[of_number]
    repeated = int(((start_ns >= end_ns[first_mark]) & (first_mark != np.arange(number.size))).sum())
    keep = np.sort(first)
    steps = make(
        Steps,
        keep.size,
        recording=0,
        step=number[keep],
        start_ns=start_ns[keep] + base_ns,
        end_ns=end_ns[keep] + base_ns,
    )
    if not repeated:
        return steps, []
    return steps, [
        f"{repeated} step marks repeat the number of an earlier step and were left out; are several runs in one file?"
    ]


def _named_steps(host: Ranges, names: list[str], base_ns: int) -> tuple[Steps, list[str]]:
    rows = np.flatnonzero(host.is_annotation)
    found = step_ranges(
        host.lane[rows], host.name[rows], host.start_ns[rows], host.end_ns[rows], names, most_of_time=True
    )
    return found.steps(host.start_ns[rows] + base_ns, host.end_ns[rows] + base_ns), [found.note] if found.note else []


def step_at(steps: Steps, at_ns: Ints) -> Ints:
    """Return, for each time, the number of the step whose annotation [start, end) contains it; NONE outside all."""
    if size(steps) == 0:
        return np.full(at_ns.size, NONE, np.int64)
    row = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    inside = (row >= 0) & (at_ns < steps.end_ns[np.maximum(row, 0)])
    return np.where(inside, steps.step[np.maximum(row, 0)], NONE)


class StepRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges that mark steps, in order of time: their rows, and the number of each."""

    row: Ints
    number: Ints
    note: str | None = None
    """How the steps were found, for the user; None if they are numbered marks."""

    def steps(self, start_ns: Ints, end_ns: Ints) -> Steps:
        """Return the steps; `start_ns` and `end_ns` are those of all ranges."""
        return make(
            Steps, self.row.size, recording=0, step=self.number, start_ns=start_ns[self.row], end_ns=end_ns[self.row]
        )


def step_ranges(
    lane: Ints,
    name: npt.NDArray[np.int32],
    start_ns: Ints,
    end_ns: Ints,
    names: Sequence[str],
    *,
    most_of_time: bool = False,
) -> StepRanges:
    """Return the ranges that mark steps, by the rules in the module's docstring; none if no family qualifies.

    With `most_of_time` those with numbers, too, must cover half of the time.
    """
    marks = {code: mark for code in values_in(name).tolist() if (mark := _mark(names[code])) is not None}
    rows = np.flatnonzero(np.isin(name, list(marks))) if marks else np.empty(0, np.int64)
    families: dict[tuple[str, bool], list[int]] = {}
    for row, code in zip(rows.tolist(), name[rows].tolist(), strict=True):
        family, number = marks[code]
        families.setdefault((family, number is not None), []).append(row)
    best: tuple[tuple[int, int, int], tuple[str, bool], Ints] | None = None
    if len(families.keys() & {(_FILLS, False), (_GOES_ON, False)}) > 1:
        families[_BOTH, False] = sorted([*families[_FILLS, False], *families[_GOES_ON, False]])
    for key, members in families.items():
        chosen = _on_one_thread(np.array(members, np.int64), lane, start_ns, end_ns)
        least = _NEARLY_ALL if key[0] in _OF_BATCHES else 0 if key[1] and not most_of_time else _HALF
        if not _qualifies(chosen, start_ns, end_ns, least):
            continue
        if key[0] == _BOTH and first_long(np.sort(end_ns[chosen] - start_ns[chosen])) is None:
            continue
        preference = _FAVOURED.index(key[0]) if key[0] in _FAVOURED else len(_FAVOURED)
        order = (-preference, int(key[1]), int((end_ns[chosen] - start_ns[chosen]).sum()))
        if best is None or order > best[0]:
            best = (order, key, chosen)
    if best is None:
        return StepRanges(row=np.empty(0, np.int64), number=np.empty(0, np.int64))
    _, (_, numbered), chosen = best
    text = names[int(name[chosen[0]])]
    if numbered:
        numbers = np.array([marks[code][1] for code in name[chosen].tolist()], np.int64)
        if (numbers[1:] > numbers[:-1]).all():
            return StepRanges(row=chosen, number=numbers)
    why = "their numbers do not rise" if numbered else "they have no number"
    return StepRanges(
        row=chosen,
        number=np.arange(chosen.size),
        note=f"steps are the ranges like {text[:80]!r}, counted from 0 in order: {why}",
    )


def _mark(text: str) -> tuple[str, int | None] | None:
    """Return (family, number) of a name that may mark a step; None for any other name."""
    if len(text) > 256:
        return None
    if batch := _BATCH.fullmatch(text.strip()):
        return (_FILLS if int(batch["context"] or batch["new"] or 0) else _GOES_ON), None
    found = _MARK.fullmatch(text.strip().lower())
    if not found:
        return None
    family = _DIGITS.sub("#", found["family"])
    if _OTHER.search(family) or (_METHOD.search(family) and family not in _FAVOURED):
        return None
    return family, int(found["number"]) if found["number"] is not None else None


def _on_one_thread(rows: Ints, lane: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the rows of the thread that has most of them, in order of time."""
    lanes, counts = np.unique(lane[rows], return_counts=True)
    rows = rows[lane[rows] == lanes[counts.argmax()]]
    return rows[np.lexsort((end_ns[rows], start_ns[rows]))]  # an empty range sorts before one with the same start


def _qualifies(rows: Ints, start_ns: Ints, end_ns: Ints, least: float) -> bool:
    """Return whether ranges do not overlap, and are repeated and cover this share of the time, if it is above 0."""
    start, end = start_ns[rows], end_ns[rows]
    if (start[1:] < end[:-1]).any():
        return False
    covered, span = int((end - start).sum()), int(end[-1] - start[0])
    return not least or (rows.size > 1 and covered >= least * span)


class RangeNames:
    """Converts texts of ranges to codes of names, and remembers which are operations."""

    def __init__(self, names: NameTable) -> None:
        self._names = names
        self._operations: set[int] = set()

    def code(self, text: str) -> int:
        """Return the code of a range's name."""
        name = _ADDED.sub("", text) if ", " in text else text
        code = self._names.code(name)
        # Only ranges that autograd recorded as operations have a sequence number.
        if code not in self._operations and (_OPERATION.match(name) or _SEQUENCE.search(text)):
            self._operations.add(code)
        return code

    def annotations(self, codes: npt.NDArray[np.int32]) -> Mask:
        """Return a mask of the codes that name annotations."""
        return ~np.isin(codes, list(self._operations))
