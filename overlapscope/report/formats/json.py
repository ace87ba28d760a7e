"""What the verbs give, as JSON, and the JSON Schemas of it, both from the same types."""

from typing import Any

import msgspec


def render(document: msgspec.Struct) -> str:
    """Return one of `documents.DOCUMENTS` under its schema, indented, ending in a newline."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    text += "\n"  # in place: of a large run these are many megabytes
    return text


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of `overlapscope.NAME/1`. Readers must ignore fields they do not know."""
    from overlapscope.report.sheet.document import DOCUMENTS  # noqa: PLC0415 - one is rendered without the types of the others

    content: dict[str, Any] = _plain(msgspec.json.schema(DOCUMENTS[name]))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"overlapscope.{name}/1", **content}


def _plain(content: Any) -> Any:
    """Return the schema with descriptions on one line: how docstrings are indented differs between Pythons."""
    if isinstance(content, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _plain(value)
            for key, value in content.items()
        }
    return [_plain(each) for each in content] if isinstance(content, list) else content


if __name__ == "__main__":
    import sys

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(schema(sys.argv[1])), indent=2).decode() + "\n")
