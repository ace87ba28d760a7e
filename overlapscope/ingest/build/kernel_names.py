"""What a kernel is by its name, and which host ranges speak of communication. The names are data, beside this file."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pkgutil import get_data
from typing import Any, Final

import msgspec

from overlapscope.errors import UsageError

UNPLACED, COMPUTES, COMMUNICATES, FUSES = range(4)
"""What the rules say of a kernel: nothing, computes, communicates, does both."""

MAX_NAME: Final = 4096
"""A kernel is known by as much of its name; templates' reach some thousand characters."""
RECORD: Final = "record_param_comms"
LIBRARY_RANGE: Final = re.compile(r"^(?:[a-z0-9]*ccl|ucc|mpi):(?P<op>\S+)")
"""Host annotations that a process group sets around a device collective: `nccl:all_reduce`, `xccl:broadcast`, ..."""
HOST_COLLECTIVE: Final = re.compile(r"^(?:gloo|mpi|ucc):(?P<op>\S+)")
"""Ranges of collectives that run on host threads."""
CALL: Final = re.compile(r"^c10d::(?P<op>\w+)")
"""Operations through which a caller enters a collective."""
ENTERS: Final = re.compile(r"^(?:c10d|_c10d_functional(?:_autograd)?)::")
"""Operations in which a host thread enqueues a collective or waits for one; it computes nothing there."""
API_RANGE: Final = re.compile(
    r"^nccl(?P<op>AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAllv?|AlltoAll|Gather|Scatter|Send|Recv"
    r"|GroupEnd)$"
)
"""Ranges that NCCL and RCCL set around their own calls that launch; a group launches when it ends."""
SYMMETRIC_MEMORY: Final = re.compile(r"^symm_mem::(?P<op>\w+)")


class Placement(msgspec.Struct, frozen=True):
    """What is known of a kernel by its name: what it does, and which operation if it communicates."""

    role: int
    op: str | None = None


class _Rule(msgspec.Struct, frozen=True):
    pattern: str
    role: int
    op: str | None = None
    contains: tuple[str, ...] = ()
    """Texts in lower case, of which one stands in every name that matches; without them, every name is searched."""


class Classifier:
    """Places kernels by name; the user's own patterns come before the tables.

    Raises UsageError when a user's pattern is no regular expression.
    """

    def __init__(self, comm: Sequence[str] = (), compute: Sequence[str] = ()) -> None:
        self._own = [
            *(_Rule(_user_pattern(text, "comm"), COMMUNICATES) for text in comm),
            *(_Rule(_user_pattern(text, "compute"), COMPUTES) for text in compute),
        ]
        self._matched: set[str] = set()
        self._known: dict[str, tuple[Placement, bool]] = {}

    def place(self, name: str) -> tuple[Placement, bool]:
        """Return a kernel's placement, and whether one of the user's patterns decided it."""
        known = self._known.get(name)
        if known is None:
            telling = name[:MAX_NAME]
            own = _first_match(self._own, telling)
            if own:
                self._matched |= {rule.pattern for rule, _ in _matches(self._own, telling)}
            known = self._known[name] = (own, True) if own else (_placed_by_table(telling), False)
        return known

    @property
    def idle_patterns(self) -> list[str]:
        """The user's patterns that no kernel so far has matched."""
        return [rule.pattern for rule in self._own if rule.pattern not in self._matched]


def speaks_of_comm(name: str) -> bool:
    """Return whether a host range's arguments may tell of a collective."""
    return name == RECORD or any(each.match(name) for each in (LIBRARY_RANGE, HOST_COLLECTIVE, CALL, SYMMETRIC_MEMORY))


def surrounds_collective(name: str) -> bool:
    """Return whether a kernel launched directly inside this host range is a collective's."""
    return name == RECORD or LIBRARY_RANGE.match(name) is not None or API_RANGE.match(name) is not None


def operation(spelling: object) -> str | None:
    """Return the canonical operation (`all_reduce`, `all_gather`, ...) of a spelling; None if it is not known."""
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
    """Yield the rules that match a name, with what they found."""
    lowered, is_ascii = name.lower(), name.isascii()  # other letters have more than two cases
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


def _first_match(rules: Sequence[_Rule], name: str) -> Placement | None:
    for rule, found in _matches(rules, name):
        return Placement(rule.role, operation(found.groupdict().get("op")) or rule.op)
    return None


def _placed_by_table(name: str) -> Placement:
    placement = _first_match(_comm_rules(), name)
    if placement:
        return placement
    never, rules = _compute_rules()
    return (not _first_match((never,), name) and _first_match(rules, name)) or Placement(UNPLACED)


def _user_pattern(text: str, argument: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        said = f"{argument} {text!r} is not a regular expression: {error}"
        raise UsageError(said, in_shell=f"--{said}") from error
    return text


@cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((get_data(__package__, name) or b"").decode())


def _rule(row: Mapping[str, Any], role: int) -> _Rule:
    return _Rule(row["pattern"], role, row.get("op"), tuple(row.get("contains", ())))


@cache
def _comm_rules() -> tuple[_Rule, ...]:
    roles = {"comm": COMMUNICATES, "fused": FUSES}
    return tuple(_rule(row, roles[row["role"]]) for row in _table("comm_names.toml")["rule"])


@cache
def _compute_rules() -> tuple[_Rule, tuple[_Rule, ...]]:
    """Return the rule for names that are never placed, and the rules for names that compute."""
    table = _table("compute_names.toml")
    return _rule(table["never"], COMPUTES), tuple(_rule(row, COMPUTES) for row in table["rule"])


@cache
def _operations() -> dict[str, str]:
    table: dict[str, str] = _table("comm_names.toml")["operations"]
    return {**{canonical: canonical for canonical in table.values()}, **table}
