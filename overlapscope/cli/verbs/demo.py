"""Train a small model on 2 processes over gloo, record it, show its overlap.

Needs torch and no GPU; takes about 20 seconds.

examples:
  overlapscope demo
  overlapscope demo --serve
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from overlapscope.cli.arguments import emit
from overlapscope.display import shell_words
from overlapscope.errors import OverlapScopeError, UsageError

WORLD_SIZE = 2
TIMEOUT_SECONDS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `demo`."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("overlapscope-demo"),
        metavar="RUN",
        help="run directory to write (default overlapscope-demo)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", action="store_true", help="then open the run in the dashboard, on any free port")


def run(args: argparse.Namespace) -> int:
    """Train, ingest, print the table and the next command."""
    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import analysis as text  # noqa: PLC0415
    from overlapscope.timeline.store.load_save import load_run  # noqa: PLC0415
    from overlapscope.timeline.store.run_folder import is_taken, replace_run  # noqa: PLC0415

    if args.json and args.serve:
        raise UsageError("--json prints a document, --serve runs until it is interrupted: use one of them")
    if is_taken(args.output) and not args.force:
        raise UsageError(f"{args.output} exists already; choose another folder with -o, or replace it with -f")
    print("training a small model on 2 processes over gloo ...", file=sys.stderr)
    with replace_run(args.output, force=args.force) as place:
        train_and_record(place)
    recorded = load_run(args.output)
    analysis = analyze_with_advice(recorded)
    args.output, where = None, args.output
    if args.json:
        emit(json.render(analysis), args)
        return 0
    emit(text.render(analysis), args)
    if args.serve:
        from overlapscope_dashboards.server.serve import serve  # noqa: PLC0415

        print(f"\nThe run is in {where}.", flush=True)
        serve([where], host="127.0.0.1", port=0, say=lambda served: print(served.words(), flush=True))
        return 0
    print(f"\nThe run is in {where}.\nnext: overlapscope analyze {shell_words([str(where)])} --all")
    return 0


def train_and_record(run: Path, *arguments: str) -> None:
    """Train with DDP over gloo on two processes and record into the run directory `run`.

    `arguments` are the optional ones of `demo_training`. Raises UsageError if torch is missing, OverlapScopeError if a
    process fails or does not end in time.
    """
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch, which is not installed: pip install 'overlapscope[torch]'")
    with tempfile.TemporaryDirectory(prefix="overlapscope-demo-") as folder:
        _run(["overlapscope.cli.demo_training", str(run), str(Path(folder) / "store"), str(WORLD_SIZE)], arguments)


def _run(command: list[str], arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command, str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(WORLD_SIZE)
    ]
    failure = ""
    try:
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            if process.returncode and not failure:
                last = output.strip().splitlines()[-1:] or ["no output"]
                failure = f"rank {rank} of the demo ended with code {process.returncode}: {last[0]}"
    except subprocess.TimeoutExpired:
        failure = f"the demo did not end within {TIMEOUT_SECONDS} s"
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if failure:
        raise OverlapScopeError(failure)
