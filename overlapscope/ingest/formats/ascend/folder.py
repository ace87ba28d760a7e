"""Find a file's place in the folder that the Ascend profiler writes, and the folder's rank.

<name>_ascend_pt/profiler_info_N.json, profiler_metadata.json
<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json, step_trace_time.csv, kernel_details.csv, ...
<name>_ascend_pt/PROF_.../mindstudio_profiler_output/msprof_*.json   the device's part alone, when it is kept
"""

import re
from pathlib import Path

import msgspec

from overlapscope.ingest.build.collective_args import parse_count
from overlapscope.ingest.reader import rank_from_path
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TRACE = "trace_view.json"
DEVICE_OUTPUT = "mindstudio_profiler_output"
_INFO = re.compile(r"^profiler_info_(\d{1,7})\.json$")
_MAX_INFO_BYTES = 1 << 20


class _Info(msgspec.Struct):
    rank_id: int | None = None


def rank_of(path: Path) -> int:
    """Return the rank of a file's folder: from `profiler_info_N.json` in it or above it, else from a folder's name.

    UNKNOWN_RANK where neither states it.
    """
    folder = path.absolute().parent
    above = {OUTPUT: 2, DEVICE_OUTPUT: 3}.get(folder.name, 1)
    folders = (folder, *folder.parents)[:above]
    known = [*map(_noted_rank, folders), *map(rank_from_path, folders)]
    return next((rank for rank in known if rank is not None), UNKNOWN_RANK)


def trace_stands_beside(path: Path) -> bool:
    """Return whether `trace_view.json`, which holds more, is in a file's folder or where the profiler would put it."""
    folders = (path.parent, path.absolute().parent / OUTPUT)
    try:
        return any((folder / name).is_file() for folder in folders for name in (TRACE, f"{TRACE}.gz"))
    except OSError:
        return False


def _noted_rank(folder: Path) -> int | None:
    """Return the rank in the only `profiler_info_N.json` of a folder; None where there is none, or several."""
    try:
        found = [entry for entry in folder.iterdir() if _INFO.match(entry.name)]
    except OSError:
        return None
    return noted_rank(found[0]) if len(found) == 1 else None


def noted_rank(path: Path) -> int | None:
    """Return the rank that a `profiler_info_N.json` states in its content, else in its name; None without one."""
    named = _INFO.match(path.name)
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_INFO_BYTES)
        rank = parse_count(msgspec.json.decode(content, type=_Info).rank_id)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        rank = None
    if rank is None and named:
        rank = int(named[1])
    return rank if rank is None or rank <= MAX_RANKS else None
