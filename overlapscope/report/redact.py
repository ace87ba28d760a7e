"""A document without the names of anybody's hosts, modules, files, groups and kernels: every figure stays as it is.

A name becomes a placeholder of its sort, as `module-3`: the same name the same one throughout. The text of a field
that names something is replaced; in all other text those names are replaced wherever they stand, and so is, as
`name-3`, whatever is no word of our own: a name that stands in a sentence and in no field is not known for one, but
neither is it ours. What other programs wrote (messages of logs, warnings of readers) is withheld whole, as nobody knows
what it names. Numbers that stand for a name, as group 0, tell nothing and stay; addresses do not.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from overlapscope.analysis.identity import ENVIRONMENT
from overlapscope.report.own_words import COMPOUND, is_operation, of_own_parts, only_own
from overlapscope.report.redact_names import Name, Names

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
    "change", "window", "sort", "scope", "confidence", "held_by", "op",
})  # fmt: skip
"""Fields that hold words of ours, unless a sentence there quotes something else."""
OF_LIBRARIES: Final = frozenset(
    {"algorithm", "algorithms", "protocol", "pattern", "transport", "library", "network", "gpu_direct", "format"}
)
"""Fields that hold words of a library everybody has, where they are made of such."""
VERSIONS: Final = re.compile(r"device|backend|python|\w+_version")
"""Keys of a fingerprint whose values are told: the device's model, and versions."""


def redacted(document: D) -> D:
    """Give the document with placeholders for names; the same input gives the same placeholders."""
    content = msgspec.to_builtins(document)
    names = Names(frozenset(word.casefold() for value in _told(content, "", "") for word in COMPOUND.findall(value)))
    for found in _named(content, "", ""):
        names.add(found)
    return msgspec.convert(_replaced(content, "", "", names), type(document))


def _replaced(value: Any, key: str, above: str, names: Names) -> Any:
    """Give a value with placeholders, by the field that holds it and the one above that."""
    if isinstance(value, str):
        if key == "id":
            kind, colon, place = value.partition(":")
            return f"{kind}{colon}{names.whole(place) or names.sentence(place)}"
        if _kept(key, above, value):
            return value
        return (names.whole(value) if _sort(key, above) is not None else None) or names.sentence(value)
    if isinstance(value, list):
        return [_replaced(each, key, above, names) for each in value]
    if isinstance(value, dict):
        return {_key(name, key, names): _replaced(each, field, key, names) for name, field, each in _fields(value)}
    return value


def _key(name: str, inside: str, names: Names) -> str:
    if inside in KEYS or inside == "evidence":
        return names.whole(name) or names.sentence(name)
    return names.sentence(name)


def _kept(key: str, above: str, value: str) -> bool:
    """Whether a text stays as it is."""
    if key in ("op", "told"):
        return key == "told" or is_operation(value)
    if above in ("fingerprint", "identity") and VERSIONS.fullmatch(key):
        return True
    if key in OF_LIBRARIES:
        return of_own_parts(value)
    return key in KEPT and only_own(value)


def _named(value: Any, key: str, above: str) -> Iterator[Name]:
    """Give every name of a document, by the field that holds it."""
    if isinstance(value, str):
        sort = _sort(key, above)
        if sort is not None and not _kept(key, above, value):
            yield Name(sort, value)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, key, above)
    elif isinstance(value, dict):
        if key in KEYS:
            yield from (Name(KEYS[key], name) for name in value)
        for _, field, each in _fields(value):
            yield from _named(each, field, key)


def _told(value: Any, key: str, above: str) -> Iterator[str]:
    """Give what a fingerprint tells as it is: sentences may tell it, too."""
    if isinstance(value, str):
        if key == "told" or (above in ("fingerprint", "identity") and VERSIONS.fullmatch(key)):
            yield value
    elif isinstance(value, list):
        for each in value:
            yield from _told(each, key, above)
    elif isinstance(value, dict):
        for _, field, each in _fields(value):
            yield from _told(each, field, key)


def _fields(value: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Give the name of each field, the name it is judged by, and its value.

    Where an object tells of one key of many, what both sides had is judged as that key's value would be.
    """
    about = str(value.get("key", ""))
    as_key = "setting" if about.startswith(ENVIRONMENT) else "told" if VERSIONS.fullmatch(about) else None
    for name, each in value.items():
        yield name, as_key if as_key and name in ("base", "candidate", "before", "after") else name, each


def _sort(key: str, above: str) -> str | None:
    """Say what the text of a field names; None for a sentence or a word of ours."""
    if key == "name":
        return INSIDE.get(above)
    if key in ("op", "setting"):
        return key
    if above in ("fingerprint", "identity"):
        return "setting" if key.startswith(ENVIRONMENT) else SORTS.get(key)
    if key in ("runs", "left_out") and above in ("evidence", "points", ""):
        return "run"
    ours = key in KEPT or (key == "warnings" and not above)  # those of a source are its reader's
    return None if ours else SORTS.get(key)
