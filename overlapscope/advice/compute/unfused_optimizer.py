"""Rule: the optimizer's kernels take long, and none of them does the whole update at once; or it runs a loop over
parameters, with many small kernels for each."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.job_kind import FUSABLE, FUSED
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, ms, recommended, time_of, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import ELEMENTWISE, NOT_AN_UPDATE, family_of
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by, values_in
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.03
"""Share of a step from which the optimizer is worth a trial. A choice: a fused one saves two thirds of it, about
`WORTH` of a step (`NOT_SAVED`)."""
LEAST_OF_LOOP: Final = 0.05
"""The same of a loop over parameters, with idle time in it, which `launch_bound` names, too. A choice."""
MANY_AT_ONCE: Final = re.compile(r"multi_tensor_apply_kernel")
"""Kernels of torch's `foreach` optimizers, which update many parameters by one operation each. Of fused ones, too,
whose names say so (`FUSED`)."""
LOOPS: Final = 20
"""Fewest kernels a step of a loop over parameters. A choice: each has several, where a fused one makes few for
all."""
NEARLY_ALL: Final = 0.8
PASSES: Final = {"SGD": 3, "Adam": 7, "AdamW": 7, "Adagrad": 5}
"""Least reads and writes of each element: parameter, gradient, and what the optimizer keeps (SGD without momentum)."""
NOT_SAVED: Final = 1 / 3
"""Share of the time of `foreach` that a fused one takes, where bytes are not known: Adam with decay reads and writes 7
times where its nine operations do so about 21 times; the others save less. It may be less than this share: a fused one
may reach a higher bandwidth."""
SHORT_NS: Final = 5_000
"""What a kernel takes that hardly reads or writes: a fused one saves it, too. A choice."""
SENDS_PARAMETERS: Final = ("all_gather", "broadcast", "reduce_scatter")
"""What ranks of which each updates a part do with large tensors: gather or send parameters, and scatter gradients."""
CAPTURABLE: Final = ("Adam", "AdamW")
"""Optimizers of `FUSABLE` that a CUDA graph holds only with `capturable=True`."""

BY_BYTES: Final = "that a fused one takes as long as its bytes need, at least: the gain is an upper bound"
AS_BYTES: Final = "that a fused one takes as long as its bytes need"
A_THIRD: Final = (
    "that a fused one takes a third as long as these kernels, beyond what each takes at least, as the bytes of an "
    "update are not known: it may save more or less"
)
NOTHING: Final = "that a fused one takes hardly any time, as the bytes of an update are not known: less may be saved"
LAUNCHES: Final = "where launches of the host decide how long a step takes, it saves more, as it needs few of them"
"""Of a loop: what its launches take vanishes, too, so that what its kernels take is no bound."""


class _Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What the optimizer took in the windows of a rank; times in ns a window."""

    busy_ns: float = 0.0
    """While its kernels ran."""
    idle_ns: float = 0.0
    """Between two of them, while the device had nothing else to do."""
    between_ns: float = 0.0
    """Between two of them, while it computed nothing: copies of the next batch may run."""
    kernels: float = 0.0
    one_operation: bool = False
    """Whether all of them have one name."""
    by_name: bool = False
    """Whether names tell some of its kernels."""
    loops: bool = False
    """Whether no kernel takes more than one parameter."""


def unfused_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where torch's optimizer takes `LEAST` of a step or more, and has a fused form that is
    not in use; None without a device."""
    names = {name for timeline in given.run.ranks.values() for name in timeline.names}
    optimizer = given.job.optimizer
    if not given.run_has_device or given.job.is_npu or optimizer not in FUSABLE or any(map(FUSED.search, names)):
        return None
    found = [_taken(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    ranks = max(len(found), 1)
    mean = _Taken(
        busy_ns=sum(each.busy_ns for each in found) / ranks,
        idle_ns=sum(each.idle_ns for each in found) / ranks,
        between_ns=sum(each.between_ns for each in found) / ranks,
        kernels=sum(each.kernels for each in found) / ranks,
        one_operation=all(each.one_operation for each in found),
        by_name=any(each.by_name for each in found),
        loops=any(each.loops for each in found),
    )
    took = mean.busy_ns + mean.between_ns * mean.loops
    if not took or took < (LEAST_OF_LOOP if mean.loops else LEAST) * given.step_ns:
        return None
    captured = ", capturable=True" if optimizer in CAPTURABLE and any(map(LAUNCHES_GRAPH.search, names)) else ""
    return (_of_loop if mean.loops else _of_many)(given, optimizer, mean, f"fused=True{captured}")


def _of_many(given: RuleInput, optimizer: str, taken: _Taken, fused: str) -> Recommendation | None:
    took = taken.busy_ns
    found = _trial(
        given,
        optimizer,
        taken,
        title=f"{round(taken.kernels)} kernels of {optimizer} take {ms(took)} of a {ms(given.step_ns)} {given.per} "
        f"({percent_text(took / given.step_ns)}), and each reads and writes its tensors anew",
        took=took,
        code=f"{fused})",
    )
    # Its bound orders it, but hides no loss that is smaller: `largest_loss` names that beside it.
    return None if found is None else msgspec.structs.replace(found, loss_ns=None)


def _of_loop(given: RuleInput, optimizer: str, taken: _Taken, fused: str) -> Recommendation | None:
    took = taken.busy_ns + taken.between_ns
    return _trial(
        given,
        optimizer,
        taken,
        title=f"{optimizer} updates one parameter after the other, in {round(taken.kernels)} kernels; with "
        f"{ms(taken.between_ns)} between them in which nothing is computed they take {ms(took)} of a "
        f"{ms(given.step_ns)} {given.per} ({percent_text(took / given.step_ns)})",
        took=took,
        code=f"{fused})  # or foreach=True: fewer kernels, too",
    )


def _trial(
    given: RuleInput, optimizer: str, taken: _Taken, *, title: str, took: float, code: str
) -> Recommendation | None:
    """Return the trial of a fused optimizer; None where it gains too little.

    Where the bytes of an update are known, and launches do not pace it as they do a loop, the gain is a bound: what the
    kernels take, with the time between them, without what the bytes need. Elsewhere it is what the many kernels cost.
    """
    if taken.one_operation and optimizer == "SGD" and not taken.loops:
        return None  # a single pass, as a fused one makes
    bytes_ns = PASSES[optimizer] * _parameters_bytes(given) / _memory_gbs(str(given.run.fingerprint.get("device")))
    is_bound = bytes_ns > 0 and not taken.loops
    third = NOT_SAVED * max(taken.busy_ns - SHORT_NS * taken.kernels, 0.0)
    needs_ns = min(bytes_ns or third, taken.busy_ns)
    cost_ns = taken.busy_ns + taken.between_ns * (taken.loops or is_bound) - needs_ns
    if not given.is_worth(cost_ns):
        return None
    by_bytes, without = BY_BYTES if is_bound else AS_BYTES, A_THIRD if needs_ns else NOTHING
    return recommended(
        given,
        id="unfused_optimizer",
        title=f"Try fused=True: {title}",
        verdict="trial",
        at_most_ns=cost_ns,
        bound_from=None if is_bound else "loss",
        apply={"torch": f"optimizer = torch.optim.{optimizer}(..., {code}"},
        evidence={
            "optimizer": optimizer,
            "optimizer_ns": round(took),
            "kernels": round(taken.kernels),
            "idle_ns": round(taken.idle_ns),
            "between_ns": round(taken.between_ns),
            "needs_ns": round(needs_ns),
        },
        measured=["the time of kernels launched in the optimizer's step, and time between them without compute"]
        if not taken.by_name
        else ["the time of kernels of foreach optimizers, by their names: their launches are not recorded one by one"],
        assumed=[by_bytes if bytes_ns else without, *[LAUNCHES] * taken.loops],
    )


def _memory_gbs(device: str) -> float:
    """Return the memory bandwidth of a device, at most: that of the fastest kind of its model, or of all."""
    from overlapscope.whatif.pricing.devices import devices  # noqa: PLC0415 - few runs need it

    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    every = devices().values()
    own = [each for each in every if each.key.split("-")[0] in words]
    return max(each.memory_gbs for each in own or every)


def _parameters_bytes(given: RuleInput) -> int:
    """Return how many bytes of parameters are updated in a window, at least; 0 where their sizes are not known, or
    ranks share them: then they gather or send what they updated."""
    updates = max(min(map(len, given.optimizer_cycles.values()), default=1), 1)
    rows = [row for row in given.analysis.collectives if (row.bytes or 0) >= LARGE_BYTES]
    if any(row.op in SENDS_PARAMETERS and row.dimension in (None, DATA) for row in rows):
        return 0
    # In a job of DDP alone the reductions of backward are of gradients, whatever their group is called.
    alone = "ddp" in given.job.frameworks and all(row.dimension in (None, DATA) for row in rows)
    of_gradients = [
        row for row in rows if row.op == "all_reduce" and (row.dimension == DATA or _in_backward(row, alone))
    ]
    reduced = max((row.bytes or 0 for row in of_gradients), default=0)
    of_step = [_reduced_bytes(given, each, of_gradients) for each, _ in given.some_ranks()] if alone else []
    of_ddp = [_gradients_bytes(timeline) for timeline, _ in given.some_ranks()] if "ddp" in given.job.frameworks else []
    return updates * max(reduced, min(of_step, default=0), min(of_ddp, default=0))


def _in_backward(row: CollectiveRow, alone: bool) -> bool:
    return alone and row.dimension is None and row.phase == "backward"


def _reduced_bytes(given: RuleInput, timeline: RankTimeline, rows: Iterable[CollectiveRow]) -> int:
    """Return what calls of these rows reduce in one pass of a rank's step, at least: of sizes that repeat in order, as
    several passes before one update make them, those of one period; the least of all steps with such calls."""
    calls = timeline.collectives
    chosen = np.flatnonzero(given.calls_of(timeline, rows) & (calls.step != NONE))
    chosen = chosen[sort_order(calls.launch_ns[chosen])]
    return min((_one_period(calls.bytes[chosen[own]]) for own in split_by(calls.step[chosen])), default=0)


def _one_period(sizes: Ints) -> int:
    """Return the sum of the shortest part that `sizes` begin with, and repeat up to their end."""
    for calls in range(1, sizes.size + 1):
        if sizes.size % calls == 0 and (sizes.reshape(-1, calls) == sizes[:calls]).all():
            return int(sizes[:calls].sum())
    return 0


def _gradients_bytes(timeline: RankTimeline) -> int:
    """Return the size of what has gradients in a rank's last step, each once however many passes it has."""
    table = timeline.gradients
    known = np.flatnonzero((table.step != NONE) & (table.elements > 0) & (table.dtype >= 0))
    own = known[table.step[known] == table.step[known].max(initial=NONE)]
    own = own[factorize_rows([table.name[own]])[1]]
    item_bytes = np.array([ITEM_BYTES.get(name, 0) for name in timeline.names], np.int64)
    return int((table.elements[own] * item_bytes[table.dtype[own]]).sum()) if own.size else 0


def _taken(timeline: RankTimeline, windows: Windows) -> _Taken:
    """Return what the optimizer took; nothing where it neither takes many parameters at once nor loops over them."""
    spans = timeline.spans
    computes = np.flatnonzero(spans.kind == COMPUTE)
    many = rows_named(spans.name[computes], timeline.names, MANY_AT_ONCE.search)
    alone = _without_own_launch(timeline, computes)
    updates = alone & many & ~rows_named(spans.name[computes], timeline.names, NOT_AN_UPDATE.search)
    own = computes[updates | (in_optimizer(timeline, computes) & ~alone)]
    counted = window_of(windows, spans.start_ns[own]) != NONE
    at_once = bool((many & np.isin(computes, own)).any())
    loops = not at_once and _loops(timeline, own[counted], len(windows))
    if not at_once and not loops:
        return _Taken()
    times = intersection(union((spans.start_ns[own], spans.end_ns[own])), time_of(windows))
    return _Taken(
        busy_ns=length(times) / len(windows),
        idle_ns=_between_ns(timeline, own[counted], np.arange(spans.kind.size)) / len(windows),
        between_ns=_between_ns(timeline, own[counted], computes) / len(windows),
        kernels=np.count_nonzero(counted) / len(windows),
        one_operation=values_in(spans.name[own[counted]]).size == 1,
        by_name=bool(np.isin(own[counted], computes[updates]).any()),
        loops=loops,
    )


def _loops(timeline: RankTimeline, own: Ints, windows: int) -> bool:
    """Return whether kernels of the optimizer are those of a loop over parameters: many, and nearly all elementwise."""
    elementwise = rows_named(timeline.spans.name[own], timeline.names, lambda name: family_of(name) == ELEMENTWISE)
    return bool(own.size >= LOOPS * windows and np.count_nonzero(elementwise) >= NEARLY_ALL * own.size)


def _between_ns(timeline: RankTimeline, own: Ints, among: Ints) -> int:
    """Return how long no span of `among` ran before kernels of `own` that follow another of these there, in ns."""
    spans = timeline.spans
    order = among[np.argsort(spans.start_ns[among], kind="stable")]
    busy_until = np.maximum.accumulate(spans.end_ns[order])
    ours = np.isin(order, own)
    gaps = (spans.start_ns[order][1:] - busy_until[:-1])[ours[1:] & ours[:-1]]
    return int(np.maximum(gaps, 0).sum())


def _without_own_launch(timeline: RankTimeline, computes: Ints) -> Flags:
    """Return of which spans no launch is recorded, or that of a whole graph."""
    spans = timeline.spans
    alone: Flags = spans.launch_ns[computes] == NONE
    if timeline.host_is_lost or not any(map(LAUNCHES_GRAPH.search, timeline.names)):
        return alone
    host = timeline.host
    launches = rows_named(host.name, timeline.names, LAUNCHES_GRAPH.search) & (host.correlation != NONE)
    alone |= np.isin(spans.correlation[computes], values_in(host.correlation[launches]))
    return alone
