"""Keep the interpreter's state of a thread that is not Python's own, such as one of gloo's, from callback to callback.

The interpreter makes such a state when a thread of C++ first runs Python, and torch removes it when the callback
returns: with the memory of its frames, which is mapped and unmapped each time. That takes as long as all else that is
noted of a collective, and other threads wait for the interpreter's lock meanwhile. One reference too many keeps it.
"""

import ctypes
import threading
from typing import Final

_OF_THREAD: Final = threading.local()
"""Part of the state itself: a thread whose state was removed has none."""
_PYTHON: Final = getattr(ctypes, "pythonapi", None)
"""The interpreter's functions, where it is CPython."""


def keep_state(of_python: int) -> None:
    """Keep the calling thread's state until the process ends, unless it is the thread `of_python`, which has its own.

    Some kilobytes for each thread of a backend; the interpreter frees them when it ends, as those of its own threads.
    """
    if _PYTHON is None or threading.get_ident() == of_python or hasattr(_OF_THREAD, "kept"):
        return
    _PYTHON.PyGILState_Ensure()
    _OF_THREAD.kept = True
