"""Folders of runs for tests of the dashboard."""

import base64
import shutil
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from time import monotonic, sleep, time_ns
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.server import listing
from overlapscope_dashboards.server.serve import Served, serve
from tests.conftest import ROOT
from tests.support.writers.kineto import NCCL_KERNEL, Event, distributed, training, write

SAMPLES = ROOT / "traces"
PATIENCE_S = 60.0


def folder_of_runs(place: Path) -> Path:
    """Copy both sample runs below a folder, without their traces."""
    for name in ("baseline", "regressed"):
        copy_run(place / name, SAMPLES / name)
    return place


def copy_run(place: Path, run: Path = SAMPLES / "baseline") -> Path:
    """Copy a run without its traces."""
    shutil.copytree(run, place, ignore=shutil.ignore_patterns("*.json.gz"))
    return place


def ids(site: Site) -> dict[str, str]:
    """Return the id of each run by its name."""
    return {each.name: each.id for each in site.find_runs().runs}


def words(component: object) -> str:
    """Return all text of a component and its children."""
    if isinstance(component, str):
        return component
    if isinstance(component, (list, tuple)):
        return " ".join(filter(None, map(words, component)))
    return words(getattr(component, "children", None) or "")


def exact_words(component: object) -> str:
    """Return all text of a component, with the exact time of each rounded one, which is shown on hover."""
    if isinstance(component, str):
        return component
    if isinstance(component, (list, tuple)):
        return "".join(filter(None, map(exact_words, component)))
    exact = getattr(component, "className", "") in ("time", "value") and getattr(component, "title", "")
    found = exact or exact_words(getattr(component, "children", None) or "")
    return f"{found} " if type(component).__name__ not in ("Span", "Code", "Link", "A") else found


def figure_numbers(column: dict[str, str]) -> Any:
    """Return the numbers of a column of a figure, which Plotly packs as base64."""
    values = np.frombuffer(base64.b64decode(column["bdata"]), {"u1": "<u1", "f8": "<f8"}[column["dtype"]])
    return values.reshape([int(each) for each in column["shape"].split(",")]) if "shape" in column else values


def served(roots: Sequence[Path], *, host: str = "127.0.0.1", **options: Any) -> str:
    """Serve on a free port from a daemon thread; return the address."""
    said: Queue[Served] = Queue()
    settings = {"host": host, "port": 0, "say": said.put, **options}
    Thread(target=serve, args=(list(roots),), kwargs=settings, daemon=True).start()
    return said.get(timeout=60).url


def hostile_traces(place: Path, name: str) -> Path:
    """Write traces of two ranks in which every name is `name`."""
    place.mkdir(parents=True)
    for rank in (0, 1):
        events = [_renamed(each, name) for each in training(3)]
        own = {**distributed(rank), "hostname": name, "trace_name": name}
        (place / f"rank{rank}.json").write_bytes(write(events, metadata=own))
    return place


def _renamed(event: Event, name: str) -> Event:
    args = {**event.args}
    for key in ("Process Group Name", "Process Group Description"):
        if key in args:
            args[key] = name
    is_name = event.sort in ("kernel", "cpu_op") and event.name not in (NCCL_KERNEL, "record_param_comms")
    called = f"{NCCL_KERNEL}{name}" if event.name == NCCL_KERNEL else name if is_name else event.name
    return replace(event, name=called, args=args)


def first_page(site: Site, pin: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the first page once all runs are analysed, and judged against the pinned one."""
    until = monotonic() + PATIENCE_S
    while monotonic() < until:
        found = site.listed.look(PATIENCE_S, pin)
        assert found is not None
        judged = pin is None or all(
            each.verdict or each.problem or each.entry.location.id == pin for each in found.runs
        )
        if found.done == len(found.runs) and judged:
            rows: list[dict[str, Any]] = listing.answer(found, time_ns())["rows"]
            return rows
        sleep(0.05)
    raise AssertionError("the runs were not analysed in time")
