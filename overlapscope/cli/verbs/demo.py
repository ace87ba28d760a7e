"""Show the overlap of a public recording of eight GPUs, or of a small model trained here on 2 processes over gloo.

With --public, the recording is fetched from where it was published (2 to 31 MB) and checked; torch is not needed.
Without, a model is trained: that needs torch and neither a GPU nor a network, and takes about 20 seconds.

examples:
  overlapscope demo --public
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
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import emit, given_path
from overlapscope.cli.next_commands import of_run
from overlapscope.display import shell_words
from overlapscope.errors import OverlapScopeError, UsageError

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run

WORLD_SIZE = 2
TIMEOUT_SECONDS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `demo`."""
    parser.add_argument(
        "-o",
        "--output",
        type=given_path,
        metavar="RUN",
        help="folder to write (default overlapscope-demo, with --public overlapscope-public)",
    )
    parser.add_argument("--public", action="store_true", help="fetch a public recording of a job on eight GPUs instead")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", action="store_true", help="then open the run in the dashboard, on any free port")


def run(args: argparse.Namespace) -> int:
    """Fetch a recording, or train; print the table and the next commands, or open the dashboard."""
    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import analysis as text  # noqa: PLC0415

    if args.json and args.serve:
        raise UsageError("--json prints a document, --serve runs until it is interrupted: use one of them")
    where = args.output or Path("overlapscope-public" if args.public else "overlapscope-demo")
    args.output = None
    analysis = analyze_with_advice(
        _public(where, force=args.force) if args.public else _trained(where, force=args.force)
    )
    if args.json:
        emit(json.render(analysis), args)
        return 0
    emit(of_run(text.render(analysis), where), args)
    if args.serve:
        from overlapscope_dashboards.server.serve import serve  # noqa: PLC0415

        print(f"\nThe run is in {where}.", flush=True)
        serve([where], host="127.0.0.1", port=0, say=lambda served: print(served.words(), flush=True))
        return 0
    named = shell_words([str(where)])
    print(
        f"\nThe run is in {where}.\nnext: overlapscope {f'serve {named}' if args.public else f'analyze {named} --all'}"
    )
    return 0


def _public(where: Path, *, force: bool) -> "Run":
    from overlapscope.cli.public_trace import MEGATRON_TP8, fetch  # noqa: PLC0415 - as above
    from overlapscope.ingest.options import ReadOptions  # noqa: PLC0415
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    print(f"{MEGATRON_TP8.title}: {MEGATRON_TP8.source} ({MEGATRON_TP8.licence})", file=sys.stderr)
    files = fetch(MEGATRON_TP8, where, lambda words: print(f"fetching {words}", file=sys.stderr), force=force)
    return read_inputs(files, ReadOptions(), workers=None)


def _trained(where: Path, *, force: bool) -> "Run":
    from overlapscope.timeline.store.load_save import load_run  # noqa: PLC0415 - as above
    from overlapscope.timeline.store.run_folder import is_taken, replace_run  # noqa: PLC0415

    if is_taken(where) and not force:
        raise UsageError(f"{where} exists already; choose another folder with -o, or replace it with -f")
    print("training a small model on 2 processes over gloo ...", file=sys.stderr)
    with replace_run(where, force=force) as place:
        train_and_record(place)
    return load_run(where)


def train_and_record(run: Path, *arguments: str) -> None:
    """Train with DDP over gloo on two processes and record into the run directory `run`.

    `arguments` are the optional ones of `demo_training`. Raises UsageError if torch is missing, OverlapScopeError if a
    process fails or does not end in time.
    """
    if find_spec("torch") is None:
        raise UsageError(
            "the demo trains with torch, which is not installed: pip install 'overlapscope[torch]', or take "
            "`overlapscope demo --public`, which needs none"
        )
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
