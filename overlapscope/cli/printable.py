"""Text from files made safe for a terminal."""

from typing import Final

from overlapscope.report.inert import inert, inert_json

MAX_LINE: Final = 2_000
"""The JSON holds warnings whole."""


def escaped(text: str) -> str:
    """Replace the same in JSON by its JSON escape."""
    if text.replace("\n", "").isprintable():
        return inert_json(text)
    import json  # noqa: PLC0415 - seldom needed

    plain = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    return inert_json(plain)


def printable(text: str) -> str:
    """Replace what a terminal or a CI log would act upon by its code."""
    return inert(text)


def one_line(text: str) -> str:
    """Give a message on one line of bounded length, whatever the names in it hold."""
    plain = printable(text).replace("\n", "\\x0a")
    return plain if len(plain) <= MAX_LINE else f"{plain[: MAX_LINE - 3]}..."
