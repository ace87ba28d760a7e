"""Keep runs to compare with later: only their columns, in a plain folder for a repository or an artifact store.

A baseline is a run directory, or a folder of them: pass its path to gate, compare, report or analyze.

examples:
  overlapscope baseline save main runs/today
  overlapscope baseline save main runs/ --folder ci/baselines -f
  overlapscope baseline save main runs/today --without-hosts
  overlapscope baseline list --json
  overlapscope baseline show main
  overlapscope gate baselines/main runs/candidate
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import add_reading, given_path, note, read_options, warn
from overlapscope.cli.output import printable
from overlapscope.cli.progress import Progress
from overlapscope.display import shell_words, url_of
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.analysis.compare.prediction_check import Noted
    from overlapscope.timeline.store.baselines import Baseline

SCHEMA = "overlapscope.baselines/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `baseline`."""
    actions = parser.add_subparsers(dest="action", metavar="save|list|show", required=True)
    save = actions.add_parser("save", help="keep a run, or a folder of runs of the same code, under a name")
    save.add_argument("name", metavar="NAME", help="name of the baseline")
    save.add_argument("runs", type=given_path, metavar="RUNS", help="run, trace, folder of traces, or folder of runs")
    save.add_argument("-f", "--force", action="store_true", help="replace a baseline of that name")
    save.add_argument(
        "--without-hosts",
        action="store_true",
        help="write host-1, host-2, ... for names of hosts, no addresses and no folders of sources; figures stay",
    )
    add_reading(save)
    show = actions.add_parser("show", help="show the figures of one baseline")
    show.add_argument("name", metavar="NAME", help="name of the baseline")
    for each in (save, actions.add_parser("list", help="list the baselines"), show):
        each.add_argument(
            "--folder", type=Path, default=Path("baselines"), metavar="DIR", help="where they are (default: baselines)"
        )
        each.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Save, list or show baselines."""
    return {"save": _save, "list": _list, "show": _show}[args.action](args)


def _save(args: argparse.Namespace) -> int:
    from overlapscope.cli.prediction_file import read_noted  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.run_folder import read_runs  # noqa: PLC0415
    from overlapscope.timeline.store.baselines import baseline_path, baselines, save_baseline  # noqa: PLC0415
    from overlapscope.timeline.store.run_folder import require_apart  # noqa: PLC0415
    from overlapscope.timeline.without_hosts import without_hosts  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    place = baseline_path(args.folder, args.name)
    if place.exists() and not args.force:  # before anything is read
        raise UsageError(f"{place} exists already; choose another name, or replace it with -f")
    if url_of(args.runs) is None:
        require_apart([args.runs], place)

    found = []
    kept: list[Noted] = []
    with Progress("reading") as progress:
        for path, loaded in read_runs(args.runs, read_options(args), progress=progress, note=partial(note, "baseline")):
            warn("baseline", loaded.sources)
            found.append(loaded)
            kept.append(read_noted([path]))  # before anything is written
    if not any(each.ranks for each in found):
        raise InputError(f"{args.runs}: contains no times of any rank, so there is nothing to compare with later")
    if args.without_hosts:
        found = [without_hosts(each) for each in found]
    save_baseline(found, place, version=__version__, force=args.force)
    _keep_predictions(kept, place)
    saved = next(each for each in baselines(args.folder) if each.name == args.name)
    if args.json:
        return _print_json(args.folder, [saved])
    print(printable(f"{place}: {_words(saved)}"))
    print(f"next: overlapscope gate {shell_words([str(place)])} CAND")
    return 0


def _keep_predictions(kept: "list[Noted]", place: Path) -> None:
    """Copy the predictions of the saved runs, in their order, into the new baseline."""
    from overlapscope.cli.prediction_file import add_noted  # noqa: PLC0415 - keeps --help light
    from overlapscope.timeline.store.baselines import list_runs  # noqa: PLC0415

    for each, copy in zip(kept, list_runs(place), strict=True):
        if each.predictions:
            add_noted(copy, each.predictions, each.outcomes)


def _list(args: argparse.Namespace) -> int:
    from overlapscope.report.formatting import aligned  # noqa: PLC0415
    from overlapscope.timeline.store.baselines import baselines  # noqa: PLC0415

    found = baselines(args.folder)
    if args.json:
        return _print_json(args.folder, found)
    if not found:
        print(printable(f"{args.folder}: no baseline here yet"))
        print("next: overlapscope baseline save NAME RUN")
        return 0
    print(
        printable(
            "\n".join(aligned([("baseline", "contains"), *((each.name, _words(each)) for each in found)], left=2))
        )
    )
    return 0


def _show(args: argparse.Namespace) -> int:
    from overlapscope.analysis.analyze import analyze  # noqa: PLC0415
    from overlapscope.ingest.run_folder import read_side  # noqa: PLC0415
    from overlapscope.report.text.analysis import headline  # noqa: PLC0415
    from overlapscope.report.text.main_sentences import sentence  # noqa: PLC0415
    from overlapscope.timeline.store.baselines import baseline_path, baselines  # noqa: PLC0415

    place = baseline_path(args.folder, args.name)
    found = {each.name: each for each in baselines(args.folder)}
    if args.name not in found:
        raise InputError(f"{place}: there is no such baseline; the folder contains {', '.join(found) or 'none'}")
    if args.json:
        return _print_json(args.folder, [found[args.name]])
    print(printable(f"{place}: {_words(found[args.name])}"))
    for name, loaded in read_side(place):
        analysis = analyze(loaded)
        print(printable(f"\n{name}\n{headline(analysis)}\n{sentence(analysis)}"))
    print(f"\nnext: overlapscope gate {shell_words([str(place)])} CAND")
    return 0


def _words(each: "Baseline") -> str:
    from overlapscope.report.formatting import count, size  # noqa: PLC0415

    if each.problem is not None:
        return each.problem
    of_world = f" of {each.world_size}" if each.world_size else ""
    known = [count(each.runs, "run"), f"{count(each.ranks, 'rank')}{of_world}", count(each.steps, "step")]
    return ", ".join([*known, *([each.device] if each.device else []), size(each.size_bytes)])


def _print_json(folder: Path, found: "list[Baseline]") -> int:
    """Print `overlapscope.baselines/1`."""
    rows = [
        {
            "name": each.name, "path": str(each.path), "runs": each.runs, "ranks": each.ranks,
            "world_size": each.world_size, "steps": each.steps, "device": each.device, "bytes": each.size_bytes,
            "problem": each.problem,
        }
        for each in found
    ]  # fmt: skip
    print(json.dumps({"schema": SCHEMA, "folder": str(folder), "baselines": rows}, indent=2))
    return 0
