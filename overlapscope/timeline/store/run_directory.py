"""Recognise run directories. Imports nothing large: commands use it before they load anything else."""

import re
from pathlib import Path
from typing import Final

MANIFEST: Final = "run.json"
"""The file that makes a folder a run directory."""
RANK_ENTRY: Final = "rank.json"
"""The file that describes a rank, in the rank's folder."""

_OWN: Final = re.compile(
    r"rank_\d+|facts|run\.json|predictions\.json|\.timeline|\.fleet\.json"
    r"|\.session\d+|\.(run|predictions|analysis)\.json.*|\.rank_\d+\.overlapscope-(new|old)-.*"
)
"""Names in a run directory that are OverlapScope's own, with what is left of an interrupted write."""


def is_run_directory(path: Path) -> bool:
    """Return whether `path` is a folder with a manifest, or with ranks whose job was killed before it wrote one."""
    try:
        return (path / MANIFEST).is_file() or next(path.glob(f"rank_*/{RANK_ENTRY}"), None) is not None
    except OSError:
        return False  # a name that is too long, a disk that fails: reading it will report the error


def foreign_entries(path: Path) -> list[str]:
    """Return the names in a run directory that are not OverlapScope's own, in order. Raises OSError."""
    return sorted(each.name for each in path.iterdir() if not _OWN.fullmatch(each.name))
