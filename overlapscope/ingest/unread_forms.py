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
_FORMS: Final = (
    (re.compile(rb"(?:[\t\n\r -~]\0){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16LE -t UTF-8`"),
    (re.compile(rb"(?:\0[\t\n\r -~]){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16BE -t UTF-8`"),
    (
        re.compile(rb"version https://git-lfs\."),
        "stands in for a file that Git LFS keeps: fetch it with `git lfs pull`",
    ),
    (
        re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE),
        "is a web page, as of a log-in, and not what stands behind it: download the file itself",
    ),
    (
        re.compile(rb"SQLite format 3\0"),
        "is an SQLite database without the tables that Nsight Systems or Ascend's profiler write",
    ),
    (
        # What Docker's driver `json-file` writes: each line of a container's output inside a JSON object.
        re.compile(rb'\{"log":"[^\n]{0,65536}?","stream":"std(?:out|err)"'),
        "holds a container's output as JSON lines: take the lines out with `jq -j .log`",
    ),
)


def what_unread(content: bytes) -> str | None:
    """Say what a file is that begins so, and what to do; None where it is no such form."""
    for magic, name, command in _COMPRESSED:
        if content.startswith(magic):
            return f"is compressed by {name}, which is not read (gzip is): unpack it with `{command}`"
    if content.startswith(_UTF_16):
        return "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    return next((said for form, said in _FORMS if form.match(content)), None)
