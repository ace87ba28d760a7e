"""XML of unknown origin to elements: no document type, no entities, and limits on size, depth and number."""

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.values import dataclass

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element, with its children; text between them is not kept."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        """Give an attribute's text; None when it is absent or blank."""
        return self.attributes.get(name, "").strip() or None

    def all(self, tag: str) -> Iterator["Element"]:
        """Yield the children with this tag."""
        return (child for child in self.children if child.tag == tag)


def read_xml(path: Path, stream: ByteStream) -> tuple[Element, bool]:
    """Give the root element, and whether the file ends before it is closed.

    Raises InputError, naming the line, for a document type declaration (the only place entities can be declared), for
    anything past the limits, and for text that is no XML before any element began.
    """
    stream.max_bytes = min(stream.max_bytes, MAX_BYTES)
    parser = expat.ParserCreate()
    root: list[Element] = []
    inside: list[Element] = []
    count = 0

    def where() -> str:
        return f"{shown(path)}, line {parser.CurrentLineNumber}"

    def refuse(*_: object) -> NoReturn:
        raise InputError(f"{where()}: declares a document type or an entity, which no topology file does; remove it")

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(inside) >= MAX_DEPTH or count > MAX_ELEMENTS:
            raise InputError(f"{where()}: more than {MAX_DEPTH} levels or {MAX_ELEMENTS} elements; this is no topology")
        element = Element(tag=tag, attributes=attributes)
        (inside[-1].children if inside else root).append(element)
        inside.append(element)

    def end(_: str) -> None:
        inside.pop()

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = parser.UnparsedEntityDeclHandler = refuse
    try:
        for block in stream.blocks():
            parser.Parse(block, False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        if not root:
            raise InputError(f"{where()}: is no XML: {expat.ErrorString(error.code)}") from error
        return root[0], True
    return root[0], False
