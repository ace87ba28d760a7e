"""The policy of the gate: metrics, minimum differences, budgets, and which runs are comparable."""

import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from overlapscope.analysis.job_step.metrics import METRICS, STEP_TIME
from overlapscope.analysis.structure.kinds import KINDS, ChangeKind
from overlapscope.errors import UsageError
from overlapscope.gate.comparable import BLOCKING

GATING: Final = (STEP_TIME, "exposed_comm_ns")
JUDGED: Final = {each.name: each for each in METRICS if each.better is not None}
"""Metrics that have a better direction, by name."""
INCONCLUSIVE: Final = "inconclusive"


def _budgets(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} must be a table of limits by metric")
    return {known_metric(name): _number(f"{key}.{name}", limit) for name, limit in value.items()}


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{key} must be a number of 0 or more")
    return value


def _share(key: str, value: Any) -> float:
    number = _number(key, value)
    if not 0 < number < 0.5:
        raise UsageError(f"{key} must lie between 0 and 0.5")
    return number


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{key} must be the name of a file")
    return value


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise UsageError(f"{key} must be a whole number of 0 or more")
    return value


class StructurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The table `structure` of the policy: which differences between dry runs fail."""

    fail: tuple[ChangeKind, ...] = tuple(kind for kind, each in KINDS.items() if each.worse)
    """Kinds of differences that fail the gate; others are only reported."""
    max_bytes_growth: float = 0.0
    """By this share of the base the bytes of calls that are otherwise alike may grow ..."""
    max_memory_growth: float = 0.05
    """... by this share memory at the peak ..."""
    max_flops_growth: float = 0.01
    """... and by this share the FLOPs of the step."""


def structure_policy_of(key: str, table: Any) -> StructurePolicy:
    """Parse the table `structure` of a policy. Raises UsageError, naming the wrong key and the nearest known one."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{key} must be a table")
    for name in table:
        if name not in StructurePolicy.__struct_fields__:
            raise UsageError(unknown_name_message("key", f"{key}.{name}", _STRUCTURE_KEYS))
    values: dict[str, Any] = {name: _number(f"{key}.{name}", value) for name, value in table.items() if name != "fail"}
    if "fail" in table:
        values["fail"] = tuple(map(_known_kind, _words(f"{key}.fail", table["fail"])))
    return StructurePolicy(**values)


_STRUCTURE_KEYS: Final = [f"structure.{name}" for name in StructurePolicy.__struct_fields__]


def _known_kind(word: str) -> ChangeKind:
    for kind in KINDS:
        if kind == word:
            return kind
    raise UsageError(f"structure.fail: {unknown_name_message('kind of difference', word, KINDS)}")


_READERS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "metrics": lambda key, value: tuple(map(known_metric, _words(key, value))),
    "min_relative": _number,
    "min_absolute_ns": _whole,
    "min_absolute_ratio": _number,
    "alpha": _share,
    "budgets": _budgets,
    "allow_mismatch": lambda key, value: tuple(map(known_key, _words(key, value))),
    "fail_on": lambda key, value: tuple(map(known_failure, _words(key, value))),
    "floor": _text,
    "seed": _whole,
    "structure": structure_policy_of,
}
LONGEST: Final = 80


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[tool.overlapscope.gate]`, with its defaults."""

    metrics: tuple[str, ...] = GATING
    """Metrics that can fail the gate; others are only reported."""
    min_relative: float = 0.03
    """A difference counts where it is at least this share of the base ..."""
    min_absolute_ns: int = 500_000
    """... and at least this many ns ..."""
    min_absolute_ratio: float = 0.02
    """... or this much of a ratio. Both minimums must be reached."""
    alpha: float = 0.05
    """How often, at most, runs of unchanged code may fail."""
    budgets: Mapping[str, float] = {}
    """Limits of the candidate's value, by metric, in its unit; a lower limit where more is better."""
    allow_mismatch: tuple[str, ...] = ()
    """Keys in which the runs may differ."""
    fail_on: tuple[str, ...] = ()
    """`inconclusive`: an inconclusive metric fails too, with its own exit code."""
    floor: str | None = None
    """File that `gate --calibrate` wrote; relative to the file that names it."""
    seed: int = 0
    """Seed of the bootstrap."""
    structure: StructurePolicy = StructurePolicy()


def policy_of(table: Mapping[str, Any]) -> Policy:
    """Parse the policy from a TOML table. Raises UsageError, which names the wrong key and the nearest known one."""
    known = Policy.__struct_fields__
    for key in table:
        if key not in known:
            raise UsageError(unknown_name_message("key", key, known))
    values: dict[str, Any] = {key: _READERS[key](key, value) for key, value in table.items()}
    return Policy(**values)


def known_metric(name: str) -> str:
    """Return `name` if it is a metric that can be judged; raises UsageError for another."""
    if name in JUDGED:
        return name
    if any(name == each.name for each in METRICS):
        raise UsageError(f"{name} cannot be judged: it is neither better nor worse when it grows")
    raise UsageError(unknown_name_message("metric", name, JUDGED))


def known_key(key: str) -> str:
    """Return `key` if runs may be allowed to differ in it; raises UsageError for another."""
    if key not in BLOCKING:
        raise UsageError(unknown_name_message("key that makes runs not comparable", key, BLOCKING))
    return key


def known_failure(word: str) -> str:
    """Return `word` if the gate can also fail on it; raises UsageError for another."""
    if word != INCONCLUSIVE:
        raise UsageError(f"fail_on: {unknown_name_message('verdict to fail on', word, (INCONCLUSIVE,))}")
    return word


def _words(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{key} must be a list of strings")
    return tuple(dict.fromkeys(value))


def unknown_name_message(sort: str, word: str, known: Collection[str]) -> str:
    """Return the message for an unknown name of a `sort`, with the nearest known name, else with all of them."""
    near = get_close_matches(word, sorted(known), 1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    return f"there is no {sort} {word[:LONGEST]!r}; {remedy}"
