"""The file in a run directory that keeps what was predicted from the run, and what later runs measured: its reading."""

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from overlapscope.errors import InputError
from overlapscope.files.safe_open import open_regular

NAME: Final = "predictions.json"
MAX_BYTES: Final = 16 * 2**20
T = TypeVar("T")


def read_predictions(run: Path, kind: type[T]) -> T | None:
    """Return what a run directory keeps, as `kind`; None where it keeps nothing.

    Raises InputError where the file cannot be read or understood.
    """
    place = run / NAME
    try:
        with open_regular(place) as file:
            content = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{place}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{place}: is larger than {MAX_BYTES // 2**20} MiB")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{place}: holds no predictions: {error}; move it away to go on without them") from error
