"""What a recording of any kind tells, with what it leaves open: the steps, interference, the late rank."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.across_ranks import Across
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run
from overlapscope.whatif.calibrate import PRIOR, WIDE_PRIOR, Assumption, Fit
from overlapscope.whatif.ddp_recording import COMM_SHARE, HELD_WAITING, LATENCY_US, LEAST_NOISE, US
from overlapscope.whatif.graph import Graph
from overlapscope.whatif.graph_changes import alike
from overlapscope.whatif.interference import SPREAD, slowdown
from overlapscope.whatif.link_fit import line, told_latency
from overlapscope.whatif.parallelism import Kind, kind_of
from overlapscope.whatif.recorded_graph import recorded_graphs

LATE_SHARE: Final = (0.5, 1.0, 1.0)
"""Share of what ranks see collectives end late that is their link's, and goes with what they take: the link's is what
one rate of a link tells of another (gloo's last member to call a gather has it half as long again after the first, at
300 as at 600 Mbit/s); what is left is want of a core."""
HOST_SHARE: Final = "host_share"
"""Name of the share of a transfer over sockets that is its host's and does not go with its link ..."""
OF_HOST: Final = (0.0, 0.06, 0.22)
"""... and what it is taken to be: what links half and twice as fast told of it in eleven jobs at 300 to 1200 Mbit/s,
the median and the range of nine in ten; more at higher rates (see benchmarks/WHATIF_FSDP.md)."""
FEW_STEPS: Final = 3
FEW_NOISE: Final = 0.03
"""What noise is taken to be where fewer steps were recorded: they do not tell it."""


class GraphCase(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The steps of a recording, ready to be replayed."""

    kind: Kind
    graphs: tuple[Graph, ...]
    told: Fit
    assumptions: tuple[Assumption, ...]
    noise: float
    """By what share the median step may be off, as far as its steps tell."""
    drift: float
    """By what share the step of another run of these settings may differ: as much as one recorded step does. What moves
    a step for minutes moves all that a short recording has, so that more of them do not make it surer."""
    straggler: int | None
    """The rank that the others waited for most, where its work can be compared with theirs."""
    waited: float
    """Share of the time in collectives that is waiting."""
    waited_for: int | None
    notes: tuple[str, ...]

    @property
    def measured_ns(self) -> float:
        """The median step."""
        return float(np.median([each.measured_ns for each in self.graphs]))

    @property
    def middle(self) -> Graph:
        """The step that took the median time, or a little less."""
        return sorted(self.graphs, key=lambda each: each.measured_ns)[(len(self.graphs) - 1) // 2]


def graph_case(run: Run, together: Across) -> GraphCase:
    """Return it. Raises InputError, saying what is missing and what to do."""
    found = recorded_graphs(run, together)
    device = any(each.has_device for each in run.ranks.values())
    measured = np.array([each.measured_ns for each in found.graphs])
    few = measured.size < FEW_STEPS
    spread = 1.4826 * float(np.median(np.abs(measured / np.median(measured) - 1)))
    noise = FEW_NOISE if few else max(SPREAD * 1.2533 * spread / measured.size**0.5, LEAST_NOISE)
    total = sum(each.collective_ns for each in together.waits.values())
    blame = {rank: each.blame_ns for rank, each in together.waits.items() if each.blame_ns}
    most = max(blame, key=lambda rank: blame[rank]) if blame else None
    notes = []
    missing = (run.world_size or 0) - len(run.ranks)
    if missing > 0:
        notes.append(f"{len(run.ranks)} of {run.world_size} ranks were recorded: transfers may hold waiting for others")
    if found.left_out:
        notes.append(f"{found.left_out} recorded steps made other collectives, and are left out")
    if few:
        notes.append(f"{measured.size} steps were recorded as a whole: how much they differ is not told")
    return GraphCase(
        kind=kind_of(run),
        graphs=found.graphs,
        told=_told(run, found.moving, device=device),
        assumptions=tuple(_assumptions(found.graphs, device=device, partly=missing > 0 or len(run.ranks) < 2)),
        noise=noise,
        drift=FEW_NOISE if few else max(SPREAD * spread, LEAST_NOISE),
        straggler=most if most is not None and alike(found.graphs[0]) else None,
        waited=sum(each.wait_ns for each in together.waits.values()) / total if total else 0.0,
        waited_for=most,
        notes=tuple(notes),
    )


def _told(run: Run, moving: Mapping[int, Intervals], *, device: bool) -> Fit:
    """Give the slowdown that kernels tell on a device, of the rank that slows most; else the prior, with the reason."""
    if device:
        each = [slowdown(timeline.spans, moving[rank]) for rank, timeline in run.ranks.items()]
        told = [(one.mean, one.low, one.high) for one in each if one is not None]
        if told:
            mean, low, high = max(told)
            return Fit(slowdown=max(mean, 1.0), low=max(low, 1.0), high=max(high, 1.0), identified=True, reason="")
        why = "no kernel ran both beside a transfer and free of one, in different steps"
    else:
        why = "a recording without a device does not tell it for this kind of job"
    return Fit(slowdown=PRIOR[1], low=WIDE_PRIOR[0], high=WIDE_PRIOR[1], identified=False, reason=why)


def _assumptions(graphs: tuple[Graph, ...], *, device: bool, partly: bool) -> list[Assumption]:
    low, value, high = COMM_SHARE[device]
    how = "taken to slow each other alike" if device else "taken to be held up by its link alone"
    found = [Assumption(name="comm_share", value=value, low=low, high=high, known_from=how)]
    if not device:
        low, value, high = LATE_SHARE
        how = "taken to be all; what is not is want of a core"
        found.append(Assumption(name="late_ends_of_links", value=value, low=low, high=high, known_from=how))
        low, value, high = OF_HOST
        how = "of transfers, whatever the link: measured elsewhere"
        found.append(Assumption(name=HOST_SHARE, value=value, low=low, high=high, known_from=how))
    low, value, high = LATENCY_US[device]
    how = "a prior: calls of about one size do not tell it"
    sizes, times = _transfers(graphs)
    if sizes.size and told_latency(sizes):
        base = line(sizes, times, value * US)[0] / US
        value, low, high, how = base, base / 2, base * 2, "calls of different sizes"
    found.append(Assumption(name="latency_us", value=value, low=low, high=high, known_from=how))
    if partly:
        how = "they may hold waiting for ranks that were not recorded"
        found.append(Assumption(name="transfer_time", value=1.0, low=HELD_WAITING, high=1.0, known_from=how))
    return found


def _transfers(graphs: tuple[Graph, ...]) -> tuple[Ints, Floats]:
    """Return the sizes of the most used operation's calls, and the median time of each."""
    calls = [each for graph in graphs for each in graph.calls if each.bytes and each.own_ns > 0]
    if not calls:
        return np.empty(0, np.int64), np.empty(0)
    ops = [each.op for each in calls]
    op = max(dict.fromkeys(ops), key=ops.count)
    bytes_ = np.array([each.bytes for each in calls if each.op == op], np.int64)
    own = np.array([each.own_ns for each in calls if each.op == op])
    sizes = np.unique(bytes_)
    return sizes, np.array([np.median(own[bytes_ == each]) for each in sizes.tolist()])
