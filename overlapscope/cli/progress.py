"""Progress of long work: one line on stderr, only on a terminal."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_SECONDS = 0.1


class Progress:
    """Shows which file is being read and how much of it; silent where stderr is no terminal."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = sys.stderr.isatty()
        self._bytes: dict[Path, int] = {}
        self._last = 0.0

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Note that `read_bytes` more of `path` were read."""
        self._bytes[path] = self._bytes.get(path, 0) + read_bytes
        now = time.monotonic()
        if self._shown and now - self._last >= EVERY_SECONDS:
            self._last = now
            done = self._bytes[path] / 2**20
            sys.stderr.write(f"\r\x1b[K{self._verb}: file {len(self._bytes)}, {path.name}, {done:,.0f} MiB")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
