"""`overlapscope VERB ...`: parse the arguments, check the output path, run the verb, turn errors into exit codes.

Exit codes: 0 success, 1 regression or refused check, 2 usage or configuration, 3 nothing usable in the input,
4 inconclusive.
SIGTERM, which batch systems send at the end of a job's time, cleans up like Ctrl-C.
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

from overlapscope.cli.output import message_for_stderr, one_line
from overlapscope.display import display_path, url_of
from overlapscope.errors import InputError, OverlapScopeError, UsageError
from overlapscope.garbage_collection import collect_rarely
from overlapscope.version import __version__

VERBS = {
    "demo": "show the overlap of a public recording, or of a small model trained here",
    "analyze": "show where the time went in traces or in a run",
    "ingest": "convert traces to a run directory that opens fast",
    "serve": "open a run or a folder of runs in the browser",
    "compare": "show what changed from one run to another, and why",
    "export": "write a run as one trace to view in ui.perfetto.dev",
    "advise": "recommend what to change, with its predicted gain and how to verify it",
    "whatif": "predict the step of a recorded job under other settings",
    "dryrun": "record one step of your code without a device: what it communicates",
    "plan": "predict the step of a described workload under other settings",
    "gate": "fail if a candidate regressed against a baseline",
    "baseline": "keep runs to compare with later, in a folder for a repository",
    "explain": "print the page of a finding or of a recommendation: what it means, what to do",
    "report": "write a run, a comparison or a gate result as HTML, markdown, JUnit, OpenMetrics or JSON",
    "doctor": "check what this machine can record, and what is missing",
}
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM
NO_THREAD = "can't start new thread"
"""Python's message when the system allows no more threads."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error prints one line on stderr."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it goes with the process
        # A terminal that cannot show a character of a name shows its code instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    collect_rarely()
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(words)
    args = parser.parse_args(words)
    if args.verb is None:
        parser.print_help()
        return 2
    try:
        with interrupt_on_sigterm():
            require_output(args)
            code: int = import_module(f"overlapscope.cli.verbs.{args.verb}").run(args)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`: write nothing more, also not at exit.
        _discard_stdout()
        return 0
    except (OverlapScopeError, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
        ending = _ending(error, args)
        if ending is None:
            raise
        message, code = ending
        print(f"overlapscope {args.verb}: {message}", file=sys.stderr)
        if isinstance(error, OSError):
            _discard_stdout()
    return code


def _ending(error: BaseException, args: argparse.Namespace) -> tuple[str, int] | None:
    """Return the message and the exit code for what ended a command; None for a bug of ours, which is raised."""
    code = 3
    match error:
        case OverlapScopeError():
            message, code = message_for_stderr(error.in_shell, args, error.redacted), error.exit_code
            message = one_line(" ".join(message.split()))
        case Terminated():
            message, code = "ended by SIGTERM", TERMINATED
        case KeyboardInterrupt():
            message, code = "interrupted", INTERRUPTED
        case MemoryError():
            message = "not enough memory: use a machine with more memory, or read fewer files at once"
        case OSError():
            message = f"cannot write the output: {error.strerror or error}"
        case RuntimeError() if str(error) == NO_THREAD:
            message = (
                "the system starts no more threads: raise the limit of threads (ulimit -u, the container's pids limit) "
                "or of memory (ulimit -v)"
            )
        case _:
            return None
    return message, code


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for a command line; only the verb that it names is loaded, the others are names with a help."""
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


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM."""


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Raise Terminated in the block when the process gets SIGTERM, unless the signal has another handler already."""
    try:
        mine = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if mine:
            signal.signal(signal.SIGTERM, _end)
    except ValueError:  # only the main thread may set signal handlers
        mine = False
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> NoReturn:
    raise Terminated


def require_output(args: argparse.Namespace) -> None:
    """Check `-o` before the work is done: raise UsageError if it may not be written, InputError if it cannot be.

    A verb whose output is a folder checks that itself; here only URLs are refused for it.
    """
    output: Path | None = getattr(args, "output", None)
    if output is None:
        return
    if url_of(output) is not None:
        raise UsageError(
            f"-o {display_path(output)}: output can only be written to a disk of this machine; "
            "name a path, and copy the file afterwards"
        )
    if args.verb in ("ingest", "demo", "dryrun") or (args.verb == "doctor" and args.gpu):
        return
    if output.is_dir():
        raise UsageError(f"{output} is a folder; name a file")
    if output.exists() and not args.force:
        exists = "exists already; choose another name, or replace it with -f"
        raise UsageError(f"{output} {exists}", redacted=f"FILE {exists}")
    if output.is_file() and any(each.exists() and each.samefile(output) for each in _paths(args)):
        raise UsageError(f"{output} is an input of this command; choose another name")
    problem = _folder_errno(output.absolute().parent)
    if problem is not None:
        raise InputError(f"{output}: cannot be written: {os.strerror(problem)}")


def _paths(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the paths among a command's arguments besides its output."""
    for name, given in vars(args).items():
        if name != "output":
            yield from (each for each in (given if isinstance(given, list) else [given]) if isinstance(each, Path))


def _folder_errno(folder: Path) -> int | None:
    """Return the errno of creating a file in a folder; None where it can be created."""
    if not folder.is_dir():
        return errno.ENOTDIR if folder.exists() else errno.ENOENT
    return None if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES


if __name__ == "__main__":
    sys.exit(main())
