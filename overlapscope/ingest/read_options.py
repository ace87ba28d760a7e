"""How to read: what the user says of kernels, ranks and sizes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from overlapscope.errors import UsageError
from overlapscope.ingest.bytestream import MAX_BYTES
from overlapscope.ingest.classify import Classifier
from overlapscope.timeline.run import MAX_RANKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read. Raises UsageError for a pattern that is no regular expression."""

    comm: tuple[str, ...] = ()
    """Patterns of kernel names that communicate, besides the known ones."""
    compute: tuple[str, ...] = ()
    """Patterns of kernel names that compute."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Rank by file name; the name "" stands for a single file."""
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        Classifier(self.comm, self.compute)


def parse_ranks_option(values: Sequence[str]) -> dict[str, int]:
    """Read `3` or `NAME=3` into a mapping from file name to rank. Raises UsageError for anything else."""
    ranks: dict[str, int] = {}
    for value in values:
        found = re.fullmatch(r"(?:(?P<name>.+)=)?(?P<rank>[0-9]{1,9})", value, re.DOTALL)
        if not found or int(found["rank"]) > MAX_RANKS:
            raise UsageError(f"--rank {value}: give a number up to {MAX_RANKS}, or FILE=NUMBER")
        ranks[Path(found["name"]).name if found["name"] else ""] = int(found["rank"])
    return ranks


def given_options(
    *, ranks: Mapping[str, int] | int | None, comm: str | Iterable[str], compute: str | Iterable[str]
) -> ReadOptions:
    """Give the options as a user of the package writes them."""
    patterns = [(each,) if isinstance(each, str) else tuple(each) for each in (comm, compute)]
    return ReadOptions(
        comm=patterns[0], compute=patterns[1], ranks={"": ranks} if isinstance(ranks, int) else dict(ranks or {})
    )
