"""Run a command as a user would, and read from the operating system what it took."""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

LOOK_EVERY_S = 0.05


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a command."""

    seconds: float
    """From its start to its end, as a watch would tell."""
    peak_mib: float
    """The most that it held at once: the kernel's own peak of one process, or, of several, the largest sum of their
    proportional shares (PSS) seen every 50 ms."""
    output: str


def run_measured(command: Sequence[str | Path]) -> Turn:
    """Run a command to its end; what it prints is kept. Raises RuntimeError with its last lines when it fails."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        begin = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=subprocess.STDOUT)
        peaks = [0.0]
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, ended, peaks))
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watch.join()
        said.seek(0)
        output = said.read()
    if status:
        last = "\n".join(output.splitlines()[-5:])
        raise RuntimeError(f"{' '.join(map(str, command))[:200]} ended with {process.returncode}:\n{last}")
    return Turn(seconds=seconds, peak_mib=max(usage.ru_maxrss / 1024, *peaks), output=output)


def _watch(root: int, ended: threading.Event, peaks: list[float]) -> None:
    while not ended.wait(LOOK_EVERY_S):
        family = list(_family(root))
        if len(family) > 1:
            peaks.append(sum(map(_share_mib, family)))


def _family(root: int) -> Iterator[int]:
    yield root
    with suppress(OSError):
        for task in Path(f"/proc/{root}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _share_mib(process: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
