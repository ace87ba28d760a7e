"""Rule: devices idle while their hosts are in one operation that launches nothing, such as a call of a remote service.

A host that only enqueues is named by `launch_bound`, one that does nothing that was recorded by `host_pauses`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.losses.host_time import HostTime
from overlapscope.advice.rule_input import WORTH, RuleInput, ms, recommended
from overlapscope.analysis.checks.hosts.host_pauses import rows_of
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.common.user_ranges import family
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import COLLECTS_GARBAGE
from overlapscope.analysis.graph.found_causes import LossKind
from overlapscope.analysis.graph.host_losses import SCALAR, SIZED
from overlapscope.analysis.pauses.host_collectives import runs_on_hosts, times_in_host_collectives
from overlapscope.analysis.pauses.long_pauses import acting
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.ingest.build.kernel_names import HOST_COLLECTIVE
from overlapscope.timeline.columns import (
    ANNOTATION,
    NONE,
    OPERATION,
    OVERHEAD,
    RUNTIME,
    Flags,
    HostSpans,
    Ints,
    concat,
    take,
)
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import is_one_of, unique
from overlapscope.timeline.run import RankTimeline

KINDS: Final[tuple[LossKind, ...]] = ("launch_rate", "pause", "long_pause", "blocking_call")
"""Idle time that may be of an operation: the host launched late, or late after a wait that had emptied the device."""
COVERS: Final = 0.9
"""An operation names idle time of which it covers this share. A choice."""
MOSTLY: Final = 0.5
"""Least share of a rank's steps, and of the ranks, in which an operation recurs; of a recording that it recurs in."""
COMMUNICATES: Final = re.compile(
    r"(?i:(?<![a-z])(?:rpc|gloo|mpi|ucc|https?|sockets?)(?![a-z])|(?<![a-z])(?:tcp|file|hash|prefix)_?store(?![a-z])"
    r"|(?<![a-z])store(?:::|\.))"
)
"""In names of operations in which a host communicates without its device."""
HOLDS_OTHERS: Final = re.compile(
    r"autograd::|(?:ProfilerStep|Optimizer\.\w+|overlapscope\.\w+)#|Torch-Compiled Region|## Call CompiledFxGraph"
    r"|PyTorch Profiler|aten::(?:copy_|_to_copy|to)$"
)
"""Names of what wraps other operations, or waits for the device: without these, where they were not recorded, it says
nothing of what the host does."""
STAYS: Final = "that the waits for the device before it stay: without them it may run beside the device"
APPLY: Final = {
    True: "# begin it before the device runs out of work and wait for its result where that is used, or call it in a "
    "thread of its own; more rarely; fewer bytes; a barrier: is it needed?",
    False: "# call it in a thread of its own, or before the device runs out of work, where no launch needs its result; "
    "or on the device",
}
"""What to do, by whether it communicates."""
ON_DEVICES: Final = (
    "torch.distributed.all_reduce(tensor)  # on its device, in a group of NCCL or RCCL: no .cpu(), no group of gloo\n"
    'torch.distributed.init_process_group("cpu:gloo,cuda:nccl")  # where tensors of hosts are sent, too\n'
    "# gradients: DistributedDataParallel, fully_shard or FSDP reduce them beside backward"
)
"""For collectives of hosts on what is copied from devices:
https://docs.pytorch.org/docs/stable/distributed.html#backends"""
WHERE: Final = "torch.profiler.profile(with_stack=True)  # which line calls it"


class _OfRank(msgspec.Struct, frozen=True, kw_only=True):
    """The idle time of a rank in one operation."""

    lost: Mapping[LossKind, Ints]
    """In each of its windows, few long ones too."""
    usual: Flags
    """Which windows are of usual steps."""
    lasted_ns: Sequence[int]
    """How long each operation is that covers some of it, by start."""
    starts_ns: Sequence[int]
    longest: tuple[int, int]
    """Start and end of the longest idle time."""

    @property
    def times(self) -> int:
        """How many operations cover idle time of it."""
        return len(self.starts_ns)

    @property
    def steps(self) -> Flags:
        """Which windows hold some of it."""
        found: Flags = np.any([each > 0 for each in self.lost.values()], axis=0)
        return found

    def mean_ns(self, kind: LossKind) -> float:
        """Return the idle time of one kind in a usual window."""
        return float(self.lost[kind][self.usual].mean()) if kind in self.lost and self.usual.any() else 0.0


class HostOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The operation of hosts in which devices idle for longest; times in ns."""

    name: str
    communicates: bool
    ranks: Mapping[int, _OfRank]
    """Those whose devices idle in it."""
    of: int
    """How many ranks were looked at."""
    scale: float
    """The idle time of the headline, by that of the mean usual window."""

    @property
    def idle_ns(self) -> float:
        """In a step, mean over ranks, as in the headline."""
        return sum(map(self.kind_ns, KINDS))

    @property
    def each_ns(self) -> float:
        """How long it lasts, median."""
        return median(ns for own in self.ranks.values() for ns in own.lasted_ns)

    def kind_ns(self, kind: LossKind) -> float:
        """Return what of `idle_ns` is of one kind."""
        return self.scale * sum(own.mean_ns(kind) for own in self.ranks.values()) / self.of


def host_operation(given: RuleInput) -> Recommendation | None:
    """Return the recommendation for the operation in which devices idle longest, where it recurs; else None."""
    found = in_one_operation(given)
    if found is None:
        return None
    ranks = sorted(found.ranks)
    longest = max(ranks, key=lambda rank: found.ranks[rank].longest[1] - found.ranks[rank].longest[0])
    start, end = found.ranks[longest].longest
    whose = "hosts" if len(ranks) == found.of > 1 else f"the host{'s' * (len(ranks) > 1)} of {rank_list(ranks)}"
    of_devices = _carries_for_devices(given, found.name)
    if of_devices:
        do = "Let the devices communicate by themselves, over NCCL or RCCL"
    else:
        do = "Begin communication of the host earlier, or do less of it" if found.communicates else "Free the host"
    what = f"{short(found.name)}{', communication of the host,' * found.communicates}"
    verb = "is" if whose.startswith("the host of") else "are"
    waited = found.kind_ns("blocking_call") >= MOSTLY * found.idle_ns
    return recommended(
        given,
        id="host_operation",
        title=f"{do}: {whose} {verb} in {what} for {ms(found.each_ns)} each time, and the device idles for "
        f"{ms(found.idle_ns)} of a {ms(given.step_ns)} {given.per} meanwhile"
        f"{', in the mean of all ranks' if found.of > 1 else ''}",
        verdict="look",
        loss_ns=round(found.idle_ns),
        apply={"torch": ON_DEVICES} if of_devices else {"python": APPLY[found.communicates], "torch": WHERE},
        evidence={
            "operation": found.name, "communicates": found.communicates, "ranks": ranks,
            "idle_ns": round(found.idle_ns), "each_ns": round(found.each_ns), "of_devices": of_devices,
        },
        shown_by=ShownBy(rank=longest, start_ns=start, end_ns=end, op=found.name),
        measured=[
            "idle time that the host decided, nine tenths of it in "
            + ("a collective of hosts, and copies in it" if of_devices else "an operation without others in it")
        ],
        assumed=[STAYS] * waited,
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )  # fmt: skip


def in_one_operation(given: RuleInput) -> HostOperation | None:
    """Return the operation in which devices idle longest, where it recurs and that is worth naming; else None. It is
    not one in which a batch is fetched, nor time that the finding `host_pauses` names."""
    if not given.run_has_device:
        return None
    by_name: dict[str, dict[int, _OfRank]] = {}
    looked_at = 0
    for timeline, _ in given.some_ranks():
        looked_at += 1
        for name, own in _of_rank(given, timeline):
            by_name.setdefault(name, {})[timeline.rank] = own
    scale = _scale(given)
    every = [
        HostOperation(
            name=name, communicates=COMMUNICATES.search(name) is not None, ranks=ranks, of=looked_at, scale=scale
        )
        for name, ranks in by_name.items()
    ]
    worth = [each for each in every if _recurs(given, each) and _is_worth(given, each)]
    return max(worth, key=lambda each: each.idle_ns, default=None)


def _carries_for_devices(given: RuleInput, operation: str) -> bool:
    """Return whether it is a collective of hosts that carries what is copied from devices before it, and back."""
    named = next((each.evidence for each in given.analysis.findings if each.id == "host_collectives"), None)
    return named is not None and named["copies"] and operation in named["operations"]


def without_operation(found: HostTime, operation: HostOperation | None) -> HostTime:
    """Return idle time of hosts without what is in an operation."""
    if operation is None:
        return found
    kinds = [kind for kind in KINDS if kind in found.by_kind]
    by_kind = found.by_kind | {kind: max(round(found.by_kind[kind] - operation.kind_ns(kind)), 0) for kind in kinds}
    by_window = dict(found.by_window)
    for rank, own in operation.ranks.items():
        inside = sum((own.lost[kind] for kind in kinds if kind in own.lost), np.int64(0))
        by_window[rank] = np.maximum(by_window[rank] - inside, 0)
    return msgspec.structs.replace(found, ns=sum(by_kind.values()), by_kind=by_kind, by_window=by_window)


def _scale(given: RuleInput) -> float:
    windows = sum(int(given.is_usual(rank).sum()) for rank in given.windows)
    return (given.figures.idle_ns or 0) * windows / given.idle_ns if given.idle_ns else 0.0


def _recurs(given: RuleInput, found: HostOperation) -> bool:
    """Return whether it is in most steps of a rank, of which a recording without steps has as many as it has
    operations; once is enough where most of several ranks have it."""
    if given.per == "step":
        often = [int(own.steps.sum()) for own in found.ranks.values() if own.steps.mean() >= MOSTLY]
    else:
        often = [own.times for own in found.ranks.values()]
    return max(often, default=0) > 1 or len(often) > max(MOSTLY * found.of, 1)


def _is_worth(given: RuleInput, found: HostOperation) -> bool:
    """Return whether it costs enough of a step; without steps, of the time from one to the next, which may stand for
    steps where such times make up most of the recording."""
    if given.is_worth(found.idle_ns) or given.per == "step":
        return given.is_worth(found.idle_ns)
    often = [own for own in found.ranks.values() if own.times > 1]
    if len(often) < MOSTLY * found.of:
        return False
    between_ns = fmean((own.starts_ns[-1] - own.starts_ns[0]) * own.times / (own.times - 1) for own in often)
    return between_ns >= MOSTLY * given.step_ns and found.idle_ns >= WORTH * between_ns


def _of_rank(given: RuleInput, timeline: RankTimeline) -> Iterator[tuple[str, _OfRank]]:
    """Yield each operation of a rank that covers idle time, numbers in its name as `#`, with that time."""
    if timeline.host_is_lost or not timeline.has_host_events:
        return
    idle = {kind: each for kind in KINDS if (each := _long_idle(given, timeline.rank, kind)).starts.size}
    if not idle:
        return
    rows = _operations(timeline)
    rows = take(rows, BusyTime(union(*idle.values())).within(rows.start_ns, rows.end_ns) > 0)
    families: dict[str, list[int]] = {}
    for code in unique(rows.name).tolist():
        families.setdefault(family(timeline, code), []).append(code)
    for name, own in families.items():
        of_name = take(rows, np.isin(rows.name, own))
        if (found := _in_rows(given, timeline.rank, idle, of_name)) is not None:
            yield name, found


def _long_idle(given: RuleInput, rank: int, kind: LossKind) -> Intervals:
    """Return the idle times of one kind, each long enough to hold more than launches, that no finding names."""
    when = union(*(each.when for each in given.host_losses.get(rank, ()) if each.kind == kind))
    named = next((each.evidence for each in given.analysis.findings if each.id == "host_pauses"), None)
    if named is not None and rank in given.long_pauses:
        pauses = given.long_pauses[rank]
        rows = rows_of(named, rank, pauses)
        when = difference(when, union((pauses.start_ns[rows], pauses.end_ns[rows])))
    long = when.ends - when.starts >= SILENCE_NS
    return Intervals(when.starts[long], when.ends[long])


def _in_rows(given: RuleInput, rank: int, idle: Mapping[LossKind, Intervals], rows: HostSpans) -> _OfRank | None:
    times = union((rows.start_ns, rows.end_ns))
    covers = BusyTime(times)
    begins, until = np.array(given.windows[rank], np.int64).reshape(-1, 2).T
    lost, inside = {}, []
    for kind, each in idle.items():
        kept = covers.within(each.starts, each.ends) >= COVERS * (each.ends - each.starts)
        own = intersection(Intervals(each.starts[kept], each.ends[kept]), times)
        lost[kind] = BusyTime(own).within(begins, until)
        inside.append(own)
    every = union(*inside)
    if not length(every) or not any(each.any() for each in lost.values()):
        return None
    idles: Flags = BusyTime(every).within(rows.start_ns, rows.end_ns) > 0
    order = np.argsort(rows.start_ns[idles], kind="stable")
    longest = int((every.ends - every.starts).argmax())
    return _OfRank(
        lost=lost,
        usual=given.is_usual(rank),
        lasted_ns=(rows.end_ns - rows.start_ns)[idles][order].tolist(),
        starts_ns=rows.start_ns[idles][order].tolist(),
        longest=(int(every.starts[longest]), int(every.ends[longest])),
    )


def _operations(timeline: RankTimeline) -> HostSpans:
    """Return the operations of threads that launch without anything recorded in them, the ranges in which such a thread
    communicates, and the collectives of hosts that hold one, from the length of an idle time on.

    The table of the host is sorted by thread and start. What collectives carry may be copied inside their ranges.
    """
    host = select_host_spans(timeline.host, (OPERATION, ANNOTATION, RUNTIME, OVERHEAD))
    launches = (
        (host.kind == RUNTIME) & (host.correlation != NONE) & np.isin(host.correlation, timeline.spans.correlation)
    )
    nested = (host.lane[1:] == host.lane[:-1]) & (host.start_ns[1:] < host.end_ns[:-1])
    leaf = ~np.append(nested, np.False_)[: host.lane.size]
    chosen = leaf & np.isin(host.lane, unique(host.lane[launches])) & (host.end_ns - host.start_ns >= SILENCE_NS)
    names = timeline.names
    of_host = rows_named(host.name, names, COMMUNICATES.search)
    rows = take(host, chosen & ((host.kind == OPERATION) | ((host.kind == ANNOTATION) & of_host)))
    says = ~rows_named(rows.name, names, HOLDS_OTHERS.match) & ~rows_named(rows.name, names, COLLECTS_GARBAGE.search)
    says &= ~rows_named(rows.name, names, (*SCALAR, *SIZED).count) & ~loads_data(
        timeline, rows.name, rows.start_ns, rows.end_ns
    )
    says &= ~rows_named(rows.name, names, HOST_COLLECTIVE.match)
    rows = take(rows, says)
    if not runs_on_hosts(timeline):
        return rows
    mine = acting(timeline, take(host, is_one_of(host.kind, (OPERATION, RUNTIME))))
    return concat([rows, times_in_host_collectives(timeline, mine)])
