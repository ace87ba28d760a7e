"""A described workload: assumptions and replayable workloads from the document of a `WORKLOAD.toml`."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.display import percent_text
from overlapscope.errors import UsageError
from overlapscope.timeline.facts import Facts
from overlapscope.whatif.cost.curves import OTHERS, Curve, curve, other_curves, table_curve
from overlapscope.whatif.cost.formulas import ALGORITHMS, INTER, INTRA, LinkCost, hierarchical, time_ns
from overlapscope.whatif.ddp.buckets import DdpSettings
from overlapscope.whatif.ddp.calibrate import Assumption, Fit, Measured, Values
from overlapscope.whatif.ddp.ddp_step import HALF, Settings
from overlapscope.whatif.pricing.constants import COMM_SHARE, FORMULA_ERROR, MEMORY_SHARES
from overlapscope.whatif.pricing.described import compute_range, link_curve, phase_times
from overlapscope.whatif.pricing.devices import Device, device
from overlapscope.whatif.pricing.links import Links, links
from overlapscope.whatif.workload.model import Piece, gradients_of, head_share, optimizer_bytes, piece, transformer
from overlapscope.whatif.workload.workload import Workload
from overlapscope.whatif.workload.workload_file import MAX_MODEL_BYTES, CollectiveTimes, Ddp, WorkloadDocument

MS: Final = 1e6
BACKWARD: Final = (0.62, 2 / 3, 0.72)
"""Backward's share of forward and backward: two thirds, because it has twice the operations."""
HEAD: Final = (0.75, 1.0, 1.33)
"""The head's share of backward over that of its operations: low, usual, high."""
GUESSED_OPTIMIZER: Final = (0.0, 0.03, 0.08)
"""The optimizer's share of the step, where it is not known: low, usual, high."""
PER_BUCKET_NS: Final = (0.0, 30e3, 100e3)
"""Cost of a bucket besides its transfer (hooks, launch, events between streams): low, usual, high."""
_SIZES: Final = np.geomspace(1 << 10, 1 << 34, 97)


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A described workload: its settings, measured steps and assumptions."""

    document: WorkloadDocument
    pieces: tuple[Piece, ...]
    curve: Curve
    device: Device | None = None
    """Where its name is given."""
    others: tuple[Curve, ...] = ()
    """Curves of other operations from the same table."""
    by_channels: tuple[tuple[int, Curve], ...] = ()
    """Curves of all-reduces with other numbers of channels, each from its own table."""
    baseline: Settings
    measured: tuple[Measured, ...]
    assumptions: tuple[Assumption, ...]
    noise: float
    notes: tuple[str, ...]

    @property
    def fixed(self) -> str:
        """Empty: other buckets can always be replayed of a described workload."""
        return ""

    @property
    def lateness_ns(self) -> tuple[float, ...]:
        """How much later than the first rank each rank begins; empty where all begin at the same time."""
        return tuple(each * MS for each in self.document.lateness_ms)

    @property
    def slowdown_fit(self) -> Fit | None:
        """None: the slowdown is fitted to the measured steps."""
        return None

    @property
    def step(self) -> None:
        """None: nothing was recorded."""
        return None

    @property
    def replay(self) -> None:
        """None: nothing was recorded."""
        return None

    @property
    def abstains(self) -> str:
        """Empty: nothing was recorded."""
        return ""

    @property
    def halves(self) -> bool:
        """Whether all gradients have 32 bits."""
        return all(each.dtype == "float32" for each in self.pieces if each.elements)

    def workload(self) -> Workload:
        """Return the workload for the nominal values of all assumptions."""
        return self.build({each.name: each.value for each in self.assumptions})

    def build(self, values: Values) -> Workload:
        """Return the workload for given values of the assumptions."""
        given = self.document.compute
        optimizer_ns = values["optimizer_ms"] * MS if "optimizer_ms" in values else (given.optimizer_ms or 0.0) * MS
        if given.step_ms is not None:
            rest = max((given.step_ms - given.host_gap_ms) * MS - optimizer_ns, 1.0)
            backward_ns = rest * values["backward_share"]
            forward_ns = rest - backward_ns
        elif given.tokens is not None and self.device is not None:
            priced = phase_times(self.pieces, given.tokens, self.device, given.dtype)
            forward_ns, backward_ns = (each * values["compute_time"] for each in priced)
        else:
            forward_ns, backward_ns = (given.forward_ms or 0.0) * MS, (given.backward_ms or 0.0) * MS
        gradients = gradients_of(self.pieces, forward_ns, backward_ns, head_scale=values.get("head_share", 1.0))
        memory = memory_gbs(self.document, self.device)
        scale = values.get("transfer_time", 1.0)
        return Workload(
            world_size=self.document.world_size,
            forward_ns=forward_ns,
            backward_ns=backward_ns,
            optimizer_ns=optimizer_ns,
            gradients=gradients,
            curves=tuple(_slower(each, scale) for each in (self.curve, *self.others)),
            by_channels=tuple((channels, _slower(each, scale)) for channels, each in self.by_channels),
            host_gap_ns=given.host_gap_ms * MS,
            per_bucket_ns=values["per_bucket_us"] * 1e3,
            pass_ns_per_byte=2 / (memory * MEMORY_SHARES[1]) if memory else 0.0,
            lateness_ns=self.lateness_ns,
            comm_share=values["comm_share"],
            comm_width=self.document.collectives.at_once,
        )


def plan(
    document: WorkloadDocument, tables: Facts | None = None, by_channels: Sequence[tuple[int, str, Facts]] = ()
) -> Plan:
    """Return the plan of a document; `tables` is the content of its collective file.

    `by_channels` has the number of channels, the name and the content of each table that was measured with them.
    Raises InputError where a table holds no all-reduce of the plan's world size, UsageError for an impossible model.
    """
    pieces = tuple(_pieces(document))
    if sum(each.bytes for each in pieces) > MAX_MODEL_BYTES:
        raise UsageError(f"the gradients are more than {MAX_MODEL_BYTES >> 40} TiB together; are their shapes right?")
    named = None if document.device.name is None else device(document.device.name)
    priced = None if document.collectives.links is None else links(document.collectives.links)
    found, notes = _curve(document, tables, priced)
    others = other_curves(tables or Facts(), document.world_size)
    if priced is not None:
        others = tuple(link_curve(priced, op, document.world_size) for op in OTHERS)
    baseline = settings_of(document.ddp)
    measured = tuple(Measured(settings=settings_of(each), step_ns=each.step_ms * MS) for each in document.measured)
    return Plan(
        document=document,
        pieces=pieces,
        curve=found,
        device=named,
        others=others,
        by_channels=tuple(
            (channels, table_curve(table, name, document.world_size)[0]) for channels, name, table in by_channels
        ),
        baseline=baseline,
        measured=measured,
        assumptions=tuple(_assumptions(document, pieces, found, named)),
        noise=document.noise_percent / 100,
        notes=(*notes, *found.corners()),
    )


def settings_of(ddp: Ddp) -> Settings:
    """Return the settings of a `[ddp]` or `[[measured]]` section."""
    return Settings(
        ddp=DdpSettings(
            bucket_cap_mb=ddp.bucket_cap_mb,
            bucket_cap_mb_list=tuple(ddp.bucket_cap_mb_list),
            find_unused_parameters=ddp.find_unused_parameters,
            static_graph=ddp.static_graph,
        ),
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        accumulation=ddp.accumulation,
        no_sync=ddp.no_sync,
        communicated=1.0 if ddp.hook == "none" else HALF,
    )


def _pieces(document: WorkloadDocument) -> Sequence[Piece]:
    if document.model is None:
        return [piece(each.name, each.shape, each.dtype, each.operations, each.tied_to) for each in document.parameters]
    shape = document.model
    return transformer(
        layers=shape.layers,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        sequence=shape.sequence,
        feed_forward=shape.feed_forward,
        tied_embedding=shape.tied_embedding,
        learned_positions=shape.learned_positions,
        bias=shape.bias,
        causal=shape.causal,
        dtype=shape.dtype,
    )


def memory_gbs(document: WorkloadDocument, named: Device | None) -> float | None:
    """Return the memory bandwidth of the device: stated, or of its data sheet; None if neither is known."""
    return document.device.memory_gbs if named is None else named.memory_gbs


def _assumptions(
    document: WorkloadDocument, pieces: Sequence[Piece], found: Curve, named: Device | None
) -> list[Assumption]:
    """Return an assumption for each value that the document does not state, with its source."""
    given, memory = document.compute, memory_gbs(document, named)
    result = []
    if given.tokens is not None and named is not None:
        how = f"priced from operations and the peak of {named.name}; memory-bound operations are not in it"
        result.append(Assumption.of("compute_time", compute_range(), how))
    if given.step_ms is not None:
        counted = "backward has twice the operations of forward"
        result.append(Assumption.of("backward_share", BACKWARD, counted))
    if given.optimizer_ms is None and memory:
        moved = optimizer_bytes(pieces, document.optimizer.name) / memory / MS
        low, usual, high = (moved / share for share in reversed(MEMORY_SHARES))
        usually = percent_text(MEMORY_SHARES[1], 0)
        how = f"{document.optimizer.name} moves so many bytes at {usually} of the memory's bandwidth"
        result.append(Assumption.of("optimizer_ms", (low, usual, high), how))
    elif given.optimizer_ms is None and given.step_ms is not None:
        shares = tuple(share * given.step_ms for share in GUESSED_OPTIMIZER)
        result.append(Assumption.of("optimizer_ms", shares, "a guess: state device.memory_gbs instead"))
    share = head_share(pieces)
    if share is not None:
        result.append(Assumption.of("head_share", HEAD, f"operations give the head {percent_text(share)} of backward"))
    result.append(Assumption.of("per_bucket_us", tuple(each / 1e3 for each in PER_BUCKET_NS), "assumed, not measured"))
    result.append(Assumption.of("comm_share", COMM_SHARE, "assumed to slow each other equally"))
    error = _curve_error(found, sum(each.bytes for each in pieces))
    how = "error when a point of the table is left out" if found.measured.all() else "no table: the error of a formula"
    result.append(Assumption.of("transfer_time", (1 / (1 + error), 1.0, 1 + error), how))
    return result


def _curve_error(found: Curve, most_bytes: int) -> float:
    if not found.measured.all():
        return FORMULA_ERROR
    # Mean over typical bucket sizes: a step has several, whose errors come from one curve.
    return float(np.mean([found.error(each) for each in np.geomspace(1 << 20, max(most_bytes, 2 << 20), 12)]))


def _curve(document: WorkloadDocument, tables: Facts | None, priced: Links | None) -> tuple[Curve, list[str]]:
    given, ranks = document.collectives, document.world_size
    if priced is not None:
        found = link_curve(priced, "all_reduce", ranks)
        return found, [] if found.measured.all() else [
            f"all-reduces are priced by {found.source}, beyond what is measured"
        ]
    if given.algorithm is not None:
        times = [_formula_ns(given, ranks, size) for size in _SIZES.tolist()]
        name = f"the formula of {given.algorithm}"
        made = curve("all_reduce", _SIZES, np.maximum(times, 1.0), ranks=ranks, measured=False, source=name)
        return made, [f"no collective was measured: all are priced by {name} and the link speeds"]
    if given.points is not None:
        sizes, milliseconds = zip(*given.points, strict=True)
        return curve("all_reduce", sizes, np.array(milliseconds) * MS, ranks=ranks, source="points"), []
    return table_curve(tables or Facts(), given.file or "", ranks)


def _formula_ns(given: CollectiveTimes, ranks: int, size_bytes: float) -> float:
    links = {
        level: LinkCost(latency_ns=link.latency_us * 1e3, gbs=link.gbs)
        for level, link in ((INTRA, given.intra), (INTER, given.inter))
        if link is not None
    }
    name, local = given.algorithm or "", given.ranks_per_node or 1
    if name in ("torus", "hierarchical"):
        return time_ns(hierarchical((local, ranks // local), size_bytes), links)
    return time_ns(ALGORITHMS[name]("all_reduce", ranks, size_bytes, INTRA), links)


def _slower(made: Curve, scale: float) -> Curve:
    """Return the curve with all times multiplied."""
    return replace(made, times_ns=made.times_ns * scale)
