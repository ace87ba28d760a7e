"""Text from files, made so that neither a terminal nor a CI log acts upon it."""

import re
from typing import Final

_COMMANDS: Final = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
"""What CI services read as commands: `::name` at the start of a line (GitHub; blanks before it do not matter), and
`##[name`, `##vso[` or `##teamcity[` anywhere."""


def inert(text: str) -> str:
    r"""Replace control characters, changes of direction and the beginnings of CI commands by their code, as in `\x1b`.

    Line feeds stay.
    """
    shown = text
    if not text.replace("\n", "").isprintable():
        shown = "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
    return _COMMANDS.sub(lambda match: rf"{match[1]}\x3a" if match[1] is not None else r"\x23", shown)


def one_row(text: str) -> str:
    r"""Replace line feeds by their code, `\x0a`: a name in a table or a finding begins no line of its own."""
    return text.replace("\n", r"\x0a")


def inert_json(text: str) -> str:
    """Break the beginnings of CI commands in JSON, where they can only stand inside strings."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)
