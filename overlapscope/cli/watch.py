"""`analyze --watch`: the overview of a run while it is being recorded, read again whenever its files change.

In a terminal one screen is drawn again and again (by rich); elsewhere each change is a line. It ends with Ctrl-C.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Final

from overlapscope.cli.arguments import read_options, with_stated
from overlapscope.cli.output import one_line
from overlapscope.display import display_path, url_of
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from overlapscope.analysis.result import Analysis

LOOK_SECONDS: Final = 1.0
"""Between two looks at the files."""
REST: Final = 2
"""After reading for a time, rest so many times as long: watching must not take the job's cores."""
BAR_CELLS: Final = 72
MOST_STEPS: Final = 48
FEWEST_STEPS: Final = 2
COLUMN_GAP: Final = 2
"""Columns of a terminal between those of a table."""
MOST_SAID: Final = 4
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
Files = tuple[tuple[str, int, int], ...]


def watch(args: argparse.Namespace) -> int:
    """Show the inputs' analysis until the process is interrupted.

    Raises UsageError where they are no paths, or where other output is asked for.
    """
    if args.json or args.output is not None or args.all:
        raise UsageError("--watch shows the overview until Ctrl-C; --json, -o and --all print once: use one of them")
    for path in args.inputs:
        if url_of(path) is not None:
            raise UsageError(f"--watch looks for changes on a disk of this machine; {display_path(path)} is a URL")
    on_terminal = sys.stdout.isatty()
    if on_terminal and find_spec("rich") is None:
        raise UsageError("--watch draws with rich, which is not installed: pip install rich")
    for shown in _screen(args) if on_terminal else _lines(args):
        rest = max(LOOK_SECONDS, REST * shown)
        time.sleep(rest)
    return 0


def _lines(args: argparse.Namespace) -> Iterator[float]:
    """Print a line a change; yield the seconds that it took."""
    for found, seconds in _analyses(args):
        if found is not None:
            print(one_line(f"{_now()}  {_sentence(found)}"), flush=True)
        yield seconds


def _screen(args: argparse.Namespace) -> Iterator[float]:
    """Draw a screen a change; yield the seconds that it took."""
    from rich.live import Live  # noqa: PLC0415 - an extra

    with Live(auto_refresh=False, transient=False) as live:
        for found, seconds in _analyses(args):
            if found is not None:
                live.update(_drawn(args.inputs, found), refresh=True)
            yield seconds


def _analyses(args: argparse.Namespace) -> "Iterator[tuple[Analysis | str | None, float]]":
    """Yield the analysis, or why there is none yet, whenever files change; None where they have not. And seconds.

    Raises UsageError for wrong arguments, which no change of the files mends.
    """
    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    before: Files | None = None
    while True:
        files = _files(args.inputs)
        if files == before:
            yield None, 0.0
            continue
        before, began = files, time.monotonic()
        try:
            run = read_inputs(args.inputs, read_options(args), workers=args.workers)
            found: Analysis | str = with_stated("analyze", analyze_with_advice(run), args)
        except (InputError, OSError) as error:  # OSError: files go while a run is replaced
            found = f"waiting: {error}"
        yield found, time.monotonic() - began


def _files(paths: list[Path]) -> Files:
    """Return name, size and time of change of every file below the paths; one that goes meanwhile is left out."""
    found = []
    for path in paths:
        below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for each in sorted([path, *below]):
            try:
                state = each.stat()
            except OSError:
                continue
            if not S_ISDIR(state.st_mode) and not each.name.startswith("."):
                found.append((str(each), state.st_size, state.st_mtime_ns))
    return tuple(found)


def _sentence(found: "Analysis | str") -> str:
    if isinstance(found, str):
        return found
    from overlapscope.report.text import analysis as text  # noqa: PLC0415
    from overlapscope.report.text import main_sentences  # noqa: PLC0415

    first, *_ = main_sentences.sentence(found).splitlines() or [""]
    return f"{text.headline(found)}: {' '.join([first, *_unread(found)])}"


def _unread(found: "Analysis") -> list[str]:
    """Return that there are warnings, such as of a rank left out; `analyze` prints them."""
    from overlapscope.report.formatting import count  # noqa: PLC0415

    warnings = sum(len(each.warnings) for each in found.sources)
    return [f"({count(warnings, 'warning')} while reading: see overlapscope analyze)"] if warnings else []


def _drawn(paths: list[Path], found: "Analysis | str") -> "RenderableType":
    """Return the screen: what is watched, the headline, what to do, a step to scale with its parts, and the trend.

    What a small terminal has no room for is cut at its end.
    """
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    title = Text(one_line(f"{', '.join(map(str, paths))}   {_now()}   Ctrl-C ends"), style="dim")
    if isinstance(found, str):
        return Group(title, Text(one_line(found)))
    from overlapscope.analysis.common.findings import titles  # noqa: PLC0415
    from overlapscope.report.text import analysis as text  # noqa: PLC0415
    from overlapscope.report.text import main_sentences  # noqa: PLC0415
    from overlapscope.report.text.advice import gain_with_cost  # noqa: PLC0415

    first, *others = [line for line in main_sentences.sentence(found).splitlines() if line] or [""]
    said = [
        Text(one_line(text.headline(found))),
        Text(one_line(first), style="bold"),
        *map(Text, map(one_line, others)),
    ]
    advised = [f"{each.title} ({saves})" if (saves := gain_with_cost(each)) else each.title
               for each in found.recommendations]  # fmt: skip
    warnings = [*_unread(found), *(f"! {each}" for each in titles(found.findings)[0])]
    todo = [Text(one_line(each)) for each in [*warnings[:MOST_SAID], *advised[:MOST_SAID]]]
    return Group(title, Text(), *said, Text(), *todo, *([Text()] if todo else []), *_step(found), *_trend(found))


def _step(found: "Analysis") -> "Iterator[RenderableType]":
    """Yield the parts of a step: one bar, to scale within a cell, and a row each."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from overlapscope.report.formatting import ms, percent  # noqa: PLC0415
    from overlapscope_dashboards.notebook.looks import looks  # noqa: PLC0415
    from overlapscope_dashboards.views.overview import step  # noqa: PLC0415

    parts = step(found)
    if parts is None:
        return
    whole_ns = max(parts.whole_ns, sum(each.ns for each in parts.segments)) or 1
    times = [*(ms(each.ns) for each in parts.segments), ms(parts.whole_ns)]
    shares = [*(percent(each.ns / parts.whole_ns if parts.whole_ns else None) for each in parts.segments), ""]
    names = [Text("■ ", style=looks(each.kind)[0]).append(each.name, style="default") for each in parts.segments]

    def bar(columns: int) -> Text:
        drawn, done_ns, done_cells = Text(), 0.0, 0
        for each in parts.segments:
            done_ns += each.ns
            cells = round(min(BAR_CELLS, columns) * done_ns / whole_ns) - done_cells
            done_cells += cells
            drawn.append("█" * cells, style=looks(each.kind)[0])
        return drawn

    def table(columns: int) -> Table:
        drawn, figures = Table(box=None, pad_edge=False), (("ms", times), ("share", shares))
        room = columns - sum(max(map(len, cells)) + COLUMN_GAP for _, cells in figures)
        drawn.add_column(f"where a {parts.what} goes", no_wrap=True, overflow="ellipsis", max_width=max(room, 1))
        for head, _ in figures:
            drawn.add_column(head, justify="right", no_wrap=True)
        for name, time_ms, share in zip([*names, Text(parts.what)], times, shares, strict=True):
            drawn.add_row(name, time_ms, share)
        return drawn

    yield _ToWidth(bar)
    yield _ToWidth(table)


def _trend(found: "Analysis") -> "Iterator[RenderableType]":
    """Yield the exposed time of the last steps, from 0 to the largest of them, as one row of blocks."""
    from rich.text import Text  # noqa: PLC0415

    from overlapscope.report.formatting import ms  # noqa: PLC0415

    known = [each.exposed_comm_ns for each in found.headline.job_steps if each.step is not None][-MOST_STEPS:]
    if len(known) < 2 or not max(known):
        return

    def row(columns: int) -> Text:
        exposed = known
        while True:
            most = max(*exposed, 1)
            drawn = "".join(_BLOCKS[(len(_BLOCKS) - 1) * ns // most] for ns in exposed)
            words = f"exposed, last {len(exposed)} steps  {drawn}  0 to {ms(most)} ms"
            if len(words) <= columns or len(exposed) <= FEWEST_STEPS:
                return Text(words)
            exposed = exposed[1:]

    yield _ToWidth(row)


class _ToWidth:
    """What is drawn for as many columns as the terminal has, however it is resized."""

    def __init__(self, draw: "Callable[[int], RenderableType]") -> None:
        self._draw = draw

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        yield self._draw(options.max_width)


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
