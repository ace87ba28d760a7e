"""Interface of a format whose lines stand among other lines of a training log, and removal of launcher prefixes."""

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


class FoundLines(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the lines of one format."""

    facts: Facts = msgspec.field(default_factory=Facts)
    lines: int = 0
    """Lines that were parsed; 0 when the log has none of the format."""
    dropped: int = 0
    """Lines of the format that are too damaged to parse."""
    warnings: tuple[str, ...] = ()


class LogLines(Protocol):
    """Collects the lines of one format from a log."""

    def wants(self, line: bytes) -> bool:
        """Return whether the line may be of the format. This is called for every line, so it must be fast."""

    def take(self, line: str) -> None:
        """Parse a wanted line, without colours and launcher prefix."""

    def found(self, source: str) -> FoundLines:
        """Return the result of all lines; `source` is the name of the log as displayed."""


class LogFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One format of lines."""

    name: str
    in_text: Callable[[bytes], bool]
    """Return whether a part of a log certainly holds lines of the format, and does not merely mention them."""
    lines: Callable[[], LogLines]


def plain(line: bytes) -> str:
    """Return a line of a log as text, without colours and without the prefixes of launchers and log collectors."""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    found = _PREFIX.match(text)
    return text[found.end() :] if found else text
