"""Regular expressions that are searched only where their own plain text stands: a hundred of them in one name."""

import re
from collections.abc import Iterator
from typing import Final

_PART: Final = re.compile(
    r"(?P<text>(?:[\w:, -](?![?*{]))+)|(?P<aside>\(\?<?[=!])|(?P<strange>\(\?(?!:|P<)|\\[0-9N])"
    r"|(?P<open>\((?:\?(?:P<\w+>|:))?)|(?P<close>\))|(?P<bar>\|)|(?P<repeat>[?*]|\{[0-9,]*\})"
    r"|\\(?:x..|u.{4}|U.{8}|.)|\[\^?\]?(?:\\.|[^]\\])*\]|.",
    re.DOTALL,
)
"""Plain text (but no letter that may be absent), looking aside, what changes how the rest is to be read (flags,
comments, conditions, characters by number or name), a group, what may be absent, an escape, a set."""
_IGNORES_CASE: Final = "(?i)"


class Needing:
    """A regular expression, with texts of which one stands in everything it matches; compiled when one is met."""

    __slots__ = ("_compiled", "_ignores_case", "_needs", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        """The expression as it is written."""
        self._compiled: re.Pattern[str] | None = None
        self._ignores_case = pattern.startswith(_IGNORES_CASE)
        needs = needed_texts(pattern.removeprefix(_IGNORES_CASE))
        if self._ignores_case:
            # Letters other than ASCII have more cases than two.
            needs = tuple(map(str.lower, needs)) if all(map(str.isascii, needs)) else ()
        self._needs = needs

    def search(self, text: str) -> re.Match[str] | None:
        """Search it, as `re.Pattern.search` does."""
        looked_at = text.lower() if self._ignores_case else text
        for need in self._needs:
            if need in looked_at:
                break
        else:
            if self._needs and (not self._ignores_case or text.isascii()):
                return None
        if self._compiled is None:
            self._compiled = re.compile(self.pattern)
        return self._compiled.search(text)


def needed_texts(pattern: str) -> tuple[str, ...]:
    """Give texts of which at least one stands in everything the expression matches; none where that is not seen.

    Of several such choices, the one whose shortest text is longest. None is given with flags, comments, conditions, or
    characters by number or name.
    """
    if any(part.lastgroup == "strange" for part in _PART.finditer(pattern)):
        return ()
    return _of_group(_PART.finditer(pattern))


def _of_group(parts: Iterator[re.Match[str]]) -> tuple[str, ...]:
    """Read to the end of a group: all its alternatives have to need a text."""
    alternatives: list[tuple[str, ...]] = []
    best: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    for part in parts:
        kind = part.lastgroup
        if kind == "repeat":
            last = ()  # it may be absent
            continue
        best, last = _better(best, last), ()
        if kind == "text":
            last = (part[0],)
        elif kind == "open":
            last = _of_group(parts)
        elif kind == "aside":
            _of_group(parts)
        elif kind == "bar":
            alternatives.append(best)
            best = ()
        elif kind == "close":
            break
    alternatives.append(_better(best, last))
    return tuple(text for each in alternatives for text in each) if all(alternatives) else ()


def _better(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return max(one, other, key=lambda texts: min(map(len, texts), default=0))
