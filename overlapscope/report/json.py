"""Analyses, comparisons and gate results as JSON, and the JSON Schemas of them, both from the same types."""

from typing import Any

import msgspec

from overlapscope.analysis.analyze import Analysis
from overlapscope.analysis.compare import Comparison
from overlapscope.gate.calibrate import NoiseFloor
from overlapscope.gate.verdict import Gate


def render(document: Analysis | Comparison | Gate | NoiseFloor) -> str:
    """Give the document under its schema, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def analysis_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.analysis/1`. Readers must ignore fields they do not know."""
    return _schema("overlapscope.analysis/1", Analysis)


def comparison_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.comparison/1`. Readers must ignore fields they do not know."""
    return _schema("overlapscope.comparison/1", Comparison)


def gate_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.gate/1`. Readers must ignore fields they do not know."""
    return _schema("overlapscope.gate/1", Gate)


def floor_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.floor/1`. Readers must ignore fields they do not know."""
    return _schema("overlapscope.floor/1", NoiseFloor)


def _schema(title: str, document: type[msgspec.Struct]) -> dict[str, Any]:
    schema: dict[str, Any] = _plain(msgspec.json.schema(document))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _plain(schema: Any) -> Any:
    """Give the schema with descriptions on one line: how docstrings are indented differs between Pythons."""
    if isinstance(schema, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _plain(value)
            for key, value in schema.items()
        }
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    import sys

    schemas = {"comparison": comparison_schema, "gate": gate_schema, "floor": floor_schema}
    asked = schemas.get("".join(sys.argv[1:2]), analysis_schema)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(asked()), indent=2).decode() + "\n")
