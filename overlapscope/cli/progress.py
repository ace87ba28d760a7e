"""Show the progress of reading: one line on stderr, only on a terminal."""

import sys
import time
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from overlapscope.cli.output import one_line
from overlapscope.display import display_name, size_text

EVERY_SECONDS = 0.1


class Progress:
    """Shows which file is being read, how many are done, and how fast; silent where stderr is not a terminal.

    Files that are read in parallel may report from several threads.
    """

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._on_terminal = sys.stderr.isatty()
        self._lock = Lock()
        self._bytes: dict[Path, int] = {}
        self._files: int | None = None
        self._done = 0
        self._began = time.monotonic()
        self._last = 0.0

    def begin(self, files: int, done: int) -> None:
        """Set the number of files, and how many of them are read already."""
        self._files, self._done = files, done

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Add `read_bytes` more bytes read of `path`."""
        with self._lock:
            self._bytes[path] = self._bytes.get(path, 0) + read_bytes
            now = time.monotonic()
            if self._on_terminal and now - self._last >= EVERY_SECONDS:
                self._last = now
                self._show(path, now)

    def done(self, path: Path) -> None:
        """Count a file as done."""
        self(path, 0)
        with self._lock:
            self._done += 1

    def _show(self, path: Path, now: float) -> None:
        if self._files is None:
            text = f"file {len(self._bytes)}, {display_name(path)}, {size_text(self._bytes[path])}"
        else:
            total = sum(self._bytes.values())
            speed = size_text(total / max(now - self._began, EVERY_SECONDS))
            text = f"{self._done} of {self._files} files, {size_text(total)}, {speed}/s, {display_name(path)}"
        sys.stderr.write(f"\r\x1b[K{self._verb}: {one_line(text)}")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class RunProgress:
    """Shows how many runs are done; silent where stderr is not a terminal."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._on_terminal = sys.stderr.isatty()
        self._last = 0.0

    def __call__(self, done: int, runs: int, name: str) -> None:
        """Show that `done` of the runs are done, the last one being `name`."""
        now = time.monotonic()
        if self._on_terminal and now - self._last >= EVERY_SECONDS:
            self._last = now
            text = one_line(f"{done} of {runs} runs, {display_name(Path(name))}")
            sys.stderr.write(f"\r\x1b[K{self._verb}: {text}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
