"""The states of all ranks of a run directory, straight from its spans; of a large run they are kept beside it.

    RUN/.timeline/at.npy      beginnings of states, all ranks behind each other, on the common clock once that is known
    RUN/.timeline/state.npy   the states
    RUN/.timeline/cells.npy   time in each state over cells of one width, by the rows of the heat map
    RUN/.timeline/told.json   where each rank begins, of which files this was made, and the clocks, once they are known

It is a copy that may be thrown away, and is mapped, not read: of a large run a view looks at little. Where the run
cannot be written it is made anew in every process.
"""

import os
import re
import shutil
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.clock_offsets import Clocks
from overlapscope.analysis.occupancy import STATES, Occupancy
from overlapscope.files.atomic import flush_below
from overlapscope.files.safe_open import opened_own, opened_plain, own_folder
from overlapscope.files.source_digest import source_digest
from overlapscope.files.temporary_folder import held_folder
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, NONE, SPAN_KINDS, Ints
from overlapscope.timeline.intervals import union
from overlapscope.timeline.store.arrow_tables import opened_parquet
from overlapscope.timeline.store.lazy_rank import check_rank
from overlapscope.timeline.store.manifest import RankEntry, is_rank_folder
from overlapscope_dashboards.timeline.coarse_sums import Coarse, cell_width, cells
from overlapscope_dashboards.timeline.heat_map import map_rows

FOLDER: Final = ".timeline"
AT: Final = "at.npy"
STATE: Final = "state.npy"
CELLS: Final = "cells.npy"
TOLD: Final = "told.json"
CODE: Final = ("overlapscope.timeline", "overlapscope.analysis", "overlapscope_dashboards.timeline")
"""What other states may come of when it changes."""
WORKERS: Final = 2
States = dict[int, tuple[Ints, "np.ndarray[Any, np.dtype[np.uint8]]"]]
_HEADER: Final = re.compile(rb"{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9]{1,15}),\), } *\n")
"""What `numpy.save` writes of one column: no more is understood, so that a broken one is never taken for Python."""


class Told(msgspec.Struct, kw_only=True):
    """What `told.json` holds."""

    made_by: str
    """Of which code."""
    made_of: str
    """Of which files."""
    ranks: list[int]
    first: list[int]
    """Where each rank begins, and where the last ends."""
    has_cells: bool
    clocks: Clocks | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The states of ranks, all on the common clock where `clocks` are known, else each on its own."""

    states: States
    """By rank, in their order; none without a state."""
    clocks: Clocks | None
    coarse: Coarse | None
    """None where states are few, or cells could not hold them."""

    @property
    def reach_ns(self) -> tuple[int, int]:
        """When the first of all states begins, and how long it is until the last."""
        begin = min(int(at[0]) for at, _ in self.states.values())
        return begin, max(max(int(at[-1]) for at, _ in self.states.values()) - begin, 1)


def occupancy_of_folder(run: Path, entries: Sequence[RankEntry], made_of: str) -> Kept:
    """Return the states of each rank that can be read, from what was kept if that is of these files.

    `made_of` is another one as soon as a file of the run changed.
    """
    kept = _kept(run / FOLDER, made_of, {each.rank for each in entries})
    if kept is not None:
        return kept
    in_order = sorted(entries, key=lambda entry: entry.rank)
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda entry: _of_rank(entry, run / Path(entry.folder).name), in_order))
    states = {entry.rank: each for entry, each in zip(in_order, found, strict=True) if each and each[0].size}
    return keep(run, states, None, made_of)


def keep(run: Path, states: States, clocks: Clocks | None, made_of: str) -> Kept:
    """Keep states beside the run, on these clocks, in the place of what was kept; gives them as they are kept."""
    made = Kept(states=states, clocks=clocks, coarse=None)
    if states:
        coarse = Coarse.of([Occupancy(*each) for each in states.values()], *made.reach_ns)
        made = Kept(states=states, clocks=clocks, coarse=coarse)
    _keep(run / FOLDER, made, made_of)
    found = _kept(run / FOLDER, made_of, states.keys())
    # What could not be written, or another process wrote meanwhile, is an older copy: on each rank's own clock.
    return found if found is not None and found.clocks == clocks else made


def _of_rank(entry: RankEntry, folder: Path) -> tuple[Ints, Any] | None:
    """Return a rank's states; None where its spans could not be read with the rank itself."""
    try:
        if not is_rank_folder(folder.name):
            return None
        # Arrow itself opens no path that is not UTF-8.
        with opened_plain(folder / "spans.parquet") as spans, opened_plain(folder / "recordings.parquet") as windows:
            file = opened_parquet(spans)
            check_rank(file, entry.rank)
            table = file.read(columns=["recording", "kind", "start_ns", "end_ns"], use_threads=False)
            recordings = opened_parquet(windows).metadata.num_rows
        start, end, recording = (_whole_numbers(table, each) for each in ("start_ns", "end_ns", "recording"))
        kinds = _kinds(table)
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    if table.num_rows != entry.spans or (end < start).any() or (recording < 0).any() or (recording >= recordings).any():
        return None
    cover = Coverage(*(union((start[kinds == each], end[kinds == each])) for each in (COMM, COMPUTE, COPY)))
    occupancy = Occupancy.of(cover, _windows(recording, start, end))
    return occupancy.at_ns, occupancy.state


def _whole_numbers(table: pa.Table, name: str) -> Ints:
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"{name}: {column.null_count} are missing")
    values: Ints = column.cast(pa.int64()).to_numpy()
    return values


def _kinds(table: pa.Table) -> Ints:
    """Return the number of each span's kind, -1 where none is told."""
    kind = table.column("kind").combine_chunks()
    kind = kind if pa.types.is_dictionary(kind.type) else kind.dictionary_encode()
    codes: Ints = np.array([SPAN_KINDS.index(each) for each in kind.dictionary.to_pylist()] + [-1])
    kinds: Ints = codes[kind.indices.fill_null(codes.size - 1).to_numpy(zero_copy_only=False)]
    return kinds


def _windows(recording: Ints, start: Ints, end: Ints) -> list[tuple[int, int]]:
    """Return what `whole_windows` gives: each recording's time, from its first start to its last end."""
    if recording.size and recording.max() >= recording.size:
        recording = np.unique(recording, return_inverse=True)[1]
    number = int(recording.max(initial=-1)) + 1
    first, last = np.full(number, np.iinfo(np.int64).max), np.full(number, NONE)
    np.minimum.at(first, recording, start)
    np.maximum.at(last, recording, end)
    seen = first <= last
    return list(zip(first[seen].tolist(), last[seen].tolist(), strict=True))


def _kept(place: Path, made_of: str, recorded: Set[int]) -> Kept | None:
    """Return what was kept; None where that is of other files, not whole, or not all this user's own."""
    try:
        with own_folder(place) as folder:
            told = _told(folder)
            if told is None or (told.made_by, told.made_of) != (source_digest(*CODE), made_of):
                return None
            at, state = mapped(folder, AT, np.int64), mapped(folder, STATE, np.uint8)
            added = mapped(folder, CELLS, np.uint32) if told.has_cells else None
    except (OSError, ValueError):
        return None
    if not _is_possible(told, recorded, at.size) or at.size != state.size or state.max(initial=0) >= len(STATES):
        return None
    parts = [(at[begin:end], state[begin:end]) for begin, end in pairwise(told.first)]
    if not all(own.size and (own[1:] >= own[:-1]).all() for own, _ in parts):
        return None
    kept = Kept(states=dict(zip(told.ranks, parts, strict=True)), clocks=told.clocks, coarse=None)
    return kept if added is None else _with_cells(kept, added)


def _with_cells(kept: Kept, added: "np.ndarray[Any, np.dtype[np.uint32]]") -> Kept | None:
    """Add the cells; None where they are not as many as these states have."""
    length = kept.reach_ns[1]
    shape = (len(map_rows(len(kept.states))), len(STATES), cells(length))
    if added.size != np.prod(shape):
        return None
    return replace(kept, coarse=Coarse(cell_ns=cell_width(length), spent=added.reshape(shape)))


def _is_possible(told: Told, recorded: Set[int], size: int) -> bool:
    """Return whether the ranks are recorded ones, each once, that share `size` states in their order."""
    ranks = set(told.ranks)
    in_order = told.first == sorted(told.first) and told.first[:1] == [0] and told.first[-1:] == [size]
    same = len(told.first) == len(told.ranks) + 1 == len(ranks) + 1 > 1
    return in_order and same and told.ranks == sorted(ranks) and ranks <= recorded


def _told(folder: int) -> Told | None:
    try:
        with opened_own(TOLD, folder) as file:
            return msgspec.json.decode(file.read(), type=Told)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _keep(folder: Path, kept: Kept, made_of: str) -> None:
    """Write the copy whole, or not at all; never in the place of a link, or of what is another user's."""
    if not kept.states or not _is_free(folder):
        return
    sizes = [at.size for at, _ in kept.states.values()]
    told = Told(
        made_by=source_digest(*CODE), made_of=made_of, ranks=list(kept.states), first=[0, *np.cumsum(sizes).tolist()],
        has_cells=kept.coarse is not None, clocks=kept.clocks,
    )  # fmt: skip
    with suppress(OSError), held_folder(folder.parent, f"{FOLDER}.") as temporary:
        np.save(temporary / AT, np.concatenate([at for at, _ in kept.states.values()]))
        np.save(temporary / STATE, np.concatenate([state for _, state in kept.states.values()]))
        if kept.coarse is not None:
            np.save(temporary / CELLS, kept.coarse.spent.ravel())
        (temporary / ".gitignore").write_text("*\n", encoding="utf-8")
        (temporary / TOLD).write_bytes(msgspec.json.encode(told))
        flush_below(temporary)  # after a power cut, states that are all nulls would look like states
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)


def _is_free(folder: Path) -> bool:
    try:
        with own_folder(folder):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def mapped(folder: int, name: str, dtype: type) -> "np.ndarray[Any, Any]":
    """Map the one column that a `.npy` file holds; raises OSError, or ValueError where it is another array."""
    with opened_own(name, folder) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name}: another format")
        told = _HEADER.fullmatch(file.read(int.from_bytes(file.read(2), "little")))
        if told is None or told[1].decode("latin-1") != np.dtype(dtype).str:
            raise ValueError(f"{name}: another array")
        length = int(told[2])
        if length == 0:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(file, dtype, "r", offset=file.tell(), shape=length))  # parts of it are made faster
