"""Find the line of the user's code that runs: the innermost frame that is not torch's, Python's or ours."""

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

_OWN: Final = str(Path(__file__).parents[1])
_PACKAGES: Final = "site-packages"
_NOT_USERS: Final = frozenset({"torch", "torchgen", "functorch", "numpy", "typing_extensions"})
"""Packages whose lines say nothing of a step: another package, such as one of models, counts as the user's code."""


def line_of_caller() -> str | None:
    """Return the line of the user's code that is running, as `file.py:34`; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = _user_file(frame.f_code.co_filename)
        if file is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def line_of_traceback(traceback: TracebackType | None) -> str | None:
    """Return the innermost line of the user's code in a traceback; None where there is none."""
    found = None
    while traceback is not None:
        file = _user_file(traceback.tb_frame.f_code.co_filename)
        if file is not None:
            found = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


@cache
def _user_file(name: str) -> str | None:
    """Return the name that a code's file is shown under; None where it is none of the user's."""
    if name.startswith("<") or name.startswith(_OWN):
        return None
    path = Path(name)
    if _PACKAGES in path.parts:
        inside = path.parts[path.parts.index(_PACKAGES) + 1 :]
        return None if inside[0].removesuffix(".py") in _NOT_USERS else "/".join(inside)
    if name.startswith(_standard_library()) or ("torch/" in name.replace("\\", "/") and _is_torch(name)):
        return None
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


@cache
def _standard_library() -> str:
    return sysconfig.get_path("stdlib")


def _is_torch(name: str) -> bool:
    import torch  # noqa: PLC0415 - loaded only where a step runs

    return name.startswith(str(Path(torch.__file__).parent))
