"""What launchers and collectors of logs put before a line that a training process printed."""

import re
from typing import Final

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


def plain(line: bytes) -> str:
    """Give a line of a log as text, without colours and without what launchers put before it."""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    found = _PREFIX.match(text)
    return text[found.end() :] if found else text
