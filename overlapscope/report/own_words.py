"""The words that OverlapScope's own sentences are made of: those that stand in its code.

What else stands in a sentence came with the data, and may name something. A compound (`all-reduce`, `layers.7`,
`a/b`) is one of ours only as a whole, since the parts of a name may be plain words.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from overlapscope.analysis.identity import DDP, ENVIRONMENT, RECORDING

ROOMS: Final = ("timeline", "ingest", "capture", "analysis", "whatif", "advice", "gate", "report")
"""Rooms whose sentences reach a report."""
COMPOUND: Final = re.compile(r"\w+(?:(?:[-./\\@+~]|::)+\w+)*")
PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+")
"""A word inside an identifier."""
FIGURE: Final = re.compile(r"\d[\d.,:x+/_-]*|\d[\d.,]*(?:[a-zA-Z]{1,2}|[KMGT]iB|[MG]Hz)|(?:rank|step|stage|epoch)\d+")
"""Numbers, with a unit or without."""
TYPE: Final = re.compile(
    r"(?i)(c10::)?(b?float|u?int|complex|bool|half|double|byte|char|short|long|fp|bf|f|i|u)\d*(_?e\dm\d\w{0,5})?"
)


VARIABLE: Final = re.compile(r"(?:NCCL|RCCL|TORCH|PYTORCH|GLOO|UCX|FI|OMP|CUDA)_[A-Z0-9_]+")
"""Variables that steer torch and its libraries."""
KEYS_OF: Final = (DDP, RECORDING, ENVIRONMENT)
"""How keys of a run's identity begin."""
OP_WORDS: Final = frozenset({
    "all", "reduce", "gather", "scatter", "to", "broadcast", "barrier", "send", "recv", "v", "vc", "coalesced", "base",
    "single", "alltoall", "allreduce", "allgather", "reducescatter", "isend", "irecv", "p2p", "uneven",
    "group", "unknown", "collective",
})  # fmt: skip
"""Words of the operations that torch and its libraries have."""


def is_own(compound: str) -> bool:
    """Whether a compound of letters and digits, as `COMPOUND` cuts it, can only be ours."""
    head, _, rest = compound.partition(".")
    if rest and f"{head}." in KEYS_OF:
        return is_own(rest)
    return (
        FIGURE.fullmatch(compound) is not None
        or VARIABLE.fullmatch(compound) is not None
        or TYPE.fullmatch(compound) is not None
        or is_operation(compound)
        or compound.casefold() in _compounds()
    )


def only_own(text: str) -> bool:
    """Whether a text is made of our own words alone."""
    return all(is_own(each) for each in COMPOUND.findall(text))


def is_operation(name: str) -> bool:
    """Whether a name is an operation's, as `all_reduce` or `_all_gather_base`."""
    return set(name.strip("_").split("_")) <= OP_WORDS


def of_own_parts(identifier: str) -> bool:
    """Whether every word inside an identifier is one of ours: so are the kernels of NCCL, say."""
    return all(part.casefold() in _parts() for part in PART.findall(identifier))


@cache
def _compounds() -> frozenset[str]:
    return frozenset(found.casefold() for text in _sources() for found in COMPOUND.findall(text))


@cache
def _parts() -> frozenset[str]:
    return frozenset(part.casefold() for each in _compounds_as_written() for part in PART.findall(each))


def _compounds_as_written() -> Iterator[str]:
    for text in _sources():
        yield from set(COMPOUND.findall(text))


def _sources() -> Iterator[str]:
    for room in ROOMS:
        for each in _modules(files("overlapscope") / room):
            yield each.read_text(encoding="utf-8")


def _modules(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _modules(each)
        elif each.name.endswith(".py"):
            yield each
