"""Recordings that a report keeps: small, and without what names the machine they come from."""

import gzip
import re
import socket
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from overlapscope.gpu_check.document import Measured

MAX_BYTES: Final = 3_000_000
ADDRESS: Final = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}\b|\bfe80::[0-9a-f:]+\b"
)


def clean_text(text: str) -> str:
    """Return text with the host's name, the user's folder and addresses replaced."""
    host, home = socket.gethostname().partition(".")[0], str(Path.home())
    if host:
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?:\.[\w-]+)*(?![\w-])", "host", text)
    return ADDRESS.sub("127.0.0.1", text.replace(home, "~") if len(home) > 1 else text)


def clean_log(text: str, rank: int) -> str:
    """Return a log of NCCL's without names of the machine and process numbers; the rest stays as NCCL wrote it."""
    return re.sub(r"^host:\d+:\d+", f"host:{1000 + rank}:{2000 + rank}", clean_text(text), flags=re.MULTILINE)


def clean_trace(content: bytes, name: str) -> bytes:
    """Return a trace's JSON with its host's name and the path of its file replaced."""
    content = re.sub(rb'("traceName":\s*)"[^"]*"', rb'\1"%s"' % name.encode(), content)
    return re.sub(rb'("host_name":\s*)"[^"]*"', rb'\1"host"', content)


def keep(files: Iterable[Path], folder: Path, prefix: str, budget: int) -> tuple[list[Path], int]:
    """Write cleaned and compressed copies, the smallest first, while they fit; return them, and how many did not.

    `budget` is in bytes. A file that cannot be read counts as one that did not fit.
    """
    contents = []
    lost = 0
    for path in sorted(files):
        try:
            contents.append(_packed(path))
        except (OSError, EOFError, zlib.error):
            lost += 1
    kept = []
    for name, content in sorted(contents, key=lambda each: len(each[1])):
        if len(content) > budget:
            lost += 1
            continue
        budget -= len(content)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{prefix}.{name}"
        target.write_bytes(content)
        kept.append(target)
    return kept, lost


def _packed(path: Path) -> tuple[str, bytes]:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    name = path.name.removesuffix(".gz")
    if name.endswith(".log"):
        rank = re.search(r"rank(\d+)", name)
        content = clean_log(content.decode("utf-8", "replace"), int(rank[1]) if rank else 0).encode()
    elif name.endswith(".json"):
        content = clean_trace(content, name)
    return f"{name}.gz", gzip.compress(content, mtime=0)


def summed(kept: Iterable[Path], left_out: int) -> Measured:
    """Return the figures of what was kept."""
    sizes = [path.stat().st_size for path in kept]
    return Measured(figures={"files": len(sizes), "megabytes": sum(sizes) / 1e6, "left_out": left_out})
