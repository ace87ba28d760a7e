"""Rule: hosts stand still while they compute, so that steps are longer and other ranks wait for them."""

from typing import Final

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation

SOME: Final = 0.25
"""Others wait for a rank if they do for at least this share of its pauses, and ..."""
MOSTLY: Final = 0.5
"""... for this share of the longest that they wait for one."""


def standing_still(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where hosts stand still much of the time; else None."""
    found = next((each for each in given.analysis.findings if each.id == "standing_still"), None)
    if found is None:
        return None
    lost_ns = found.evidence["lost_ns"]
    ranks = [rank for rank in found.evidence["ranks"] if _delays(given, rank, lost_ns[str(rank)])]
    if not ranks:
        return None
    most_ns = max(lost_ns[str(rank)] for rank in ranks)
    wait = ", and others wait for it" if len(given.analysis.ranks) > 1 else ""
    step = f"a {ms(given.step_ns)} {given.per}"
    hosts = f"{'the host' if len(ranks) == 1 else 'the hosts'} of {rank_list(sorted(ranks))}"
    return recommended(
        given,
        id="standing_still",
        title=f"Find what stops {hosts}: at least {ms(most_ns)} of {step} pass, in the mean, inside of "
        f"what seems to be compute{wait}",
        verdict="look",
        loss_ns=most_ns,
        apply={
            "linux": "top -H  # what else runs on the ranks' cores; st: the hypervisor took them\n"
            "taskset -cp PID  # cores of a rank; give each its own",
            "container": "cat /sys/fs/cgroup/cpu.stat  # nr_throttled grows: cpu.max is too low",
            "python": "py-spy dump --pid PID  # another thread that holds the interpreter's lock; a sleep, a file",
        },
        evidence=dict(found.evidence),
        measured=["when a host neither ran nor waited for a core"]
        if found.known_from == "telemetry"
        else ["operations that took longer than the same ones of other steps"],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the finding standing_still is gone",
    )


def _delays(given: RuleInput, rank: int, lost_ns: float) -> bool:
    """Return whether a step may be shorter without the pauses of a rank, of so many ns a step: not where it waits for
    others for longer, and these wait for it far less, or mostly for another one."""
    own = next((each for each in given.analysis.skew.ranks if each.rank == rank), None)
    in_all_ns = lost_ns * max(given.analysis.headline.steps, 1)
    if own is None or own.wait_ns < in_all_ns:
        return True
    most_ns = max(each.blame_ns for each in given.analysis.skew.ranks)
    return own.blame_ns >= max(SOME * in_all_ns, MOSTLY * most_ns)
