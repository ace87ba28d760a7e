"""A folder that is written under a temporary name and takes its place whole, or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.run import is_run_directory


@contextmanager
def replace_run(path: Path) -> Iterator[Path]:
    """Give a new folder that becomes the run directory `path` when the block succeeds, in place of an older run.

    Raises UsageError when something that is no run stands there, InputError when it cannot be written.
    """
    if path.exists() and not is_run_directory(path):
        raise UsageError(f"{path} exists and is no run directory: it is not replaced")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside_place(path) as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def beside_place(path: Path) -> Iterator[Path]:
    """Give a temporary folder that takes the place of `path` when the block succeeds, and goes when it fails."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        take_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def take_place(temporary: Path, path: Path) -> None:
    """Let a folder of the same file system become `path`, in place of what stands there. Raises OSError."""
    os.chmod(temporary, 0o777 & ~umask())
    if path.exists():
        # Aside first: at no moment is the place taken by half a run.
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        os.replace(path, aside / path.name)
        try:
            os.replace(temporary, path)
        except BaseException:
            if not path.exists():
                os.replace(aside / path.name, path)
                aside.rmdir()
            raise
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.replace(temporary, path)


def umask() -> int:
    """Give the process's file creation mask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
