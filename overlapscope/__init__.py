"""OverlapScope: exact communication-compute overlap of distributed training.

import overlapscope

run = overlapscope.load("traces/")     # trace files, a folder of them, or a run directory
run.breakdown()                        # a pandas frame: one row a rank and window
run.analysis()                         # everything, as the value behind `overlapscope analyze --json`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlapscope.errors import InputError, NewerSchemaError, NotATraceError, OverlapScopeError, UsageError
from overlapscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from overlapscope.loaded import LoadedRun

__all__ = [
    "InputError",
    "NewerSchemaError",
    "NotATraceError",
    "OverlapScopeError",
    "UsageError",
    "__version__",
    "load",
]


def load(
    *paths: str | PathLike[str],
    ranks: Mapping[str, int] | int | None = None,
    comm: Iterable[str] = (),
    compute: Iterable[str] = (),
) -> LoadedRun:
    """Read trace files, folders of them, or one run directory.

    `ranks` gives the rank of a single file, or of files by name, where neither trace nor name tells it. `comm` and
    `compute` are regular expressions of kernel names that communicate or compute, besides the known ones.

    Raises InputError when nothing is usable; a bad file among good ones costs only itself and stands in
    `run.sources`.
    """
    from overlapscope.loaded import read  # noqa: PLC0415 - `import overlapscope` loads nothing heavy

    return read(paths, ranks=ranks, comm=tuple(comm), compute=tuple(compute))
