"""Files beside a run that are this user's own: a link, or what another user put there, is neither read nor written.

Whoever may write into a run directory may put a link there under any name; what would go through it goes nowhere.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def own_folder(folder: Path) -> Iterator[int]:
    """Hold a folder open, for the names in it; raises OSError where it is a link or another user's."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _must_be_own(os.fstat(handle), stat.S_IFDIR)
        yield handle
    finally:
        os.close(handle)


def opened_own(file: str | Path, within: int | None = None) -> BinaryIO:
    """Open a file to read it, `within` a folder that is held if given.

    Raises OSError for a link, or for no plain file of this user.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    with ExitStack() as held:
        held.callback(os.close, handle)
        _must_be_own(os.fstat(handle), stat.S_IFREG)
        opened = os.fdopen(handle, "rb")
        held.pop_all()
    return opened


def _must_be_own(state: os.stat_result, kind: int) -> None:
    if state.st_uid != os.geteuid() or stat.S_IFMT(state.st_mode) != kind:
        raise OSError("another user's, or of another kind")
