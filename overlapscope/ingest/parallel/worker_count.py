"""How many processes are worth it: what this one is bound to, and what its control group grants it, is what counts."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from overlapscope.timeline.store.read_ahead import available_cores

BYTES_WORTH_A_PROCESS: Final = 64 << 20
"""Of traces: fewer are read sooner than another process has started."""
MOST_SHARES: Final = 8
"""Each goes through the whole file for its part of it: with more, the file would be read hardly sooner."""
USUAL_RATIO: Final = 12
"""How many bytes of a trace one byte of gzip holds."""
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


def _worth(asked: int | None, files: Sequence[Path], worth: int) -> int:
    return asked or max(1, min(_usable_cores(), 1 + sum(map(bytes_in, files)) // worth))


def bytes_in(path: Path) -> int:
    """Return about how many bytes of trace a file holds."""
    try:
        return path.stat().st_size * (USUAL_RATIO if path.suffix == ".gz" else 1)
    except OSError:
        return BYTES_WORTH_A_PROCESS  # it lies elsewhere


def _usable_cores() -> int:
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
