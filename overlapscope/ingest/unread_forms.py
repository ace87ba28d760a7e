"""Forms that a log or a trace often has and that are not read: what they are, and what to do or to give instead."""

import re
from typing import Final

_COMPRESSED: Final = (
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)
_CHAKRA: Final = (
    "is a Chakra trace, which holds no times and is not read: give the profiler's trace that it was made from, "
    "or PyTorch's own execution trace"
)
_REPORT: Final = (
    "is a report of nccl-tests (-J) or rccl-tests (-x), which is not read: give the table that the test prints"
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
    (re.compile(rb'\s*\{[^\0]{0,4096}?"workload_graph"\s*:\s*\['), _CHAKRA),
    # Length-delimited protocol buffers: metadata with a version or an attribute `schema`; or none, then a node's number
    # and name.
    (re.compile(rb"(?s).{1,3}(?:\n\x05\d\.\d\.\d|.{0,40}\n\x06schema)"), _CHAKRA),
    (re.compile(rb"(?s)\0.{1,3}\x08[\x80-\xff]{0,9}[\0-\x7f]\x12.{1,2}[ -~]{2}"), _CHAKRA),
    (re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:\s*"[^"]{0,64}"\s*,\s*"args"\s*:'), _REPORT),
    (re.compile(rb'\s*+(?:\[\s*+)?\{\s*"numCycle"\s*:\s*\d+\s*,\s*"name"\s*:\s*"'), _REPORT),
    (re.compile(rb"\s*numCycle,collective,", re.IGNORECASE), _REPORT),
    (
        re.compile(
            rb'\s*\[\s*\{\s*"name"\s*:\s*"[^"]{0,100}"\s*,\s*"cat"\s*:\s*"(?:GROUP|GROUP_API|COLL|COLL_API|P2P|P2P_API'
            rb'|PROXY|NET|NET_IB|NET_SOCK|GPU|KERNEL_LAUNCH|CE_COLL|CE_SYNC|CE_BATCH)"\s*,\s*"ph"\s*:\s*"[be]"'
        ),
        "holds events of NCCL's example profiler plugin, which are not read: give the records of NCCL Inspector",
    ),
    (
        re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<graphs\s+version\s*="),
        "is a dump of NCCL's graphs (NCCL_GRAPH_DUMP_FILE), which is not read: give the topology "
        "(NCCL_TOPO_DUMP_FILE), or a log with NCCL_DEBUG_SUBSYS=INIT,GRAPH for rings and trees",
    ),
)


def what_unread(content: bytes) -> str | None:
    """Return what a file is that begins so, and what to do; None where it is no such form."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    for magic, name, command in _COMPRESSED:
        if content.startswith(magic):
            return f"is compressed by {name}, which is not read (gzip is): unpack it with `{command}`"
    if content.startswith(_UTF_16):
        return "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    return next((said for form, said in _FORMS if form.match(content)), None)
