"""Rules: exposed calls of tensor and of expert parallelism, whose results the next layer needs."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.advice.calls.calls_in_flight import in_flight_at_start
from overlapscope.advice.calls.calls_without_sizes import layers_over_ranks
from overlapscope.advice.calls.direct_calls import are_direct
from overlapscope.advice.calls.savings import kept_by_hosts, saved_by_overlap_ns
from overlapscope.advice.losses.largest_loss import longer_ns_of
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, EXPERT, TENSOR
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, smallest_by, sort_order
from overlapscope.timeline.run import RankTimeline

EXPERTS: Final = frozenset({"dispatch", "combine"})
"""Operations of the libraries of expert parallelism."""
FAR_LARGER: Final = 4
"""Calls that have so many times the bytes are the larger ones of a layer. A choice: its tensors differ by less."""
LARGER: Final = 2
"""Gathers of so many times the largest activation of a group are of something else, but in backward. A choice."""
FEWER_SMS: Final = {"deepep": "Buffer.set_num_sms(24)  # multiprocessors that dispatch and combine take from compute"}
BESIDE_ANOTHER_BATCH: Final = (
    "--overlap-moe-expert-parallel-comm --delay-wgrad-compute  # beside another micro-batch: needs two a step"
)
OTHER_DISPATCHER: Final = {
    "megatron": f"{BESIDE_ANOTHER_BATCH}\n"
    "--moe-token-dispatcher-type flex --moe-enable-deepep  # DeepEP's kernels instead of all_to_all"
}
TWO_BATCHES: Final = (
    "vllm serve ... --enable-dbo  # one half of a batch communicates while the other computes; needs DeepEP's all2all\n"
    "python -m sglang.launch_server ... --enable-two-batch-overlap"
)
BY_LOAD: Final = "vllm serve ... --enable-eplb  # experts moved and copied by load"
MOSTLY: Final = 0.5
"""Calls of which this share is overlapped are so already. A choice."""
BESIDE: Final = 0.1
"""Least share of exposed time beside other calls that is said. A choice."""
NAMED: Final = 0.05
"""Least share of exposed time of an operation, of calls of one size, that is named. A choice."""
GATHERS: Final = frozenset({"all_gather", "reduce_scatter"})
LAYERS: Final = 4
"""Least calls of one size in forward, and in backward, of what may be layers over ranks. A choice: two a layer."""
IMBALANCE: Final = "expert_imbalance"
ASSUMED: Final = (
    "that all of it can be overlapped, as far as a step has time without communication that overlaps no other calls, "
    "and that these get no faster for it: the gain is an upper bound"
)
MADE_AGAIN: Final = (
    "that activations are computed again in backward, as recorded: recomputing less makes fewer of these calls, and "
    "leaves less to overlap"
)
ALL_GONE: Final = "that all of their exposed time is gone: the gain is an upper bound"
CUSTOM_BYTES: Final = 8 << 20
"""vLLM's own all-reduce takes smaller messages only, on some devices far smaller ones
(vllm/distributed/device_communicators/custom_all_reduce.py)."""


def tensor_parallel(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where tensor-parallel calls are exposed for long enough, on devices: what overlaps them
    needs streams."""
    if not given.run_has_device:
        return None
    named = [row for row in given.analysis.collectives if row.dimension == TENSOR]
    rows = _without_weights(named) or _in_layers(given) or layers_over_ranks(given)
    at_most = given.besides_ns(saved_by_overlap_ns(given, rows))
    if not given.is_worth(at_most) or _are_besides(rows, given):
        return None
    exposed, ran = _of_headline(given, rows)
    most = _with_most(given, rows)
    ops = sorted({row.op for row in most})
    whole = not GATHERS.intersection(ops)
    activations = whole and all((row.bytes or 0) >= LARGE_BYTES for row in most if named)
    serves = given.job.serves
    what = "the calls of tensor parallelism" if named else f"all-reduces of one {_alike(rows)} in forward and backward"
    why = "" if named else " (tensor parallelism?)"
    return recommended(
        given,
        id="tensor_parallel",
        title=f"{'Shorten or avoid' if serves else _overlap(exposed, ran)} {what}{why}: {ms(exposed)} of a "
        f"{ms(given.step_ns)} {given.per} are exposed ({', '.join(ops)})"
        f"{_beside(given, rows, exposed)}{', each of a whole activation' if activations else ''}{_waits_unseen(given)}",
        at_most_ns=at_most,
        apply=_serving(given, rows) if serves else _training_tp(whole=whole),
        evidence={"exposed_ns": round(exposed), "ops": ops},
        measured=["communication of these groups beside which nothing is computed"],
        assumed=[
            ALL_GONE if serves else ASSUMED,
            *kept_by_hosts(given, at_most),
        ],
    )


def made_again(advised: Recommendation) -> Recommendation:
    """Return the recommendation for calls of tensor parallelism, beside one that says that activations are computed
    again."""
    return replace(advised, assumed=[advised.assumed[0], MADE_AGAIN, *advised.assumed[1:]])


def _with_most(given: RuleInput, rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the calls that have a real share of the exposed time of these, by operation and size."""
    by_kind: dict[tuple[str, int | None], list[CollectiveRow]] = {}
    for row in rows:
        by_kind.setdefault((row.op, row.bytes), []).append(row)
    exposed = {kind: given.exposed_ns(own) for kind, own in by_kind.items()}
    least = NAMED * sum(exposed.values())
    return [row for kind, own in by_kind.items() if exposed[kind] >= least for row in own]


def _alike(rows: Sequence[CollectiveRow]) -> str:
    """Return in what calls of layers are alike: where no size is known, in how long they transfer."""
    return "duration" if all(row.bytes is None for row in rows) else "size"


def _beside(given: RuleInput, rows: Sequence[CollectiveRow], exposed_ns: float) -> str:
    """Return how much of the exposed time of these calls other calls are exposed in, too, for a title: it stands in
    what is said of those as well; empty where that is little."""
    beside_ns = exposed_ns - given.exposed_ns(rows)
    return f", {ms(beside_ns)} of it beside other calls" if beside_ns >= BESIDE * exposed_ns > 0 else ""


def _waits_unseen(given: RuleInput) -> str:
    """Return the end of a title that says how much of exposed communication is waiting for ranks that were not
    recorded, at least, or other traffic; empty where all were, or it is little."""
    longer_ns = longer_ns_of(given.analysis)
    if given.is_whole or not given.is_worth(longer_ns):
        return ""
    return (
        f"; at least {ms(longer_ns)} of all exposed communication is waiting for ranks that were not recorded, or "
        "other traffic"
    )


def _in_layers(given: RuleInput) -> list[CollectiveRow]:
    """Return the large all-reduces, of no known dimension, of sizes that run both before the first call of backward,
    each before compute, and in it, in each step that is seen: no gradients are reduced before backward, so these are no
    gradients. Those of the step before are still in flight when a recording begins: these do not count."""
    found: set[int] = set()
    for at, (timeline, windows) in enumerate(given.some_ranks()):
        own = _sizes_of_layers(given, timeline, windows)
        found = own if at == 0 else found & own
    return [
        row
        for row in given.analysis.collectives
        if row.op == "all_reduce" and row.dimension is None and row.bytes in found
    ]


def _sizes_of_layers(given: RuleInput, timeline: RankTimeline, windows: Windows) -> set[int]:
    calls, names = timeline.collectives, timeline.names
    rows = rows_named(calls.op, names, "all_reduce".__eq__) & (calls.dimension < 0) & (calls.bytes >= LARGE_BYTES)
    backward = rows_named(calls.phase, names, BACKWARD.__eq__)
    window = window_of(windows, calls.start_ns)
    inside, until = window != NONE, np.array(sorted(windows), np.int64)[:, 1]
    first = smallest_by(window[inside & backward], calls.start_ns[inside & backward], len(windows))
    own = np.flatnonzero(rows & inside & (calls.end_ns != NONE) & ~in_flight_at_start(timeline))
    own = own[sort_order(window[own], calls.bytes[own], calls.start_ns[own])]
    kind, at = factorize_rows([window[own], calls.bytes[own]])
    before = calls.start_ns[own] < first[window[own]]
    parts = backward[own], before & _compute_follows(given, timeline, own, kind, until[window[own]])
    counts = [np.bincount(kind[part], minlength=at.size) for part in parts]
    sizes, of_windows = np.unique(calls.bytes[own[at[np.minimum(*counts) >= LAYERS]]], return_counts=True)
    return set(sizes[of_windows == len(windows)].tolist())


def _compute_follows(given: RuleInput, timeline: RankTimeline, rows: Ints, kind: Ints, until_ns: Ints) -> Flags:
    """Return whether something is computed between the end of each of these calls, sorted by kind and begin, and the
    begin of the next one of its kind, or, of the last, `until_ns`: calls of gradients follow directly."""
    start, end = timeline.collectives.start_ns[rows], timeline.collectives.end_ns[rows]
    same = np.flatnonzero(kind[1:] == kind[:-1])
    until = until_ns.copy()
    until[same] = start[same + 1]
    computed = BusyTime(given.coverage[timeline.rank].compute).within(end, np.maximum(until, end))
    return np.asarray(computed > 0, np.bool_)


def _without_weights(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return these calls but for gathers far larger than activations: what a group both gathers and scatters is those.

    As of weights for a generator or a checkpoint, or of the logits of all tokens: no product of a layer waits for them.
    What backward gathers, too, is activations, of whatever size.
    """
    sizes = [
        {(row.group, row.bytes) for row in rows if row.op == op and row.bytes is not None}
        for op in ("all_gather", "reduce_scatter")
    ]
    in_backward = {(row.group, row.bytes) for row in rows if row.phase == BACKWARD}
    activation: dict[str | None, int] = {}
    for group, size in sizes[0] & sizes[1]:
        activation[group] = max(activation.get(group, 0), size)
    return [
        row
        for row in rows
        if row.op != "all_gather"
        or (row.group, row.bytes) in in_backward
        or (row.bytes or 0) < LARGER * activation.get(row.group, np.inf)
    ]


def _are_besides(rows: Sequence[CollectiveRow], given: RuleInput) -> bool:
    """Return whether these calls may not be those of activations: gathers and scatters of which no dimension is known
    are far larger, and exposed for longer.

    As of sequence parallelism whose traces name no groups: what is found is the sum of a norm's gradients.
    """
    others = [row for row in given.analysis.collectives if row.dimension is None and row.op in GATHERS]
    known, unknown = (max((row.bytes or 0 for row in those), default=0) for those in (rows, others))
    return unknown >= FAR_LARGER * known > 0 and given.exposed_ns(others) >= given.exposed_ns(rows)


def _training_tp(*, whole: bool) -> dict[str, str]:
    first = (
        "--sequence-parallel  # all-gather and reduce-scatter instead of all-reduce: as many bytes, so no gain alone; "
        "--tp-comm-overlap needs it\n"
        if whole
        else ""
    )
    return {
        "megatron": f"{first}--tp-comm-overlap  # calls in pieces beside matrix products (Transformer Engine, NVIDIA)",
        "torch": "torch._inductor.config._micro_pipeline_tp = True  # async TP: with torch.compile, SequenceParallel\n"
        "torch.distributed._symmetric_memory.enable_symm_mem_for_group(tp_group.group_name)",
    }


def _overlap(exposed_ns: float, ran_ns: float) -> str:
    """Return the first words of a title, for calls of which some may be overlapped already."""
    return "Overlap more of" if exposed_ns <= (1 - MOSTLY) * ran_ns else "Overlap"


def _serving(given: RuleInput, rows: Sequence[CollectiveRow]) -> dict[str, str]:
    """Return code for a server: its own all-reduce only where calls of a size that this takes, or of an unknown one,
    are exposed for long enough, and are not made by such a kernel already."""
    reduces = [row for row in rows if row.op == "all_reduce"]
    small = [row for row in reduces if row.bytes is None or row.bytes < CUSTOM_BYTES]
    custom = "vllm serve ...  # without --disable-custom-all-reduce, which handles calls below 8 MiB without NCCL\n"
    fewer = "# fewer devices a replica where the model fits: more replicas, less communication"
    use = given.is_worth(given.exposed_ns(small)) and not are_direct(given, small)
    return {"serving": custom * use + fewer}


def _of_headline(given: RuleInput, rows: Sequence[CollectiveRow]) -> tuple[float, float]:
    """Return for how long these calls are exposed and run; exposed no longer than all calls of the headline's step, of
    which a mean over uneven steps may be more."""
    exposed, ran = given.united_ns(rows)
    most = given.figures.exposed_comm_ns
    return exposed if most is None else min(exposed, most), ran


def exchanges_of_experts(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the calls in which experts exchange tokens."""
    return [row for row in rows if row.dimension == EXPERT or row.op in EXPERTS]


def expert_parallel(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the exchange of tokens between experts is exposed for long enough."""
    rows = exchanges_of_experts(given.analysis.collectives)
    at_most = given.besides_ns(saved_by_overlap_ns(given, rows))
    if not given.is_worth(at_most):
        return None
    exposed, ran = _of_headline(given, rows)
    uneven = next((each for each in given.analysis.findings if each.id.startswith(IMBALANCE)), None)
    why = ", and tokens are spread unevenly over experts" if uneven else ""
    return recommended(
        given,
        id="expert_parallel",
        title=f"{_overlap(exposed, ran)} the exchange between experts: {ms(exposed)} of a "
        f"{ms(given.step_ns)} {given.per} are exposed ({', '.join(sorted({row.op for row in rows}))})"
        f"{_beside(given, rows, exposed)}{why}{_waits_unseen(given)}",
        at_most_ns=at_most,
        apply={"serving": TWO_BATCHES + (f"\n{BY_LOAD}" if uneven else "")}
        if given.job.serves
        else {
            "megatron": BESIDE_ANOTHER_BATCH,
        }
        | (FEWER_SMS if any(row.op in EXPERTS for row in rows) else OTHER_DISPATCHER),
        evidence={"exposed_ns": round(exposed), "uneven": uneven is not None},
        measured=["communication of these groups beside which nothing is computed"],
        assumed=[ASSUMED, *kept_by_hosts(given, at_most)],
    )
