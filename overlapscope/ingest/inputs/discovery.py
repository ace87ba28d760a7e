"""The files that given paths mean: folders are walked, and what no reader knows in them is passed over."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from overlapscope.display import shown, url_of
from overlapscope.errors import InputError
from overlapscope.ingest.registry import head_of, reader_of
from overlapscope.timeline.run import Source
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY, is_run_directory

if TYPE_CHECKING:
    from overlapscope.ingest.inputs.remote import Version


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the given paths hold."""

    runs: tuple[Path, ...]
    """Run directories."""
    files: tuple[Path, ...]
    """Files that were named, or that lie in a named folder and that a reader knows."""
    passed_over: tuple[Path, ...]
    """Files of a named folder that no reader knows."""
    remote: "Mapping[Path, Version]" = {}
    """Those of `files` that lie elsewhere."""
    unreadable: Mapping[Path, str] = {}
    """Folders in a named one that cannot be listed, links to nothing or in a circle; and why."""


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs with the files of archives among them."""

    inputs: Inputs
    folders: dict[Path, Path] = {}
    """Where each archive was unpacked."""
    notes: tuple[Source, ...] = ()
    """Archives, or parts of them, that could not be used, and why."""

    def shown_path(self, path: Path) -> Path:
        """Return the path to show for a file: `archive.tar.gz/member` for a member."""
        archive, member = self.origin(path)
        return Path(shown(archive)) / member if member is not None else path

    def origin(self, path: Path) -> tuple[Path, Path | None]:
        """Return the file that a file comes from: itself, or an archive and the place in it."""
        for folder, archive in self.folders.items():
            if path.is_relative_to(folder):
                return archive, path.relative_to(folder)
        return path, None

    @property
    def renamings(self) -> tuple[tuple[str, str], ...]:
        """Where members were unpacked, and what to say in its place."""
        return tuple((str(folder), shown(archive)) for folder, archive in self.folders.items())


def discover(paths: list[Path]) -> Inputs:
    """Return the run directories and candidate files below `paths`, sorted by name.

    Files that are named are always candidates; in folders, hidden files and what no reader knows are not.
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
                from overlapscope.ingest.inputs.remote import list_url  # noqa: PLC0415 - most inputs lie here

                there, others = list_url(path, url)
                remote |= there
                files += there
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
                    but = [f"; {shown(each)} {why}" for each, why in unreadable.items() if each.is_relative_to(path)]
                    raise InputError(f"{shown(path)}: the folder holds no file{''.join(but[:1])}")
                runs += found_runs
                for file in inside:
                    (files if _is_known(file) else passed_over).append(file)
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    return Inputs(
        runs=tuple(runs),
        files=tuple(dict.fromkeys(files)),
        passed_over=tuple(passed_over),
        remote=remote,
        unreadable=unreadable,
    )


def _require_input(path: Path) -> None:
    """Raise InputError where there is nothing to read, or only a part of a run."""
    if not path.exists():
        from overlapscope.timeline.store.run_folder import where_is  # noqa: PLC0415 - for what is not there

        raise InputError(f"{shown(path)}: {_no_stdin(path) or where_is(path)}")
    run = _run_around(path)
    if run is not None:
        raise InputError(f"{shown(path)}: is a part of the run {shown(run)}; name that folder")
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{shown(path)}: is a pipe or a device; save what it gives as a file, and name that")


def _no_stdin(path: Path) -> str:
    if path != Path("-"):
        return ""
    return "standard input is not read: save what it gives as a file, for files are read more than once, and name that"


def _run_around(path: Path) -> Path | None:
    """Return the run directory that a rank's folder or a file of columns belongs to; None for anything else."""
    if path.is_dir():
        return path.parent if (path / RANK_ENTRY).is_file() else None
    if path.name == MANIFEST:
        return path.parent
    if path.name == RANK_ENTRY or path.suffix == ".parquet":
        return path.parent.parent if is_run_directory(path.parent.parent) else None
    return None


def _walk(folder: Path, unreadable: dict[Path, str]) -> tuple[list[Path], list[Path]]:
    """Return run directories and files below a folder, each once; links come last and add what lies nowhere else.

    So a link `latest` beside what it points to is no second recording, and links in a circle come to an end. What
    cannot be read costs itself and goes into `unreadable`.
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
                    unreadable[entry] = "is a link to what is not there"
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
        return reader_of(head_of(path)) is not None
    except OSError:
        return True  # reading it reports what is wrong
