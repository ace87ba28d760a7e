"""Inputs to files: walk folders, look into files."""

from dataclasses import dataclass
from pathlib import Path

from overlapscope.errors import InputError
from overlapscope.ingest.readers import head_of, reader_of
from overlapscope.ingest.shown import shown
from overlapscope.timeline.run import MANIFEST, RANK_ENTRY, is_run_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the given paths hold."""

    runs: tuple[Path, ...]
    """Run directories."""
    files: tuple[Path, ...]
    """Files that were named, or that stand in a named folder and that a reader knows."""
    passed_over: tuple[Path, ...]
    """Files of a named folder that no reader knows."""


def discover(paths: list[Path]) -> Inputs:
    """Find the run directories and candidate files below `paths`, sorted by name.

    Files that are named are always candidates; in folders, hidden files and what no reader knows are not.
    Raises InputError for a path that does not exist and for a folder that holds no file.
    """
    runs: list[Path] = []
    files: list[Path] = []
    passed_over: list[Path] = []
    for path in paths:
        try:
            if not path.exists():
                raise InputError(f"{shown(path)}: no such file or folder")
            run = _run_around(path)
            if run is not None:
                raise InputError(f"{shown(path)}: is a part of the run {shown(run)}; name that folder")
            if not path.is_dir():
                files.append(path)
            elif is_run_directory(path):
                runs.append(path)
            else:
                found_runs, inside = _walk(path)
                if not found_runs and not inside:
                    raise InputError(f"{shown(path)}: the folder holds no file")
                runs += found_runs
                for file in inside:
                    (files if _is_known(file) else passed_over).append(file)
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    return Inputs(runs=tuple(runs), files=tuple(dict.fromkeys(files)), passed_over=tuple(passed_over))


def _run_around(path: Path) -> Path | None:
    """Give the run directory that a rank's folder or a file of columns belongs to; None for anything else."""
    if path.is_dir():
        return path.parent if (path / RANK_ENTRY).is_file() else None
    if path.name == MANIFEST:
        return path.parent
    if path.name == RANK_ENTRY or path.suffix == ".parquet":
        return path.parent.parent if is_run_directory(path.parent.parent) else None
    return None


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Give run directories and files below a folder; linked folders are followed unless they lead back up."""
    runs: list[Path] = []
    files: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if is_run_directory(entry):
                runs.append(entry)
            elif not (entry.is_symlink() and folder.resolve().is_relative_to(entry.resolve())):
                more_runs, more_files = _walk(entry)
                runs += more_runs
                files += more_files
        elif entry.is_file():
            files.append(entry)
    return runs, files


def _is_known(path: Path) -> bool:
    try:
        return reader_of(head_of(path)) is not None
    except OSError:
        return True  # reading it will tell what is wrong
