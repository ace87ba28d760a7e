"""Processes for reading many files, started before anything else is loaded: they load what they need meanwhile.

How many are worth it is only known when the inputs have been looked at. This looks at names and sizes alone, and may be
wrong: one too many has nothing to do, one too few is started later.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.ingest.cores import processes_for, shares_for
from overlapscope.timeline.run_directory import is_run_directory

if TYPE_CHECKING:
    from overlapscope.ingest.processes import Process

APART: Final = "overlapscope.ingest.read_apart"
BESIDE: Final = "overlapscope.ingest.read_beside"
SHARED: Final = "overlapscope.ingest.kineto_file"
"""What is loaded: to read files to disk, beside this process, or in shares with it."""
WORTH_BESIDE: Final = 24 << 20
"""Bytes of traces: a process that starts while this one loads what it needs is worth it sooner than a later one."""
LOOKED_AT: Final = 4096
"""Files in folders, at most."""


def start_apart(paths: Sequence[Path], workers: int | None) -> AbstractContextManager["list[Process]"]:
    """Start as many processes as will most likely read the files; none where this process reads alone."""
    count = processes_for(workers, _files(paths, elsewhere=True))
    return _started(count if count > 1 else 0, APART)


def start_beside(paths: Sequence[Path], workers: int | None) -> AbstractContextManager["list[Process]"]:
    """Start as many processes as will most likely read the files, or parts of one, besides this one."""
    files = _files(paths, elsewhere=False)
    if len(files) == 1:
        is_trace = ".json" in files[0].suffixes
        return _started(shares_for(workers, files[0], WORTH_BESIDE) - 1 if is_trace else 0, SHARED)
    return _started(processes_for(workers, files, WORTH_BESIDE) - 1, BESIDE)


def _started(count: int, module: str) -> AbstractContextManager["list[Process]"]:
    if count == 0:
        return nullcontext([])
    from overlapscope.ingest.processes import can_start, started  # noqa: PLC0415 - most inputs need none

    return started(count if can_start() else 0, module)


def _files(paths: Sequence[Path], *, elsewhere: bool) -> list[Path]:
    return list(islice(_each_file(paths, elsewhere), LOOKED_AT))


def _each_file(paths: Sequence[Path], elsewhere: bool) -> Iterator[Path]:
    """Give the files of this machine, and what may be files `elsewhere`; no pipes."""
    for path in paths:
        if os.path.isfile(path) or (elsewhere and not os.path.exists(path)):
            yield path
        if is_run_directory(path):
            continue  # a run, which is read already
        for folder, _, names in os.walk(path):
            yield from (Path(folder, name) for name in names if not name.startswith("."))
