"""Typed decoding of event text: many small JSON values in one call, where an odd one never fails its neighbours."""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

BROKEN: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged text may raise."""

S = TypeVar("S", bound=msgspec.Struct)


def is_utf8(text: bytes) -> bool:
    """Whether the text is UTF-8 throughout: the decoder looks only at what it keeps."""
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode_args(raws: Sequence[msgspec.Raw], kind: type[S]) -> list[S]:
    """Decode the arguments of many events in one call; an odd one, such as null or a list, gives an empty value."""
    try:
        return msgspec.json.decode(b"[" + b",".join(raws) + b"]", type=list[kind])  # type: ignore[valid-type]
    except BROKEN:
        pass
    out = []
    for raw in raws:
        try:
            out.append(msgspec.json.decode(raw, type=kind))
        except BROKEN:
            out.append(kind())
    return out
