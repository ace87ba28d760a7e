"""What can be asked of a recording, and why the rest cannot: told before anything is replayed."""

from collections.abc import Mapping
from typing import Final

import msgspec

from overlapscope.analysis.across_ranks import across
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp_recording import from_run
from overlapscope.whatif.graph_case import graph_case
from overlapscope.whatif.graph_predict import Wanted, trials_of
from overlapscope.whatif.parallelism import KNOBS, OPTIONS, Kind, kind_of, unfit_options
from overlapscope.whatif.requested import unfit

OTHER_BUCKETS: Final = ("bucket_cap_mb", "gradient_as_bucket_view", "accumulation, no_sync")
"""Settings that need other buckets than the recorded ones."""
WHY_NOT: Final = {
    "reshard_after_forward": "backward gathers nothing: parameters stay gathered",
    "reduce_dtype": "no gradients of 32 bits are reduced",
    "traffic_dtype": "nothing of 32 bits is exchanged",
    "straggler_removed": "no rank keeps the others waiting most, or ranks launch different collectives",
}


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked of one recording."""

    kind: Kind
    knobs: dict[str, str] = {}
    """What is replayed of it; what no option asks for stands in every answer."""
    options: list[str] = []
    """Options that go with it."""
    refused: dict[str, str] = {}
    """Settings and options that do not, and why."""
    reason: str = ""
    """Why nothing of it can be replayed; empty where something can."""


def listing_of(run: Run, refused: Mapping[str, str]) -> Listing:
    """Say what can be asked of a recording; of options that are `refused` besides, the reason is known."""
    kind = kind_of(run)
    try:
        knobs, unfitting = _of_ddp(run) if kind == "ddp" else _of_graphs(run, kind)
    except InputError as error:
        return Listing(kind=kind, reason=str(error))
    unfitting |= unfit_options(kind) | dict(refused)
    return Listing(
        kind=kind, knobs=knobs, options=[each for each in OPTIONS if each not in unfitting], refused=unfitting
    )


def _of_ddp(run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is replayed of a recording of DDP, and why something is not."""
    case = from_run(run)
    refused = unfit(case.workload(), case.baseline)
    if case.fixed:
        refused |= dict.fromkeys((*OTHER_BUCKETS, "--bucket-cap-mb", "--no-search"), case.fixed)
    if case.baseline.communicated != 1.0 or not case.halves:
        refused["hook"] = "not all gradients are sent in 32 bits"
    if len(set(case.workload().lateness_ns)) < 2:
        refused["late_ranks"] = "all ranks begin their step at once"
    gone = {each.removeprefix("--").replace("-", "_") for each in refused}
    return {name: what for name, what in KNOBS["ddp"].items() if name not in gone}, refused


def _of_graphs(run: Run, kind: Kind) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is replayed of a recording of any other kind, and why something is not."""
    case = graph_case(run, across(run))
    trials, reasons = trials_of(case, Wanted())
    tried = {knob for each in trials for knob in each.knobs} | {"algorithm"}
    knobs, refused = {}, {}
    for name, what in KNOBS[kind].items():
        if tried.isdisjoint(name.split(", ")):
            refused[name] = WHY_NOT.get(name) or "; ".join(reasons) or "its steps do not show it"
        else:
            knobs[name] = what
    return knobs, refused
