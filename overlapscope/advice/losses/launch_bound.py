"""Rule: the job is launch-bound; the device is idle, waiting for kernel launches, or collectives are launched late."""

from typing import Final

from overlapscope.advice.flatten_gradients import idle_in_bursts
from overlapscope.advice.job_kind import FUSABLE, JobKind
from overlapscope.advice.losses.host_time import LEAST_IDLE, host_time
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation

MOSTLY: Final = 0.5
PAUSING: Final = {
    "host": "lscpu; taskset -cp PID  # as many cores as ranks, and their threads, need\n"
    "export OMP_NUM_THREADS=4  # ranks times threads: at most the cores of the machine\n"
    "numactl --cpunodebind=NODE --membind=NODE python ...  # each rank beside its device"
}
"""What keeps a host from pausing: cores of its own."""


def launch_bound(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where launches decide the step; None for runs without devices."""
    if not given.run_has_device:
        return None
    found = host_time(given, "launch_rate", "pause")
    in_bursts, late = idle_in_bursts(given), given.cause_ns("late_launch")
    late = late if given.is_worth(late) and not in_bursts else 0
    idle = max(found.ns - in_bursts, 0)
    idle = idle if idle >= LEAST_IDLE * given.step_ns else 0
    if not late and not idle:
        return None
    damaged = given.damaged_hosts
    rate, pauses = (found.by_kind.get(each, 0) for each in ("launch_rate", "pause"))
    mostly_pauses = pauses > MOSTLY * found.ns
    parts = [f"the device waits {ms(idle)} for launches"] if idle else []
    if idle:
        parts[0] += f", {ms(pauses)} of it in pauses of the host" if mostly_pauses else ", one after the other"
    parts += [f"collectives launched late cost {ms(late)}"] if late else []
    return recommended(
        given,
        id="launch_bound",
        title=f"Launch-bound: in a {ms(given.step_ns)} {given.per} {' and '.join(parts)}",
        at_most_ns=max(late, idle),  # the device idles while a call is launched late
        bound_from="loss",
        apply=(PAUSING if mostly_pauses else {}) | _launching(given.job, capture=not in_bursts),
        evidence={
            "late_launch_ns": late,
            "idle_ns": given.figures.idle_ns,
            "launch_rate_ns": rate,
            "pauses_ns": pauses,
        },
        shown_by=found.shown_by,
        measured=["launches after the data was ready, and idle time that ended with a launch which nothing held back"],
        assumed=[
            "that all of it can be avoided: the gain is an upper bound",
            *(
                ["that no unrecorded rank was later still: not all were recorded"]
                if given.figures.comm_ns and not given.is_whole
                else []
            ),
            *([f"that {rank_list(damaged)}, whose record of the host is damaged, lost as much"] if damaged else []),
            *(["how much of it is caused by the profiler, which slows the host"] if _profiled(given) else []),
        ],
    )


def _profiled(given: RuleInput) -> bool:
    return any(each.basis == "trace" for each in given.run.ranks.values())


def _launching(job: JobKind, *, capture: bool) -> dict[str, str]:
    """Return code that makes fewer launches; `capture`: whether a step can become a graph as it is."""
    if job.serves:
        return {
            "serving": "vllm serve ...  # without --enforce-eager\n"
            "python -m sglang.launch_server ...  # without --disable-cuda-graph"
        }
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
