"""What stands below the folder that is served: runs by opaque id, newest first, broken and incomplete ones with why."""

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.display import shown
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.files.safe_open import file_state
from overlapscope.timeline.store.manifest import read_manifest, recorded_ranks
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.timeline.store.run_folder import where_is

MAX_DEPTH: Final = 6
"""Folders below the root that are searched for runs ..."""
MAX_FOLDERS: Final = 20_000
"""... and how many of them ..."""
MAX_RUNS: Final = 1_000
"""... and how many runs are listed."""
MAX_FILES: Final = 50_000
"""Files of one run that are looked at to see whether it changed."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run lies. Only `id`, `name` and `typed` are ever sent to a browser."""

    id: str
    name: str
    inputs: tuple[Path, ...]
    """What is read, as `analyze` takes it."""
    root: Path
    """Nothing outside it is read."""
    typed: str
    """Its path for a command line, quoted, below the folder as that was typed; empty where it is several paths."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The runs below a root, in the order of their names, and what was passed over."""

    places: tuple[Place, ...]
    notes: tuple[str, ...] = ()


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of a run without opening its tables; None where that is not known before it is read."""

    place: Place
    changed_ns: int
    ranks: int | None = None
    world_size: int | None = None
    steps: int | None = None
    software: str = ""
    problem: str = ""
    """Why it cannot be read; empty where nothing speaks against it."""

    @property
    def incomplete(self) -> bool:
        """Return whether ranks are missing: of a run that is being recorded they may still come."""
        return self.world_size is not None and self.ranks is not None and self.ranks < self.world_size


def find(roots: Sequence[Path]) -> Places:
    """Find the runs below one folder; several paths, a file, or a folder without runs are one run together.

    Links that lead out of the folder are not followed. Raises InputError where a path does not exist.
    """
    for path in roots:
        if not path.exists():
            raise InputError(f"{shown(path)}: {where_is(path)}")
    only = roots[0]
    if len(roots) > 1 or not only.is_dir():
        common = Path(os.path.commonpath([each.resolve().parent for each in roots]))
        return Places(places=(_place(tuple(roots), common, shown(Path(only.name))),))
    if is_run_directory(only):
        return Places(places=(_place((only,), only, shown(Path(only.resolve().name))),))
    found, notes = _search(only)
    if not found and any(_files(only)):
        found = [_place((only,), only, shown(Path(only.resolve().name)))]
    return Places(places=tuple(found), notes=notes)


def changed(place: Place) -> tuple[str, int]:
    """Return what tells whether a run's files are still the same, and when the newest of them was written.

    A file that is gone before it is looked at counts as gone. Raises InputError for a run with a link that leads out of
    the folder that is served, or to nothing.
    """
    told = hashlib.blake2b(digest_size=12)
    newest = 0
    try:
        for each in place.inputs:
            beyond = not _within(each, place.root)
            for file, state in _files(each):
                # Folders that are links are not followed: only links can lead out.
                leads_on = stat.S_ISLNK(state.st_mode) or beyond
                there = _beyond(Path(file), place) if leads_on else state
                told.update(b"%b\0%d\0%d\0%d\0%d\0" % (os.fsencode(file), *file_state(there)))
                newest = max(newest, there.st_mtime_ns)
    except OSError as error:
        named = _named(Path(os.fsdecode(error.filename or place.inputs[0])), place)
        raise InputError(f"{named}: cannot be read: {error.strerror}") from error
    return told.hexdigest(), newest


def _beyond(file: Path, place: Place) -> os.stat_result:
    """Return the state of what a link leads to; raises InputError where that is outside, or nothing."""
    if not _within(file, place.root):
        raise InputError(f"{_named(file, place)}: leads out of the folder served")
    try:
        return file.stat()
    except OSError as error:
        raise InputError(f"{_named(file, place)}: leads to nothing that can be read") from error


def _named(file: Path, place: Place) -> str:
    root = place.root.absolute()
    return shown(file.relative_to(root) if file.is_relative_to(root) else Path(file.name))


def listed(place: Place) -> Listed:
    """Tell of a run what its own entries tell; a broken one is told with its reason."""
    newest = 0
    try:
        _, newest = changed(place)
        if len(place.inputs) > 1 or not is_run_directory(place.inputs[0]):
            return Listed(place=place, changed_ns=newest, software="traces")
        return _of_directory(place, newest)
    except OverlapScopeError as error:
        return Listed(place=place, changed_ns=newest, problem=without_root(str(error), place))
    except OSError as error:
        return Listed(place=place, changed_ns=newest, problem=f"cannot be read: {error.strerror or 'unknown error'}")


def newest_first(places: Sequence[Place]) -> list[Listed]:
    """Tell of all runs."""
    return sorted((listed(each) for each in places), key=lambda each: (-each.changed_ns, each.place.name))


def _of_directory(place: Place, newest: int) -> Listed:
    folder = place.inputs[0]
    manifest = read_manifest(folder)
    ranks = recorded_ranks(folder, manifest)
    known = manifest.fingerprint
    words = [str(known[key]) for key in ("device", "backend") if known.get(key)]
    if known.get("torch_version"):
        words.append(f"torch {known['torch_version']}")
    return Listed(
        place=place,
        changed_ns=newest,
        ranks=len(ranks),
        world_size=manifest.world_size,
        steps=max((len(each.steps) for each in ranks), default=None),
        software=", ".join(" ".join(each.split()) for each in words),
        problem="" if ranks else "no rank is recorded yet",
    )


def _place(inputs: tuple[Path, ...], root: Path, name: str) -> Place:
    absolute = tuple(each.absolute() for each in inputs)
    key = "\0".join(os.path.relpath(each, root.absolute()) for each in absolute)
    digest = hashlib.blake2b(os.fsencode(key), digest_size=6).hexdigest()
    typed = shlex.quote(shown(inputs[0])) if len(inputs) == 1 else ""
    return Place(id=digest, name=name, inputs=absolute, root=root, typed=typed)


def _search(root: Path) -> tuple[list[Place], tuple[str, ...]]:
    found: list[Place] = []
    notes: list[str] = []
    outside = folders = 0
    seen: set[Path] = set()
    waiting = [(root, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        folders += 1
        if len(found) == MAX_RUNS or folders > MAX_FOLDERS:
            notes.append(
                f"more than {MAX_RUNS} runs or {MAX_FOLDERS} folders: name a folder further down to see others"
            )
            break
        try:
            real = here.resolve()
        except (OSError, RuntimeError):  # replaced by a link in a circle since it was found
            continue
        if real in seen:
            continue
        seen.add(real)
        if depth and is_run_directory(here):
            found.append(_place((here,), root, shown(here.relative_to(root))))
        elif depth < MAX_DEPTH:
            inside = _folders(here)
            outside += sum(not _within(each, root) for each in inside)
            waiting += [(each, depth + 1) for each in inside if _within(each, root)]
    if outside:
        notes.append(f"links that lead out of the folder are not followed: {outside}")
    return sorted(found, key=lambda each: each.name), tuple(notes)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, links last: what a link leads to counts where it stands itself."""
    try:
        inside = [each for each in sorted(folder.iterdir()) if not each.name.startswith(".") and each.is_dir()]
    except OSError:
        return []  # one that may not be read hides its runs, and no others
    return sorted(inside, key=Path.is_symlink)


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a run, at most MAX_FILES, as they are; links are given themselves, and not followed.

    Of many ranks they are ten thousand, and they are looked at whenever a page is: this goes without a `Path` for each.
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
            continue  # one that may not be read hides what is in it
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


def _within(path: Path, root: Path) -> bool:
    """Return whether a path leads to a place below the root; a link that leads in a circle leads to none."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def without_root(message: str, place: Place) -> str:
    """Name files as they stand below the root: where that lies is nobody's business."""
    return message.replace(f"{shown(place.root.absolute())}/", "").replace(shown(place.root.absolute()), place.name)
