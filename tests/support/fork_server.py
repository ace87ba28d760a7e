"""Processes that need not import torch: one process imports it, and is forked for each rank that a test asks for.

    python -m tests.support.fork_server CONNECTION

Importing torch takes a rank longer than most trainings here. A forked process is as real as any: it has its own process
groups, signals and exit code, waits for its threads and does what it is to do at its exit. What is ours is imported by
each of them. To take the modules of torch apart, at the very end, takes longer than most trainings, too: that is left
out unless a test asks for the whole end.
"""

import atexit
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import msgspec

from tests.conftest import ROOT
from tests.support.old_torch import rest_before_groups_are_destroyed

PRELOADED = (
    "torch",
    "torch._dynamo.testing",
    "torch.distributed.algorithms.join",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "pandas",
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""With more threads numpy would start some when it is imported, and a fork takes none along."""
OF_ALLOCATOR = "jemalloc_bg_thd"
"""The one thread that may be there: it is pyarrow's allocator's, which sees to it at a fork."""

OF_TRITON = re.compile(
    r"^nanobind: .*\n|^ - leaked .*\n|^ - \.\.\. skipped remainder\n|^See https://nanobind\.\S*refleaks\.html\n?",
    re.MULTILINE,
)
"""What triton reports of itself at the end of a process, with torch 2.15."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: its exit code, less than 0 for a signal, and all that it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Job:
    """Processes that run."""

    def __init__(self, connection: Connection, pids: list[int]) -> None:
        self.connection = connection
        self.pids = pids

    def wait(self, seconds: float) -> list[Ended]:
        """Wait for the end of all processes; those that take longer are killed, which fails the test."""
        if not self.connection.poll(seconds):
            raise TimeoutError(f"not done after {seconds} s: {self.kill()}")
        return self._ended()

    def wait_for(self, file: Path, seconds: float) -> None:
        """Wait until a process has written a file; fail if all end before that, or if it takes longer."""
        end = time.monotonic() + seconds
        while not file.exists():
            if self.connection.poll(0.02) or time.monotonic() > end:
                raise AssertionError(f"{file.name} was not written: {self.kill()}")

    def kill(self) -> list[Ended]:
        """Kill the processes that still run, and return how all of them ended."""
        if not self.connection.poll():
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return self._ended()

    def _ended(self) -> list[Ended]:
        _open_jobs.remove(self)
        return [Ended(code=code, stdout=out, stderr=err) for code, out, err in self.connection.recv()]


_open_jobs: list[Job] = []
"""The job, if any, whose results are still to be read from the connection."""


def start(
    commands: Sequence[Sequence[str]], *, folder: Path = ROOT, whole_end: bool = False, **environment: str
) -> Job:
    """Start processes, side by side, each as `python` would with these arguments: `-m MODULE ...` or `-c CODE ...`.

    Each job must be waited for before the next. With `whole_end` the interpreter of each takes all modules apart.
    """
    if _open_jobs:
        raise AssertionError(f"the job before this one was not waited for: {_open_jobs[0].kill()}")
    connection = _nursery()
    connection.send((commands, folder, whole_end, environment))
    job = Job(connection, connection.recv())
    _open_jobs.append(job)
    return job


@cache
def _nursery() -> Connection:
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT}, pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(connection: Connection) -> tuple[Sequence[str], bool] | None:
    """Fork for each command of each job; return the command in its process, and whether it is to end as a whole.

    None where no more jobs come.
    """
    while True:
        try:
            commands, folder, whole_end, environment = connection.recv()
        except EOFError:
            return None
        with ExitStack() as files:
            outputs = [[files.enter_context(tempfile.TemporaryFile()) for _ in range(2)] for _ in commands]
            pids = []
            for command, (out, err) in zip(commands, outputs, strict=True):
                pid = os.fork()
                if not pid:
                    connection.close()
                    os.chdir(folder)
                    os.environ.update(environment)
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    return command, whole_end
                pids.append(pid)
            connection.send(pids)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            connection.send([(code, _text(out), _text(err)) for code, (out, err) in zip(codes, outputs, strict=True)])


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return OF_TRITON.sub("", file.read().decode(errors="replace"))


def become(option: str, what: str, *arguments: str) -> None:
    """Do in this process what `python OPTION WHAT ARGUMENTS` does."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if option == "-m":
        spec = find_spec(what)
        if spec.submodule_search_locations:  # a package
            what = f"{what}.__main__"
            spec = find_spec(what)
        main.__file__ = spec.origin
        code = spec.loader.get_code(what)
    else:
        code = compile(what, "<string>", "exec")
    sys.argv = [getattr(main, "__file__", option), *arguments]
    exec(code, vars(main))


def end_soon(command: Sequence[str]) -> None:
    """Do what a command does, and end as Python would, but take no modules apart; an error ends as it always does."""
    code = 0
    try:
        become(*command)
    except SystemExit as asked:
        if not isinstance(asked.code, int | None):
            raise
        code = asked.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def hatch() -> None:
    """Import what takes long, and stay without threads: a fork takes none along."""
    for name in PRELOADED:
        import_module(name)
    rest_before_groups_are_destroyed()
    threads = [path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len([name for name in threads if name != OF_ALLOCATOR]) == 1, threads
    gc.collect()
    gc.freeze()  # so that collections in the forked processes need not copy what is imported


if __name__ == "__main__":
    hatch()
    asked = serve(Connection(int(sys.argv[1])))
    if asked:
        command, whole_end = asked
        if whole_end:
            become(*command)
        else:
            end_soon(command)
