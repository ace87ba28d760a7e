"""Why a rank is named, in words: the figures that a straggler's evidence holds."""

from collections.abc import Mapping
from typing import Any, Final

from overlapscope.report.amounts import ms, percent

WORDS: Final[Mapping[str, str]] = {
    "calls": "came last to {} calls",
    "computed_more_ns": "computed {} more than its peers",
    "communicated_more_ns": "communicated {} more",
    "idle_more_ns": "idle {} longer than its peers",
    "before_first_launch_ns": "{} of that before a step's first launch",
    "launched_late_ns": "{} in calls that were launched late",
    "on_core_more_ns": "on a core {} longer",
    "off_core_more_ns": "off its core {} longer",
    "waited_for_core_more_ns": "waited {} longer for a core",
    "compute_ns": "compute {} in all",
    "peers_compute_ns": "its peers' compute {}",
    "work_ns": "its kernels at the usual speed {}",
    "peers_work_ns": "its peers' kernels at the usual speed {}",
    "slowness": "its kernels take {} times as long as usual",
    "in_larger_grids": "{} of its compute in larger grids than its peers'",
    "garbage_collector_ns": "collected garbage {} longer",
    "data_loading_ns": "between steps, as in loading data, {} longer",
    "cpu_throttled_ns": "held off its core {} longer by its limit",
    "allocator_retries_more": "its allocator asked again {} times more",
    "recording_cost_ns": "recording cost at most {}",
    "sm_clock_mhz": "its clock {} MHz",
    "peers_sm_clock_mhz": "its peers' clock {} MHz",
}
"""How each figure is told; one that is not here is told by its own name."""
SHARES: Final = frozenset({"in_larger_grids"})
CHANCE: Final = "chance"
LEAST_CHANCE: Final = 1e-4


def evidence_words(evidence: Mapping[str, Any]) -> str:
    """Give the figures in one line; of times those that are more than nothing."""
    told = [_words(key).format(_figure(key, value)) for key, value in evidence.items() if _tells(key, value)]
    chance = evidence.get(CHANCE)
    if isinstance(chance, int | float):
        shown = f"{'less than ' if chance < LEAST_CHANCE else ''}{max(chance, LEAST_CHANCE) * 100:.2f} %"
        told.append(f"among equals by chance in {shown} of runs")
    return "; ".join(told)


def _tells(key: str, value: Any) -> bool:
    """Whether a figure has something to say: flags are told by the sentence, lists are too long for it."""
    if key in (CHANCE, "throttle_reasons") or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 or not key.endswith("_ns")


def _words(key: str) -> str:
    return WORDS.get(key) or f"{key.removesuffix('_ns').replace('_', ' ').replace('{', '').replace('}', '')} {{}}"


def _figure(key: str, value: float) -> str:
    if key.endswith("_ns"):
        return f"{ms(value)} ms"
    return percent(value) if key in SHARES else f"{value:,.4g}"
