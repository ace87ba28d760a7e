"""Combine several logs of one rank and kind into one: rotated files, two dumps, the same calls written twice.

Also the notes on what could not be combined: one sentence for each reason and group, with the ranks it holds for.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Collectives, Ints, size, take
from overlapscope.timeline.run import RankTimeline, join_recordings

MAX_RANKS = 16


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the user about one rank and one group."""

    rank: int
    group: str | None
    kind: str
    """Notes of one kind and group are shown once, with the text of the first rank."""
    text: str
    """What happened, and what to do about it."""


def concatenate_logs(parts: Sequence[RankTimeline]) -> tuple[RankTimeline, list[Note]]:
    """Concatenate the logs in the order of their sequence numbers or times, each call once.

    A call that two logs hold gets the more advanced of its two states. Where the order is not known, the log with the
    most calls is kept, and a note says so.
    """
    notes: list[Note] = []
    result, *rest = sorted(parts, key=lambda part: -size(part.collectives))
    for part in rest:
        both = _stacked(result, part)
        rows = _ordered(both.collectives, size(result.collectives))
        if rows is None:
            text = (
                f"{_source(part)} and {_source(result)} are logs of one kind, and it is not known which calls came "
                f"first: {_source(part)} is left out; pass only one of them, or one that holds all calls"
            )
            notes.append(Note(rank=part.rank, group=None, kind=f"two logs, {_source(part)}", text=text))
        else:
            calls = _with_latest_state(both.collectives, size(result.collectives))
            result = replace(both, collectives=take(calls, rows))
    return result, notes


def _source(part: RankTimeline) -> str:
    code = int(part.recordings.source[0])
    return part.names[code] if code >= 0 else "a log"


def _stacked(first: RankTimeline, second: RankTimeline) -> RankTimeline:
    """Return two logs concatenated unchanged; each keeps its own recording window."""
    parts = (first, second)
    bare = [replace(p, recordings=replace(p.recordings, start_ns=_none(p), end_ns=_none(p))) for p in parts]
    stacked = join_recordings(bare)
    windows = {name: np.concatenate([getattr(p.recordings, name) for p in parts]) for name in ("start_ns", "end_ns")}
    return replace(stacked, recordings=replace(stacked.recordings, **windows))


def _none(part: RankTimeline) -> Ints:
    return np.full(size(part.recordings), NONE)


def _ordered(calls: Collectives, border: int) -> Ints | None:
    """Return the rows of both logs in order, each call once; None where the order is not known.

    Rows before the border belong to the first log, which has at least as many calls as the second.
    """
    a, b = np.arange(border), np.arange(border, size(calls))
    first_twin, second_twin = _twins(calls, border)
    if first_twin.size:
        return _spliced(a, b, first_twin, second_twin) if _alike(calls, first_twin, second_twin) else None
    orders = {_order(calls, a, b, by) for by in ("seq", "launch_ns")} - {0}
    if orders:
        rows = np.concatenate([a, b] if orders == {1} else [b, a])
        return rows if len(orders) == 1 else None
    if not np.intersect1d(calls.group[a], calls.group[b]).size:
        return np.concatenate([a, b])
    same = a.size == b.size and _alike(calls, a, b) and bool((calls.group[a] == calls.group[b]).all())
    return a if same else None


def _spliced(a: Ints, b: Ints, first_twin: Ints, second_twin: Ints) -> Ints | None:
    """Return the rows in order where one log contains the other, or where one ends with the other's first calls."""
    if second_twin.size == b.size:
        return a
    if _ends_with(a, first_twin) and _begins_with(b, second_twin):
        return np.concatenate([a[: a.size - first_twin.size], b])
    if _begins_with(a, first_twin) and _ends_with(b, second_twin):
        return np.concatenate([b[: b.size - second_twin.size], a])
    return None


def _twins(calls: Collectives, border: int) -> tuple[Ints, Ints]:
    """Return the rows, in each log, of the calls that both hold, by group and sequence number.

    Empty where these numbers are missing or not unique in a log.
    """
    none = np.empty(0, np.int64)
    key = np.stack([calls.group.astype(np.int64), calls.seq])
    if not size(calls) or (calls.seq == NONE).any():
        return none, none
    code = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    a, b = code[:border], code[border:]
    if np.unique(a).size < a.size or np.unique(b).size < b.size:
        return none, none
    _, first, second = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    by_row = np.argsort(first)
    return first[by_row], second[by_row] + border


def _alike(calls: Collectives, first: Ints, second: Ints) -> bool:
    return all(
        bool((getattr(calls, name)[first] == getattr(calls, name)[second]).all())
        for name in ("op", "dtype", "elements", "bytes")
    )


def _ends_with(rows: Ints, twins: Ints) -> bool:
    return np.array_equal(rows[rows.size - twins.size :], twins)


def _begins_with(rows: Ints, twins: Ints) -> bool:
    return np.array_equal(rows[: twins.size], twins)


def _order(calls: Collectives, a: Ints, b: Ints, by: str) -> int:
    """Return 1 if all of `a` is before all of `b` in every group that both have, -1 if it is after, else 0."""
    values = getattr(calls, by)
    signs = set()
    for group in np.intersect1d(calls.group[a], calls.group[b]).tolist():
        mine, its = values[a[calls.group[a] == group]], values[b[calls.group[b] == group]]
        if NONE in (mine.min(), its.min()):
            return 0
        signs.add(1 if mine.max() < its.min() else -1 if its.max() < mine.min() else 0)
    return signs.pop() if len(signs) == 1 else 0


def _with_latest_state(calls: Collectives, border: int) -> Collectives:
    """Return the calls with the more advanced state in both copies of a call."""
    first, second = _twins(calls, border)
    state = calls.state.copy()
    state[first] = state[second] = np.maximum(calls.state[first], calls.state[second])
    return replace(calls, state=state)


def note_sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return one sentence for each kind of note and group."""
    together: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        together.setdefault((note.kind, note.group or ""), []).append(note)
    return tuple(_sentence(each) for each in together.values())


def _sentence(notes: list[Note]) -> str:
    first, *others = sorted({note.rank: note for note in notes}.values(), key=lambda note: note.rank)
    of_group = "" if first.group is None else f", group {first.group!r}"
    like = ""
    if others:
        shown = ", ".join(str(note.rank) for note in others[:MAX_RANKS])
        rest = f" and {len(others) - MAX_RANKS} more" if len(others) > MAX_RANKS else ""
        like = f" (likewise rank{'s' if len(others) > 1 else ''} {shown}{rest})"
    return f"rank {first.rank}{of_group}: {first.text}{like}"
