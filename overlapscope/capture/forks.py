"""A forked child is not the process that is recorded: it must not write its run, nor end it by a signal of its own.

Workers of a pool or of a data loader inherit handlers, exit functions and the pipe by which signals wake a thread; what
they inherit is told to stand down as they begin.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any

_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_registered = False


def in_each_child(of: Any) -> Callable[[], None]:
    """Call `of.forked()` in every child that is forked from now on; give what ends that."""
    global _registered  # noqa: PLW0603 - Python has no way to take such a function back
    if not _registered:
        os.register_at_fork(after_in_child=_stand_down)
        _registered = True
    _open.add(of)
    return lambda: _open.discard(of)


def _stand_down() -> None:
    for each in list(_open):
        each.forked()
    _open.clear()
