"""Find the input files of the given paths: in folders, in archives, and on remote storage."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from overlapscope.ingest.inputs.discovery import Inputs, Unpacked, discover
from overlapscope.ingest.registry import read_head

__all__ = ["MAX_UNPACKED_BYTES", "Inputs", "Unpacked", "discover", "unpacked"]

MAX_UNPACKED_BYTES: Final = 64 << 30
"""Limit for all members of all archives together."""


@contextmanager
def unpacked(
    paths: list[Path], max_bytes: int = MAX_UNPACKED_BYTES, *, within: Path | None = None
) -> Iterator[Unpacked]:
    """Yield the inputs as `discover` finds them, with the members of archives, which are deleted at the end.

    Members are unpacked into a folder `within` another one, else into the temporary folder. Raises InputError as
    `discover` does.
    """
    inputs = discover(paths)
    archives = [path for path in (*inputs.files, *inputs.passed_over) if _is_archive(path)]
    if not archives:
        yield Unpacked(inputs=inputs)
        return
    from overlapscope.ingest.inputs.archives import unpack_among  # noqa: PLC0415 - most inputs are no archives

    with unpack_among(inputs, archives, min(max_bytes, MAX_UNPACKED_BYTES), within) as found:
        yield found


def _is_archive(path: Path) -> bool:
    try:
        return read_head(path).is_archive
    except OSError:
        return False
