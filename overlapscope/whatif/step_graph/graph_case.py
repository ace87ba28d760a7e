"""The input of a prediction for a recording of any kind: its steps, interference, straggler, and assumptions."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.interference import NO_INTERFERENCE, Interference, interference
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.link_fit import SPREAD, determines_latency, fit_line
from overlapscope.whatif.ddp.calibrate import Assumption, Fit, assumed_slowdown
from overlapscope.whatif.ddp.ddp_recording import COMM_SHARE, LATENCY_US, LEAST_NOISE, LEAST_TRANSFER, US
from overlapscope.whatif.parallelism import Parallelism, parallelism_of
from overlapscope.whatif.replay.graph import Graph
from overlapscope.whatif.step_graph.graph_changes import same_launch_order
from overlapscope.whatif.step_graph.recorded_graph import recorded_graphs

LATE_SHARE: Final = (0.5, 1.0, 1.0)
"""Share of the late ends of collectives that is caused by the link and scales with transfer times: low, usual, high. It
is estimated from one link rate to another (gloo's last member to call a gather has the result half as long again after
the first, at 300 and at 600 Mbit/s); the rest is waiting for a CPU core."""
HOST_SHARE: Final = "host_share"
"""Name of the assumption: the share of a transfer over sockets that the host needs, whatever the link ..."""
HOST_SHARE_RANGE: Final = (0.0, 0.06, 0.22)
"""... and its value: low, usual, high, from links half and twice as fast in eleven jobs at 300 to 1200 Mbit/s: the
median and the range of nine in ten; more at higher rates (see benchmarks/WHATIF_FSDP.md)."""
FEW_STEPS: Final = 3
FEW_NOISE: Final = 0.03
"""The assumed noise where fewer steps were recorded."""


class GraphCase(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The steps of a recording, ready to be replayed."""

    kind: Parallelism
    graphs: tuple[Graph, ...]
    slowdown_fit: Fit
    assumptions: tuple[Assumption, ...]
    noise: float
    """Relative error of the median step, from the variation of the recorded steps."""
    drift: float
    """Relative difference to the step of another run with the same settings: as much as one recorded step varies. A
    disturbance that lasts for minutes affects all steps of a short recording, so that more steps do not reduce it."""
    straggler: int | None
    """The rank that the others waited for most; None where its work cannot be compared with theirs."""
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


def graph_case(run: Run, cross_rank: CrossRank) -> GraphCase:
    """Build the case of a recording. Raises InputError, which says what is missing and what to do."""
    found = recorded_graphs(run, cross_rank)
    device = any(each.has_device for each in run.ranks.values())
    measured = np.array([each.measured_ns for each in found.graphs])
    few = measured.size < FEW_STEPS
    spread = 1.4826 * float(np.median(np.abs(measured / np.median(measured) - 1)))
    noise = FEW_NOISE if few else max(SPREAD * 1.2533 * spread / measured.size**0.5, LEAST_NOISE)
    total = sum(each.collective_ns for each in cross_rank.waits.values())
    blame = {rank: each.blame_ns for rank, each in cross_rank.waits.items() if each.blame_ns}
    most = max(blame, key=lambda rank: blame[rank]) if blame else None
    notes = []
    missing = (run.world_size or 0) - len(run.ranks)
    if missing > 0:
        notes.append(
            f"{len(run.ranks)} of {run.world_size} ranks were recorded: transfers may include waiting for others"
        )
    if found.earlier:
        notes.append(f"the last {len(found.steps)} steps are replayed: the measured step is their median")
    if found.left_out:
        notes.append(f"{found.left_out} recorded steps have other collectives and are left out")
    if few:
        notes.append(f"{measured.size} complete steps were recorded: too few to measure how much steps vary")
    return GraphCase(
        kind=parallelism_of(run),
        graphs=found.graphs,
        slowdown_fit=_slowdown_fit(run, found.moving, device=device),
        assumptions=tuple(_assumptions(found.graphs, device=device, is_partial=missing > 0 or len(run.ranks) < 2)),
        noise=noise,
        drift=FEW_NOISE if few else max(SPREAD * spread, LEAST_NOISE),
        straggler=most if most is not None and same_launch_order(found.graphs[0]) else None,
        waited=sum(each.wait_ns for each in cross_rank.waits.values()) / total if total else 0.0,
        waited_for=most,
        notes=tuple(notes),
    )


def _slowdown_fit(run: Run, moving: Mapping[int, Intervals], *, device: bool) -> Fit:
    """Return the slowdown measured from kernels on a device, of the rank that slows most; else the assumed one."""
    if device:
        each = [interference(timeline.spans, moving[rank]).value for rank, timeline in run.ranks.items()]
        measured = [(one.times, one.low, one.high) for one in each if isinstance(one, Interference)]
        if measured:
            mean, low, high = max(measured)
            return Fit(slowdown=max(mean, 1.0), low=max(low, 1.0), high=max(high, 1.0), identified=True, reason="")
        why = " or ".join(sorted({NO_INTERFERENCE[one] for one in each if isinstance(one, str)}))
    else:
        why = "it cannot be measured for this kind of job in a recording without a device"
    return assumed_slowdown(why)


def _assumptions(graphs: tuple[Graph, ...], *, device: bool, is_partial: bool) -> list[Assumption]:
    low, value, high = COMM_SHARE[device]
    how = "assumed to slow each other equally" if device else "assumed to be limited by its link alone"
    found = [Assumption(name="comm_share", value=value, low=low, high=high, known_from=how)]
    if not device:
        low, value, high = LATE_SHARE
        how = "assumed to be all; the rest is waiting for a core"
        found.append(Assumption(name="late_ends_of_links", value=value, low=low, high=high, known_from=how))
        low, value, high = HOST_SHARE_RANGE
        how = "share of transfers, whatever the link: measured on other jobs"
        found.append(Assumption(name=HOST_SHARE, value=value, low=low, high=high, known_from=how))
    low, value, high = LATENCY_US[device]
    how = "could not be measured: the recorded sizes are too similar"
    sizes, times = _transfers(graphs)
    if sizes.size and determines_latency(sizes):
        base = fit_line(sizes, times, value * US)[0] / US
        value, low, high, how = base, base / 2, base * 2, "measured: calls of different sizes"
    found.append(Assumption(name="latency_us", value=value, low=low, high=high, known_from=how))
    if is_partial:
        how = "may include waiting for ranks that were not recorded"
        found.append(Assumption(name="transfer_time", value=1.0, low=LEAST_TRANSFER, high=1.0, known_from=how))
    return found


def _transfers(graphs: tuple[Graph, ...]) -> tuple[Ints, Floats]:
    """Return the sizes in bytes of the calls of the most frequent operation, and the median link time in ns of each."""
    calls = [each for graph in graphs for each in graph.calls if each.bytes and each.own_ns > 0]
    if not calls:
        return np.empty(0, np.int64), np.empty(0)
    ops = [each.op for each in calls]
    op = max(dict.fromkeys(ops), key=ops.count)
    bytes_ = np.array([each.bytes for each in calls if each.op == op], np.int64)
    own = np.array([each.own_ns for each in calls if each.op == op])
    sizes = np.unique(bytes_)
    return sizes, np.array([np.median(own[bytes_ == each]) for each in sizes.tolist()])
