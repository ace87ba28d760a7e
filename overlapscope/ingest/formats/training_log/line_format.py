"""The contract of a format whose lines stand among the others of a training log."""

import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from overlapscope.timeline.facts import Facts

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]?[@-~]")
_PREFIX: Final = re.compile(
    r"""(?:
      \[[0-9]{1,7}(?:,[0-9]{1,7})?\]<std(?:out|err)>:[ ]?            # mpirun
    | \[(?:default|rank)?[0-9]{1,7}\]:[ ]?                           # torchrun, torch.distributed
    | [ ]{0,7}[0-9]{1,7}:[ ]                                         # srun --label
    | \((?:[\w.-]{1,100}[ ])?pid=[0-9]{1,10}(?:,[ ]ip=[\w.:]{1,60})?\)[ ]    # Ray
    | [0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.,]{8,24}(?:Z|[+-][0-9]{2}:?[0-9]{2})[ ]     # Kubernetes
      (?:std(?:out|err)[ ][FP][ ])?
    | >[ ]?                                                          # a quotation in a report
    ){1,6}""",
    re.VERBOSE,
)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines of one format gave."""

    facts: Facts = msgspec.field(default_factory=Facts)
    lines: int = 0
    """Lines that were understood; 0 when the log has none of the format."""
    dropped: int = 0
    """Lines that are of the format, but too damaged to be understood."""
    warnings: tuple[str, ...] = ()


class LogLines(Protocol):
    """Takes the lines of one format out of a log."""

    def wants(self, line: bytes) -> bool:
        """Return whether the line may be of the format; asked of every line, so it must be quick."""

    def take(self, line: str) -> None:
        """Take a line that is wanted, without colours and launcher's prefix."""

    def found(self, source: str) -> Found:
        """Return what all lines told; `source` is the log as it is shown."""


class LogFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One format of lines."""

    name: str
    in_text: Callable[[bytes], bool]
    """Whether a part of a log surely holds lines of it, and does not merely speak of them."""
    lines: Callable[[], LogLines]


def plain(line: bytes) -> str:
    """Return a line of a log as text, without colours and without what launchers put before it."""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    found = _PREFIX.match(text)
    return text[found.end() :] if found else text
