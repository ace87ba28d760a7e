"""Options for reading, and the checks of what a user of the package passes: kernels, ranks, sizes, paths, workers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from overlapscope.errors import UsageError
from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.parsing.gzip_stream import MAX_BYTES
from overlapscope.timeline.run import MAX_RANKS

if TYPE_CHECKING:
    from concurrent.futures import Executor


BY_NAME: Final = "by-name"
"""In place of ranks: files that state none are numbered in the order of their names."""
GivenRanks: TypeAlias = Mapping[str, int] | Literal["by-name"]
"""Rank by file name, the name "" meaning the only input file; or `BY_NAME`."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading. Raises UsageError for a pattern that is not a regular expression."""

    comm: tuple[str, ...] = ()
    """Regular expressions for names of kernels that communicate, in addition to the known ones."""
    compute: tuple[str, ...] = ()
    """Regular expressions for names of kernels that compute."""
    ranks: GivenRanks = {}
    stacks: bool = False
    """Whether all functions of Python stacks are kept; else only calls of modules, and functions of 3 ms and more."""
    max_bytes: int = MAX_BYTES
    """Largest decompressed size of one file."""

    def __post_init__(self) -> None:
        Classifier(self.comm, self.compute)


def parse_ranks_option(values: Sequence[str]) -> GivenRanks:
    """Parse `3` and `NAME=3` into a mapping from file name to rank; `by-name` stands alone. Raises UsageError for
    anything else."""
    if list(values) == [BY_NAME]:
        return BY_NAME
    ranks: dict[str, int] = {}
    for value in values:
        found = re.fullmatch(r"(?:(?P<name>.+)=)?(?P<rank>[0-9]{1,9})", value, re.DOTALL)
        if not found or int(found["rank"]) > MAX_RANKS:
            raise UsageError(f"--rank {value}: give a number up to {MAX_RANKS}, or FILE=NUMBER, or only {BY_NAME}")
        ranks[Path(found["name"]).name if found["name"] else ""] = int(found["rank"])
    return ranks


def check_options(
    *, ranks: GivenRanks | int | None, comm: str | Iterable[str], compute: str | Iterable[str]
) -> ReadOptions:
    """Return `ReadOptions` from the arguments of a public function. Raises UsageError for an unusable argument."""
    if ranks == BY_NAME:
        return ReadOptions(comm=_patterns("comm", comm), compute=_patterns("compute", compute), ranks=BY_NAME)
    by_name = {"": ranks} if isinstance(ranks, int) else {} if ranks is None else ranks
    if not isinstance(by_name, Mapping) or not all(
        isinstance(name, str) and isinstance(rank, int) and 0 <= rank <= MAX_RANKS for name, rank in by_name.items()
    ):
        raise UsageError(f"ranks={ranks!r}: give the rank of a single file, {{'FILE': RANK}}, or {BY_NAME!r}")
    return ReadOptions(comm=_patterns("comm", comm), compute=_patterns("compute", compute), ranks=dict(by_name))


def _patterns(argument: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the regular expressions of an argument that is one string or several. Raises UsageError."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(each, str) for each in found):
        raise UsageError(f"{argument}={given!r}: give a regular expression, or several")
    return found


def check_workers(workers: object) -> int | None:
    """Return a valid number of worker processes; None lets the program choose. Raises UsageError."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers={workers!r}: give a number of processes, 1 at least, or None")
    return workers


def check_executor(executor: "Executor | None", workers: int | None) -> "Executor | None":
    """Return a valid executor; None means processes on this machine.

    Raises UsageError for an object without `submit`, or when both an executor and workers are given.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise UsageError(f"executor={executor!r}: give a concurrent.futures.Executor")
    if executor is not None and workers is not None:
        raise UsageError("workers are processes on this machine, and an executor has its own: choose one")
    return executor


def check_paths(call: str, paths: Iterable[object]) -> list[Path]:
    """Return the arguments of the public function `call` as paths. Raises UsageError for anything else."""
    found = []
    for each in paths:
        if not isinstance(each, (str, PathLike)) or not isinstance(plain := fspath(each), str):
            several = isinstance(each, Iterable) and not isinstance(each, (bytes, PathLike))
            raise UsageError(
                f"{call}(): a {type(each).__name__} is no path; give what it holds: {call}(*paths)"
                if several
                else f"{call}(): {each!r} is no path"
            )
        if not plain:
            raise UsageError(f"{call}(): a path is empty")
        found.append(Path(plain))
    if not found:
        raise UsageError(f"{call}(): name a trace file, a folder of them, or a run directory")
    return found
