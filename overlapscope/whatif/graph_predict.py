"""Predictions for recorded steps of any kind: every step is replayed by itself, changed and unchanged.

What a change gains is the median over the steps of changed against unchanged, so that what a replay misses of a step it
misses on both sides.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.across_ranks import Across
from overlapscope.analysis.pipeline import ideal_bubble_ns, pipeline_stages
from overlapscope.analysis.steps import step_windows
from overlapscope.errors import InputError
from overlapscope.timeline.columns import Floats
from overlapscope.timeline.run import Run
from overlapscope.whatif.calibrate import SELF_TEST, SLOWDOWN, half_width
from overlapscope.whatif.ddp_recording import US, WAITING
from overlapscope.whatif.fsdp_changes import fsdp_trials
from overlapscope.whatif.graph import Graph, Item, Slowed, graph_job
from overlapscope.whatif.graph_case import HOST_SHARE, GraphCase, graph_case
from overlapscope.whatif.graph_changes import Parts, Trial, faster_link, in_16_bits, other_algorithm, straggler_removed
from overlapscope.whatif.interference import SPREAD
from overlapscope.whatif.replay import Launch, Replay, StuckError, Wait, replay
from overlapscope.whatif.result import Assumed, Baseline, Best, Bounds, Interval, Scenario, WhatIf

MOST_VARIED: Final = 4_000
"""Calls of all ranks and steps that are replayed under every variation of what is assumed."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to try besides what the kind of recording suggests."""

    link_speeds: tuple[float, ...] = (2.0,)
    algorithms: tuple[str, ...] = ()
    straggler: bool = True


USUAL: Final = Wanted()
MS = 1e6


class _Replayed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Shares of the unchanged step: (variation, trial); row 0 is what is taken to hold, the others come in pairs."""

    shares: Floats
    names: tuple[str, ...]
    scatter: Floats
    """Half of a 90 % interval of row 0, from how much steps differ."""
    exposed_ns: Floats
    replayed_ns: float
    error: float
    """The median over the steps of replayed against measured."""


def answer_run(run: Run, together: Across, wanted: Wanted = USUAL, why: str = "") -> WhatIf:
    """Predict a recording of any kind. `why` says why it is none of DDP's. Raises InputError for what is missing."""
    return answer_graphs(graph_case(run, together), run, wanted, why)


def answer_graphs(case: GraphCase, run: Run, wanted: Wanted = USUAL, why: str = "") -> WhatIf:
    """Predict what a case tells."""
    case = _that_end(case)
    trials, left = trials_of(case, wanted)
    trials, stuck = _possible(case, trials)
    seen = _replayed(case, trials)
    rows = _rows(case, trials, seen)
    notes = [*left, *stuck, *case.notes]
    if case.kind == "pipeline":
        notes += bubble_notes(run)
    if why and case.kind == "other":
        notes.append(f"no setting of DistributedDataParallel is replayed: {why}")
    verdict, reasons = _verdict(case, rows, seen)
    best = _best(rows)
    return WhatIf(
        kind=case.kind,
        baseline=Baseline(
            knobs={},
            measured_step_ns=round(case.measured_ns),
            replayed_step_ns=round(seen.replayed_ns),
            replay_error=seen.error,
        ),
        scenarios=rows,
        bounds=bounds_of(case.middle, case.measured_ns / case.middle.measured_ns),
        verdict=verdict,
        waiting=_waits(case),
        best=Best(knobs=best.knobs if verdict == "change" else {}),
        flat_region={},
        reasons=[*reasons, *notes],
        interference=Interval(**{name: getattr(case.told, name) for name in Interval.__struct_fields__}),
        assumptions=_assumed(case, rows.index(best), seen),
    )


def trials_of(case: GraphCase, wanted: Wanted) -> tuple[list[Trial], list[str]]:
    """Return what can be tried of a case, and why something else cannot."""
    found: list[Trial] = []
    why: list[str] = []
    if case.kind == "fsdp":
        found, why = fsdp_trials(case.graphs[0])
    if case.kind in ("tensor", "pipeline") and any(each.dtype == "float32" for each in case.graphs[0].calls):
        found.append(in_16_bits("traffic_dtype", lambda call: True))
    if case.kind == "mixed":
        why.append("it splits the model in several ways at once: links and late ranks are replayed, no setting is")
    found += [faster_link(each) for each in wanted.link_speeds]
    found += [other_algorithm(each) for each in wanted.algorithms]
    if wanted.straggler and case.straggler is not None:
        found.append(straggler_removed(case.straggler))
    return found, why


def _that_end(case: GraphCase) -> GraphCase:
    """Return the case without the steps whose own replay cannot end; raises InputError where none does."""
    ending = tuple(each for each in case.graphs if not _sticks(each))
    if not ending:
        raise InputError("its ranks launched collectives in orders that cannot end: times or pairing are wrong")
    if len(ending) == len(case.graphs):
        return case
    note = f"{len(case.graphs) - len(ending)} recorded steps have launches that cannot end so, and are left out"
    return replace(case, graphs=ending, notes=(*case.notes, note))


def _possible(case: GraphCase, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Give the trials whose steps can all end: a change may order launches differently on ranks that were recorded so.

    One that cannot costs itself: which steps end must not decide what a median is taken of.
    """
    found: list[Trial] = []
    why = []
    for each in trials:
        stuck = sum(_sticks(each.change(graph, Parts())) for graph in case.graphs)
        if stuck:
            of = f"{stuck} of {len(case.graphs)} recorded steps" if stuck < len(case.graphs) else "its steps"
            name = ", ".join(f"{knob}={value}" for knob, value in each.knobs.items())
            why.append(f"{name} is not replayed: ranks launch in orders that cannot be changed so in {of}")
        else:
            found.append(each)
    return found, why


def _sticks(graph: Graph) -> bool:
    try:
        replay(graph_job(graph, Slowed()))
    except StuckError:
        return True
    return False


def _replayed(case: GraphCase, trials: Sequence[Trial]) -> _Replayed:
    nominal = {**{each.name: each.value for each in case.assumptions}, SLOWDOWN: case.told.slowdown}
    ranges = [
        *((each.name, each.low, each.high) for each in case.assumptions),
        (SLOWDOWN, case.told.low, case.told.high),
    ]
    as_taken = [_all(one, trials, nominal) for one in case.graphs]
    steps = np.array([[_step(each, nominal) for each in graphs] for graphs in as_taken])
    of_steps = steps / steps[:, :1]
    spread = 1.4826 * np.median(np.abs(of_steps - np.median(of_steps, axis=0)), axis=0)
    rows, names = [np.median(of_steps, axis=0)], [""]
    few = _few(case)
    for name, *ends in ranges:
        for value in ends:
            values = {**nominal, name: value}
            if value == nominal[name]:
                rows.append(rows[0])
                names.append(name)
                continue
            again = name in ("latency_us", HOST_SHARE)
            changed = [_all(one, trials, values) if again else as_taken[case.graphs.index(one)] for one in few]
            varied = np.array([[_step(each, values) for each in graphs] for graphs in changed])
            as_assumed = of_steps[[case.graphs.index(one) for one in few]]
            # What the variation moves on a few steps is added to what all of them tell.
            rows.append(rows[0] + np.median(varied / varied[:, :1] - as_assumed, axis=0))
            names.append(name)
    middle = as_taken[case.graphs.index(case.middle)]
    exposed = [max(_run(each, nominal).exposed_comm_ns.values(), default=0.0) for each in middle]
    measured = np.array([each.measured_ns for each in case.graphs])
    return _Replayed(
        shares=np.array(rows),
        names=tuple(names),
        scatter=SPREAD * 1.2533 * spread / len(case.graphs) ** 0.5,
        exposed_ns=np.array(exposed),
        replayed_ns=float(np.median(steps[:, 0])),
        error=float(np.median(np.abs(steps[:, 0] / measured - 1))),
    )


def _few(case: GraphCase) -> list[Graph]:
    """Return the steps that are varied: as many as time allows, the middle one first."""
    calls = max(sum(len(each.ranks) for each in case.middle.calls), 1)
    ordered = sorted(case.graphs, key=lambda each: abs(each.measured_ns - case.middle.measured_ns))
    return ordered[: max(MOST_VARIED // calls, 1)]


def _all(graph: Graph, trials: Sequence[Trial], values: Mapping[str, float]) -> list[Graph]:
    """Return a step as it is, and under each trial."""
    parts = Parts(latency_ns=values["latency_us"] * US, host_share=values.get(HOST_SHARE, 0.0))
    return [graph, *(each.change(graph, parts) for each in trials)]


def _step(graph: Graph, values: Mapping[str, float]) -> float:
    return max(_run(graph, values).step_ns, 1.0)


def _run(graph: Graph, values: Mapping[str, float]) -> Replay:
    slowed = Slowed(compute=values[SLOWDOWN], comm=1 + values["comm_share"] * (values[SLOWDOWN] - 1))
    time, late = values.get("transfer_time", 1.0), values.get("late_ends_of_links", 0.0)
    return replay(graph_job(graph, slowed, transfer_time=time, late_share=late))


def _rows(case: GraphCase, trials: Sequence[Trial], seen: _Replayed) -> list[Scenario]:
    base = case.measured_ns
    half = np.sqrt(half_width(seen.shares, seen.names) ** 2 + seen.scatter**2 + case.noise**2 + SELF_TEST**2)
    # A gain is of one run; a step is held against another one, which drifts.
    apart = np.sqrt(half**2 + case.drift**2)
    half[0] = apart[0] = case.noise
    rows = []
    for place, trial in enumerate((None, *trials)):
        share, width, wider = float(seen.shares[0, place]), float(half[place]), float(apart[place])
        rows.append(
            Scenario(
                knobs={} if trial is None else dict(trial.knobs),
                predicted_step_ns=round(base * share),
                low_ns=round(base * (share - wider)),
                high_ns=round(base * (share + wider)),
                gain=1 - share,
                gain_low=0.0 if trial is None else 1 - share - width,
                gain_high=0.0 if trial is None else 1 - share + width,
                exposed_comm_ns=round(float(seen.exposed_ns[place])),
                memory_bytes=0 if trial is None else trial.memory_bytes,
                buckets=0,
                changes_numerics=trial is not None and trial.changes_numerics,
                hypothetical=trial is not None and trial.hypothetical,
                known_from="measured" if trial is None else "replay",
            )
        )
    return rows


def _best(rows: Sequence[Scenario]) -> Scenario:
    return min(
        (each for each in rows if not each.changes_numerics and not each.hypothetical),
        key=lambda each: each.predicted_step_ns,
    )


def _verdict(
    case: GraphCase, rows: Sequence[Scenario], seen: _Replayed
) -> tuple[Literal["change", "no_change", "insufficient_data"], list[str]]:
    reasons = [] if case.told.identified else [f"interference is not identified, a prior stands: {case.told.reason}"]
    if abs(seen.error) > SELF_TEST:
        missed = f"the replay misses the measured step by {seen.error:+.1%}, more than {SELF_TEST:.0%}"
        return "insufficient_data", [f"{missed}: what was extracted is not what ran", *reasons]
    if _waits(case):
        held = f"waiting is {case.waited:.0%} of the time in its collectives, for rank {case.waited_for} most"
        return "no_change", [f"{held}: find what holds it before any setting here", *reasons]
    best = _best(rows)
    if best is rows[0]:
        return "no_change", ["no setting that was replayed is faster", *reasons]
    if best.gain <= case.noise:
        return "no_change", [f"the best setting gains {best.gain:.1%}, the noise is {case.noise:.1%}", *reasons]
    if best.gain_low <= 0:
        doubt = f"the gain of {best.gain:.1%} may be none: its interval begins at {best.gain_low:.1%}"
        return "no_change", [doubt, *reasons]
    return "change", reasons


def _waits(case: GraphCase) -> bool:
    return case.waited > WAITING and case.waited_for is not None


def bounds_of(graph: Graph, scale: float = 1.0) -> Bounds:
    """Give bounds without interference: nothing sent; all hidden that links allow; every collective waited for at once.

    Who waits for whom is kept in all three. All are multiplied by `scale`, for a step that is usual but for its length.
    """
    free = Slowed()
    nothing = replay(graph_job(graph, free, transfer_time=0.0, late_share=1.0)).step_ns
    links: dict[str, float] = {}
    for each in graph.calls:
        links[each.link] = links.get(each.link, 0.0) + each.own_ns
    serial = replace(graph, programmes={rank: _at_once(graph, items) for rank, items in graph.programmes.items()})
    try:
        none = replay(graph_job(serial, free)).step_ns
    except StuckError:
        none = nothing + sum(links.values())
    return Bounds(
        no_comm_ns=round(scale * nothing),
        perfect_overlap_ns=round(scale * max([nothing, *links.values()])),
        no_overlap_ns=round(scale * none),
    )


def _at_once(graph: Graph, items: Sequence[Item]) -> tuple[Item, ...]:
    found: list[Item] = []
    for each in items:
        found.append(each)
        if isinstance(each, Launch) and graph.calls[each.collective].op != "message":
            found.append(Wait(each.collective))
    return tuple(found)


def _assumed(case: GraphCase, place: int, seen: _Replayed) -> list[Assumed]:
    found = []
    for each in case.assumptions:
        mine = seen.shares[[at for at, name in enumerate(seen.names) if name == each.name], place] * case.measured_ns
        found.append(
            Assumed(
                name=each.name, value=each.value, low=each.low, high=each.high, known_from=each.known_from,
                step_low_ns=round(float(mine.min())), step_high_ns=round(float(mine.max())),
            )
        )  # fmt: skip
    return found


def bubble_notes(run: Run) -> list[str]:
    """Say how long each pipeline's worst stage stands still, and what its schedule needs; nothing where untold."""
    windows = {rank: step_windows(each) for rank, each in run.ranks.items()}
    found = []
    for group, stages in pipeline_stages(run, windows):
        worst = max(stages, key=lambda each: each.bubble_ns)
        ideal = ideal_bubble_ns(worst.window_ns - worst.bubble_ns, len(group.ranks or ()), worst.activations)
        found.append(
            f"stage {worst.place} of pipeline {group.name} stands still, or waits for other stages, for "
            f"{worst.bubble_ns / MS:.3f} ms of its step; 1F1B needs {ideal / MS:.3f} ms with {worst.activations} "
            "activations a stage, whatever the links"
        )
    return found
