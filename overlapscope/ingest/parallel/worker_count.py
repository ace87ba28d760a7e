"""How many processes are worth it: what this one is bound to, and what its control group grants it, is what counts."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.timeline.store.read_ahead import available_cores
from overlapscope.timeline.store.run_directory import is_run_directory

if TYPE_CHECKING:
    from overlapscope.ingest.parallel.process_pool import WorkerPool

PART_READER: Final = "overlapscope.ingest.formats.kineto.event_file"
"""What a worker imports that reads a part of one trace."""
FILE_READER: Final = "overlapscope.ingest.parallel.read_parallel"
"""What a worker imports that reads whole files."""
BYTES_WORTH_A_PROCESS: Final = 64 << 20
"""Of traces: fewer are read sooner than another process has started."""
BYTES_WORTH_STARTING_AHEAD: Final = 24 << 20
"""A process that starts while this one still loads its modules is worth it sooner."""
MOST_SHARES: Final = 8
"""Each goes through the whole file for its part of it: with more, the file would be read hardly sooner."""
USUAL_RATIO: Final = 12
"""How many bytes of a trace one byte of gzip holds."""
LOOKED_AT: Final = 4096
"""Files in folders, at most, for a guess."""
_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def processes_for(asked: int | None, files: Sequence[Path], worth: int = BYTES_WORTH_A_PROCESS) -> int:
    """Return how many processes should read the files: as many as asked for, else as there are cores for.

    `worth` is how many bytes of traces are worth a process.
    """
    return min(_worth(asked, files, worth), max(1, len(files)))


def shares_for(asked: int | None, file: Path, worth: int = BYTES_WORTH_A_PROCESS) -> int:
    """Return how many processes should read one file, each a part of it; what lies elsewhere by one if nobody asks."""
    return min(_worth(asked, [file] if os.path.exists(file) else [], worth), MOST_SHARES)


def shares_among(asked: int | None, files: Sequence[Path], worth: int = BYTES_WORTH_A_PROCESS) -> list[int]:
    """Return how many processes should read each of the files, which are read side by side where there are several."""
    if len(files) == 1:
        return [shares_for(asked, files[0], worth)]
    most = min(_worth(asked, files, worth) // max(1, len(files)), MOST_SHARES)
    if most < 2:
        return [1] * len(files)
    return [min(most, 1 + bytes_in(each) // worth) if os.path.exists(each) else 1 for each in files]


def start_ahead(
    asked: int | None, paths: Sequence[Path], *, to_disk: bool = False
) -> AbstractContextManager["WorkerPool | None"]:
    """Start the workers that will most likely read, before anything else is loaded: they load theirs meanwhile.

    That saves a tenth of reading a large file. Names and sizes tell how many, and may be wrong.
    """
    files = list(islice(_each_file(paths), LOOKED_AT))
    if to_disk:
        count, module = processes_for(asked, files), "overlapscope.ingest.parallel.spool"
        count = count if count > 1 else 0
    elif len(files) == 1:
        shares = shares_for(asked, files[0], BYTES_WORTH_STARTING_AHEAD) if ".json" in files[0].suffixes else 1
        count, module = shares - 1, PART_READER
    else:
        count, module = processes_for(asked, files, BYTES_WORTH_STARTING_AHEAD) - 1, FILE_READER
    if not count:
        return nullcontext()
    from overlapscope.ingest.parallel.process_pool import started_ahead  # noqa: PLC0415 - most inputs need none

    return started_ahead(count, module)


def _each_file(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield files, no pipes, and nothing of run directories, which are read already."""
    for path in paths:
        if os.path.isfile(path):
            yield path
        elif not is_run_directory(path):
            for folder, _, names in os.walk(path):
                yield from (Path(folder, name) for name in names if not name.startswith("."))


def _worth(asked: int | None, files: Sequence[Path], worth: int) -> int:
    return asked or max(1, min(usable_cores(), 1 + sum(map(bytes_in, files)) // worth))


def bytes_in(path: Path) -> int:
    """Return about how many bytes of trace a file holds."""
    try:
        return path.stat().st_size * (USUAL_RATIO if path.suffix == ".gz" else 1)
    except OSError:
        return BYTES_WORTH_A_PROCESS  # it lies elsewhere


def usable_cores() -> int:
    """Return the number of cores, at least 1."""
    bound = available_cores()
    granted = [_granted(_GROUPS / each) for each in _own_groups()]
    return max(1, min([bound, *(math.ceil(cores) for cores in granted if cores is not None)]))


def _own_groups() -> list[Path]:
    """Return the control group of this process and those around it, below where groups are mounted.

    In a container its own group may be what is mounted, whatever path the system tells.
    """
    groups = {Path("."), Path("cpu")}
    for line in _text(_OWN).splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        own = Path(path.lstrip("/"))
        top = Path("cpu") if "cpu" in kinds.split(",") else Path(".")
        if not kinds or top != Path("."):
            groups |= {top / each for each in (own, *own.parents)}
    return sorted(groups)


def _granted(group: Path) -> float | None:
    """Return the cores' worth of time that a group may use; None without a limit."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    try:
        limit, of = int(quota), int(period)
    except ValueError:
        return None
    return limit / of if limit > 0 and of > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
