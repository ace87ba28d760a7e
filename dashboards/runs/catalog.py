"""The runs below the served folder: opaque ids, newest first, and for broken or incomplete runs the reason."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path, shell_words
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.files.safe_open import file_state
from overlapscope.fleet.find import unique_names
from overlapscope.timeline.run import began
from overlapscope.timeline.store.manifest import read_manifest, recorded_ranks
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.timeline.store.run_folder import explain_missing

MAX_DEPTH: Final = 6
"""Levels of folders below the root that are searched for runs ..."""
MAX_FOLDERS: Final = 20_000
"""... the most folders searched ..."""
MAX_RUNS: Final = 1_000
"""... and the most runs listed."""
MAX_FILES: Final = 50_000
"""Files of one run that are checked for changes."""


class RunLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is. Only `id`, `name` and `quoted_path` are ever sent to a browser."""

    id: str
    name: str
    inputs: tuple[Path, ...]
    """The inputs to read, as for `analyze`."""
    root: Path
    """Nothing outside this folder is read."""
    quoted_path: str
    """Its path as typed, quoted for a command line; empty for several paths, and for one job of several."""
    job: int | None = None
    """Which job of the inputs it is, where they are known to hold several."""
    read_as: str = ""
    """The id of the inputs: that of the run, but for one job of several."""


class RunLocations(msgspec.Struct, frozen=True, kw_only=True):
    """The runs below a root, ordered by name, and remarks about skipped ones."""

    runs: tuple[RunLocation, ...]
    notes: tuple[str, ...] = ()


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a run without opening its tables; None where it is known only after reading."""

    location: RunLocation
    changed_ns: int
    """Time of its newest file."""
    revision: str = ""
    """Changes with its files."""
    size_bytes: int = 0
    """Of its files."""
    began_ns: int | None = None
    """When its recording began, by its own clock."""
    ranks: int | None = None
    world_size: int | None = None
    problem: str = ""
    """Why it cannot be read; empty where no problem is known."""

    @property
    def when_ns(self) -> int:
        """When it was recorded, or where it does not say so, when its files changed: a copy has the time of copying."""
        return self.changed_ns if self.began_ns is None else self.began_ns

    @property
    def incomplete(self) -> bool:
        """Return whether ranks are missing; they may still arrive while the run is recorded."""
        return self.world_size is not None and self.ranks is not None and self.ranks < self.world_size


def find_runs(roots: Sequence[Path]) -> RunLocations:
    """Return the runs below folders, and run directories; other files and folders together form one run.

    Links that point outside a folder are not followed. Raises InputError where a path does not exist.
    """
    for path in roots:
        if not path.exists():
            raise InputError(f"{display_path(path)}: {explain_missing(path)}")
    if len(roots) > 1:
        return _of_several(roots)
    only = roots[0]
    if not only.is_dir():
        return RunLocations(runs=(_locate((only,), only.resolve().parent, display_path(Path(only.name))),))
    if is_run_directory(only):
        return RunLocations(runs=(_locate((only,), only, display_path(Path(only.resolve().name))),))
    found, notes = _search(only)
    if not found and any(_files(only)):
        found = [_locate((only,), only, display_path(Path(only.resolve().name)))]
    return RunLocations(runs=tuple(found), notes=notes)


def _of_several(roots: Sequence[Path]) -> RunLocations:
    """Return the runs of several paths. Their ids depend on where these lie from each other, not on the machine."""
    common = Path(os.path.commonpath([each.resolve().parent for each in roots]))
    found: dict[Path, RunLocation] = {}
    notes: list[str] = []
    others = []
    for each in roots:
        below, own_notes = (
            ([_locate((each,), each, display_path(Path(each.resolve().name)))], ())
            if (is_run_directory(each))
            else _search(each)
            if each.is_dir()
            else ([], ())
        )
        if not below:
            others.append(each)
        notes += own_notes
        for run in below:
            place = run.inputs[0].resolve()
            key = _id_of((place,), common)
            found.setdefault(place, replace(run, id=key, read_as=key))
    names = unique_names([each.name for each in found.values()])
    runs = [replace(each, name=name) for each, name in zip(found.values(), names, strict=True)]
    if others:
        runs.append(_locate(tuple(others), common, display_path(Path(others[0].name))))
    return RunLocations(runs=tuple(sorted(runs, key=lambda each: each.name)), notes=tuple(dict.fromkeys(notes)))


def each_job(location: RunLocation, titles: Sequence[str]) -> list[RunLocation]:
    """Return one location for each job of these titles that the inputs of a location hold, named by the job's files."""
    return [
        replace(location, id=f"{location.id}-{number}", name=f"{location.name}: {title.partition(': ')[2] or title}",
                quoted_path="", job=number)
        for number, title in enumerate(titles)
    ]  # fmt: skip


def run_revision(location: RunLocation) -> tuple[str, int, int]:
    """Return a digest of the state of a run's files, the time (ns since the epoch) of the newest, and their bytes.

    A file deleted meanwhile is not counted. Raises InputError for a run with a link that points outside the served
    folder, or to nothing.
    """
    digest = hashlib.blake2b(digest_size=12)
    newest = size = 0
    try:
        for each in location.inputs:
            leads_outside = not _is_inside(each, location.root)
            for file, state in _files(each):
                # Folders that are links are not followed, so only links can point outside.
                leads_on = stat.S_ISLNK(state.st_mode) or leads_outside
                there = _link_target(Path(file), location) if leads_on else state
                digest.update(b"%b\0%d\0%d\0%d\0%d\0" % (os.fsencode(file), *file_state(there)))
                newest = max(newest, there.st_mtime_ns)
                size += there.st_size
    except OSError as error:
        named = _display_name(Path(os.fsdecode(error.filename or location.inputs[0])), location)
        raise InputError(f"{named}: cannot be read: {error.strerror}") from error
    return digest.hexdigest(), newest, size


def _link_target(file: Path, location: RunLocation) -> os.stat_result:
    """Return the state of a link's target; raises InputError where that is outside or missing."""
    if not _is_inside(file, location.root):
        raise InputError(f"{_display_name(file, location)}: points outside the served folder")
    try:
        return file.stat()
    except OSError as error:
        raise InputError(f"{_display_name(file, location)}: its target cannot be read") from error


def _display_name(file: Path, location: RunLocation) -> str:
    root = location.root.absolute()
    return display_path(file.relative_to(root) if file.is_relative_to(root) else Path(file.name))


def describe_run(location: RunLocation) -> CatalogEntry:
    """Return the catalog entry of a run from its manifest; for a broken run with the reason."""
    newest = 0
    try:
        revision, newest, size = run_revision(location)
        files = CatalogEntry(location=location, changed_ns=newest, revision=revision, size_bytes=size)
        if len(location.inputs) > 1 or not is_run_directory(location.inputs[0]):
            return files
        return _of_directory(files)
    except OverlapScopeError as error:
        return CatalogEntry(location=location, changed_ns=newest, problem=without_root(str(error), location))
    except OSError as error:
        return CatalogEntry(
            location=location, changed_ns=newest, problem=f"cannot be read: {error.strerror or 'unknown error'}"
        )


def list_newest_first(runs: Sequence[RunLocation]) -> list[CatalogEntry]:
    """Return the catalog entries of runs, newest first."""
    return sorted((describe_run(each) for each in runs), key=lambda each: (-each.when_ns, each.location.name))


def _of_directory(files: CatalogEntry) -> CatalogEntry:
    folder = files.location.inputs[0]
    manifest = read_manifest(folder)
    ranks = recorded_ranks(folder, manifest)
    return replace(
        files,
        began_ns=began(each.start_ns for each in ranks),
        ranks=len(ranks),
        world_size=manifest.world_size,
        problem="" if ranks else "no rank is recorded yet",
    )


def _locate(inputs: tuple[Path, ...], root: Path, name: str) -> RunLocation:
    absolute = tuple(each.absolute() for each in inputs)
    digest = _id_of(absolute, root.absolute())
    quoted_path = shell_words([display_path(inputs[0])]) if len(inputs) == 1 else ""
    return RunLocation(id=digest, name=name, inputs=absolute, root=root, quoted_path=quoted_path, read_as=digest)


def _id_of(inputs: Sequence[Path], root: Path) -> str:
    key = "\0".join(os.path.relpath(each, root) for each in inputs)
    return hashlib.blake2b(os.fsencode(key), digest_size=6).hexdigest()


def _search(root: Path) -> tuple[list[RunLocation], tuple[str, ...]]:
    found: list[RunLocation] = []
    notes: list[str] = []
    outside = folders = 0
    seen: set[Path] = set()
    waiting = [(root, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        folders += 1
        if len(found) == MAX_RUNS or folders > MAX_FOLDERS:
            notes.append(f"more than {MAX_RUNS} runs or {MAX_FOLDERS} folders: serve a subfolder to see the others")
            break
        try:
            real = here.resolve()
        except (OSError, RuntimeError):  # meanwhile replaced by a circular link
            continue
        if real in seen:
            continue
        seen.add(real)
        if depth and is_run_directory(here):
            found.append(_locate((here,), root, display_path(here.relative_to(root))))
        elif depth < MAX_DEPTH:
            inside = _folders(here)
            outside += sum(not _is_inside(each, root) for each in inside)
            waiting += [(each, depth + 1) for each in inside if _is_inside(each, root)]
    if outside:
        notes.append(f"links that point outside the folder are not followed: {outside}")
    return sorted(found, key=lambda each: each.name), tuple(notes)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, links last, so that a linked folder is found at its real path first."""
    try:
        inside = [each for each in sorted(folder.iterdir()) if not each.name.startswith(".") and each.is_dir()]
    except OSError:
        return []  # an unreadable folder hides only its own runs
    return sorted(inside, key=Path.is_symlink)


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, state) of the files of a run, at most MAX_FILES; links are yielded themselves, not followed.

    A run of many ranks has ten thousand files, and each view of a page checks them: so no `Path` is built for each.
    """
    if path.is_file():
        yield str(path), path.lstat()
        return
    number = 0
    waiting = [str(path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as inside:
                found = sorted((each for each in inside if not each.name.startswith(".")), key=lambda each: each.name)
        except OSError:
            continue  # an unreadable folder hides its files
        for each in found:
            if each.is_dir(follow_symlinks=False):
                waiting.append(each.path)
                continue
            if (number := number + 1) > MAX_FILES:
                return
            try:
                yield each.path, each.stat(follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                continue


def _is_inside(path: Path, root: Path) -> bool:
    """Return whether a path resolves to a place below the root; a circular link does not."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def without_root(message: str, location: RunLocation) -> str:
    """Return a message with paths relative to the root, so that the location of the root stays private."""
    return message.replace(f"{display_path(location.root.absolute())}/", "").replace(
        display_path(location.root.absolute()), location.name
    )
