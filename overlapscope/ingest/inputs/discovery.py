"""Find the input files of the given paths: folders are walked, and files in them that no reader recognises skipped."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from overlapscope.display import display_path, url_of
from overlapscope.errors import InputError
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.run import Source
from overlapscope.timeline.store.run_directory import (
    MANIFEST,
    RANK_ENTRY,
    is_part_folder,
    is_run_directory,
    part_folders,
)

if TYPE_CHECKING:
    from overlapscope.ingest.inputs.remote import Version


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The files and run directories in the given paths."""

    runs: tuple[Path, ...]
    """Run directories."""
    files: tuple[Path, ...]
    """Files that were named, and files in a named folder that a reader recognises."""
    passed_over: tuple[Path, ...]
    """Files in a named folder that no reader recognises."""
    remote: "Mapping[Path, Version]" = {}
    """Those of `files` on remote storage, with their versions."""
    unreadable: Mapping[Path, str] = {}
    """Subfolders that cannot be listed, links to missing files and circular links, each with the reason."""


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs, including the files of unpacked archives."""

    inputs: Inputs
    folders: dict[Path, Path] = {}
    """Archive by the folder into which it was unpacked."""
    notes: tuple[Source, ...] = ()
    """Archives, or parts of them, that could not be used, with the reason as a warning."""

    def shown_path(self, path: Path) -> Path:
        """Return the path to show for a file: `archive.tar.gz/member` for a member."""
        archive, member = self.origin(path)
        return Path(display_path(archive)) / member if member is not None else path

    def origin(self, path: Path) -> tuple[Path, Path | None]:
        """Return (path, None) for an ordinary file, (archive, path in it) for a member."""
        for folder, archive in self.folders.items():
            if path.is_relative_to(folder):
                return archive, path.relative_to(folder)
        return path, None

    @property
    def renamings(self) -> tuple[tuple[str, str], ...]:
        """Return (folder, archive) pairs: messages show the archive instead of the folder it was unpacked into."""
        return tuple((str(folder), display_path(archive)) for folder, archive in self.folders.items())


def discover(paths: list[Path]) -> Inputs:
    """Return the run directories and candidate files below `paths`, sorted by name.

    Named files are always candidates; in folders, hidden files and files that no reader recognises are not.
    Raises InputError for a path that does not exist and for a folder that holds no file.
    """
    runs: list[Path] = []
    files: list[Path] = []
    passed_over: list[Path] = []
    remote: dict[Path, Version] = {}
    unreadable: dict[Path, str] = {}
    for path in paths:
        try:
            url = url_of(path)
            if url is not None:
                from overlapscope.ingest.inputs.remote import list_url  # noqa: PLC0415 - most inputs are local

                recognised, others = list_url(path, url)
                remote |= recognised
                files += recognised
                passed_over += others
                continue
            _require_input(path)
            if not path.is_dir():
                files.append(path)
            elif is_run_directory(path):
                runs.append(path)
            else:
                found_runs, inside = _walk(path, unreadable)
                if not found_runs and not inside:
                    causes = [
                        f"; {display_path(each)} {why}" for each, why in unreadable.items() if each.is_relative_to(path)
                    ]
                    raise InputError(f"{display_path(path)}: the folder holds no file{''.join(causes[:1])}")
                runs += found_runs
                for file in inside:
                    (files if _is_known(file) else passed_over).append(file)
        except OSError as error:
            raise InputError(f"{display_path(path)}: cannot be read: {error.strerror or error}") from error
    return Inputs(
        runs=tuple(runs),
        files=tuple(dict.fromkeys(files)),
        passed_over=tuple(passed_over),
        remote=remote,
        unreadable=unreadable,
    )


def _require_input(path: Path) -> None:
    """Raise InputError if the path does not exist, is a pipe or a device, or is only a part of a run directory."""
    if path == Path("-") and not path.exists():
        raise InputError("-: standard input cannot be read, because files are read more than once: save it as a file")
    if not path.exists():
        from overlapscope.timeline.store.run_folder import explain_missing  # noqa: PLC0415 - only for missing paths

        raise InputError(f"{display_path(path)}: {explain_missing(path)}")
    run = _enclosing_run(path)
    if run is not None:
        raise InputError(f"{display_path(path)}: is a part of the run {display_path(run)}; name that folder")
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{display_path(path)}: is a pipe or a device; save its content as a file, and name that file")


def _enclosing_run(path: Path) -> Path | None:
    """Return the run directory that a rank's folder or a file of columns belongs to; None for anything else."""
    if path.is_dir():
        if is_part_folder(path.name) and (path / RANK_ENTRY).is_file():
            return path.parent.parent
        return path.parent if (path / RANK_ENTRY).is_file() or part_folders(path) else None
    if path.name == MANIFEST:
        return path.parent
    if path.name == RANK_ENTRY or path.suffix == ".parquet":
        rank = path.parent.parent if is_part_folder(path.parent.name) else path.parent
        return rank.parent if is_run_directory(rank.parent) else None
    return None


def _walk(folder: Path, unreadable: dict[Path, str]) -> tuple[list[Path], list[Path]]:
    """Return run directories and files below a folder, each once; links are followed last and add only new files.

    So a link `latest` beside its target is not a second recording, and circular links end. A folder that cannot be
    read is skipped and added to `unreadable`.
    """
    runs: list[Path] = []
    files: list[Path] = []
    links: list[Path] = []
    seen: set[Path] = set()
    folders, linked = [folder], list[Path]()
    while folders or linked:
        here = folders.pop() if folders else linked.pop(0)
        real = here.resolve()
        if real in seen:
            continue
        seen.add(real)
        if here != folder and is_run_directory(here):
            runs.append(here)
            continue
        try:
            for entry in sorted(here.iterdir()):
                if entry.name.startswith("."):
                    continue
                is_link = entry.is_symlink()
                if entry.is_dir():
                    (linked if is_link else folders).append(entry)
                elif entry.is_file():
                    (links if is_link else files).append(entry)
                elif is_link and not entry.exists():
                    unreadable[entry] = "is a link to a missing file"
        except OSError as error:
            if here == folder:
                raise
            unreadable[here] = f"cannot be read: {error.strerror or error}"
    known = {file.resolve() for file in files} if links else set[Path]()
    for link in links:
        if link.resolve() not in known:
            known.add(link.resolve())
            files.append(link)
    return sorted(runs), sorted(files)


def _is_known(path: Path) -> bool:
    try:
        return find_reader(read_head(path)) is not None
    except OSError:
        return True  # reading it reports what is wrong
