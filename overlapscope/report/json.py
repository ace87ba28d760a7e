"""An analysis or an answer as JSON, and the JSON Schemas of them, both from the same types."""

from typing import Any

import msgspec

from overlapscope.analysis.analyze import Analysis
from overlapscope.whatif.answer import WhatIf


def render(analysis: Analysis) -> str:
    """Give `overlapscope.analysis/1`, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=2).decode() + "\n"


def analysis_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.analysis/1`. Readers must ignore fields they do not know."""
    schema: dict[str, Any] = _plain(msgspec.json.schema(Analysis))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "overlapscope.analysis/1",
        **schema,
    }


def render_whatif(answer: WhatIf) -> str:
    """Give `overlapscope.whatif/1`, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def whatif_schema() -> dict[str, Any]:
    """Give the JSON Schema of `overlapscope.whatif/1`. Readers must ignore fields they do not know."""
    schema: dict[str, Any] = _plain(msgspec.json.schema(WhatIf))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "overlapscope.whatif/1", **schema}


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

    chosen = whatif_schema() if sys.argv[1:] == ["whatif"] else analysis_schema()
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(chosen), indent=2).decode() + "\n")
