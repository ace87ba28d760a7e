"""`overlapscope VERB ...`: parse, call the verb, turn errors into exit codes.

Exit codes: 0 fine, 1 regression, 2 usage or configuration, 3 nothing usable in the input, 4 inconclusive.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from overlapscope.cli.ended import EXIT_CODE, Ended, ended_tidily
from overlapscope.cli.printable import one_line
from overlapscope.cli.told_aside import told_aside
from overlapscope.cycles import search_seldom
from overlapscope.errors import OverlapScopeError
from overlapscope.version import __version__

VERBS = {
    "demo": "train a small model on 2 processes, record it, show its overlap",
    "analyze": "show where the time of traces or of a run went",
    "ingest": "turn traces into a run directory that opens fast",
    "serve": "open a run or a folder of runs in the browser",
    "compare": "show what changed from one run to another, and where it comes from",
    "export": "write a run as one trace to look at in ui.perfetto.dev",
    "advise": "recommend what to change, with its predicted gain and how to verify it",
    "whatif": "predict the step of a recorded job under other settings",
    "plan": "predict the step of a described workload under other settings",
    "gate": "fail where a candidate regressed against a baseline",
    "baseline": "keep runs to compare with later, in a folder for a repository",
    "report": "write a run, a comparison or a gate result as HTML, markdown, JUnit, OpenMetrics or JSON",
    "doctor": "say what this machine can record, and what is missing",
}
INTERRUPTED = 130
NO_THREAD = "can't start new thread"
"""What Python says where the system allows no more of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; the message of an error is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a name shows its code, rather than nothing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    search_seldom()
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(words)
    args = parser.parse_args(words)
    if args.verb is None:
        parser.print_help()
        return 2
    try:
        with ended_tidily():
            code: int = import_module(f"overlapscope.cli.{args.verb}").run(args)
            sys.stdout.flush()
    except OverlapScopeError as error:
        print(f"overlapscope {args.verb}: {_one_line(told_aside(error.in_shell, args))}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print(f"overlapscope {args.verb}: not enough memory: give it more, or fewer files at once", file=sys.stderr)
        return 3
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        limits = "ulimit -u, or the container's limit of pids"
        print(f"overlapscope {args.verb}: the system starts no more threads ({limits}): raise it", file=sys.stderr)
        return 3
    except KeyboardInterrupt as interrupt:
        ended = isinstance(interrupt, Ended)
        print(f"overlapscope {args.verb}: {'ended by SIGTERM' if ended else 'interrupted'}", file=sys.stderr)
        return EXIT_CODE if ended else INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; say nothing more, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"overlapscope {args.verb}: cannot write the output: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    return code


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Give the parser of a command line; of verbs that do not stand in it only the names, as nothing else is loaded."""
    parser = argparse.ArgumentParser(
        prog="overlapscope",
        description="Exact communication-compute overlap of distributed training.",
        epilog="Start with: overlapscope analyze TRACE.json.gz, or overlapscope demo",
    )
    parser.add_argument("--version", action="version", version=f"overlapscope {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb, purpose in VERBS.items():
        if verb not in words:
            verbs.add_parser(verb, help=purpose)
            continue
        module = import_module(f"overlapscope.cli.{verb}")
        sub = verbs.add_parser(verb, help=purpose, description=module.__doc__)
        sub.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(sub)
    return parser


def _one_line(message: str) -> str:
    return one_line(" ".join(message.split()))


if __name__ == "__main__":
    sys.exit(main())
