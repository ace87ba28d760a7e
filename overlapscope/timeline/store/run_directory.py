"""Recognise run directories. Imports nothing large: commands use it before they load anything else."""

import re
from pathlib import Path
from typing import Final

MANIFEST: Final = "run.json"
"""The file that makes a folder a run directory."""
RANK_ENTRY: Final = "rank.json"
"""The file that describes a rank, in the rank's folder."""
FACTS: Final = "facts"
"""The folder of the tables of the whole job."""

_TRACE: Final = r"recording\d+\.rank\d+\.pt\.trace\.json\.gz"
"""Name of a trace that a capture keeps: in the run until its rank is written, then in the rank's folder."""
_OWN: Final = re.compile(
    r"rank_\d+|facts|run\.json|predictions\.json|\.timeline|\.fleet\.json"
    r"|\.session\d+|\.(run|predictions|analysis)\.json.*|\.rank_\d+\.overlapscope-(new|old)-.*"
    rf"|{_TRACE}|\.rank_\d+\.[^.]+\.\d+\.recording\d+\.pt\.trace\.json\.gz"
)
"""Names in a run directory that are OverlapScope's own, with what an interrupted write or a killed capture leaves."""
_FOLDER: Final = re.compile(r"rank_\d+|facts")
_OWN_OF_RANK: Final = re.compile(
    rf"rank\.json|{_TRACE}"
    r"|(annotations|collectives|gradients|host|lanes|recordings|spans|steps|syncs|telemetry)\.parquet"
)
_OWN_OF_FACTS: Final = re.compile(
    r"(connections|cost_models|figures|links|measurements|members|messages|paths|progress)\.parquet"
)


def is_run_directory(path: Path) -> bool:
    """Return whether `path` is a folder with a manifest, or with ranks whose job was killed before it wrote one."""
    try:
        return (path / MANIFEST).is_file() or next(path.glob(f"rank_*/{RANK_ENTRY}"), None) is not None
    except OSError:
        return False  # a name that is too long, a disk that fails: reading it will report the error


def foreign_entries(path: Path) -> list[str]:
    """Return the paths, from a run directory, of what in it is not OverlapScope's own, in order. Raises OSError."""
    foreign = []
    for each in path.iterdir():
        if not _OWN.fullmatch(each.name):
            foreign.append(each.name)
        elif _FOLDER.fullmatch(each.name) and each.is_dir():
            own = _OWN_OF_FACTS if each.name == FACTS else _OWN_OF_RANK
            foreign += [f"{each.name}/{inside.name}" for inside in each.iterdir() if not own.fullmatch(inside.name)]
    return sorted(foreign)
