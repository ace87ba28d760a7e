"""Which ranges that a user set with NVTX or roctx mark the training steps.

A family is the ranges of one thread whose names are equal but for a number at the end: `train_step/3`, `step 12`,
`ProfilerStep#4`, `iteration 7/100`. It marks steps when

- its name's last word is step, iteration, iter or batch;
- nothing in the name says that it is a part of a step or something else: optimizer, micro batch, validation, ...;
- it is no method's name, such as `AdamW.step`;
- its ranges do not overlap; they may touch;
- without a number (`train_step`), it is repeated and covers at least half of the time from the first to the last: a
  range `step` around the optimizer alone does not.

Of several families, our own marks come first, then the profiler's, then numbered ones, then the one that covers the
most time. Numbers that rise are the steps' numbers; where they do not, or there are none, steps are counted from 0 in
order.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

_MARK: Final = re.compile(
    r"(?P<family>(?:.{0,200}[^a-z])?(?:train|training|global|profiler)?(?:step|iteration|iter|batch)s?)"
    r"(?:[^a-z0-9]{0,4}(?P<number>[0-9]{1,12})[^a-z]{0,40})?",
    re.DOTALL,
)
_OTHER: Final = re.compile(
    r"optim|micro|mini|accum|warm|sched|scaler|denois|decod|prefill|eval|valid|test|data|load|fetch|ckpt|checkpoint|save"
)
_METHOD: Final = re.compile(r"[a-z0-9_)\]]\.[a-z]*$")
_DIGITS: Final = re.compile(r"[0-9]+")
_FAVOURED: Final = ("overlapscope.step", "profilerstep")


class StepRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges that mark steps, in order of time: rows of the ranges given, and the number of each."""

    row: Ints
    number: Ints
    note: str | None = None
    """What the user should know of how they were found; None when they are numbered marks."""


def step_ranges(
    lane: Ints, name: npt.NDArray[np.int32], start_ns: Ints, end_ns: Ints, names: Sequence[str]
) -> StepRanges:
    """Give the ranges that mark steps, by the rule above; none when no family qualifies."""
    marks = {code: mark for code, text in enumerate(names) if (mark := _mark(text)) is not None}
    rows = np.flatnonzero(np.isin(name, list(marks))) if marks else np.empty(0, np.int64)
    families: dict[tuple[str, bool], list[int]] = {}
    for row, code in zip(rows.tolist(), name[rows].tolist(), strict=True):
        family, number = marks[code]
        families.setdefault((family, number is not None), []).append(row)
    best: tuple[tuple[int, int, int], tuple[str, bool], Ints] | None = None
    for key, members in families.items():
        chosen = _on_one_thread(np.array(members, np.int64), lane, start_ns, end_ns)
        if not _qualifies(chosen, start_ns, end_ns, numbered=key[1]):
            continue
        favour = _FAVOURED.index(key[0]) if key[0] in _FAVOURED else len(_FAVOURED)
        order = (-favour, int(key[1]), int((end_ns[chosen] - start_ns[chosen]).sum()))
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
    """Give (family, number) of a name that may mark a step; None for any other name."""
    found = _MARK.fullmatch(text.strip().lower()) if len(text) <= 256 else None
    if not found:
        return None
    family = _DIGITS.sub("#", found["family"])
    if _OTHER.search(family) or (_METHOD.search(family) and family not in _FAVOURED):
        return None
    return family, int(found["number"]) if found["number"] is not None else None


def _on_one_thread(rows: Ints, lane: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Give the rows of the thread that has the most, in order of time."""
    lanes, counts = np.unique(lane[rows], return_counts=True)
    rows = rows[lane[rows] == lanes[counts.argmax()]]
    return rows[np.lexsort((end_ns[rows], start_ns[rows]))]  # an empty range stands before one that begins with it


def _qualifies(rows: Ints, start_ns: Ints, end_ns: Ints, *, numbered: bool) -> bool:
    start, end = start_ns[rows], end_ns[rows]
    if (start[1:] < end[:-1]).any():
        return False
    covered, span = int((end - start).sum()), int(end[-1] - start[0])
    return numbered or (rows.size > 1 and 2 * covered >= span)
