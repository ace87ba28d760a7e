"""`overlapscope VERB ...`: parse, call the verb, turn errors into exit codes.

Exit codes: 0 fine, 1 regression, 2 usage or configuration, 3 nothing usable in the input, 4 inconclusive.
"""

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from overlapscope.cli.output import one_line, told_aside
from overlapscope.display import shown, url_of
from overlapscope.errors import InputError, OverlapScopeError, UsageError
from overlapscope.garbage_collection import search_seldom
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
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it goes with the process
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
            require_output(args)
            code: int = import_module(f"overlapscope.cli.verbs.{args.verb}").run(args)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; say nothing more, also not at exit.
        _write_no_more()
        return 0
    except (OverlapScopeError, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
        ending = _ending(error, args)
        if ending is None:
            raise
        said, code = ending
        print(f"overlapscope {args.verb}: {said}", file=sys.stderr)
        if isinstance(error, OSError):
            _write_no_more()
    return code


EXIT_CODE: Final = 128 + signal.SIGTERM


def _ending(error: BaseException, args: argparse.Namespace) -> tuple[str, int] | None:
    """Return what to say of what ended a command, and its exit code; None for a fault of ours."""
    code = 3
    match error:
        case OverlapScopeError():
            said, code = _one_line(told_aside(error.in_shell, args, error.redacted)), error.exit_code
        case Ended():
            said, code = "ended by SIGTERM", EXIT_CODE
        case KeyboardInterrupt():
            said, code = "interrupted", INTERRUPTED
        case MemoryError():
            said = "not enough memory: give it more, or fewer files at once"
        case OSError():
            said = f"cannot write the output: {error.strerror or error}"
        case RuntimeError() if str(error) == NO_THREAD:
            said = (
                "the system starts no more threads: raise its limit of them (ulimit -u, the container's limit of pids) "
                "or of memory (ulimit -v)"
            )
        case _:
            return None
    return said, code


def _write_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        module = import_module(f"overlapscope.cli.verbs.{verb}")
        sub = verbs.add_parser(verb, help=purpose, description=module.__doc__)
        sub.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(sub)
    return parser


def _one_line(message: str) -> str:
    return one_line(" ".join(message.split()))


class Ended(KeyboardInterrupt):
    """The process was asked to end."""


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Raise Ended in the block when the process is asked to end, unless somebody else sees to that."""
    try:
        mine = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if mine:
            signal.signal(signal.SIGTERM, _end)
    except ValueError:  # only the main thread may say what signals do
        mine = False
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> NoReturn:
    raise Ended


def require_output(args: argparse.Namespace) -> None:
    """Raise what writing would raise in the end: UsageError for what may not be replaced, InputError for no place.

    A command whose output is a folder looks at that itself; here it is told only that a URL is none.
    """
    output: Path | None = getattr(args, "output", None)
    if output is None:
        return

    if url_of(output) is not None:
        raise UsageError(
            f"-o {shown(output)}: what is written goes to a disk of this machine; name a path, and copy it then"
        )
    if args.verb in ("ingest", "demo"):
        return
    if output.is_dir():
        raise UsageError(f"{output} is a folder; name a file")
    if output.exists() and not args.force:
        exists = "exists already; choose another name, or replace it with -f"
        raise UsageError(f"{output} {exists}", redacted=f"FILE {exists}")
    if output.is_file() and any(each.exists() and each.samefile(output) for each in _paths(args)):
        raise UsageError(f"{output} is what is to be read; choose another name")
    lacking = _lacking(output.absolute().parent)
    if lacking is not None:
        raise InputError(f"{output}: cannot be written: {os.strerror(lacking)}")


def _paths(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the paths that a command is given besides its output."""
    for name, given in vars(args).items():
        if name != "output":
            yield from (each for each in (given if isinstance(given, list) else [given]) if isinstance(each, Path))


def _lacking(folder: Path) -> int | None:
    """Return the number of the error that a file in a folder would meet."""
    if not folder.is_dir():
        return errno.ENOTDIR if folder.exists() else errno.ENOENT
    return None if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES


if __name__ == "__main__":
    sys.exit(main())
