"""Classify kernels and host ranges by name; the tables of names are the TOML files in this folder."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pkgutil import get_data
from typing import Any, Final

import msgspec

from overlapscope.errors import UsageError

UNPLACED, COMPUTES, COMMUNICATES, FUSES = range(4)
"""Result of the rules for a kernel: not known, computes, communicates, does both."""

MAX_NAME: Final = 4096
"""Characters of a kernel's name that are examined; names of templates have some thousand characters."""
RECORD_PARAM_COMMS: Final = "record_param_comms"
LIBRARY_RANGE: Final = re.compile(r"^(?:[a-z0-9]*ccl|ucc|mpi):(?P<op>\S+)")
"""Host annotations that a process group sets around a device collective: `nccl:all_reduce`, `xccl:broadcast`, ..."""
HOST_COLLECTIVE: Final = re.compile(r"^(?:gloo|mpi|ucc):(?P<op>\S+)")
"""Ranges of collectives that run on host threads."""
C10D_CALL: Final = re.compile(r"^c10d::(?P<op>\w+)")
"""Operations with which a caller starts a collective."""
ENTERS_COLLECTIVE: Final = re.compile(r"^(?:c10d|_c10d_functional(?:_autograd)?)::")
"""Operations in which a host thread enqueues a collective or waits for one, and computes nothing."""
API_RANGE: Final = re.compile(
    r"^nccl(?P<op>AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAllv?|AlltoAll|Gather|Scatter|Send|Recv"
    r"|GroupEnd)$"
)
"""Ranges of NCCL's and RCCL's own calls that launch kernels; a group launches them when it ends."""
SYMMETRIC_MEMORY: Final = re.compile(r"^symm_mem::(?P<op>\w+)")
OF_SERVER: Final = re.compile(r"^vllm::(?P<op>all_reduce)$")
"""vLLM's own operation around whichever library reduces; its first argument is the tensor."""


class KernelClass(msgspec.Struct, frozen=True):
    """A kernel's role, and its operation if it communicates."""

    role: int
    op: str | None = None


class _Rule(msgspec.Struct, frozen=True):
    pattern: str
    role: int
    op: str | None = None
    contains: tuple[str, ...] = ()
    """Lower-case texts, one of which is in every name that matches; if empty, every name is searched."""
    direct: bool = False
    """Whether each device reads or writes its peers' memory itself, in one or two stages."""


class Classifier:
    """Classifies kernels by name; the user's own patterns are tried before the tables.

    Raises UsageError when a user's pattern is no regular expression.
    """

    def __init__(self, comm: Sequence[str] = (), compute: Sequence[str] = ()) -> None:
        self._own = [
            *(_Rule(_user_pattern(text, "comm"), COMMUNICATES) for text in comm),
            *(_Rule(_user_pattern(text, "compute"), COMPUTES) for text in compute),
        ]
        self._matched: set[str] = set()
        self._known: dict[str, tuple[KernelClass, bool]] = {}

    def place(self, name: str) -> tuple[KernelClass, bool]:
        """Return a kernel's placement, and whether one of the user's patterns decided it."""
        known = self._known.get(name)
        if known is None:
            examined = name[:MAX_NAME]
            own = _first_match(self._own, examined)
            if own:
                self._matched |= {rule.pattern for rule, _ in _matches(self._own, examined)}
            known = self._known[name] = (own, True) if own else (_placed_by_table(examined), False)
        return known

    @property
    def idle_patterns(self) -> list[str]:
        """Return the user's patterns that no kernel has matched so far."""
        return [rule.pattern for rule in self._own if rule.pattern not in self._matched]


def may_describe_collective(name: str) -> bool:
    """Return whether a host range's arguments may describe a collective."""
    return name == RECORD_PARAM_COMMS or any(
        each.match(name) for each in (LIBRARY_RANGE, HOST_COLLECTIVE, C10D_CALL, SYMMETRIC_MEMORY, OF_SERVER)
    )


def surrounds_collective(name: str) -> bool:
    """Return whether a kernel launched directly inside this host range belongs to a collective."""
    return name == RECORD_PARAM_COMMS or LIBRARY_RANGE.match(name) is not None or API_RANGE.match(name) is not None


def reaches_peers(name: str) -> bool:
    """Return whether a kernel communicates in one or two stages in which each device reads or writes its peers' memory
    itself: custom, one-shot and two-shot kernels, which take less latency than rings and trees."""
    return next((rule.direct for rule, _ in _matches(_comm_rules(), name[:MAX_NAME])), False)


def canonical_operation(spelling: object) -> str | None:
    """Return the canonical operation (`all_reduce`, `all_gather`, ...) of a spelling; None if not known."""
    if not isinstance(spelling, str) or not spelling:
        return None
    return _canonical(spelling)


@lru_cache(1024)
def _canonical(spelling: str) -> str | None:
    spellings = _operations()
    plain = spelling.strip()
    for form in (plain, plain.lower(), plain.strip("_").lower(), re.sub(r"[^a-z]", "", plain.lower())):
        if form in spellings:
            return spellings[form]
    return None


def _matches(rules: Sequence[_Rule], name: str) -> Iterator[tuple[_Rule, re.Match[str]]]:
    """Yield the rules that match a name, with the match."""
    lowered, is_ascii = name.lower(), name.isascii()  # lower() is reliable for ASCII only
    for rule in rules:
        for text in rule.contains:
            if text in lowered:
                break
        else:
            if rule.contains and is_ascii:
                continue
        found = re.search(rule.pattern, name)
        if found:
            yield rule, found


def _first_match(rules: Sequence[_Rule], name: str) -> KernelClass | None:
    for rule, found in _matches(rules, name):
        return KernelClass(rule.role, canonical_operation(found.groupdict().get("op")) or rule.op)
    return None


def _placed_by_table(name: str) -> KernelClass:
    placement = _first_match(_comm_rules(), name)
    if placement:
        return placement
    never, rules = _compute_rules()
    return (not _first_match((never,), name) and _first_match(rules, name)) or KernelClass(UNPLACED)


def _user_pattern(text: str, argument: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        message = f"{argument} {text!r} is not a regular expression: {error}"
        raise UsageError(message, in_shell=f"--{message}") from error
    return text


@cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((get_data(__package__, name) or b"").decode())


def _rule(row: Mapping[str, Any], role: int) -> _Rule:
    return _Rule(row["pattern"], role, row.get("op"), tuple(row.get("contains", ())), row.get("direct", False))


@cache
def _comm_rules() -> tuple[_Rule, ...]:
    roles = {"comm": COMMUNICATES, "fused": FUSES}
    return tuple(_rule(row, roles[row["role"]]) for row in _table("comm_names.toml")["rule"])


@cache
def _compute_rules() -> tuple[_Rule, tuple[_Rule, ...]]:
    """Return the rule for names that must stay unclassified, and the rules for names that compute."""
    table = _table("compute_names.toml")
    return _rule(table["never"], COMPUTES), tuple(_rule(row, COMPUTES) for row in table["rule"])


@cache
def _operations() -> dict[str, str]:
    table: dict[str, str] = _table("comm_names.toml")["operations"]
    return {**{canonical: canonical for canonical in table.values()}, **table}
