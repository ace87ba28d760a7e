"""Predict recorded steps of any kind of parallelism: replay every step by itself, changed and unchanged.

The gain of a change is the median over the steps of changed / unchanged, so that the error of a replay cancels. For
pipelines a note compares the recorded bubble with what the schedule cannot avoid.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.checks.pipelines.bubbles import between_ms, counted_activations, needed_bubbles_ns
from overlapscope.analysis.checks.pipelines.stages import pipeline_stages
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.display import percent_text
from overlapscope.errors import InputError
from overlapscope.timeline.columns import Floats
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.link_fit import SPREAD
from overlapscope.whatif.ddp.calibrate import SELF_TEST, SLOWDOWN
from overlapscope.whatif.ddp.ddp_recording import US, WAITING, time_beside_compute
from overlapscope.whatif.parallelism import no_ddp_settings
from overlapscope.whatif.replay.graph import Graph, Item, MutualSlowdown, graph_job
from overlapscope.whatif.replay.replay import Launch, Replay, StuckError, Wait, replay
from overlapscope.whatif.result import (
    WAITS_FIRST,
    Assumed,
    Baseline,
    Best,
    Bounds,
    Interval,
    Scenario,
    WhatIf,
    around,
    knob_words,
    recorded_bounds,
    with_recorded_exposed,
)
from overlapscope.whatif.run_replay.answers import (
    PAUSE_CAP_MS,
    Answer,
    RunReplay,
    not_beyond,
    nothing_to_gain,
    only_shorter,
)
from overlapscope.whatif.run_replay.transfers import CallTimes
from overlapscope.whatif.step_graph.fsdp_changes import fsdp_graph_changes
from overlapscope.whatif.step_graph.graph_case import GraphCase, LeftOut, graph_case
from overlapscope.whatif.step_graph.graph_changes import (
    HOST_SHARE,
    LATENCY,
    GraphChange,
    TimeParts,
    faster_link,
    in_16_bits,
    other_algorithm,
    pauses_capped,
    straggler_removed,
)

MOST_VARIED: Final = 4_000
"""Limit on the calls of all ranks and steps that are replayed under every variation of the assumptions."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to replay besides those that fit the kind of recording."""

    link_speeds: tuple[float, ...] = (2.0,)
    algorithms: tuple[str, ...] = ()
    straggler: bool = True


DEFAULTS: Final = ReplayOptions()
NOT_FASTER: Final = "no setting that was replayed is faster"
NONE_REPLAYED: Final = "no setting was replayed"
NOT_ORDERED: Final = (
    "{settings} could not be replayed: a limit of the replay, which finds no order of calls that is the same on all "
    "ranks, as the job would; it says nothing against these settings"
)
MOSTLY_LEFT_OUT: Final = 0.5
"""Where steps that are not replayed hold this share of the waiting, rows say nothing of who causes it. A choice."""
MS = 1e6


class _Replayed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The unchanged step, then the step under each change."""

    answers: tuple[Answer, ...]
    besides: tuple[float, ...]
    """Half of the 90 % interval of each from all but the assumptions: the variation between steps, and the error of the
    replay itself; for a comparison within one run."""
    apart: tuple[float, ...]
    """The same for a comparison with another run, which drifts."""
    replayed_ns: float
    error: float
    """Median over the steps of the relative error of the replay."""


def predict_graph_run(
    run: Run, cross_rank: CrossRank, options: ReplayOptions = DEFAULTS, not_ddp: str = "",
    graphs: BuiltGraphs | None = None,
) -> WhatIf:  # fmt: skip
    """Predict a recording of any kind; `not_ddp` says why it is not DDP. Raises InputError for missing data."""
    return predict_graph_case(graph_case(run, cross_rank, graphs), run, options, not_ddp)


def predict_graph_case(case: GraphCase, run: Run, options: ReplayOptions = DEFAULTS, not_ddp: str = "") -> WhatIf:
    """Predict a case; `run` adds notes on pipelines."""
    case = _drop_stuck_steps(case)
    changes, left_out = ([], []) if case.abstains else changes_of(case, options)
    changes, stuck = _possible(case, changes)
    changes, seen, unlike = _replayed(case, changes)
    bounds = bounds_of_case(case)
    rows = with_recorded_exposed(_within(_rows(case, changes, seen), changes, bounds), case.step)
    notes = [*left_out, *stuck, *unlike, *case.notes]
    if case.kind == "pipeline":
        notes += bubble_notes(run)
    if not_ddp and case.kind == "other":
        notes.append(f"{no_ddp_settings(run)}: {not_ddp}")
    verdict, reasons = _verdict(case, rows, seen, bounds)
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
        bounds=bounds,
        verdict=verdict,
        waiting=_waits(case),
        best=Best(knobs=best.knobs if verdict == "change" else {}),
        flat_region={},
        reasons=[*reasons, *notes],
        interference=Interval(**{name: getattr(case.slowdown_fit, name) for name in Interval.__struct_fields__}),
        assumptions=_assumed(case, rows.index(best), seen),
    )


def changes_of(case: GraphCase, options: ReplayOptions) -> tuple[list[GraphChange], list[str]]:
    """Return the changes that can be replayed of a case, and why others cannot."""
    found: list[GraphChange] = []
    why: list[str] = []
    if case.kind == "fsdp" and case.graphs:
        found, why = fsdp_graph_changes(case.graphs[0])
    if case.kind in ("tensor", "pipeline") and "float32" in _dtypes(case):
        found.append(in_16_bits("traffic_dtype", lambda call: True))
    if case.kind == "mixed":
        why.append(
            "it combines several kinds of parallelism: faster links and stragglers are replayed, settings are not"
        )
    if case.replay is not None and not case.replay.communicates:
        return [pauses_capped(PAUSE_CAP_MS)], ["no communication was recorded: links and settings change nothing"]
    found += [faster_link(each) for each in options.link_speeds]
    found += [other_algorithm(each) for each in options.algorithms]
    if options.straggler and case.straggler is not None:
        late = () if case.replay is None else case.replay.late_with(case.straggler)
        if late or case.replay is None:
            found.append(straggler_removed(case.straggler, late))
        else:
            why.append(
                f"no straggler is removed: others waited most for rank {case.straggler}, but by its own work alone "
                "it is not the latest in most steps"
            )
    if case.replay is not None:
        found.append(pauses_capped(PAUSE_CAP_MS))
    return found, why


def _dtypes(case: GraphCase) -> set[str | None]:
    if case.replay is not None:
        return {shape.dtype for shape, _ in case.replay.transfer_times()}
    return {each.dtype for each in case.graphs[0].calls}


def _drop_stuck_steps(case: GraphCase) -> GraphCase:
    """Return the case without the steps whose replay does not end. Raises InputError where none ends."""
    ending = tuple(each for each in case.graphs if not _is_stuck(each))
    if case.graphs and not ending:
        raise InputError(
            "the replay of its steps does not end: recorded times, or the matching of its calls, are wrong"
        )
    if len(ending) == len(case.graphs):
        return case
    note = f"{len(case.graphs) - len(ending)} recorded steps are left out: their replay does not end"
    return replace(case, graphs=ending, notes=(*case.notes, note))


def _possible(case: GraphCase, changes: Sequence[GraphChange]) -> tuple[list[GraphChange], list[str]]:
    """Return the changes whose replay ends in all steps, and in one line which others are left out, and why.

    A change may order launches differently on different ranks, which the job would not. It is left out as a whole: the
    median must not depend on which steps end.
    """
    found: list[GraphChange] = []
    stuck: list[GraphChange] = []
    for each in changes:
        ends = (case.replay is not None and each.keeps_programme) or not any(
            _is_stuck(each.change(graph, TimeParts())) for graph in case.graphs
        )
        (found if ends else stuck).append(each)
    return found, [NOT_ORDERED.format(settings=_settings(stuck))] if stuck else []


def _settings(changes: Sequence[GraphChange]) -> str:
    """Return changes in words, several values of one setting after its name."""
    by_name: dict[tuple[str, ...], list[str]] = {}
    for each in changes:
        values = by_name.setdefault(tuple(each.knobs), [])
        words = _knobs(each)
        values.append(words.partition("=")[2] if values and len(each.knobs) == 1 else words)
    return "; ".join(" or ".join(values) for values in by_name.values())


def _is_stuck(graph: Graph) -> bool:
    try:
        replay(graph_job(graph, MutualSlowdown()))
    except StuckError:
        return True
    return False


def _replayed(case: GraphCase, changes: Sequence[GraphChange]) -> tuple[list[GraphChange], _Replayed, list[str]]:
    """Replay all changes: of durations by the dependency graph where there is one, of the programme by its steps.

    Returns also the changes that were replayed, and why others were not.
    """
    replay = case.replay
    if replay is None:
        return list(changes), _replayed_steps(case, changes), []
    seen = _replayed_steps(case, [each for each in changes if not each.keeps_programme])
    swapped = replay.error_bar()
    besides = float(np.hypot(case.noise, SELF_TEST)) if swapped is None else swapped
    apart = float(np.hypot(besides, case.drift)) if swapped is None else swapped
    # Programmes are replayed by another engine: what it says of exposed time is taken relative to its own.
    exposed = replay.unchanged.exposed_ns / seen.answers[0].exposed_ns if seen.answers[0].exposed_ns else 1.0
    relative = [msgspec.structs.replace(each, exposed_ns=each.exposed_ns * exposed) for each in seen.answers]
    of_steps = iter(zip(relative[1:], seen.besides[1:], seen.apart[1:], strict=True))
    found = [(replay.unchanged, seen.besides[0], seen.apart[0])]
    kept, why = [], []
    for change in changes:
        answer = _answered(case, replay, change) if change.keeps_programme else None
        if answer is None and change.keeps_programme:
            why.append(f"{_knobs(change)} is not replayed: no other rank did the same work, call by call")
            continue
        kept.append(change)
        found.append(next(of_steps) if answer is None else (answer, besides, apart))
    answers, beside, drifted = zip(*found, strict=True)
    return kept, msgspec.structs.replace(seen, answers=answers, besides=beside, apart=drifted), why


def _answered(case: GraphCase, replay: RunReplay, change: GraphChange) -> Answer | None:
    """Return what the dependency graph says of a change of durations; None where ranks cannot be compared."""
    if change.pause_cap_ms is not None:
        return replay.of_pauses(change.pause_cap_ms)
    if change.late:
        return replay.without_excess(change.late)
    took = change.transfers
    assert took is not None
    known = {each.name: each for each in case.assumptions}

    def at(name: str = "", value: float = 0.0) -> CallTimes:
        values = {each: known[each].value if each in known else 0.0 for each in (LATENCY, HOST_SHARE)} | {name: value}
        parts = TimeParts(latency_ns=values[LATENCY] * US, host_share=values[HOST_SHARE])
        return lambda shape, own_ns: took(shape, own_ns, parts)

    others = {
        name: [at(name, known[name].low), at(name, known[name].high)] for name in change.depends_on if name in known
    }
    partial = known.get("transfer_time")
    return replay.of_transfers(
        at(), others, least_transfer=partial.low if partial else 1.0, slowdown=case.slowdown_fit.slowdown
    )


def _replayed_steps(case: GraphCase, changes: Sequence[GraphChange]) -> _Replayed:
    """Replay changes step by step; with no steps to change, only what was recorded."""
    if not case.graphs:
        error = case.replay.job.replay_error if case.replay is not None else 0.0
        return _Replayed(
            answers=(Answer(share=1.0, others={}, exposed_ns=0.0),), besides=(case.noise,), apart=(case.noise,),
            replayed_ns=case.measured_ns, error=error,
        )  # fmt: skip
    nominal = {**{each.name: each.value for each in case.assumptions}, SLOWDOWN: case.slowdown_fit.slowdown}
    ranges = [
        *((each.name, each.low, each.high) for each in case.assumptions),
        (SLOWDOWN, case.slowdown_fit.low, case.slowdown_fit.high),
    ]
    as_taken = [_changed_graphs(one, changes, nominal) for one in case.graphs]
    steps = np.array([[_step(each, nominal) for each in graphs] for graphs in as_taken])
    of_steps = steps / steps[:, :1]
    spread = 1.4826 * np.median(np.abs(of_steps - np.median(of_steps, axis=0)), axis=0)
    shares = np.median(of_steps, axis=0)
    others: dict[str, list[Floats]] = {}
    few = _steps_to_vary(case)
    for name, *ends in ranges:
        for value in ends:
            values = {**nominal, name: value}
            if value == nominal[name]:
                others.setdefault(name, []).append(shares)
                continue
            again = name in (LATENCY, HOST_SHARE)
            changed = [
                _changed_graphs(one, changes, values) if again else as_taken[case.graphs.index(one)] for one in few
            ]
            varied = np.array([[_step(each, values) for each in graphs] for graphs in changed])
            as_assumed = of_steps[[case.graphs.index(one) for one in few]]
            # The change that the variation makes on a few steps is added to the median of all steps.
            others.setdefault(name, []).append(shares + np.median(varied / varied[:, :1] - as_assumed, axis=0))
    middle = as_taken[case.graphs.index(case.middle)]
    exposed = [max(_run(each, nominal).exposed_comm_ns.values(), default=0.0) for each in middle]
    measured = np.array([each.measured_ns for each in case.graphs])
    scatter = SPREAD * 1.2533 * spread / len(case.graphs) ** 0.5
    besides = np.sqrt(scatter**2 + case.noise**2 + SELF_TEST**2)
    apart = np.sqrt(besides**2 + case.drift**2)
    besides[0] = apart[0] = case.noise
    return _Replayed(
        answers=tuple(
            Answer(
                share=float(share), exposed_ns=exposed[at],
                others={name: tuple(float(each[at]) for each in found) for name, found in others.items()},
            )
            for at, share in enumerate(shares)
        ),
        besides=tuple(besides.tolist()), apart=tuple(apart.tolist()), replayed_ns=float(np.median(steps[:, 0])),
        error=float(np.median(np.abs(steps[:, 0] / measured - 1))),
    )  # fmt: skip


def _steps_to_vary(case: GraphCase) -> list[Graph]:
    """Return the steps that are varied, the middle one first: as many as `MOST_VARIED` allows."""
    calls = max(sum(len(each.ranks) for each in case.middle.calls), 1)
    ordered = sorted(case.graphs, key=lambda each: abs(each.measured_ns - case.middle.measured_ns))
    return ordered[: max(MOST_VARIED // calls, 1)]


def _changed_graphs(graph: Graph, changes: Sequence[GraphChange], values: Mapping[str, float]) -> list[Graph]:
    """Return a step unchanged, and under each change."""
    parts = TimeParts(latency_ns=values["latency_us"] * US, host_share=values.get(HOST_SHARE, 0.0))
    return [graph, *(each.change(graph, parts) for each in changes)]


def _step(graph: Graph, values: Mapping[str, float]) -> float:
    return max(_run(graph, values).step_ns, 1.0)


def _run(graph: Graph, values: Mapping[str, float]) -> Replay:
    slowed = MutualSlowdown(compute=values[SLOWDOWN], comm=time_beside_compute(values))
    time, late = values.get("transfer_time", 1.0), values.get("late_ends_of_links", 0.0)
    return replay(graph_job(graph, slowed, transfer_time=time, late_share=late))


def _rows(case: GraphCase, changes: Sequence[GraphChange], seen: _Replayed) -> list[Scenario]:
    base = case.measured_ns
    rows = []
    for change, answer, besides, apart in zip((None, *changes), seen.answers, seen.besides, seen.apart, strict=True):
        share = answer.share
        # A gain compares steps of one run; a predicted step is compared with another run, which drifts.
        rows.append(
            Scenario(
                knobs={} if change is None else dict(change.knobs),
                predicted_step_ns=round(base * share),
                low_ns=round(base * (share - hypot(answer.below, apart))),
                high_ns=round(base * (share + hypot(answer.above, apart))),
                gain=1 - share,
                gain_low=0.0 if change is None else 1 - share - hypot(answer.above, besides),
                gain_high=0.0 if change is None else 1 - share + hypot(answer.below, besides),
                exposed_comm_ns=round(answer.exposed_ns),
                memory_bytes=0 if change is None else change.memory_bytes,
                buckets=0,
                changes_numerics=change is not None and change.changes_numerics,
                hypothetical=change is not None and change.hypothetical,
                known_from="measured" if change is None else "replay",
            )
        )
    return rows


def _within(rows: Sequence[Scenario], changes: Sequence[GraphChange], bounds: Bounds) -> list[Scenario]:
    """Return the scenarios, of which none that changes communication alone is shorter than the step without any, and
    none that only removes time loses any."""
    found = [rows[0]]
    for row, change in zip(rows[1:], changes, strict=True):
        paused = change.pause_cap_ms is not None
        within = row if change.late or paused else not_beyond(row, bounds, rows[0])
        shortens = paused or change.knobs.get("link_speed", 0.0) > 1
        found.append(only_shorter(within) if shortens else within)
    return found


def _best(rows: Sequence[Scenario]) -> Scenario:
    return min(
        (each for each in rows if not each.changes_numerics and not each.hypothetical),
        key=lambda each: each.predicted_step_ns,
    )


def _verdict(
    case: GraphCase, rows: Sequence[Scenario], seen: _Replayed, bounds: Bounds
) -> tuple[Literal["change", "no_change", "insufficient_data"], list[str]]:
    if case.abstains:
        return "insufficient_data", [f"nothing is predicted for this recording: {case.abstains}"]
    reasons = [] if case.slowdown_fit.identified else [case.slowdown_fit.explanation]
    reasons += nothing_to_gain(rows[0], bounds, case.replay.path_shares) if case.replay is not None else []
    if abs(seen.error) > SELF_TEST:
        sign, most = "+" if seen.error > 0 else "", percent_text(SELF_TEST, 0)
        missed = f"the replay misses the measured step by {sign}{percent_text(seen.error)}, more than {most}"
        return "insufficient_data", [f"{missed}: the extracted steps do not match the run", *reasons]
    if _waits(case):
        return "no_change", [_waiting(case, rows), *reasons]
    against = _against(case, rows)
    return ("no_change", [against, *reasons]) if against else ("change", reasons)


def _against(case: GraphCase, rows: Sequence[Scenario]) -> str:
    """Return why no setting is recommended; empty where one is."""
    best = _best(rows)
    if best is rows[0]:
        return NONE_REPLAYED if all(each.hypothetical for each in rows[1:]) else NOT_FASTER
    setting = ", ".join(knob_words(knob, value) for knob, value in best.knobs.items())
    if best.gain <= case.noise:
        return (
            f"the best setting ({setting}) gains {percent_text(best.gain)}, which is within the noise of "
            f"{percent_text(case.noise)}"
        )
    if best.gain_low <= 0:
        return (
            f"the gain of {percent_text(best.gain)} with {setting} may be zero: its interval begins at "
            f"{percent_text(best.gain_low)}"
        )
    return ""


def _waiting(case: GraphCase, rows: Sequence[Scenario]) -> str:
    """Return what dominates where waiting does: a straggler, where the dependency graph does not say otherwise."""
    share = f"waiting is {percent_text(case.waited)} of the time in its collectives"
    if case.left_out is not None and case.left_out.of_waiting >= MOSTLY_LEFT_OUT:
        return f"{share}, {_left_out(case.left_out)}; {WAITS_FIRST}"
    if case.left_out is not None:
        share += f" ({percent_text(case.left_out.waited_besides)} in the steps that are replayed)"
    removed = next((each for each in rows if "straggler_removed" in each.knobs), None)
    if case.replay is None or (removed is not None and removed.gain > case.noise):
        mostly = "" if case.waited_for is None else f", mostly for rank {case.waited_for}"
        return f"{share}{mostly}; {WAITS_FIRST}"
    worth = (
        ""
        if removed is None
        else f": if rank {case.straggler} worked as fast as the others, a step would gain {percent_text(removed.gain)}"
    )
    return f"{share}, and no single rank causes it{worth}; no setting of communication is recommended before it is less"


def _left_out(found: LeftOut) -> str:
    """Return how much of the waiting no replay shows, and why."""
    which = "a step of" if found.steps == 1 else f"{found.steps} steps of up to"
    return (
        f"{percent_text(found.of_waiting)} of it in {which} {found.longest_ns / MS:.3f} ms, which no row replays, as "
        f"{'it' if found.steps == 1 else 'they'} took much longer or shorter than the others: what "
        f"{'it costs' if found.steps == 1 else 'they cost'} is no row's gain; in the others waiting is "
        f"{percent_text(found.waited_besides)}"
    )


def _waits(case: GraphCase) -> bool:
    return case.waited > WAITING


def bounds_of_case(case: GraphCase) -> Bounds:
    """Return the step bounds of a case: by the dependency graph where there is one, by the parts of the recorded step
    where that may not answer, else by its steps."""
    if case.replay is not None:
        return case.replay.bounds(case.measured_ns, case.slowdown_fit.of_bounds)
    if case.abstains and case.step is not None:
        return around(recorded_bounds(case.step, case.measured_ns), case.measured_ns)
    return around(bounds_of(case.middle, case.measured_ns / case.middle.measured_ns), case.measured_ns)


def bounds_of(graph: Graph, scale: float = 1.0) -> Bounds:
    """Return step bounds without interference: no communication; all overlapped that links allow; none overlapped.

    Waits between ranks are kept in all three. All are multiplied by `scale`, to fit a step of another length.
    """
    free = MutualSlowdown()
    nothing = replay(graph_job(graph, free, transfer_time=0.0, late_share=1.0)).step_ns
    links: dict[str, float] = {}
    for each in graph.calls:
        links[each.link] = links.get(each.link, 0.0) + each.own_ns
    serial = replace(
        graph, programmes={rank: _waiting_at_launch(graph, items) for rank, items in graph.programmes.items()}
    )
    try:
        none = replay(graph_job(serial, free)).step_ns
    except StuckError:
        none = nothing + sum(links.values())
    return Bounds(
        no_comm_ns=round(scale * nothing),
        perfect_overlap_ns=round(scale * max([nothing, *links.values()])),
        no_overlap_ns=round(scale * none),
    )


def _waiting_at_launch(graph: Graph, items: Sequence[Item]) -> tuple[Item, ...]:
    found: list[Item] = []
    for each in items:
        found.append(each)
        if isinstance(each, Launch) and graph.calls[each.collective].op != "message":
            found.append(Wait(each.collective))
    return tuple(found)


def _knobs(change: GraphChange) -> str:
    return ", ".join(knob_words(knob, value) for knob, value in change.knobs.items())


def _assumed(case: GraphCase, place: int, seen: _Replayed) -> list[Assumed]:
    found = []
    for each in case.assumptions:
        answer = seen.answers[place]
        shares = (answer.share, *answer.others.get(each.name, ())) if case.replay else answer.others[each.name]
        found.append(
            Assumed(
                name=each.name, value=each.value, low=each.low, high=each.high, known_from=each.known_from,
                step_low_ns=round(case.measured_ns * min(shares)), step_high_ns=round(case.measured_ns * max(shares)),
            )
        )  # fmt: skip
    return found


def bubble_notes(run: Run) -> list[str]:
    """Return notes on the bubble of each pipeline's worst stage, measured and by its schedule; empty if unknown."""
    windows = {rank: step_windows(each) for rank, each in run.ranks.items()}
    found = []
    for group, stages in pipeline_stages(run, windows):
        worst = max(stages, key=lambda each: each.bubble_ns)
        needs = between_ms(needed_bubbles_ns(worst, len(group.ranks or ())))
        found.append(
            f"stage {worst.place} of pipeline {group.name} is idle or waits for other stages for "
            f"{worst.bubble_ns / MS:.3f} ms of its step; 1F1B needs {needs} with {counted_activations(worst)} a stage, "
            "whatever the links"
        )
    return found
