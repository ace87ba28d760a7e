"""Rule: the job is launch-bound; the device is idle, waiting for kernel launches, or collectives are launched late."""

from typing import Final

from overlapscope.advice.calls.flatten_gradients import idle_in_bursts
from overlapscope.advice.job_kind import FUSABLE, JobKind
from overlapscope.advice.losses.blocked_host import CAPTURED, bound, replays_graphs
from overlapscope.advice.losses.host_operation import in_one_operation, without_operation
from overlapscope.advice.losses.host_time import LEAST_IDLE, NEARLY_ALL, HostTime, Place, host_time, place_of_waits
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.host_work import HostWork, take_off, work_of_names
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.graph.found_causes import LossKind
from overlapscope.analysis.result import Recommendation

MOSTLY: Final = 0.5
"""Share of the time from which on it is said to be of one kind, or of one rank."""
FAR_MORE: Final = 2
"""Such a rank has so many times as much as the next one. A choice: of two ranks one always has most."""
PAUSING: Final = {
    "host": "lscpu; taskset -cp PID  # as many cores as ranks, and their threads, need\n"
    "export OMP_NUM_THREADS=4  # ranks times threads: at most the cores of the machine\n"
    "numactl --cpunodebind=NODE --membind=NODE python ...  # each rank beside its device"
}
"""What keeps a host from pausing: cores of its own."""


def launch_bound(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where launches, or pauses of hosts, decide the step; None for runs without devices.

    Pauses that are a finding of their own, and operations that are named alone (`host_operation`), are left to these.
    """
    if not given.run_has_device:
        return None
    named = any(each.id == "host_pauses" for each in given.analysis.findings)
    kinds: tuple[LossKind, ...] = ("launch_rate", "pause") if named else ("launch_rate", "pause", "long_pause")
    found = without_operation(host_time(given, *kinds), in_one_operation(given))
    in_bursts, late = idle_in_bursts(given), given.cause_ns("late_launch")
    late = late if given.is_worth(late) and not in_bursts else 0
    idle = max(found.ns - in_bursts, 0)
    idle = idle if idle >= LEAST_IDLE * given.step_ns else 0
    if not late and not idle:
        return None
    rate, slow, long = (found.by_kind.get(each, 0) for each in ("launch_rate", "pause", "long_pause"))
    pausing, slowly = idle > 0 and long > MOSTLY * found.ns, slow + long > MOSTLY * found.ns
    one = None if in_bursts else _one_rank(given, found)
    capture = not in_bursts and not replays_graphs(given)
    how = "one after the other"
    place = place_of_waits(given, "pause", "long_pause") if slowly else None
    work = _work_there(place) if pausing else None
    what = _what(work, pausing=pausing, slowly=slowly)
    where = "" if place is None else place.words
    if pausing:
        how = f"{'most' if one else ms(long)} of it in pauses of the host of 3 ms or more{where}"
    elif slowly:
        how = f"{'most' if one else ms(slow + long)} of it between calls 0.2 ms or more apart{where}"
    parts = [f"{_idle_words(idle, one, 'its host' if pausing else 'launches')}, {how}"] if idle else []
    parts += [f"collectives launched late cost {ms(late)}"] if late else []
    return recommended(
        given,
        id="launch_bound",
        title=f"{what}: in a {ms(given.step_ns)} {given.per} {' and '.join(parts)}",
        # The device idles while a call is launched late.
        at_most_ns=max(late, idle),
        bound_from="loss",
        apply=({} if not slowly else PAUSING if work is None else dict(work.apply))
        | ({} if pausing else _launching(given.job, capture=capture)),
        evidence={
            "late_launch_ns": late,
            "idle_ns": given.figures.idle_ns,
            "launch_rate_ns": rate,
            "pauses_ns": slow + long,
            "long_pauses_ns": long,
            "work": None if work is None else work.id,
        },
        shown_by=found.shown_by,
        measured=["launches after the data was ready, and idle time that ended with a launch which nothing held back"],
        assumed=[*_assumed(given), *(() if work is None else work.assumed)],
    )


def _work_there(place: Place | None) -> HostWork | None:
    """Return the kind of host work that nearly all of the pauses are in, by the name of their range; None for none."""
    return None if place is None or place.share < NEARLY_ALL else work_of_names([place.name])


def _what(work: HostWork | None, *, pausing: bool, slowly: bool) -> str:
    """Return what is lost to, or what is to be done about pauses that are in one kind of host work."""
    if work is not None:
        return take_off(work, "the host")
    return "Pauses of the host" if pausing else "Late launches" if slowly else "Launch-bound"


def _assumed(given: RuleInput) -> list[str]:
    damaged, found = given.damaged_hosts, [bound(given)]
    if given.figures.comm_ns and not given.is_whole:
        later = "that unrecorded ranks, which came later still, get faster as well"
        unseen = given.cross_rank.waited_for_unseen_ns
        found.append(later if unseen else "that no unrecorded rank was later still: not all were recorded")
    if damaged:
        found.append(f"that {rank_list(damaged)}, whose record of the host is damaged, lost as much")
    if _profiled(given):
        found.append("how much of it is caused by the profiler, which slows the host")
    return found


def _one_rank(given: RuleInput, found: HostTime) -> tuple[int, float] | None:
    """Return the rank whose device waits for most of the time, of several, with that time a step; None where none
    does."""
    usual = {rank: own[given.is_usual(rank)] for rank, own in found.by_window.items()}
    each = {rank: float(own.mean()) for rank, own in usual.items() if own.size}
    *others, most = sorted(each, key=each.__getitem__) or [-1]
    if not others or each[most] <= max(MOSTLY * sum(each.values()), FAR_MORE * each[others[-1]]):
        return None
    return most, each[most]


def _idle_words(idle: int, one: tuple[int, float] | None, what: str) -> str:
    if one is None:
        return f"the device waits {ms(idle)} for {what}"
    return f"the device of rank {one[0]} waits {ms(one[1])} for {what} (in the mean of all ranks it is {ms(idle)})"


def _profiled(given: RuleInput) -> bool:
    return any(each.basis == "trace" for each in given.run.ranks.values())


def fewer_launches(given: RuleInput) -> dict[str, str] | None:
    """Return code that makes fewer launches; None where whole graphs are launched already."""
    return None if replays_graphs(given) else _launching(given.job, capture=True)


def _launching(job: JobKind, *, capture: bool) -> dict[str, str]:
    """Return code that makes fewer launches; `capture`: whether a step can become a graph as it is."""
    if job.serves:
        return CAPTURED
    if job.is_npu:
        return {"environment": "export TASK_QUEUE_ENABLE=2 CPU_AFFINITY_CONF=1"}
    lines = ["# a larger micro-batch: the same launches, longer kernels"]
    if capture:
        lines.insert(0, 'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs, from torch 2.0 on')
    if job.optimizer in FUSABLE and not job.is_fused:
        lines.append(f"optimizer = torch.optim.{job.optimizer}(..., fused=True)")
    return {
        "torch": "\n".join(lines),
        "fsdp2": "block.set_modules_to_forward_prefetch([next_block])  # enqueues the gather before the compute",
        **({"megatron": "--cuda-graph-impl local"} if capture else {}),
    }
