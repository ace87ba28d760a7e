"""Rules on the shape of a step: next to no compute, one giant all-reduce, and overlap that was asked for in vain."""

from typing import Final

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import size
from overlapscope.timeline.dimensions import DATA
from overlapscope.whatif.parallelism import shows_ddp

LITTLE: Final = 0.1
"""Share of a step below which compute is little. A choice."""
GIANT_BYTES: Final = 1 << 30
NOTHING: Final = 0.01
"""Largest overlapped share of communication that is called none. A choice: below what two recordings differ by."""
OVERLAPPING: Final = {
    "ddp": "DistributedDataParallel reduces buckets while backward goes on",
    "fsdp2": "FSDP2 gathers the next module while this one computes",
}
"""What these do unless they are kept from it."""
OVERLAPPED: Final = {"ddp": ("all_reduce",), "fsdp2": ("all_gather", "reduce_scatter", "all_reduce")}
"""The operations that they overlap; others may be needed at once."""
BUCKET_BYTES: Final = 1 << 20
LEAST_BUCKETS: Final = 2
"""Of BUCKET_BYTES each, that gradients of known size would make."""
BLOCKING: Final = "CUDA_LAUNCH_BLOCKING"


def little_compute(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the device computes in less than a tenth of its steps; None for recordings."""
    compute = given.figures.compute_ns
    if given.per != "step" or not given.run_has_device or not compute or compute >= LITTLE * given.step_ns:
        return None
    serving = {"serving": "# more requests a batch: --max-num-seqs, --max-num-batched-tokens"}
    return recommended(
        given,
        id="little_compute",
        title=f"Compute more a step: the device computes for {ms(compute)} of {ms(given.step_ns)}",
        apply=serving
        if given.job.serves
        else {
            "torch": "# a larger micro-batch, where memory allows\n"
            "with model.no_sync():  # several backward passes for each reduction of gradients; fewer optimizer steps",
            "megatron": "--micro-batch-size N --global-batch-size M",
        },
        evidence={"compute_ns": compute, "step_ns": given.step_ns},
        measured=["the time in which the device computes"],
        assumed=["that a larger batch trains as well, and that memory holds it"],
    )


def split_all_reduce(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where all-reduces of more than 1 GiB are exposed for long enough."""
    rows = [
        row
        for row in given.analysis.collectives
        if row.op == "all_reduce" and row.dimension in (None, DATA) and (row.bytes or 0) > GIANT_BYTES
    ]
    exposed = given.exposed_ns(rows)
    if given.job.serves or not given.is_worth(exposed):
        return None
    largest = max(row.bytes or 0 for row in rows)
    return recommended(
        given,
        id="split_all_reduce",
        title=f"Split all-reduces of {largest / 2**30:.1f} GiB: they begin when the last gradient is ready, and "
        f"{ms(exposed)} of a {ms(given.step_ns)} {given.per} are exposed",
        at_most_ns=exposed,
        apply={
            "ddp": "DistributedDataParallel(model, bucket_cap_mb=100)  # each bucket is sent while backward goes on",
            "deepspeed": '{"zero_optimization": {"overlap_comm": true, "reduce_bucket_size": 5e7}}',
            "megatron": "--overlap-grad-reduce --ddp-bucket-size 40000000",
        },
        evidence={"exposed_ns": round(exposed), "most_bytes": largest, "calls": sum(row.count for row in rows)},
        measured=["sizes, and the time of these calls beside which nothing is computed"],
        assumed=["that all of it can be overlapped: the gain is an upper bound"],
    )


def overlap_without_effect(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where a framework that overlaps communication overlaps none of it. Without a device
    only where DDP sends one bucket a step: gloo's threads need cores, too."""
    used = [key for key in given.job.frameworks if key in OVERLAPPING]
    comm, overlapped = given.figures.comm_ns or 0, given.figures.overlapped_ns or 0
    if given.job.serves or not used or not (given.run_has_device or _one_bucket(given)):
        return None
    ops = {op for key in used for op in OVERLAPPED[key]}
    rows = given.analysis.collectives
    exposed = given.exposed_ns(row for row in rows if row.op in ops and row.dimension in (None, DATA))
    if not given.is_worth(exposed) or overlapped > NOTHING * comm:
        return None
    exposed = min(exposed, given.figures.exposed_comm_ns or exposed)
    how = OVERLAPPING[used[0]] if given.run_has_device else "DDP reduces all gradients at once, when backward ends"
    return recommended(
        given,
        id="overlap_without_effect",
        title=f"Nothing overlaps: {how}, {'but ' if given.run_has_device else 'and '}of {ms(comm)} of communication a "
        f"{given.per} {ms(overlapped)} are overlapped",
        verdict="look",
        at_most_ns=exposed,
        apply={
            "environment": f"unset {BLOCKING} CUDA_DEVICE_MAX_CONNECTIONS  # both can serialise streams",
            "ddp": "# one bucket for all gradients, or a model that is a single module, is ready only at the end",
            "fsdp2": "fully_shard(block)  # each block on its own: one call for the whole model overlaps nothing",
        }
        if given.run_has_device
        else {"ddp": "DistributedDataParallel(model, bucket_cap_mb=1)  # several buckets: most go beside backward"},
        evidence={"comm_ns": comm, "overlapped_ns": overlapped},
        measured=["communication, and the compute beside it"],
        assumed=["that all of it can be overlapped: the gain is an upper bound"],
    )


def _one_bucket(given: RuleInput) -> bool:
    """Return whether DDP makes one all-reduce in each step, and no replay of its buckets says more."""
    rows = [row for row in given.analysis.collectives if row.op == "all_reduce"]
    calls = sum(row.count for row in rows)
    if any(row.bytes is not None and row.bytes < LEAST_BUCKETS * BUCKET_BYTES for row in rows):
        return False
    replayed = any(size(each.gradients) for each in given.run.ranks.values())
    return shows_ddp(given.run) and given.per == "step" and calls == given.steps and not replayed
