"""How long the timeline takes in a real browser, host threads shown: 1,024 ranks, and a trace of a million events.

A painted view is one of which map, lanes and axes are drawn from the server's answer; a zoom counts from the click to
that, a chain from the click to its steps. The run is made once and kept in benchmarks/.cache.
`python -m benchmarks.dashboard_speed [RANKS [INTERVALS]]` prints both tables.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.inputs import HERE, million_events
from benchmarks.large_run import write_run
from overlapscope.analysis.graph.explained import longest_moments
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.timeline.cache import FOLDER

RANKS, INTERVALS = 1_024, 10_000
CHROMIUM = Path("/usr/bin/chromium")
ALIGN_MS = 900_000
KNOWN = "() => !document.getElementById('timeline-note').textContent.includes('clocks are being')"
TURNS = 3
WARM = 5
ZOOMS = 30
WAIT_MS = 180_000
PAINTED = """() => new Promise(done => {
  const look = () => {
    const plot = document.querySelector('#timeline-figure');
    if (plot && plot.dataset.drawn) requestAnimationFrame(() => done(performance.now()));
    else setTimeout(look, 5);
  };
  look();
})"""
ZOOM = """does => new Promise(done => {
  const plot = document.querySelector('#timeline-figure');
  const begin = performance.now(), old = plot.dataset.drawn;
  const look = new MutationObserver(() => {
    if (plot.dataset.drawn === old) return;
    look.disconnect();
    requestAnimationFrame(() => done(performance.now() - begin));
  });
  look.observe(plot, { attributes: true, attributeFilter: ['data-drawn'] });
  document.querySelector(`[data-timeline=${does}]`).click();
})"""
CLICKED = """() => {
  const panel = document.getElementById('timeline-chain');
  let begin = 0;
  document.addEventListener('mousedown', () => { begin = performance.now(); }, { capture: true, once: true });
  window.chained = new Promise(done => {
    const look = new MutationObserver(() => {
      if (!panel.querySelector('.tl-step')) return;
      look.disconnect();
      requestAnimationFrame(() => done(performance.now() - begin));
    });
    look.observe(panel, { childList: true, subtree: true });
  });
}"""
MOVES = ("in", "in", "in", "right", "in", "left", "out", "in", "in", "right", "out", "out", "in", "in", "out")


def run_folder(ranks: int, intervals: int) -> Path:
    """Return the folder with the run, made if it is not there."""
    place = HERE / ".cache" / f"timeline_{ranks}x{intervals}"
    if not (place / "run" / "run.json").exists():
        print(f"making a run of {ranks:,} ranks x {intervals:,} intervals in {place}", file=sys.stderr)
        write_run(place / "run", ranks=ranks, intervals=intervals)
    return place


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder in a process of its own; gives the address once it answers, and the process."""
    command = [sys.executable, "-m", "overlapscope", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1].rstrip("/"), server.pid
        finally:
            server.terminate()


@contextmanager
def browsing(playwright: Any) -> Iterator[Any]:
    """Open a browser as somebody does who has never been here: with a profile of its own that keeps what it is sent."""
    with tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=str(CHROMIUM), args=["--no-sandbox"], viewport={"width": 1280, "height": 900}
        )
        try:
            yield context
        finally:
            context.close()


def memory_mib(process: int) -> float:
    """Return the memory that a process has for itself alone."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def first_paint(context: Any, address: str) -> tuple[Any, float]:
    """Open the page in a new tab; gives it, and the seconds until the heat map is painted."""
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    begin = time.perf_counter()
    page.goto(address)
    page.evaluate(PAINTED)
    return page, time.perf_counter() - begin


def table(ranks: int = RANKS, intervals: int = INTERVALS) -> str:
    """Measure, and give two tables in markdown; or say what is missing."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a missing browser must not stop the others
    except ImportError:
        return "not measured: playwright is not installed"
    if not CHROMIUM.exists():
        return f"not measured: there is no {CHROMIUM}"
    made = run_folder(ranks, intervals)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(dir=million_events().parent) as folder:
        os.link(million_events(), Path(folder) / million_events().name)
        return "\n\n".join(
            [
                _measured(playwright, made, f"{ranks:,} ranks x {intervals:,} intervals", made / "run" / FOLDER),
                _measured(playwright, Path(folder), "a trace of 1,091,230 events", None, chains=True),
            ]
        )


def _measured(playwright: Any, folder: Path, what: str, kept: Path | None, *, chains: bool = False) -> str:
    """Measure a folder with one run; `kept` is what earlier openings left."""
    run = Site([folder]).find_runs().runs[0].id
    page_of = f"/runs/{run}/timeline?show=host"
    started: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    zooms: list[float] = []
    memory: list[float] = []
    first_clicks: list[float] = []
    clicks: list[float] = []
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)
    with served(folder) as (address, _), browsing(playwright) as context:
        page, never = first_paint(context, address + page_of)
        page.wait_for_function(KNOWN, timeout=ALIGN_MS)
    for _ in range(TURNS):
        begin = time.perf_counter()
        with served(folder) as (address, process):
            started.append(time.perf_counter() - begin)
            with browsing(playwright) as context:
                page, seconds = first_paint(context, address + page_of)
                cold.append(seconds)
                warm += [first_paint(context, address + page_of)[1] for _ in range(WARM)]
                page.bring_to_front()  # a tab behind others is drawn once a second
                zooms += [page.evaluate(ZOOM, MOVES[at % len(MOVES)]) / 1_000 for at in range(ZOOMS)]
                first, *others = _chains(context, address + page_of, folder) if chains else [0.0]
                first_clicks.append(first)
                clicks += others
            memory.append(memory_mib(process))
    rows = [
        f"| {what}, host threads shown, {len(os.sched_getaffinity(0))} cores | seconds | least to most |",
        "|---|---|---|",
        f"| first paint, the first time the run is ever opened | {never:.2f} | |",
        f"| `overlapscope serve` until it answers | {_middle(started)} |",
        f"| first paint after a cold start of server and browser | {_middle(cold)} |",
        f"| first paint warm, {len(warm)} new tabs | {_middle(warm)} |",
        f"| zoom until painted, {len(zooms)} zooms | {_middle(zooms)} |",
        f"| zoom until painted, 90th percentile | {statistics.quantiles(zooms, n=10)[-1]:.2f} | |",
    ]
    if chains:
        rows += [
            f"| chain of the first click, which builds the graph | {_middle(first_clicks)} |",
            f"| chain of a click, {len(clicks)} others | {_middle(clicks)} |",
        ]
    held = f"The server then holds {statistics.median(memory):,.0f} MiB of its own, mapped files left out."
    return "\n".join([*rows, "", held])


def _chains(context: Any, address: str, folder: Path) -> list[float]:
    """Click on the longest times without compute, one after another; gives the seconds until each chain stands."""
    moments = longest_moments(read_inputs([folder], ReadOptions(), workers=1))
    taken = []
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    for each in moments:
        around = each.end_ns - each.start_ns
        page.goto(f"{address}&ranks={each.rank}&t0={max(each.start_ns - around, 0)}&t1={each.end_ns + around}")
        page.evaluate(PAINTED)
        box = page.locator("#timeline-figure .nsewdrag").first.bounding_box()
        page.evaluate(CLICKED)
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2)
        taken.append(page.evaluate("() => window.chained") / 1_000)
    return taken


def _middle(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f}"


if __name__ == "__main__":
    print(table(*map(int, sys.argv[1:3])))
