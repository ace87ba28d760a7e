"""Text from files made safe for a terminal."""

import json
from typing import Final

MAX_LINE: Final = 2_000
"""The JSON holds warnings whole."""


def escaped(text: str) -> str:
    """Replace the same in JSON by its JSON escape."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Replace what a terminal would act upon (control characters, changes of direction) by its code."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)


def one_line(text: str) -> str:
    """Give a message on one line of bounded length, whatever the names in it hold."""
    plain = printable(text).replace("\n", "\\x0a")
    return plain if len(plain) <= MAX_LINE else f"{plain[: MAX_LINE - 3]}..."
