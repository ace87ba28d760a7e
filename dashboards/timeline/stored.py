"""The states of all ranks of a run directory, straight from its spans; of a large run they are kept beside it.

    RUN/.timeline/at.npy      beginnings of states, all ranks behind each other, each on its own clock
    RUN/.timeline/state.npy   the states
    RUN/.timeline/told.json   where each rank begins, of which files this was made, and the clocks, once they are known

It is a copy that may be thrown away. Where the run cannot be written it is made anew in every process.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.clocks import Clocks
from overlapscope.analysis.occupancy import STATES, Occupancy
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, NONE, SPAN_KINDS, Ints
from overlapscope.timeline.intervals import union
from overlapscope.timeline.store import RankEntry, is_rank_folder
from overlapscope_dashboards.timeline.own_files import mapped, opened_own, own_folder, replace_own

FOLDER: Final = ".timeline"
AT: Final = "at.npy"
STATE: Final = "state.npy"
TOLD: Final = "told.json"
SCHEMA: Final = "overlapscope.timeline/1"
WORKERS: Final = 2
States = dict[int, tuple[Ints, "np.ndarray[Any, np.dtype[np.uint8]]"]]


class Told(msgspec.Struct, kw_only=True):
    """What `told.json` holds."""

    schema: str
    made_of: str
    ranks: list[int]
    first: list[int]
    """Where each rank begins, and where the last ends."""
    clocks: Clocks | None = None


def occupancy_of_folder(run: Path, entries: Sequence[RankEntry], made_of: str) -> tuple[States, Clocks | None]:
    """Give the states of each rank that can be read, from what was kept if that is of these files.

    `made_of` is another one as soon as a file of the run changed.
    """
    kept = _kept(run / FOLDER, made_of, {each.rank for each in entries})
    if kept is not None:
        return kept
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda entry: _of_rank(run / Path(entry.folder).name), entries))
    states = {entry.rank: each for entry, each in zip(entries, found, strict=True) if each is not None}
    _keep(run / FOLDER, states, made_of)
    return states, None


def keep_clocks(run: Path, clocks: Clocks, made_of: str) -> None:
    """Keep the clocks beside the states, if those are there and of these files."""
    with suppress(OSError), own_folder(run / FOLDER) as folder:
        told = _told(folder)
        if told is not None and told.made_of == made_of:
            replace_own(folder, TOLD, msgspec.json.encode(msgspec.structs.replace(told, clocks=clocks)))


def _of_rank(folder: Path) -> tuple[Ints, Any] | None:
    """Give a rank's states; None where its spans could not be read with the rank itself."""
    try:
        if not is_rank_folder(folder.name):
            return None
        table = pq.ParquetFile(folder / "spans.parquet").read(
            columns=["recording", "kind", "start_ns", "end_ns"], use_threads=False
        )
        recordings = pq.ParquetFile(folder / "recordings.parquet").metadata.num_rows
        start, end, recording = (_whole_numbers(table, each) for each in ("start_ns", "end_ns", "recording"))
        kinds = _kinds(table)
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    if (end < start).any() or (recording < 0).any() or (recording >= recordings).any():
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
    """Give the number of each span's kind, -1 where none is told."""
    kind = table.column("kind").combine_chunks()
    kind = kind if pa.types.is_dictionary(kind.type) else kind.dictionary_encode()
    codes: Ints = np.array([SPAN_KINDS.index(each) for each in kind.dictionary.to_pylist()] + [-1])
    kinds: Ints = codes[kind.indices.fill_null(codes.size - 1).to_numpy(zero_copy_only=False)]
    return kinds


def _windows(recording: Ints, start: Ints, end: Ints) -> list[tuple[int, int]]:
    """Give what `whole_windows` gives: each recording's time, from its first start to its last end."""
    if recording.size and recording.max() >= recording.size:
        recording = np.unique(recording, return_inverse=True)[1]
    number = int(recording.max(initial=-1)) + 1
    first, last = np.full(number, np.iinfo(np.int64).max), np.full(number, NONE)
    np.minimum.at(first, recording, start)
    np.maximum.at(last, recording, end)
    seen = first <= last
    return list(zip(first[seen].tolist(), last[seen].tolist(), strict=True))


def _kept(place: Path, made_of: str, recorded: Set[int]) -> tuple[States, Clocks | None] | None:
    """Give what was kept; None where that is of other files, not whole, or not all this user's own."""
    try:
        with own_folder(place) as folder:
            told = _told(folder)
            if told is None or told.made_of != made_of or told.schema != SCHEMA:
                return None
            at, state = mapped(folder, AT, np.int64), mapped(folder, STATE, np.uint8)
    except (OSError, ValueError):
        return None
    if not _is_possible(told, recorded, at.size) or at.size != state.size or state.max(initial=0) >= len(STATES):
        return None
    parts = [(at[begin:end], state[begin:end]) for begin, end in pairwise(told.first)]
    if not all((own[1:] >= own[:-1]).all() for own, _ in parts):
        return None
    return dict(zip(told.ranks, parts, strict=True)), told.clocks


def _is_possible(told: Told, recorded: Set[int], size: int) -> bool:
    """Say whether the ranks are recorded ones, each once, that share `size` states in their order."""
    ranks = set(told.ranks)
    in_order = told.first == sorted(told.first) and told.first[:1] == [0] and told.first[-1:] == [size]
    return in_order and len(told.first) == len(told.ranks) + 1 == len(ranks) + 1 and ranks <= recorded


def _told(folder: int) -> Told | None:
    try:
        with opened_own(folder, TOLD) as file:
            return msgspec.json.decode(file.read(), type=Told)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _keep(folder: Path, states: Mapping[int, tuple[Ints, Any]], made_of: str) -> None:
    """Write the copy whole, or not at all; never in the place of a link, or of what is another user's."""
    if not states or not _is_free(folder):
        return
    sizes = [at.size for at, _ in states.values()]
    told = Told(schema=SCHEMA, made_of=made_of, ranks=list(states), first=[0, *np.cumsum(sizes).tolist()])
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"{FOLDER}.", dir=folder.parent))
        np.save(temporary / AT, np.concatenate([at for at, _ in states.values()]))
        np.save(temporary / STATE, np.concatenate([state for _, state in states.values()]))
        (temporary / ".gitignore").write_text("*\n", encoding="utf-8")
        (temporary / TOLD).write_bytes(msgspec.json.encode(told))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except OSError:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_free(folder: Path) -> bool:
    try:
        with own_folder(folder):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
