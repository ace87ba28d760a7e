"""How long the timeline of 1,024 ranks takes, in a real browser: until its first paint, and until a zoom's.

A painted heat map is one that plotly has drawn from the server's answer; a zoom counts from the click to that. The run
is made once and kept in benchmarks/.cache. `python -m benchmarks.dashboard_speed [RANKS [INTERVALS]]` prints the table.
"""

import os
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

from benchmarks.inputs import HERE
from benchmarks.large_run import write_run
from overlapscope_dashboards.site import Site
from overlapscope_dashboards.timeline.stored import FOLDER

RANKS, INTERVALS = 1_024, 10_000
CHROMIUM = Path("/usr/bin/chromium")
ALIGN_MS = 900_000
KNOWN = "() => !document.getElementById('timeline-note').textContent.includes('clocks are being')"
ZOOMS = 30
WARM = 5
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
MOVES = ("in", "in", "in", "right", "in", "left", "out", "in", "in", "right", "out", "out", "in", "in", "out")


def run_folder(ranks: int, intervals: int) -> Path:
    """Give the folder with the run, made if it is not there."""
    place = HERE / ".cache" / f"timeline_{ranks}x{intervals}"
    if not (place / "run" / "run.json").exists():
        print(f"making a run of {ranks:,} ranks x {intervals:,} intervals in {place}", file=sys.stderr)
        write_run(place / "run", ranks=ranks, intervals=intervals)
    return place


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder in a process of its own; gives the address once it answers."""
    command = [sys.executable, "-m", "overlapscope", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1].rstrip("/")
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


def first_paint(context: Any, address: str) -> tuple[Any, float]:
    """Open the page in a new tab; gives it, and the seconds until the heat map is painted."""
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    begin = time.perf_counter()
    page.goto(address)
    page.evaluate(PAINTED)
    return page, time.perf_counter() - begin


def table(ranks: int = RANKS, intervals: int = INTERVALS) -> str:
    """Measure, and give a table in markdown; or say what is missing."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a missing browser must not stop the others
    except ImportError:
        return "not measured: playwright is not installed"
    if not CHROMIUM.exists():
        return f"not measured: there is no {CHROMIUM}"
    folder = run_folder(ranks, intervals)
    run = Site([folder]).places().places[0].id
    with sync_playwright() as playwright:
        shutil.rmtree(folder / "run" / FOLDER, ignore_errors=True)
        with served(folder) as address, browsing(playwright) as context:
            page, never = first_paint(context, f"{address}/runs/{run}/timeline")
            page.wait_for_function(KNOWN, timeout=ALIGN_MS)
        begin = time.perf_counter()
        with served(folder) as address:
            started = time.perf_counter() - begin
            with browsing(playwright) as context:
                page, cold = first_paint(context, f"{address}/runs/{run}/timeline")
                warm = [first_paint(context, f"{address}/runs/{run}/timeline")[1] for _ in range(WARM)]
                page.bring_to_front()  # a tab behind others is drawn once a second
                zooms = sorted(page.evaluate(ZOOM, MOVES[at % len(MOVES)]) / 1_000 for at in range(ZOOMS))
    ninth = statistics.quantiles(zooms, n=10)[-1]
    return "\n".join(
        [
            f"| timeline of {ranks:,} ranks x {intervals:,} intervals, {os.cpu_count()} cores | seconds |",
            "|---|---|",
            f"| first paint, the first time the run is ever opened | {never:.2f} |",
            f"| first paint after a cold start (besides {started:.2f} until the server answers) | {cold:.2f} |",
            f"| first paint warm, median of {WARM} | {statistics.median(warm):.2f} |",
            f"| zoom until painted, median of {ZOOMS} | {statistics.median(zooms):.2f} |",
            f"| zoom until painted, 90th percentile | {ninth:.2f} |",
        ]
    )


if __name__ == "__main__":
    print(table(*map(int, sys.argv[1:3])))
