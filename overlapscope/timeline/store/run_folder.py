"""Write a folder under a temporary name and rename it when it is complete.

Not every system can exchange two folders in one step, so an older run is first renamed aside. A process that is killed
between the two steps leaves the older run aside; the next one that writes there puts it back, and readers report where
it is.

    .RUN.overlapscope-new-XXXXXXXX/       being written
    .RUN.overlapscope-old-XXXXXXXX/RUN    being replaced
"""

import glob
import os
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from overlapscope.display import display_path, list_some, shell_words
from overlapscope.errors import InputError, UsageError
from overlapscope.files.atomic import flush_path, flush_tree, umask
from overlapscope.files.temporary_folder import (
    RANDOM,
    hold_folder,
    is_own,
    locked_folder,
    make_locked_folder,
    remove_abandoned,
)
from overlapscope.timeline.store.run_directory import foreign_entries, is_run_directory

_OLD: Final = ".overlapscope-old-"
REPLACING_SECONDS: Final = 60.0
"""Longer than any process needs for the two steps."""


@contextmanager
def replace_run(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a new folder that becomes the run directory `path` when the block succeeds.

    Raises UsageError as `require_replaceable` does, InputError when it cannot be written.
    """
    require_replaceable(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_then_replace(path) as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def write_then_replace(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block succeeds, and is removed when it fails.

    `durable` is as in `move_into_place`.
    """
    _put_in_order(path)
    with locked_folder(path.parent, _prefix(path, "new")) as temporary:
        yield temporary
        move_into_place(temporary, path, durable=durable)


def move_into_place(temporary: Path, path: Path, *, durable: bool = True) -> None:
    """Rename a folder of the same file system to `path`, replacing what is there. Raises OSError.

    If `durable`, one of the two is complete after a power cut: the new folder's files are flushed to disk before it is
    renamed, and its name before the older one is removed.
    """
    os.chmod(temporary, 0o777 & ~umask())
    if durable:
        flush_tree(temporary)
    if path.exists():
        _exchange(temporary, path, durable=durable)
    else:
        os.replace(temporary, path)
        if durable:
            flush_path(path.parent)


def _exchange(temporary: Path, path: Path, *, durable: bool) -> None:
    # Aside first: at no moment is the place taken by half a run.
    aside, handle = make_locked_folder(path.parent, _prefix(path, "old"))
    try:
        os.replace(path, aside / path.name)
        os.replace(temporary, path)
        if durable:
            flush_path(path.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        with suppress(OSError):
            if not path.exists():
                os.replace(aside / path.name, path)
            aside.rmdir()  # not with a run in it
        raise
    finally:
        os.close(handle)


def require_replaceable(path: Path, *, force: bool) -> None:
    """Raise UsageError where something stands that is not replaced.

    That is anything without `force`; with it, what is no run, and a run beside whose files lie those of others.
    """
    if not is_taken(path):
        return
    if not force:
        exists = f"{path} exists already; choose another place, or replace it with"
        raise UsageError(f"{exists} force=True", in_shell=f"{exists} -f")
    if not is_run_directory(path):
        raise UsageError(f"{display_path(path)} exists and is no run directory: it is not replaced")
    require_own(path)


def require_own(run: Path, besides: Set[str] = frozenset()) -> None:
    """Raise UsageError where a folder to replace contains more than own files and the names `besides`."""
    try:
        foreign = [each for each in foreign_entries(run) if each not in besides]
    except OSError as error:
        raise InputError(f"{display_path(run)}: cannot be read: {error.strerror or error}") from error
    if foreign:
        listed = list_some([display_path(Path(each)) for each in foreign], 3)
        kept = "move what you keep, or choose another place"
        raise UsageError(f"{display_path(run)} is not replaced: {listed} would be deleted with it; {kept}")


def require_apart(inputs: Iterable[Path], out: Path) -> None:
    """Raise UsageError where writing the run directory `out` would replace an input, or write into a run that is one.

    A run may be written into a folder of traces that are read.
    """
    place = os.path.realpath(out)
    for each in inputs:
        real = os.path.realpath(each)
        if place == real or real.startswith(f"{place}{os.sep}"):
            where = "the same place" if place == real else f"inside {display_path(out)}"
            raise UsageError(f"{display_path(each)} is read, and is {where}, which is written: choose another place")
        if place.startswith(f"{real}{os.sep}") and is_run_directory(each):
            raise UsageError(f"{display_path(out)} is inside the run {display_path(each)}: choose another place")


def is_taken(path: Path) -> bool:
    """Return whether an output path exists, after restoring what an interrupted replacement left."""
    _put_in_order(path)
    return path.exists()


def _put_in_order(path: Path) -> None:
    """Put back what a killed process had put aside to replace it; where the place is taken, that is removed."""
    for run in _put_aside(path):
        with suppress(OSError), hold_folder(run.parent, REPLACING_SECONDS):
            if not path.exists():
                os.replace(run, path)
    if path.exists():
        remove_abandoned(path.parent, _prefix(path, "old"))


def explain_missing(path: Path) -> str:
    """Return why a path does not exist, and where its run is if replacing it was interrupted."""
    for run in _put_aside(path):
        return f"no such file or folder; {_put_back(run, path)}"
    if path.is_symlink():
        return f"is a link to {os.readlink(path)}, which is not there"
    return "no such file or folder"


def explain_interrupted(folder: Path) -> list[str]:
    """Return a message for each run in a folder whose replacement was interrupted: where it is."""
    found: dict[Path, Path] = {}
    with suppress(OSError):
        for aside in sorted(folder.glob(f".*{_OLD}{RANDOM}")):
            name = aside.name[1:].rpartition(_OLD)[0]
            for run in _put_aside(folder / name):
                found[run.parent.parent / name] = run
    return [f"{path}: {_put_back(run, path)}" for path, run in found.items() if not path.exists()]


def _put_back(run: Path, path: Path) -> str:
    back = f"mv {shell_words([str(run)])} {shell_words([str(path)])}"
    return f"replacing what stood there was interrupted, and this puts it back: {back}"


def _put_aside(path: Path) -> list[Path]:
    """Return where runs are that were put aside to replace `path`."""
    found: list[Path] = []
    if not path.name:
        return found
    with suppress(OSError):
        for aside in sorted(path.parent.glob(glob.escape(_prefix(path, "old")) + RANDOM)):
            with suppress(OSError):  # another process removes it
                if is_own(aside.lstat()) and (aside / path.name).exists():
                    found.append(aside / path.name)
    return found


def _prefix(path: Path, what: str) -> str:
    return f".{path.name}.overlapscope-{what}-"
