"""Faults of a whole job, not of one rank: each with its healthy twin, and what analysis may say of it.

They were drawn, and their judge written, before any rule knew them. A job is drawn again until the fault costs between
`LEAST` and `MOST` of the healthy step, and until hosts decide little of the healthy one.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.result import Analysis
from tests.property.synthetic.draw import ATTEMPTS, between
from tests.property.synthetic.job import MS, US, Fault, Job, Layout
from tests.property.synthetic.judge import ABSTAINED, RIGHT, WRONG
from tests.property.synthetic.machine import simulate

LEAST, MOST = 0.08, 2.0
HOST_SHARE = 0.15
"""Of a healthy step, at most, is decided by hosts."""
PART = 0.02
"""By which work is made longer to see how much of a step it decides."""
HALF = 0.5
SMALL = 0.02
"""A cause of less of the job's time than this is no claim."""
EXPECTED: Final = {
    "shared_cores": "shared_cores",
    "polling_host": "blocked_host",
    "late_pair": "straggler",
    "apart_starts": "start_of_recording",
    "unrecorded_nodes": "graph_gap",
    "allocator_churn": "allocator_churn",
    "offload_copies": "copies_on_compute_stream",
    "reductions_one_by_one": "flatten_gradients",
    "notify_kernels": "notify",
}
"""What is right to say of each."""
HOSTS_LATE: Final = ("shared_cores", "polling_host", "late_pair", "allocator_churn", "apart_starts")
"""Hosts do launch late: as a cause of exposed time that is true, though no more than that."""
ALSO_TRUE: Final = {"shared_cores": {"launch_bound"}, "polling_host": {"launch_bound"}, "late_pair": {"launch_bound"}}
BLAMES: Final = {
    "launch_bound": "launch_bound",
    "shared_cores": "shared_cores",
    "blocking_calls": "blocked_host",
    "data_loading": "data_loading",
    "allocator_churn": "allocator_churn",
    "copies_on_compute_stream": "copies_on_compute_stream",
    "small_collectives": "flatten_gradients",
    "flatten_gradients": "flatten_gradients",
    "repair_link": "slow_link",
}
"""What a recommendation says to be at fault; those of settings say nothing."""
HARMLESS: Final = {"start_of_recording", "notify", "graph_gap", "late_launch"}
EXCHANGES = 4
"""Dispatch and combine, forward and backward."""
PATH_OFF, IDLE_OFF = 0.25, 0.10
"""Hosts have no larger part of the critical path, and no more idle time for their launches, than they decide of the
step, but for this."""
FEW_STEPS: Final = ("shared_cores", "apart_starts")
"""They mislead most where a single step was recorded."""
FREE: Final = ("apart_starts", "unrecorded_nodes", "notify_kernels")
"""They cost no time, but mislead."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a step grows when something takes longer, as a share: its share of what decides the step."""

    host: float
    compute: float
    link: float


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a fault, and the same job without."""

    kind: str
    job: Job
    healthy: Job
    step_ns: float
    healthy_step_ns: float


def draw(kind: str, seed: int) -> Planted:
    """Draw a job with a fault of the kind. Raises RuntimeError where no job can have it."""
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng([seed, 300, list(EXPECTED).index(kind), attempt])
        healthy = _job(rng, kind, seed * ATTEMPTS + attempt)
        before = simulate(healthy, keep=False)
        job = replace(healthy, fault=_fault(rng, kind, healthy, before.step_ns))
        if kind == "polling_host":  # the work remains, only that the host no longer waits before it
            healthy = replace(healthy, fault=replace(job.fault, kind="none", polling=False))
            before = simulate(healthy, keep=False)
        if _host_share(healthy, before.step_ns) > HOST_SHARE:
            continue
        after = simulate(job, keep=False).step_ns
        if kind in FREE or LEAST <= after / before.step_ns - 1 <= MOST:
            return Planted(kind=kind, job=job, healthy=healthy, step_ns=after, healthy_step_ns=before.step_ns)
    raise RuntimeError(f"no job can have {kind}")


def _job(rng: np.random.Generator, kind: str, seed: int) -> Job:
    tp, dp = ((1, 8), (2, 4), (4, 2), (8, 1), (4, 4), (2, 8))[int(rng.integers(6))]
    experts = kind == "notify_kernels"
    steps = int(rng.choice([1, 1, 2, 4]) if kind in FEW_STEPS else rng.integers(4, 6))
    if experts or kind in ("late_pair", "reductions_one_by_one"):
        tp, dp = ((1, 8), (2, 4), (2, 8))[int(rng.integers(3))]
    return Job(
        layout=Layout(tp=tp, dp=dp, ep=min(dp, int(rng.choice([4, 8]))) if experts else 1),
        seed=seed, steps=steps, first_step=int(rng.integers(1, 1000)),
        layers=int(rng.integers(2, 5)), microbatches=int(rng.integers(1, 3)), kernels_each=int(rng.integers(1, 4)),
        layer_ns=between(rng, 1 * MS, 6 * MS), layer_bytes=int(between(rng, 4 << 20, 64 << 20)) // 4096 * 4096,
        activation_bytes=int(between(rng, 1 << 20, 16 << 20)) // 1024 * 1024,
        moe=experts, expert_kernels=experts, fsdp=kind not in ("reductions_one_by_one",) and bool(rng.random() < 0.3),
        joint_norm=bool(rng.random() < 0.7), sync_steps=bool(rng.random() < 0.6), graphs=kind == "unrecorded_nodes",
        launch_ns=between(rng, 4 * US, 12 * US), latency_ns=between(rng, 2 * US, 8 * US),
        kernel_jitter=between(rng, 0.003, 0.03), rank_jitter=between(rng, 0.001, 0.005),
        host_jitter=between(rng, 0.1, 0.4), host_rank_jitter=between(rng, 0.01, 0.05),
        hiccup_chance=between(rng, 1e-5, 5e-4), hiccup_ns=between(rng, 0.1 * MS, 1 * MS),
        expert_jitter=between(rng, 0.1, 0.4) if experts else 0.05, load_ns=between(rng, 0.05 * MS, 1 * MS),
        intra_gbs=between(rng, 100, 400), inter_gbs=between(rng, 20, 50), alpha_ns=between(rng, 5 * US, 20 * US),
        link_jitter=between(rng, 0.01, 0.05), end_jitter_ns=between(rng, 1 * US, 10 * US),
        interference=float(rng.uniform(1.0, 1.2)), offsets_ns=between(rng, 0.01 * MS, 10 * MS),
    )  # fmt: skip


def _fault(rng: np.random.Generator, kind: str, job: Job, step_ns: float) -> Fault:
    match kind:
        case "shared_cores":
            apart = step_ns * float(rng.choice([0.0, 0.0, rng.uniform(0.02, 0.2)]))
            cores, length_ns = int(rng.integers(1, 5)), between(rng, 0.5 * MS, 8 * MS)
            fault = Fault(kind=kind, cores=cores, slice_ns=length_ns, start_spread_ns=apart)
        case "polling_host":
            work = between(rng, 0.05 * MS, 0.6 * MS)
            fault = Fault(kind=kind, reads=int(rng.integers(1, 3)), read_work_ns=work, polling=True)
        case "late_pair":
            fault = _late_pair(rng, job, step_ns)
        case "apart_starts":
            fault = Fault(kind=kind, start_spread_ns=step_ns * float(rng.uniform(0.2, 1.5)))
        case "unrecorded_nodes":
            fault = Fault(kind=kind, unrecorded=True)
        case "allocator_churn":
            fault = Fault(kind=kind, churn_ns=between(rng, 0.2 * MS, 3 * MS))
        case "offload_copies":
            fault = Fault(kind=kind, offload_ns=job.layer_ns * between(rng, 0.3, 3))
        case "reductions_one_by_one":
            fault = Fault(kind=kind, tensors=int(rng.integers(8, 50)), tensor_ns=between(rng, 50 * US, 300 * US))
        case _:
            fault = Fault(kind=kind, notify=True)
    return fault


def _late_pair(rng: np.random.Generator, job: Job, step_ns: float) -> Fault:
    """Two ranks of different tensor groups that are late by the same, at the same time."""
    tensor = rng.choice(len(job.layout.groups("tp")), 2, replace=False)
    culprits = tuple(sorted(int(rng.choice(job.layout.groups("tp")[each])) for each in tensor))
    by = between(rng, 0.1, 0.5)
    if rng.random() < 0.5:
        return Fault(kind="late_pair", culprits=culprits, compute_factor=1 + by)
    return Fault(kind="late_pair", culprits=culprits, stall_ns=by * step_ns, stall_at=float(rng.uniform(0.1, 0.9)))


def shares(job: Job) -> Shares:
    """Return what decides the steps of a job, by running it again with a little more of each."""
    usual = simulate(job, keep=False).step_ns
    compute = replace(job, layer_ns=job.layer_ns * (1 + PART))
    slower = 1 / (1 + PART)
    link = replace(
        job, intra_gbs=job.intra_gbs * slower, inter_gbs=job.inter_gbs * slower, alpha_ns=job.alpha_ns * (1 + PART)
    )
    of_each = [simulate(each, keep=False).step_ns / usual - 1 for each in (compute, link)]
    return Shares(host=_host_share(job, usual), compute=of_each[0] / PART, link=of_each[1] / PART)


def _host_share(job: Job, usual: float) -> float:
    fault = replace(
        job.fault, tensor_ns=job.fault.tensor_ns * (1 + PART), stall_ns=job.fault.stall_ns * (1 + PART),
        churn_ns=job.fault.churn_ns * (1 + PART), read_work_ns=job.fault.read_work_ns * (1 + PART),
    )  # fmt: skip
    slower = replace(
        job, launch_ns=job.launch_ns * (1 + PART), load_ns=job.load_ns * (1 + PART),
        hiccup_ns=job.hiccup_ns * (1 + PART), fault=fault,
    )  # fmt: skip
    return (simulate(slower, keep=False).step_ns / usual - 1) / PART


# --- what is said of it -----------------------------------------------------------------------------------------------


def judge(planted: Planted, analysis: Analysis) -> tuple[str, str]:
    """Return whether what is said of a job with a fault is right, and what is said."""
    kind, culprits = planted.kind, set(planted.job.fault.culprits)
    said = claims(planted.job, analysis)
    # What a wait of the host had emptied is lost to that wait, as the time in it is.
    blocked = _idle(analysis, "blocked_host") + _idle(analysis, "drained")
    if blocked > HALF * (1 - planted.healthy_step_ns / planted.step_ns):
        said |= {"blocked_host"} & {EXPECTED[kind]}
    named = {each.rank for each in analysis.skew.stragglers}
    wrong = said - {EXPECTED[kind]} - ALSO_TRUE.get(kind, set())
    wrong -= {"late_launch"} if kind in HOSTS_LATE else set()
    wrong -= {"start_of_recording"} if planted.job.fault.start_spread_ns else set()  # that was planted, too
    if kind == "late_pair" and named - culprits:
        wrong = wrong | {"an innocent straggler"}
    if wrong:
        return WRONG, ", ".join(sorted(wrong))
    found = named == culprits if kind == "late_pair" else EXPECTED[kind] in said
    return (RIGHT if found else ABSTAINED), ", ".join(sorted(said))


def accused(planted: Planted, analysis: Analysis) -> str:
    """Return what is said to be at fault in the job without the fault."""
    return ", ".join(sorted(claims(planted.healthy, analysis) - HARMLESS))


def claims(job: Job, analysis: Analysis) -> set[str]:
    """Return all that is said to be at fault: by recommendations, findings, causes of lost time, and the path."""
    said = {BLAMES[each.id] for each in analysis.recommendations if each.id in BLAMES}
    said |= {"straggler"} if analysis.skew.stragglers else set()
    said |= {
        word
        for word in ("slow_link", "uneven_stages", "shared_cores")
        for each in analysis.findings
        if each.id.startswith(word)
    }
    window = sum(each.whole.window_ns or 0 for each in analysis.ranks)
    for cause in ("start_of_recording", "late_launch"):
        said |= {cause} if sum(each.whole.causes.get(cause, 0) for each in analysis.ranks) > SMALL * window else set()
    if _idle(analysis, "graph_gap") > SMALL or (job.fault.unrecorded and not analysis.critical_path.steps):
        said.add("graph_gap")
    if job.expert_kernels:
        payloads = job.steps * job.microbatches * job.layers * EXCHANGES
        found = sum(each.count for each in analysis.collectives if each.op in ("dispatch", "combine"))
        said |= {"calls without payload"} if found > payloads else {"notify"} if found == payloads else set()
    if not job.fault.cores:
        decided = shares(job).host
        said |= {"host on the path"} if _host_of_path(analysis) > decided + PATH_OFF else set()
        said |= {"launch_bound"} if _idle(analysis, "launch_bound") > decided + IDLE_OFF else set()
    return said


def _idle(analysis: Analysis, cause: str) -> float:
    """Return the share of all ranks' time that is idle for a cause; 0 as long as idle time has no causes."""
    window = sum(each.whole.window_ns or 0 for each in analysis.ranks)
    return sum(getattr(each.whole, "idle_causes", {}).get(cause, 0) for each in analysis.ranks) / max(window, 1)


def _host_of_path(analysis: Analysis) -> float:
    length = sum(each.length_ns for each in analysis.critical_path.steps)
    return sum(each.parts.get("host", 0) for each in analysis.critical_path.steps) / length if length else 0.0
