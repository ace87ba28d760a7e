"""Names and their placeholders: what a name is replaced by, in fields and in the middle of sentences."""

import re
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from overlapscope.analysis.rank_words import short
from overlapscope.report.own_words import COMPOUND, is_own, of_own_parts, only_own

OF_TORCH: Final = re.compile(r"(aten|c10d)::\w+(\.\w+)?")
OF_LIBRARIES: Final = re.compile(r"(?i)(nccl|rccl|gloo:|mem(cpy|set)|autograd::|Optimizer\.step)[\w:. #>()-]*")
"""How names begin that torch and its libraries give, and not the job; they end in a job's word at times."""
NUMERIC: Final = re.compile(r"[\W\d_]*|\d+(\.\d+)* ?[KMG]?i?B?/?s?")
QUAD: Final = r"\d{1,3}(?:\.\d{1,3}){3}"
ADDRESS: Final = re.compile(rf"(?<![\w.]){QUAD}(?![\w.]*\.\d)")
WIDE_ADDRESS: Final = re.compile(
    rf"(?<![\w.])(?:[0-9a-fA-F]{{0,4}}:){{2,7}}(?:{QUAD}|[0-9a-fA-F]{{1,4}}|(?<=::))(?:%\w+)?"
    r"(?=:\d{5}\b|(?!:?\w|\.\d))"
)
"""What may be an address of IPv6, before the end of a word or a port."""
DIGITS: Final = re.compile(r"\d+(?:\.\d+)?")
"""Names that cannot be told from figures in a sentence."""
PATH: Final = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\w.~-]*[/\\][^\s'\",;:()]*[\w)]")
UNIT: Final = re.compile(r"(GB|MB|KB|GiB|MiB|Gb|Mb)/s|[\d./]+")
WORDS_OF_TITLES: Final = 200
"""Length to which findings cut what they quote."""
SORTS: Final = "file|group|name|module|host|kernel|device|message|run|op|setting"
PLACEHOLDER: Final = re.compile(rf"(?:{SORTS})-\d+")


class Name(NamedTuple):
    """A name, and what it names."""

    sort: str
    text: str


class Names:
    """Placeholders by name, given out in the order in which names come.

    `told` holds words, in small letters, that sentences may hold besides our own.
    """

    def __init__(self, told: frozenset[str] = frozenset()) -> None:
        self._told = told
        self._of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._longest_first: list[str] | None = None

    def add(self, name: Name) -> None:
        """Give a name its placeholder, and those spellings under which sentences hold it."""
        if name.text in self._of or tells_nothing(name):
            return
        placeholder = self._next(name.sort)
        self._longest_first = None
        for spelled in _spellings(name):
            self._of.setdefault(spelled, placeholder)

    def whole(self, text: str) -> str | None:
        """Give the placeholder of a name; None where it has none."""
        return self._of.get(text)

    def sentence(self, text: str) -> str:
        """Replace each name in a sentence, the longest first; what looks like a path; and what is no word of ours."""
        here = [name for name in self._ordered() if name in text]
        if here:
            either = "|".join(re.escape(each) for each in here)
            text = re.sub(rf"(?<!\w)(?:{either})(?!\w)", lambda match: self._of[match[0]], text)
        text = ADDRESS.sub("address", WIDE_ADDRESS.sub(_without_address, text))
        text = PATH.sub(lambda match: match[0] if self._stays(match[0]) else "file", text)
        return COMPOUND.sub(lambda match: match[0] if self._stays(match[0]) else self._unknown(match[0]), text)

    def _stays(self, compound: str) -> bool:
        return (
            is_own(compound)
            or PLACEHOLDER.fullmatch(compound) is not None
            or UNIT.fullmatch(compound) is not None
            or compound.casefold() in self._told
            or is_public(compound)
        )

    def _unknown(self, compound: str) -> str:
        """Give a word that is not ours, in a sentence, a placeholder that it keeps."""
        if compound not in self._of:
            self._of[compound] = self._next("name")
            self._longest_first = None
        return self._of[compound]

    def _next(self, sort: str) -> str:
        at = self._counts[sort] = self._counts.get(sort, 0) + 1
        return f"{sort}-{at}"

    def _ordered(self) -> list[str]:
        if self._longest_first is None:
            told_apart = (name for name in self._of if DIGITS.fullmatch(name) is None)
            self._longest_first = sorted(told_apart, key=lambda name: (-len(name), name))
        return self._longest_first


def is_public(name: str) -> bool:
    """Whether torch or one of its libraries gave the name, and the job no part of it."""
    return OF_TORCH.fullmatch(name) is not None or (OF_LIBRARIES.fullmatch(name) is not None and of_own_parts(name))


def tells_nothing(name: Name) -> bool:
    """Whether a name can stay: a number, a name of torch's, a default."""
    if NUMERIC.fullmatch(name.text) is not None:
        return not name.text or (name.sort != "host" and not _holds_address(name.text))
    if name.sort == "name":
        return only_own(name.text)
    if name.sort == "kernel":
        return is_public(name.text) or only_own(name.text)
    return (name.sort == "module" and (is_public(name.text) or name.text == "unknown")) or (
        name.sort == "group" and name.text in ("default_pg", "WORLD")
    )


def _without_address(match: re.Match[str]) -> str:
    """Give `address` for one of IPv6; times of day, places in files and names of torch look like one at first."""
    try:
        IPv6Address(match[0])
    except ValueError:
        return match[0]
    return match[0] if match[0] == "::" or is_public(match[0]) else "address"


def _holds_address(text: str) -> bool:
    return ADDRESS.search(text) is not None or WIDE_ADDRESS.sub(_without_address, text) != text


def _spellings(name: Name) -> Iterator[str]:
    """Give a name as it is, as sentences cut it, and a path's own parts."""
    yield name.text
    for each in (" ".join(name.text.split()), short(name.text), name.text[:WORDS_OF_TITLES], repr(name.text)[1:-1]):
        if each:
            yield each
    if name.sort in ("file", "run"):
        parts = [part for part in re.split(r"[/\\]", name.text) if len(part) > 2]
        yield from parts[-1:]
        yield from (part.partition(".")[0] for part in parts[-1:] if len(part.partition(".")[0]) > 3)
