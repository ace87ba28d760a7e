"""Rule: hosts launch one kernel after the other for nearly all of a step, and ranks wait for whichever is slower."""

from typing import Final

from overlapscope.advice.hosts.slow_host import not_computed_ns
from overlapscope.advice.losses.largest_loss import longer_ns_of
from overlapscope.advice.losses.launch_bound import fewer_launches
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text

NEARLY_ALL: Final = 0.9
"""Least share of the steps of each rank in which its host works. A choice: what is left is then no more than hosts of
like machines differ by."""


def host_paced(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the host of each rank works nearly all the time, no graphs are launched, and
    calls take longer than their like for long enough: a host that is a little slower then delays all."""
    shares = _shares(given)
    longer_ns = longer_ns_of(given.analysis)
    if not shares or min(shares) < NEARLY_ALL or not given.is_worth(longer_ns):
        return None
    apply = fewer_launches(given)
    if apply is None:
        return None
    whose = "other ranks" if given.is_whole else "ranks that were not recorded"
    waits = f"at least {ms(longer_ns)} of exposed communication is waiting for {whose}, or other traffic"
    return recommended(
        given,
        id="host_paced",
        title=f"Launch less: hosts work at least {percent_text(min(shares))} of a {ms(given.step_ns)} {given.per}, "
        f"without waiting for their devices, so that a slightly slower one delays all; {waits}",
        loss_ns=not_computed_ns(given.analysis),
        apply=apply,
        evidence={
            "host_share": min(shares),
            "longer_than_like_ns": longer_ns,
            "host_free_ns": round(given.host_free_ns),
        },
        measured=[
            "calls of hosts that launch, without waits, and what lies between two of them less than 0.2 ms apart"
        ],
        assumed=[
            f"that {whose} are late because of their hosts",
            "that little of this work is caused by the profiler, which slows hosts",
        ],
    )


def _shares(given: RuleInput) -> list[float]:
    """Return in which share of its windows the host of each rank at hand worked; empty where that is not known of
    all."""
    at_hand = [timeline.rank for timeline, _ in given.some_ranks()]
    if set(at_hand) - given.host_work_ns.keys():
        return []
    lasted = {rank: sum(end - start for start, end in given.windows[rank]) for rank in at_hand}
    return [int(given.host_work_ns[rank].sum()) / lasted[rank] for rank in at_hand if lasted[rank]]
