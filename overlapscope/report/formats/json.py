"""Render documents as JSON, and write their JSON Schemas; both are made from the same types."""

from typing import Any

import msgspec


def render(document: msgspec.Struct) -> str:
    """Return a document of `sheet.document.DOCUMENTS` as indented JSON with its schema, ending in a newline."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    text += "\n"  # in place: the text of a large run has many megabytes
    return text


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of `overlapscope.NAME/1`. Readers must ignore fields they do not know."""
    from overlapscope.report.sheet.document import DOCUMENTS  # noqa: PLC0415 - render needs no other types

    content: dict[str, Any] = _plain(msgspec.json.schema(DOCUMENTS[name]))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"overlapscope.{name}/1", **content}


def _plain(content: Any) -> Any:
    """Return the schema with descriptions on one line and null as the last of alternatives.

    Pythons differ in how they indent docstrings, versions of msgspec in the order of alternatives.
    """
    if isinstance(content, dict):
        plain: dict[str, Any] = {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _plain(value)
            for key, value in content.items()
        }
        if isinstance(plain.get("anyOf"), list):
            plain["anyOf"].sort(key=lambda each: each.get("type") == "null")
        return plain
    return [_plain(each) for each in content] if isinstance(content, list | tuple) else content


if __name__ == "__main__":
    import sys

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(schema(sys.argv[1])), indent=2).decode() + "\n")
