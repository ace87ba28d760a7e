"""The states of all ranks of a run directory, computed from its spans; for a large run they are cached in the run.

    RUN/.timeline/at.npy      start times of states, ranks concatenated, on the common clock once that is known
    RUN/.timeline/state.npy   the states
    RUN/.timeline/cells.npy   time in each state over cells of one width, by the rows of the heat map
    RUN/.timeline/told.json   offsets of the ranks, digests of code and input files, and the clocks once they are known

The cache can be deleted at any time. Its columns are memory-mapped, because a view of a large run needs only a small
part. Where the run directory is not writable, the states are computed again in every process.
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

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import STATES, Occupancy
from overlapscope.errors import InputError
from overlapscope.files.atomic import flush_tree
from overlapscope.files.safe_open import open_own_file, open_own_folder, open_regular
from overlapscope.files.source_digest import source_digest
from overlapscope.files.temporary_folder import locked_folder
from overlapscope.timeline.columns import NONE, SPAN_KINDS, Ints
from overlapscope.timeline.store.arrow_tables import open_parquet
from overlapscope.timeline.store.lazy_rank import read_of_rank
from overlapscope.timeline.store.load_save import load_rank
from overlapscope.timeline.store.manifest import RankEntry, is_rank_folder
from overlapscope.timeline.store.run_directory import part_folders
from overlapscope_dashboards.timeline.coarse_sums import CoarseSums, cell_width, cells
from overlapscope_dashboards.timeline.heat_map import map_rows

FOLDER: Final = ".timeline"
AT: Final = "at.npy"
STATE: Final = "state.npy"
CELLS: Final = "cells.npy"
INDEX: Final = "told.json"
CODE: Final = ("overlapscope.timeline", "overlapscope.analysis", "overlapscope_dashboards.timeline")
"""Packages whose code determines the states: a change invalidates the cache."""
WORKERS: Final = 2
States = dict[int, tuple[Ints, "np.ndarray[Any, np.dtype[np.uint8]]"]]
_HEADER: Final = re.compile(rb"{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9]{1,15}),\), } *\n")
"""The header that `numpy.save` writes for one column. Nothing else is accepted, so no header is parsed as Python."""


class CacheIndex(msgspec.Struct, kw_only=True):
    """Content of `told.json`."""

    made_by: str
    """Digest of the code."""
    made_of: str
    """Digest of the input files."""
    ranks: list[int]
    first: list[int]
    """Offset of each rank in the columns, and the total length."""
    has_cells: bool
    clocks: Clocks | None = None


class RankStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of ranks: on the common clock if `clocks` are known, else each rank on its own clock."""

    states: States
    """By rank, in order; only ranks with states."""
    clocks: Clocks | None
    coarse: CoarseSums | None
    """None where there are few states, or a sum could overflow a cell."""

    @property
    def reach_ns(self) -> tuple[int, int]:
        """Start of the first state, and the duration until the last one."""
        begin = min(int(at[0]) for at, _ in self.states.values())
        return begin, max(max(int(at[-1]) for at, _ in self.states.values()) - begin, 1)


def load_states(run: Path, entries: Sequence[RankEntry], made_of: str) -> RankStates:
    """Return the states of each readable rank, from the cache if that was made from these files.

    `made_of` is the digest of the run's files.
    """
    cached = _read_cache(run / FOLDER, made_of, {each.rank for each in entries})
    if cached is not None:
        return cached
    in_order = sorted(entries, key=lambda entry: entry.rank)
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda entry: _of_rank(entry, run / Path(entry.folder).name), in_order))
    states = {entry.rank: each for entry, each in zip(in_order, found, strict=True) if each and each[0].size}
    return save_states(run, states, None, made_of)


def save_states(run: Path, states: States, clocks: Clocks | None, made_of: str) -> RankStates:
    """Write states on these clocks to the cache, replacing it, and return the cached (memory-mapped) states."""
    made = RankStates(states=states, clocks=clocks, coarse=None)
    if states:
        coarse = CoarseSums.of([Occupancy(*each) for each in states.values()], *made.reach_ns)
        made = RankStates(states=states, clocks=clocks, coarse=coarse)
    _write_cache(run / FOLDER, made, made_of)
    found = _read_cache(run / FOLDER, made_of, states.keys())
    # If writing failed or another process wrote meanwhile, the cache may be older: on each rank's own clock.
    return found if found is not None and found.clocks == clocks else made


def _of_rank(entry: RankEntry, folder: Path) -> tuple[Ints, Any] | None:
    """Return a rank's states (start times, states); None where its spans are not readable or inconsistent."""
    try:
        if not is_rank_folder(folder.name):
            return None
        if part_folders(folder):
            return _of_parts(entry, folder)
        # Arrow cannot open paths that are not UTF-8.
        with open_regular(folder / "spans.parquet") as spans, open_regular(folder / "recordings.parquet") as windows:
            file = open_parquet(spans)
            table = read_of_rank(entry.rank, file, ["recording", "kind", "start_ns", "end_ns"])
            recordings = open_parquet(windows).metadata.num_rows
        start, end, recording = (_whole_numbers(table, each) for each in ("start_ns", "end_ns", "recording"))
        kinds = _kinds(table)
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    if table.num_rows != entry.spans or (end < start).any() or (recording < 0).any() or (recording >= recordings).any():
        return None
    return _states_of(kinds, recording, start, end)


def _of_parts(entry: RankEntry, folder: Path) -> tuple[Ints, Any] | None:
    """Return the states of a rank that was recorded for long, in parts."""
    try:
        spans = load_rank(folder.parent, entry).spans
    except InputError:
        return None
    return _states_of(spans.kind, spans.recording, spans.start_ns, spans.end_ns)


def _states_of(kinds: Any, recording: Ints, start: Ints, end: Ints) -> tuple[Ints, Any]:
    cover = Coverage.of_times(kinds, start, end)
    occupancy = Occupancy.of(cover, _windows(recording, start, end))
    return occupancy.at_ns, occupancy.state


def _whole_numbers(table: pa.Table, name: str) -> Ints:
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"{name}: {column.null_count} are missing")
    values: Ints = column.cast(pa.int64()).to_numpy()
    return values


def _kinds(table: pa.Table) -> Ints:
    """Return the code of each span's kind, -1 where it is missing."""
    kind = table.column("kind").combine_chunks()
    kind = kind if pa.types.is_dictionary(kind.type) else kind.dictionary_encode()
    codes: Ints = np.array([SPAN_KINDS.index(each) for each in kind.dictionary.to_pylist()] + [-1])
    kinds: Ints = codes[kind.indices.fill_null(codes.size - 1).to_numpy(zero_copy_only=False)]
    return kinds


def _windows(recording: Ints, start: Ints, end: Ints) -> list[tuple[int, int]]:
    """Return the same as `whole_windows`: the time of each recording, from its first start to its last end."""
    if recording.size and recording.max() >= recording.size:
        recording = np.unique(recording, return_inverse=True)[1]
    number = int(recording.max(initial=-1)) + 1
    first, last = np.full(number, np.iinfo(np.int64).max), np.full(number, NONE)
    np.minimum.at(first, recording, start)
    np.maximum.at(last, recording, end)
    seen = first <= last
    return list(zip(first[seen].tolist(), last[seen].tolist(), strict=True))


def _read_cache(place: Path, made_of: str, recorded: Set[int]) -> RankStates | None:
    """Return the cached states; None if they are of other files, incomplete, or not owned by this user."""
    try:
        with open_own_folder(place) as folder:
            index = _read_index(folder)
            if index is None or (index.made_by, index.made_of) != (source_digest(*CODE), made_of):
                return None
            at, state = map_column(folder, AT, np.int64), map_column(folder, STATE, np.uint8)
            added = map_column(folder, CELLS, np.uint32) if index.has_cells else None
    except (OSError, ValueError):
        return None
    if not _is_possible(index, recorded, at.size) or at.size != state.size or state.max(initial=0) >= len(STATES):
        return None
    parts = [(at[begin:end], state[begin:end]) for begin, end in pairwise(index.first)]
    if not all(own.size and (own[1:] >= own[:-1]).all() for own, _ in parts):
        return None
    cached = RankStates(states=dict(zip(index.ranks, parts, strict=True)), clocks=index.clocks, coarse=None)
    return cached if added is None else _with_cells(cached, added)


def _with_cells(cached: RankStates, added: "np.ndarray[Any, np.dtype[np.uint32]]") -> RankStates | None:
    """Return the states with cells; None where the number of cells does not match the states."""
    length = cached.reach_ns[1]
    shape = (len(map_rows(len(cached.states))), len(STATES), cells(length))
    if added.size != np.prod(shape):
        return None
    return replace(cached, coarse=CoarseSums(cell_ns=cell_width(length), spent=added.reshape(shape)))


def _is_possible(index: CacheIndex, recorded: Set[int], size: int) -> bool:
    """Return whether the ranks are distinct recorded ones in order, whose offsets cover exactly `size` states."""
    ranks = set(index.ranks)
    in_order = index.first == sorted(index.first) and index.first[:1] == [0] and index.first[-1:] == [size]
    same = len(index.first) == len(index.ranks) + 1 == len(ranks) + 1 > 1
    return in_order and same and index.ranks == sorted(ranks) and ranks <= recorded


def _read_index(folder: int) -> CacheIndex | None:
    try:
        with open_own_file(INDEX, folder) as file:
            return msgspec.json.decode(file.read(), type=CacheIndex)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write_cache(folder: Path, cached: RankStates, made_of: str) -> None:
    """Write the cache completely or not at all; never replace a link or a folder of another user."""
    if not cached.states or not _can_replace(folder):
        return
    sizes = [at.size for at, _ in cached.states.values()]
    index = CacheIndex(
        made_by=source_digest(*CODE), made_of=made_of, ranks=list(cached.states), first=[0, *np.cumsum(sizes).tolist()],
        has_cells=cached.coarse is not None, clocks=cached.clocks,
    )  # fmt: skip
    with suppress(OSError), locked_folder(folder.parent, f"{FOLDER}.") as temporary:
        np.save(temporary / AT, np.concatenate([at for at, _ in cached.states.values()]))
        np.save(temporary / STATE, np.concatenate([state for _, state in cached.states.values()]))
        if cached.coarse is not None:
            np.save(temporary / CELLS, cached.coarse.spent.ravel())
        (temporary / ".gitignore").write_text("*\n", encoding="utf-8")
        (temporary / INDEX).write_bytes(msgspec.json.encode(index))
        flush_tree(temporary)  # after a power failure, states that are all zeros would look valid
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)


def _can_replace(folder: Path) -> bool:
    try:
        with open_own_folder(folder):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def map_column(folder: int, name: str, dtype: type) -> "np.ndarray[Any, Any]":
    """Return the column in a `.npy` file, memory-mapped; raises OSError, or ValueError for another type or shape."""
    with open_own_file(name, folder) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name}: another format")
        header = _HEADER.fullmatch(file.read(int.from_bytes(file.read(2), "little")))
        if header is None or header[1].decode("latin-1") != np.dtype(dtype).str:
            raise ValueError(f"{name}: another array")
        length = int(header[2])
        if length == 0:
            return np.empty(0, dtype)
        column = np.memmap(file, dtype, "r", offset=file.tell(), shape=length)
        return np.asarray(column)  # slices of a plain array are created faster
