"""Executors and workers as tests need them: ones that do the work here, and ones that die over a file."""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


class Here(Executor):
    """Does each task at once, in this process; what it raises is its answer."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as workers do
            future.set_exception(error)
        return future


class PoolHere(Here):
    """In place of a pool of workers."""

    def __init__(self, count: int) -> None:
        self.count = count


class Dying(PoolHere):
    """A pool whose workers are killed over files of some name."""

    name = "rank1.json"
    times = 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if getattr(args[0], "path", Path()).name != self.name or not self.times:
            return super().submit(function, *args, **kwargs)
        type(self).times -= 1
        return dead()

    def cause_of_death(self) -> str:
        return "it died"


def dead() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(BrokenProcessPool("a process died"))
    return future


SITE = """
import os, sys
if "--multiprocessing-fork" in sys.orig_argv:
    from overlapscope.ingest import read_file as module
    read_file = module.read_file
    def dying(path, context):
        if path.name == {name!r} and len(os.listdir({noted!r})) < {times}:
            open(os.path.join({noted!r}, str(os.getpid())), "w").close()
            {death}
        return read_file(path, context)
    module.read_file = dying
"""


def workers_die_over(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, *, times: int, death: str = "os.kill(os.getpid(), 9)"
) -> Path:
    """Have real workers die when they read a file of this name; return a folder with a file for each that did."""
    noted = place / "noted"
    noted.mkdir(parents=True)
    (place / "sitecustomize.py").write_text(SITE.format(name=name, noted=str(noted), times=times, death=death))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT)]))
    return noted
