"""Forms that a log or a trace often has and that are not read: what they are, and the command that changes it."""

import re
from typing import Final

_COMPRESSED: Final = (
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_CONTAINER: Final = re.compile(rb'\{"log":"[^\n]{0,65536}?","stream":"std(?:out|err)"')
"""What Docker's driver `json-file` writes: each line of a container's output inside a JSON object."""


def what_unread(content: bytes) -> str | None:
    """Say what a file is that begins so, and what to do; None where it is no such form."""
    for magic, name, command in _COMPRESSED:
        if content.startswith(magic):
            return f"is compressed by {name}, which is not read (gzip is): unpack it with `{command}`"
    if content.startswith(_UTF_16):
        return "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    if _CONTAINER.match(content):
        return "holds a container's output as JSON lines: take the lines out with `jq -j .log`"
    return None
