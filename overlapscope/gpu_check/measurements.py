"""How a check writes down what it measures: line by line, so that what came before a crash or a hang is known.

A check runs as `python -m overlapscope.gpu_check MODULE:FUNCTION FOLDER`, and calls others of its kind the same way.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from overlapscope.gpu_check.document import Measured, Value
from overlapscope.gpu_check.kept_files import clean_text

FIGURES_FILE: Final = "figures.jsonl"
KEEP_FOLDER: Final = "keep"
OUTPUT_CHARACTERS: Final = 8_000
"""How much of the end of a process's output is kept."""
MAX_FIGURES_BYTES: Final = 1 << 20
NESTED: Final = "OVERLAPSCOPE_GPU_CHECK"
"""Set in the environment of a check's process."""
CLOSING_SECONDS: Final = 10.0
"""How long a killed process may take to go; one that hangs in the driver never does."""


class NotRunError(Exception):
    """The machine does not offer what a check needs; the message says what."""


class Measurements:
    """The figures of a check under way, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def figure(self, name: str, value: Value) -> None:
        """Write a figure: a number, yes or no, or a text."""
        self._write({"figure": name, "value": value})

    def missing(self, name: str, why: str) -> None:
        """Write why a figure cannot be measured here."""
        self._write({"missing": name, "why": why})

    def not_run(self, why: str) -> None:
        """Write why the check cannot be run here."""
        self._write({"not_run": why})

    def end(self) -> None:
        """Write that the check came to its end."""
        self._write({"ended": True})

    def keep(self, name: str) -> Path:
        """Return a path for a recording that is kept beside the figures."""
        folder = self.folder / KEEP_FOLDER
        folder.mkdir(exist_ok=True)
        return folder / name

    def _write(self, line: Mapping[str, Any]) -> None:
        with open(self.folder / FIGURES_FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended; `code` is None where it had to be killed at its limit."""

    code: int | None
    seconds: float
    output: str
    limit_seconds: float = 0.0

    @property
    def failure(self) -> str | None:
        """Return in one line how it failed; None where it ended with 0."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        said = f": {last[:300]}" if last else ""
        if self.code is None:
            return f"did not end in {self.limit_seconds:g} seconds and was killed{said}"
        if self.code < 0:
            return f"ended by {_signal_name(-self.code)}{said}"
        return f"ended with exit code {self.code}{said}" if self.code else None


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class Process:
    """A Python process whose output's end is kept.

    That of a check is in a session of its own, in which its own processes stay: when it is stopped, all of them end.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str | None] | None = None) -> None:
        self._nested = NESTED in os.environ
        env = {
            **os.environ,
            NESTED: "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
        }
        for name, value in (environment or {}).items():
            env.pop(name, None)
            if value is not None:
                env[name] = value
        self._begun = time.monotonic()
        self._tail = bytearray()
        self._process = subprocess.Popen(
            # -P: what lies in the user's folder takes no module's place
            [sys.executable, "-P", *words],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=not self._nested,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._tail += chunk
                del self._tail[: -4 * OUTPUT_CHARACTERS]

    @property
    def output(self) -> str:
        """Return the end of what was printed so far, without names of the machine."""
        return clean_text(bytes(self._tail).decode("utf-8", "replace")[-OUTPUT_CHARACTERS:])

    def terminate(self) -> None:
        """Send SIGTERM to the process itself."""
        self._process.terminate()

    @property
    def running(self) -> bool:
        """Return whether the process itself still runs."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> Ended:
        """Wait for the end for at most so many seconds, and then end it and all that it started."""
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.stop()
        return Ended(code=code, seconds=time.monotonic() - self._begun, output=self.output, limit_seconds=seconds)

    def stop(self) -> None:
        """Kill what still runs: the process, and if it is that of a check, all of its session's group."""
        if self._nested:
            self._process.kill()
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_SECONDS)
        self._reader.join(1.0)


def measure(
    function: str, folder: Path, limit_seconds: float, environment: Mapping[str, str | None] | None = None
) -> tuple[Measured, Ended]:
    """Run a measuring function in a process of its own, and return its figures and how it ended."""
    ended = Process(["-m", "overlapscope.gpu_check", function, str(folder)], environment).wait(limit_seconds)
    return read_measured(folder / FIGURES_FILE, ended), ended


def read_measured(path: Path, ended: Ended) -> Measured:
    """Return the figures of a file, as far as it goes; without its last line the process counts as failed."""
    figures: dict[str, Value] = {}
    missing: dict[str, str] = {}
    not_run: str | None = None
    complete = False
    try:
        with open(path, "rb") as file:
            lines = file.read(MAX_FIGURES_BYTES).splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut by the end of the process
        match entry:
            case {"figure": str(name), "value": bool() | int() | float() | str() as value}:
                figures[name] = value
            case {"missing": str(name), "why": str(why)}:
                missing[name] = why
            case {"not_run": str(why)}:
                not_run = why
            case {"ended": True}:
                complete = True
    failed = ended.failure
    if failed is None and not complete and not_run is None:
        failed = "ended before its last figure"
    return Measured(figures=figures, missing=missing, not_run=not_run, failed=failed)
