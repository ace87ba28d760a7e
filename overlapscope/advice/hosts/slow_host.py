"""Rule: look at the hosts that take much longer than others for the same calls, and do not wait for their devices."""

from overlapscope.advice.hosts.fewer_buckets import fewer_buckets
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.checks.hosts.slow_host import slow_hosts
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.display import list_some

LOOK = (
    "cpupower frequency-info; lscpu | grep MHz  # on that machine: the governor, the clock\n"
    "taskset -cp PID; cat /sys/fs/cgroup/cpu.max; numactl --show  # which cores, how much of them, near the device?\n"
    "pidstat -u 1; mpstat -P ALL 1  # other processes on them, %steal"
)


def slow_host(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding names slow hosts, and enough of a step is exposed or idle that they
    may be why. How much of that is theirs is not known: it has no figure."""
    found = slow_hosts(given.analysis.findings)
    if found is None or not given.is_worth(not_computed_ns(given.analysis)):
        return None
    ranks, machines = found.evidence["ranks"], found.evidence["hosts"]
    times = max(each["times"] for each in found.evidence["of_rank"].values())
    one = len(ranks) == 1
    where = f" ({list_some(machines)})" if machines else ""
    it, its = ("it", "its") if one else ("they", "their")
    unseen = "" if given.is_whole else f", or a rank of {its} machine{'' if one else 's'} that was not recorded,"
    takes = "takes" if one else "take up to"
    waits_ns = given.figures.exposed_wait_ns or 0
    waits = f"; {ms(waits_ns)} of a {ms(given.step_ns)} {given.per} is waiting for late ranks"
    return recommended(
        given,
        id="slow_host",
        title=f"Look at the host{'' if one else 's'} of {rank_list(ranks)}{where}: {it} {takes} {times:.1f} times as "
        f"long as the others for the same calls, and hardly wait{'s' * one} for {its} device{'' if one else 's'}, so "
        f"that {it}{unseen} may pace all ranks"
        f"{waits if given.is_worth(waits_ns) else ''}",
        verdict="look",
        apply={"linux": LOOK} | fewer_buckets(given, ranks),
        evidence={
            "ranks": ranks,
            "hosts": machines,
            "times": times,
            "not_computed_ns": not_computed_ns(given.analysis),
        },
        measured=["how long calls of the runtime take on each host, in the median"],
        assumed=["that the slower host delays the others, as its device has nothing launched ahead"],
        verify="overlapscope analyze NEW_RUN: the finding slow_host is gone",
    )


def is_why_late(slow: Recommendation | None, late: Recommendation) -> bool:
    """Return whether ranks wait most for one of which is not known why it is late, but whose host is slow."""
    return slow is not None and late.evidence["held_by"] is None and late.evidence["rank"] in slow.evidence["ranks"]


def not_computed_ns(analysis: Analysis) -> int:
    """Return for how long of a step nothing is computed: exposed and idle time."""
    return (analysis.headline.exposed_comm_ns or 0) + (analysis.headline.idle_ns or 0)
