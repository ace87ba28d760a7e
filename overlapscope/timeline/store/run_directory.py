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
_PART: Final = re.compile(r"part_(\d{6,12})\.(\d{1,12})")
"""A part of a rank that was recorded for long: its number, and how often it had been written before."""
_OWN_OF_RANK: Final = re.compile(
    rf"rank\.json|{_TRACE}|{_PART.pattern}|\.part_\d+\.\d+\.overlapscope-new-.*|\.rank\.json.*"
    r"|(annotations|collectives|gradients|host|lanes|operations|recordings|schedule|spans|steps|syncs|telemetry)\.parquet"
)
_OWN_OF_FACTS: Final = re.compile(
    r"(connections|cost_models|figures|links|measurements|members|messages|paths|progress)\.parquet"
)


def is_run_directory(path: Path) -> bool:
    """Return whether `path` is a folder with a manifest, or with ranks whose job was killed before it wrote one."""
    try:
        if (path / MANIFEST).is_file() or next(path.glob(f"rank_*/{RANK_ENTRY}"), None) is not None:
            return True
        return next(path.glob(f"rank_*/part_*/{RANK_ENTRY}"), None) is not None
    except OSError:
        return False  # a name that is too long, a disk that fails: reading it will report the error


def part_folder(number: int, revision: int) -> str:
    """Return the name of a part's folder; each time it is written it has a new revision."""
    return f"part_{number:06d}.{revision}"


def is_part_folder(name: str) -> bool:
    """Return whether a folder's name is that of a part of a rank."""
    return _PART.fullmatch(name) is not None


def part_folders(folder: Path) -> list[Path]:
    """Return the parts in a rank's folder, in order: of each the last revision, which holds all of earlier ones."""
    latest: dict[int, tuple[int, Path]] = {}
    for each in folder.glob("part_*"):
        match = _PART.fullmatch(each.name)
        if match is not None:
            number, revision = int(match[1]), int(match[2])
            latest[number] = max(latest.get(number, (-1, each)), (revision, each))
    return [each for _, (_, each) in sorted(latest.items())]


def foreign_entries(path: Path) -> list[str]:
    """Return the paths, from a run directory, of what in it is not OverlapScope's own, in order. Raises OSError."""
    foreign = []
    for each in path.iterdir():
        if not _OWN.fullmatch(each.name):
            foreign.append(each.name)
        elif _FOLDER.fullmatch(each.name) and each.is_dir():
            own = _OWN_OF_FACTS if each.name == FACTS else _OWN_OF_RANK
            foreign += [f"{each.name}/{inside.name}" for inside in each.iterdir() if not own.fullmatch(inside.name)]
            foreign += [
                f"{each.name}/{part.name}/{inside.name}"
                for part in each.iterdir() if is_part_folder(part.name) and part.is_dir()
                for inside in part.iterdir() if not _OWN_OF_RANK.fullmatch(inside.name)
            ]  # fmt: skip
    return sorted(foreign)
