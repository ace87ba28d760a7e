"""Open a run, or a folder of runs, in the browser: how much communication is exposed, why, and what to do about it.

PATH is a run, a folder with runs in it, or traces as `analyze` takes them. One run opens at once; several are listed.

examples:
  overlapscope serve runs/ --port 8050
  overlapscope serve traces/baseline
  overlapscope serve runs/monday runs/tuesday
  overlapscope serve runs/ --perfetto-dir perfetto-ui/
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import add_reading, given_path, read_options
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope_dashboards.server.serve import Served


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `serve`."""
    parser.add_argument("paths", nargs="+", type=given_path, metavar="PATH", help="run, folder of runs, or traces")
    parser.add_argument("--port", type=int, default=8050, metavar="N", help="port (default 8050; 0: any free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H",
        help="address to serve on (default 127.0.0.1); other machines need a token, which is printed",
    )  # fmt: skip
    parser.add_argument(
        "--perfetto-dir", type=Path, metavar="DIR",
        help="folder with an unpacked Perfetto UI build: serve it to this machine, for windows of the timeline",
    )  # fmt: skip
    add_reading(parser)
    parser.add_argument("--json", action="store_true", help="print the addresses as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope_dashboards.runs.catalog import find_runs  # noqa: PLC0415
    from overlapscope_dashboards.server.serve import serve  # noqa: PLC0415

    if not 0 <= args.port <= 65_535:
        raise UsageError("--port must be 0 to 65535")
    if not find_runs(args.paths).runs:  # raises for a missing path before the server listens
        print("no run is there yet: those that are recorded there will be listed", file=sys.stderr)

    def say(served: "Served") -> None:
        document = {"schema": "overlapscope.serve/1", **msgspec.structs.asdict(served)}
        print(msgspec.json.encode(document).decode() if args.json else served.words(), flush=True)

    serve(args.paths, host=args.host, port=args.port, options=read_options(args), perfetto=args.perfetto_dir, say=say)
    return 0
