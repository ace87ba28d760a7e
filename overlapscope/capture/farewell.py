"""A profile that is still open when the job's process groups go ends before they do.

Jobs take their groups down as their last act; after that, ranks could not leave word for rank 0, and which groups
there were could no longer be asked.
"""

from collections.abc import Callable
from typing import Any


class Farewell:
    """While open, calls `leave` before `torch.distributed.destroy_process_group` takes down the whole job."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._undo: Callable[[], None] | None = None

    def open(self) -> None:
        """Stand before the function, wherever it is called by its module's name."""
        from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

        if not distributed.is_available():
            return
        original = distributed.destroy_process_group
        places = (distributed, distributed.distributed_c10d)

        def destroy_process_group(group: Any = None) -> None:
            if group in (None, distributed.GroupMember.WORLD):
                self._leave()
            original(group)

        def undo() -> None:
            for place in places:
                if place.destroy_process_group is destroy_process_group:
                    place.destroy_process_group = original

        for place in places:
            place.destroy_process_group = destroy_process_group
        self._undo = undo

    def close(self) -> None:
        """Step aside."""
        if self._undo is not None:
            self._undo()
            self._undo = None
