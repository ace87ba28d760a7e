"""A document without the names of anybody's hosts, modules, files, groups and kernels: every figure stays as it is.

A name becomes a placeholder of its sort, as `module-3`: the same name the same one throughout. The text of a field
that names something is replaced; in sentences, those names are replaced wherever they stand; what other programs
wrote (messages of logs, warnings of readers) is withheld whole, as nobody knows what it names. Numbers that stand for a
name, as group 0, tell nothing and stay.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from overlapscope.analysis.identity import ENVIRONMENT
from overlapscope.analysis.rank_words import short

D = TypeVar("D", bound=msgspec.Struct)
SORTS: Final[Mapping[str, str]] = {
    "path": "file", "source": "file", "called_at": "file", "file": "file", "files": "file",
    "group": "group", "communicator": "group", "groups": "group", "pipeline": "group", "timer": "name",
    "module": "module", "modules": "module", "run": "run",
    "host": "host", "hosts": "host", "host_name": "host", "hostname": "host",
    "host_op": "kernel", "kernel": "kernel", "kernels": "kernel", "names": "kernel",
    "nic": "device", "bus": "device", "cards": "device", "interface": "device",
    "a": "device", "b": "device", "pairs": "device",
    "subject": "name", "tensor": "name",
    "text": "message", "warnings": "message", "first": "message",
}  # fmt: skip
"""What the text of a field, or the texts in it, name."""
INSIDE: Final[Mapping[str, str]] = {
    "base": "run", "candidate": "run", "runs": "run", "left_out": "run",
    "grown": "kernel", "shrunk": "kernel", "operations": "kernel",
}  # fmt: skip
"""What `name` is of a thing in such a list, and what the texts of such a list are."""
KEYS: Final[Mapping[str, str]] = {"module": "module"}
"""What the keys of such an object are."""
KEPT: Final = frozenset({
    "schema", "severity", "known_from", "estimate", "verdict", "reason", "unit", "over_ranks", "better", "test", "kind",
    "change", "window", "sort", "scope", "confidence", "held_by", "dimension", "phase", "dtype", "format", "algorithm",
    "protocol", "pattern", "side", "gpu_direct", "in_place", "transport", "library", "part", "algorithms", "key",
    "metrics", "budgets", "keys", "unknown_keys", "floor_differs", "network", "op", "figure",
})  # fmt: skip
"""Fields that hold words of ours, or of a library everybody has."""
TOLD_KEPT: Final = frozenset(
    {"kind", "name", "op", "dtype", "algorithm", "protocol", "pattern", "transport", "library"}
)
"""Of the rows of `told` these columns; all others name something of this job."""
OP_WORDS: Final = frozenset({
    "all", "reduce", "gather", "scatter", "to", "broadcast", "barrier", "send", "recv", "v", "vc", "coalesced", "base",
    "single", "alltoall", "allreduce", "allgather", "reducescatter", "isend", "irecv", "p2p", "uneven",
    "group", "unknown", "collective",
})  # fmt: skip
PUBLIC: Final = re.compile(r"(?i)(aten::|c10d::|nccl|rccl|gloo:|mem(cpy|set)|autograd::|Optimizer\.step)[\w:. #>-]*")
"""Names that torch and its libraries give, and not the job."""
NUMERIC: Final = re.compile(r"[\W\d_]*|\d+(\.\d+)* ?[KMG]?i?B?/?s?")
PATH: Final = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\w.~-]*[/\\][^\s'\",;:()]*[\w)]")
WORDS_OF_TITLES: Final = 200
"""Length to which findings cut what they quote."""


class _Name(NamedTuple):
    sort: str
    text: str


def redacted(document: D) -> D:
    """Give the document with placeholders for names; the same input gives the same placeholders."""
    content = msgspec.to_builtins(document)
    names = _Names()
    for found in _named(content, "", ""):
        names.add(found)
    return msgspec.convert(names.replaced(content, "", ""), type(document))


class _Names:
    """Placeholders by name, given out in the order in which names come."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._longest_first: list[str] | None = None

    def add(self, name: _Name) -> None:
        """Give a name its placeholder, and those spellings under which sentences hold it."""
        if name.text in self._of or _tells_nothing(name):
            return
        at = self._counts[name.sort] = self._counts.get(name.sort, 0) + 1
        placeholder = f"{name.sort}-{at}"
        self._longest_first = None
        for spelled in _spellings(name):
            self._of.setdefault(spelled, placeholder)

    def whole(self, text: str) -> str:
        """Give the placeholder of a name; itself where it has none."""
        return self._of.get(text, text)

    def sentence(self, text: str) -> str:
        """Replace each name in a sentence, the longest first, and what looks like a path."""
        here = [name for name in self._ordered() if name in text]
        if here:
            either = "|".join(re.escape(each) for each in here)
            text = re.sub(rf"(?<!\w)(?:{either})(?!\w)", lambda match: self._of[match[0]], text)
        return PATH.sub(lambda match: match[0] if _is_ratio(match[0]) else "file", text)

    def _ordered(self) -> list[str]:
        if self._longest_first is None:
            self._longest_first = sorted(self._of, key=lambda name: (-len(name), name))
        return self._longest_first

    def replaced(self, value: Any, key: str, above: str) -> Any:
        """Give a value with placeholders, by the field that holds it and the one above that."""
        if isinstance(value, str):
            if key == "id":
                kind, colon, place = value.partition(":")
                return f"{kind}{colon}{self.whole(place) if place in self._of else self.sentence(place)}"
            if _sort(key, above) is not None and not _op_of_ours(key, value):
                return self.whole(value)
            return value if key in KEPT else self.sentence(value)
        if isinstance(value, list):
            return [self.replaced(each, key, above) for each in value]
        if isinstance(value, dict):
            return {
                (self.whole(name) if key in KEYS or key == "evidence" else name): self.replaced(each, field, key)
                for name, field, each in _fields(value)
            }
        return value


def _named(value: Any, key: str, above: str) -> Iterator[_Name]:
    """Give every name of a document, by the field that holds it."""
    if isinstance(value, str):
        sort = _sort(key, above)
        if sort is not None and not _op_of_ours(key, value):
            yield _Name(sort, value)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, key, above)
    elif isinstance(value, dict):
        if key in KEYS:
            yield from (_Name(KEYS[key], name) for name in value)
        for _, field, each in _fields(value):
            yield from _named(each, field, key)


def _fields(value: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Give the name of each field, the name it is judged by, and its value.

    Where an object tells of one key of many, what both sides had is judged as that key's value would be.
    """
    private = str(value.get("key", "")).startswith(ENVIRONMENT)
    for name, each in value.items():
        yield name, ("setting" if private and name in ("base", "candidate", "before", "after") else name), each


def _sort(key: str, above: str) -> str | None:
    """Say what the text of a field names; None for a sentence or a word of ours."""
    if key == "name":
        return INSIDE.get(above)
    if key in ("op", "setting"):
        return key
    if above == "rows":
        return None if key in TOLD_KEPT else SORTS.get(key, "name")
    if above in ("fingerprint", "identity"):
        return "setting" if key.startswith(ENVIRONMENT) else SORTS.get(key)
    if key in ("runs", "left_out") and above in ("evidence", ""):
        return "run"
    return SORTS.get(key) if key not in KEPT else None


def _op_of_ours(key: str, value: str) -> bool:
    return key == "op" and set(value.split("_")) <= OP_WORDS


def _tells_nothing(name: _Name) -> bool:
    return (
        NUMERIC.fullmatch(name.text) is not None
        or (name.sort in ("kernel", "module") and (PUBLIC.fullmatch(name.text) is not None or name.text == "unknown"))
        or (name.sort == "group" and name.text in ("default_pg", "WORLD"))
    )


def _spellings(name: _Name) -> Iterator[str]:
    """Give a name as it is, as sentences cut it, and a path's own parts."""
    yield name.text
    for each in (" ".join(name.text.split()), short(name.text), name.text[:WORDS_OF_TITLES], repr(name.text)[1:-1]):
        if each:
            yield each
    if name.sort in ("file", "run"):
        parts = [part for part in re.split(r"[/\\]", name.text) if len(part) > 2]
        yield from parts[-1:]
        yield from (part.partition(".")[0] for part in parts[-1:] if len(part.partition(".")[0]) > 3)


def _is_ratio(text: str) -> bool:
    """Whether what has a slash is a unit or a ratio, as GB/s or 3/4."""
    return re.fullmatch(r"(GB|MB|KB|GiB|MiB|Gb|Mb)/s|[\d./]+|\w{1,9}/\w{1,9}", text) is not None
