"""Which recommendation stands first: the one whose loss, without what another one explains of it, is the largest."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from overlapscope.advice.calls.backward_prefetch import IN_FORWARD
from overlapscope.advice.hosts.slow_host import not_computed_ns
from overlapscope.advice.late_rank import DOMINATES
from overlapscope.advice.losses.exposed_communication import LATE_WAITS
from overlapscope.advice.losses.largest_loss import (
    OF_EXPOSED,
    gaps_ns,
    late_gain_ns,
    launches_ns,
    longer_beside_launches_ns,
    slow_transfers_ns,
    straggler_of,
)
from overlapscope.advice.rule_input import counted_loss_ns, gain_ns, per_step, recomputed_ns
from overlapscope.advice.shared_cores import comes_first
from overlapscope.advice.steps.deciding_rank import DECIDING_NS
from overlapscope.advice.steps.long_steps import LONG_STEPS
from overlapscope.analysis.result import Analysis, Recommendation

TRIAL_OF_COMPUTE: Final = "unfused_elementwise"
"""It may gain much or nothing, and has nothing to do with communication."""
FOR_CORES: Final = ("peer_core", "late_end", "slow_transfer")
"""Causes of exposed communication that may be the lack of cores, where these are short: threads that transfer wait for
them, too."""
OF_COMMUNICATION: Final = (OF_EXPOSED - {"late_rank"}) | {
    "algorithm_trial", "use_infiniband", "use_gpu_direct", "max_connections", "fewer_channels", "communication_copies",
    "sharded_optimizer", "sixteen_bit_exchange",
}  # fmt: skip
"""Recommendations that change communication: beside them nothing says that no setting of it shortens the waiting."""


BY_OVERLAP: Final = frozenset({
    "tensor_parallel", "expert_parallel", "split_all_reduce", "overlap_without_effect", "small_collectives",
    "busy_lane", "backward_prefetch", "fsdp_units",
})  # fmt: skip
"""Their bound is all that is exposed of calls whose results are waited for, as if all of it could run beside compute,
or took no time, ..."""
OF_BOUND: Final = 0.5
"""... of which this share counts in the order. A choice: calls that depend on each other leave some of it, how much is
not recorded, while idle time in calls of the host, and what a replay gains, are lost in full."""
TIMES_NEXT: Final = 2
"""A change of numerics, which costs a comparison of losses, stands before what addresses so many times less. A
choice."""
OF_PIPELINE: Final = 1 / 3
"""Evening out stages comes before exposed communication where it addresses this share of the waits between stages: it
says what to change, and what is left of them is the schedule's. A choice."""


def moved_ns(found: Sequence[Recommendation], analysis: Analysis) -> dict[str, int]:
    """Return what the order of losses counts more, or less, of a step for each recommendation, in ns.

    Without devices: exposed communication that lack of cores may explain counts for cores; waiting for several ranks in
    turn, of which some stand still, counts for these. On devices exposed communication counts less by what calls take
    longer than their like, where launches cost more than the rest; by what the excess of a straggler costs, or evening
    out steps gains, or all but what the rank that decides is exposed; by gaps between kernels and compute that was not
    launched yet; and by waits between stages that evening them out addresses. A slow host counts all exposed and idle
    time, as it may be why; a slow link what it costs in the mean of all steps; a straggler for whom most of the time in
    collectives is waited more than what would change these.
    """
    if not analysis.run.has_device:
        return _moved_to_cores(found, analysis) | _moved_to_still(found)
    named = next(
        (each for each in found if each.id == "exposed_communication" and LONG_STEPS not in each.evidence), None
    )
    steps = analysis.headline.steps if analysis.headline.window == "step" else 1
    late_ns = late_gain_ns(found, steps) - (0 if named is None else named.evidence.get(LATE_WAITS, 0))
    if named is not None and DECIDING_NS in named.evidence:
        late_ns = (named.loss_ns or 0) - named.evidence[DECIDING_NS]
    of_others = longer_beside_launches_ns(analysis, (named and named.loss_ns) or 0) + round(max(late_ns, 0))
    of_others += max(launches_ns(found, analysis), gaps_ns(analysis)) + _of_uneven_stages(found, analysis, steps)
    moved = {"exposed_communication": -of_others} if named is not None and of_others else {}
    moved |= {each.id: not_computed_ns(analysis) for each in found if each.id == "slow_host"}
    return moved | _moved_to_straggler(found, steps) | _moved_to_link(found, analysis, steps)


def _of_uneven_stages(found: Sequence[Recommendation], analysis: Analysis, steps: int) -> int:
    """Return the waits between stages of a pipeline where evening these out addresses enough of them."""
    waits_ns = analysis.headline.causes.get("pipeline", 0)
    uneven_ns = sum(per_step(each, _weight_ns(each), steps) for each in found if each.id == "uneven_stages")
    return waits_ns if uneven_ns and uneven_ns >= OF_PIPELINE * waits_ns else 0


def _moved_to_link(found: Sequence[Recommendation], analysis: Analysis, steps: int) -> dict[str, int]:
    """Return what a slow link costs in the mean of all steps, where that is more than a median holds."""
    link = next((each for each in found if each.id == "repair_link"), None)
    ns = 0 if link is None else round(slow_transfers_ns(analysis) - per_step(link, _weight_ns(link), steps))
    return {"repair_link": ns} if ns > 0 else {}


def _moved_to_straggler(found: Sequence[Recommendation], steps: int) -> dict[str, int]:
    late = straggler_of(found)
    if late is None or late.evidence["waited_ns"] < DOMINATES * late.evidence["collective_ns"]:
        return {}
    most = max((per_step(each, _weight_ns(each), steps) for each in found if each.id in OF_COMMUNICATION), default=0)
    ns = round(most - per_step(late, _weight_ns(late), steps)) + 1
    return {"late_rank": ns} if ns > 0 else {}


def _moved_to_cores(found: Sequence[Recommendation], analysis: Analysis) -> dict[str, int]:
    cores = next((each for each in found if each.id == "shared_cores" and each.per == "step"), None)
    may_be_ns = sum(analysis.headline.causes.get(cause, 0) for cause in FOR_CORES)
    if cores is None or cores.loss_ns is None:
        return {}
    return {"shared_cores": may_be_ns, "exposed_communication": -may_be_ns}


def _moved_to_still(found: Sequence[Recommendation]) -> dict[str, int]:
    losses = {each.id: each.loss_ns or 0 for each in found if each.id in ("standing_still", "late_rank")}
    in_turn = any(each.id == "late_rank" and each.evidence.get("held_by") is None for each in found)
    if len(losses) < 2 or not in_turn:
        return {}
    ns = min(losses.values())
    return {"standing_still": ns, "late_rank": -ns}


def ranked(
    found: Sequence[Recommendation], steps: int = 1, moved: Mapping[str, int] | None = None
) -> list[Recommendation]:
    """Sort recommendations by the loss of a step that they address, or what they are predicted to gain, where that is
    more, the largest first, then by gain; those without a figure follow. `no_change` comes after them, then changes of
    numerics, but where they address `TIMES_NEXT` times what the next does, and the trial of compute that no figure
    bounds; cores that many ranks share first.

    `steps` divides the figures of those that are of the whole recording; `moved` counts more, or less, of a step for
    some (`moved_ns`). A pause that is longer than the wait for cores comes before them: no scheduler makes it.
    """
    cores_ns = max((per_step(each, each.loss_ns, steps) for each in found if comes_first(each)), default=None)

    def place(each: Recommendation) -> int:
        if each.id == "pausing_host" and cores_ns is not None and per_step(each, each.loss_ns, steps) > cores_ns:
            return 0
        return 1 if comes_first(each) else 2

    def weight_ns(each: Recommendation) -> float:
        ns = per_step(each, _weight_ns(each), steps) + (moved or {}).get(each.id, 0)
        return ns / TIMES_NEXT if each.changes_numerics else ns

    others_ns = [weight_ns(each) for each in found if not each.changes_numerics and each.verdict != "no_change"]
    next_ns = min((ns for ns in others_ns if ns > 0), default=inf)

    def key(each: Recommendation) -> tuple[bool, bool, bool, int, float, bool, float]:
        gain, weight = gain_ns(each), weight_ns(each)
        unbounded = each.id == TRIAL_OF_COMPUTE and gain is None
        comes_late = each.changes_numerics and weight < next_ns
        is_kept = each.verdict == "no_change"
        return unbounded, comes_late, is_kept, place(each), -weight, each.changes_numerics, -per_step(each, gain, steps)

    return sorted(found, key=key)


def _weight_ns(each: Recommendation) -> float:
    """Return the loss that it addresses, or its gain where no loss is known or the gain is more; of a bound that no
    replay confirms and complete overlap alone would reach, `OF_BOUND`; all of it where nearly all gathers were seen to
    begin late in both passes (`IN_FORWARD`), as little of that is left by calls that depend on each other. Of what is
    recomputed, which has no figure as memory decides, a part counts."""
    is_less = each.id in BY_OVERLAP and each.predicted_gain_ns is None and not each.evidence.get(IN_FORWARD)
    share = OF_BOUND if is_less else 1.0
    loss_ns = counted_loss_ns(each)
    known_ns = share * ((gain_ns(each) if loss_ns is None else loss_ns) or 0)
    return max(known_ns, each.predicted_gain_ns or 0, recomputed_ns(each))
