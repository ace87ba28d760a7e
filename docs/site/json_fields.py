"""The page of every field of the JSON documents, from their types, the docstrings below fields, and `fields.toml`."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import inspect as types

from docs.site.commands import cell
from docs.site.sources import field_docs
from overlapscope.report.sheet.document import DOCUMENTS

WORDS: Final = tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))
"""Meanings of fields that the source leaves to their names: for any type, or for one (`[TYPE]`)."""
SHORT: Final = {
    types.IntType: "integer",
    types.FloatType: "number",
    types.StrType: "text",
    types.BoolType: "true or false",
    types.NoneType: "null",
    types.AnyType: "anything",
    types.RawType: "anything",
}


def text() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Fields of the JSON documents",
        "",
        "Every field of every document, from the types that write them. Which command prints which document: "
        "[JSON, run directory, exit codes](../json.md). Fields may be added, none is renamed. What ends in `_ns` is an "
        "integer of nanoseconds.",
        "",
    ]
    seen: set[type] = set()
    for name, document in DOCUMENTS.items():
        lines += [f"## Document `overlapscope.{name}/1`", ""]
        first = title(document)
        schema = f"[JSON Schema](../overlapscope.{name}-1.schema.json)"
        lines += [f"Its outermost object is [`{first}`](#{first.lower()}). {schema}.", ""]
        for each in reached(document):
            if each not in seen:
                seen.add(each)
                lines += _type(each)
    return "\n".join(lines)


def reached(document: type) -> list[type]:
    """Return a type and every type of ours that it contains, each once, outermost first."""
    found: dict[type, None] = {}

    def walk(kind: types.Type) -> None:
        if isinstance(kind, types.StructType):
            if kind.cls not in found:
                found[kind.cls] = None
                for field in kind.fields:
                    walk(field.type)
            return
        for inner in _inner(kind):
            walk(inner)

    walk(types.type_info(document))
    return list(found)


def fields(cls: type) -> tuple[types.Field, ...]:
    """Return the fields of a type with their names in JSON and their types."""
    struct = types.type_info(cls)
    assert isinstance(struct, types.StructType)
    return struct.fields


def meaning(cls: type, field: str) -> str:
    """Return what a field means; empty where nobody says."""
    own: Mapping[str, str] = WORDS.get(title(cls), {})
    return field_docs(cls).get(field) or own.get(field) or WORDS["any"].get(field, "")


def title(cls: type) -> str:
    """Return the name of a type on the page; two types that share a name are told apart by their room."""
    priced = cls.__module__.startswith("overlapscope.whatif.pricing")
    return "PriceInterval" if priced and cls.__name__ == "Interval" else cls.__name__


def _type(cls: type) -> Iterator[str]:
    yield from (f"### `{title(cls)}`", "", " ".join((cls.__doc__ or "").split()), "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    for each in fields(cls):
        yield f"| `{each.encode_name}` | {_shown(each.type)} | {cell(meaning(cls, each.name))} |"
    yield ""


def _shown(kind: types.Type) -> str:
    """Return a type in words, with links to the types of ours."""
    match kind:
        case types.StructType():
            words = f"[{title(kind.cls)}](#{title(kind.cls).lower()})"
        case types.Metadata():
            words = _shown(kind.type)
        case types.UnionType():
            ordered = sorted(kind.types, key=lambda each: isinstance(each, types.NoneType))
            words = " or ".join(map(_shown, ordered))
        case types.LiteralType():
            words = ", ".join(f"`{msgspec.json.encode(each).decode()}`" for each in kind.values)
        case types.DictType():
            words = f"object of {_shown(kind.value_type)}"
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            words = f"list of {_shown(kind.item_type)}"
        case types.TupleType():
            words = f"list of {len(kind.item_types)}: {', '.join(map(_shown, kind.item_types))}"
        case _:
            words = SHORT[type(kind)]
    return words


def _inner(kind: types.Type) -> Iterator[types.Type]:
    for name in ("type", "item_type", "key_type", "value_type"):
        if hasattr(kind, name):
            yield getattr(kind, name)
    for name in ("types", "item_types"):
        yield from getattr(kind, name, ())
