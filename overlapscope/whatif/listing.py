"""List which settings can be replayed of a recording, and why the others cannot, without replaying anything."""

from collections.abc import Mapping
from typing import Final

import msgspec

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from overlapscope.whatif.parallelism import (
    KNOBS,
    OPTIONS,
    Parallelism,
    parallelism_of,
    shows_ddp,
    unsupported_options,
)
from overlapscope.whatif.requested import unsupported_ddp_options
from overlapscope.whatif.run_replay.answers import run_replay
from overlapscope.whatif.step_graph.graph_case import graph_case
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions, changes_of

OTHER_BUCKETS: Final = ("bucket_cap_mb", "gradient_as_bucket_view", "accumulation, no_sync")
"""Settings that need other buckets than the recorded ones."""
WHY_NOT: Final = {
    "reshard_after_forward": "backward gathers nothing: parameters stay gathered",
    "reduce_dtype": "no gradients of 32 bits are reduced",
    "traffic_dtype": "nothing of 32 bits is exchanged",
    "straggler_removed": "no rank is a straggler, or ranks launch different collectives",
    "host_pauses_ms": "no host of a device was recorded",
}


class ReplayableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings and options that can be replayed of one recording."""

    kind: Parallelism
    ddp: str = ""
    """Why no bucket is replayed, where torch's DistributedDataParallel is seen; empty elsewhere."""
    knobs: dict[str, str] = {}
    """Name and description of each setting that is replayed; those without an option are in every result."""
    options: list[str] = []
    """Command-line options that apply."""
    refused: dict[str, str] = {}
    """Settings and options that do not apply, and why."""
    reason: str = ""
    """Why nothing can be replayed; empty where something can."""


def replayable_settings(run: Run, refused: Mapping[str, str]) -> ReplayableSettings:
    """Return what can be replayed of a recording; `refused` adds options that do not apply, and why."""
    kind = parallelism_of(run)
    try:
        knobs, unsupported = _list_ddp(run) if kind == "ddp" else _list_graphs(run, kind)
    except InputError as error:
        if kind != "ddp" or isinstance(run_replay(run, match_and_align(run)), str):
            return ReplayableSettings(kind=kind, reason=str(error))
        # Of a DDP job whose buckets cannot be replayed, the dependency graph still answers for durations.
        knobs, unsupported = _list_graphs(run, kind)
        buckets = ("--bucket-cap-mb", "--no-search", "--zero-stage", "--partition-mb", "--priority")
        unsupported |= dict.fromkeys((*(name for name in KNOBS[kind] if name not in knobs), *buckets), str(error))
    seen = shows_ddp(run)
    unsupported |= unsupported_options(kind, is_ddp=seen) | dict(refused)
    return ReplayableSettings(
        kind=kind,
        ddp=_why_no_buckets(run) if seen and kind == "other" else "",
        knobs=knobs,
        options=[each for each in OPTIONS if each not in unsupported],
        refused=unsupported,
    )


def _why_no_buckets(run: Run) -> str:
    try:
        ddp_case_of_run(run)
    except InputError as error:
        return str(error.__cause__ or error)  # without what it says of waiting
    return ""


def _list_ddp(run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that are replayed of a DDP recording, and why others are not."""
    case = ddp_case_of_run(run)
    refused = unsupported_ddp_options(case.workload(), case.baseline)
    if case.fixed:
        refused |= dict.fromkeys((*OTHER_BUCKETS, "--bucket-cap-mb", "--no-search"), case.fixed)
    if case.baseline.communicated != 1.0 or not case.halves:
        refused["hook"] = "not all gradients are sent in 32 bits"
    if case.replay is None:
        refused["host_pauses_ms"] = case.abstains or WHY_NOT["host_pauses_ms"]
    if case.abstains:
        refused["link_speed"] = refused["late_ranks"] = case.abstains
    if len(set(case.workload().lateness_ns)) < 2:
        refused["late_ranks"] = "all ranks begin their step at the same time"
    unavailable = {each.removeprefix("--").replace("-", "_") for each in refused}
    return {name: what for name, what in KNOBS["ddp"].items() if name not in unavailable}, refused


def _list_graphs(run: Run, kind: Parallelism) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that are replayed of a recording that is not DDP, and why others are not."""
    case = graph_case(run, match_and_align(run))
    if case.abstains:
        raise InputError(case.abstains)
    changes, reasons = changes_of(case, ReplayOptions())
    tried = {knob for each in changes for knob in each.knobs} | {"algorithm"}
    knobs, refused = {}, {}
    for name, what in KNOBS[kind].items():
        if tried.isdisjoint(name.split(", ")):
            refused[name] = WHY_NOT.get(name) or "; ".join(reasons) or "its recorded steps do not contain it"
        else:
            knobs[name] = what
    return knobs, refused
