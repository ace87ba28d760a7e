"""Find the recorded stages of pipelines: how long a step is, how long a stage waits in it, how much it sends.

A stage's bubble is the time of a step in which it neither computes, nor copies, nor communicates, except with other
stages; without a device, while it communicates with other stages and does nothing else.

Of its schedule the activations are counted that a stage sends to the next in a step: v m, for m microbatches and v
chunks a stage. Where there are chunks, the last stage sends the first one (v - 1) m of them, and gets as many gradients
back: both ends of the pipeline tell m, a stage between them does not. Some jobs also send other messages (shapes,
several tensors): the least frequent size counts, which makes the ideal bubble larger rather than smaller.

Where no steps were marked, a step of a device is the time from one optimizer to the next.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints, size
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import BusyTime, difference, intersection, union
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.optimizer_marks import optimizer_marks
from overlapscope.timeline.rows import factorize_rows, smallest_by
from overlapscope.timeline.run import Group, RankTimeline, Run


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded stage of a pipeline, median over its complete steps.

    A median because the last step ends early, with its last span.
    """

    rank: int
    place: int
    window_ns: float
    bubble_ns: float
    activations: int
    """Activations sent to the next stage in a step, v m; of two stages at least these, ..."""
    at_most: int
    """... and at most these: the others may be gradients of interleaved stages."""
    wrapped: int | None = None
    """Of these, what the last stage sends the first for its next chunk, (v - 1) m; None where that is not known: of a
    stage between them, or of two stages."""
    once_ns: float = 0.0
    """Of the time that is no bubble: in other calls alone, of a kind that comes less often than a microbatch. The stage
    reduces gradients there, or waits as the pipeline drains."""


def groups_by_rank(groups: Sequence[Group]) -> dict[int, list[Group]]:
    """Return the groups of each rank that have other members."""
    found: dict[int, list[Group]] = {}
    for group in groups:
        if group.ranks is not None and len(group.ranks) > 1:
            for rank in group.ranks:
                found.setdefault(rank, []).append(group)
    return found


def own_stages(
    timeline: RankTimeline, groups: Sequence[Group], windows: Sequence[StepWindow]
) -> dict[str, PipelineStage]:
    """Return the rank's stage in each of its pipeline groups, by the group's name."""
    calls, names = timeline.collectives, timeline.names
    if PIPELINE not in names:
        return {}
    used = np.unique(calls.group[calls.dimension == names.index(PIPELINE)])
    pipelines = {names[code] for code in used[used >= 0].tolist()}
    return {
        group.name: stage
        for group in groups
        if group.name in pipelines and group.ranks is not None
        if (stage := _stage(timeline, group.name, group.ranks, group.ranks.index(timeline.rank), windows)) is not None
    }


def alike_stages(
    run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]
) -> list[tuple[Group, list[PipelineStage]]]:
    """Return the recorded stages of each pipeline whose stages send equally many activations; `stages` holds the result
    of `own_stages` for every rank."""
    found = []
    for group in run.groups:
        own = [stages[rank][group.name] for rank in group.ranks or () if group.name in stages.get(rank, ())]
        if own and len({stage.activations for stage in own}) == 1:
            found.append((group, own))
    return found


def pipeline_stages(run: Run, windows: Mapping[int, Sequence[StepWindow]]) -> list[tuple[Group, list[PipelineStage]]]:
    """Return the recorded stages of each pipeline with a known number of microbatches."""
    of_rank = groups_by_rank(run.groups)
    return alike_stages(
        run, {rank: own_stages(own, of_rank.get(rank, ()), windows[rank]) for rank, own in run.ranks.items()}
    )


def _stage(
    timeline: RankTimeline, group: str, ranks: Sequence[int], place: int, windows: Sequence[StepWindow]
) -> PipelineStage | None:
    calls, names = timeline.collectives, timeline.names
    if PIPELINE not in names or group not in names:
        return None
    messages = np.isin(calls.op, [code for code, name in enumerate(names) if name in POINT_TO_POINT])
    messages &= (calls.group == names.index(group)) & (calls.dimension == names.index(PIPELINE))
    windows = windows if size(timeline.steps) else _between_optimizers(timeline)
    chosen = [each for each in windows if each.complete and each.window and each.window[1] > each.window[0]]
    if not messages.any() or not chosen:
        return None
    # The last stage sends no activations, but a gradient back for each activation that it received.
    at_most = _sent(timeline, messages, ranks, ranks[place + 1] if place + 1 < len(ranks) else ranks[place - 1], chosen)
    # Two interleaved stages send activations and gradients in the same direction: at least half are activations.
    activations = at_most // 2 if len(ranks) == 2 else at_most
    if activations == 0:
        return None
    starts, ends = (np.array([each.window[at] for each in chosen if each.window], np.int64) for at in (0, 1))
    bubble_ns = _bubble(timeline, messages, starts, ends).within(starts, ends)
    return PipelineStage(
        rank=timeline.rank,
        place=place,
        window_ns=median((ends - starts).tolist()),
        bubble_ns=median(bubble_ns.tolist()),
        activations=activations,
        at_most=at_most,
        wrapped=_wrapped(timeline, messages, ranks, place, chosen),
        once_ns=median(_in_rare_calls(timeline, messages, at_most, starts, ends).tolist()),
    )


def _wrapped(
    timeline: RankTimeline, messages: Flags, ranks: Sequence[int], place: int, windows: Sequence[StepWindow]
) -> int | None:
    """Return how many messages one end of a pipeline sends the other in each step; None where it is no end of it."""
    if len(ranks) == 2 or place not in (0, len(ranks) - 1):
        return None
    return _sent(timeline, messages, ranks, ranks[-1 if place == 0 else 0], windows)


def microbatches(stages: Sequence[PipelineStage]) -> int | None:
    """Return how many microbatches the recorded stages of a pipeline have in a step; None where they may be chunks."""
    wrapped = [each.wrapped for each in stages if each.wrapped is not None]
    most = max(each.at_most for each in stages)
    return most - max(wrapped) if wrapped and max(wrapped) < most else None


def _between_optimizers(timeline: RankTimeline) -> list[StepWindow]:
    """Return the time from what one optimizer launches first on the device to what the next does, without a number of
    a step; empty without a device."""
    spans, notes = timeline.spans, timeline.annotations
    marks = optimizer_marks(timeline)
    if not timeline.has_device or not marks.size:
        return []
    of = np.searchsorted(notes.start_ns[marks], spans.launch_ns, side="right") - 1
    launched = np.flatnonzero((spans.kind == COMPUTE) & (of >= 0) & (spans.launch_ns < notes.end_ns[marks[of]]))
    which, place = np.unique(of[launched], return_inverse=True)
    first = smallest_by(place, spans.start_ns[launched], which.size).tolist()
    recording = notes.recording[marks[which]].tolist()
    return [
        StepWindow(step=NONE, recording=recording[at], window=(first[at], first[at + 1]), complete=True)
        for at in range(len(first) - 1)
        if which[at] + 1 == which[at + 1] and recording[at] == recording[at + 1]
    ]


def _sent(timeline: RankTimeline, messages: Flags, ranks: Sequence[int], to: int, windows: Sequence[StepWindow]) -> int:
    """Return how many activations a stage sends to a rank in each step, or gradients, or of two stages both; 0 where
    that is not known, or differs between steps."""
    calls, names = timeline.collectives, timeline.names
    sent = messages & np.isin(calls.op, [code for code, name in enumerate(names) if name in ("send", "send_recv")])
    if len(ranks) > 2 and (calls.peer[sent] == NONE).any():
        return 0
    sent &= (calls.peer == to) | ((calls.peer == NONE) & (len(ranks) == 2))
    counts = set()
    for each in windows:
        of_step = calls.step == each.step
        if each.step == NONE and each.window:
            of_step = (calls.start_ns >= each.window[0]) & (calls.start_ns < each.window[1])
        rows = sent & of_step & (calls.recording == each.recording)
        counts.add(int(np.unique(calls.bytes[rows], return_counts=True)[1].min()) if rows.any() else 0)
    return counts.pop() if len(counts) == 1 else 0


def _in_rare_calls(timeline: RankTimeline, messages: Flags, activations: int, starts: Ints, ends: Ints) -> Ints:
    """Return for how long a stage only is in calls that are no `messages`, and of whose kind a step has fewer than
    `activations`, in each of these steps."""
    spans, calls = timeline.spans, timeline.collectives
    inside = ~messages & (calls.start_ns >= starts.min()) & (calls.start_ns < ends.max())
    own = np.flatnonzero(inside & (calls.end_ns != NONE))
    kind, first = factorize_rows([calls.op[own], calls.group[own], calls.bytes[own]])
    rare = own[np.bincount(kind, minlength=first.size)[kind] < activations * starts.size]
    computes = spans.kind != COMM
    busy = union((spans.start_ns[computes], spans.end_ns[computes]))
    return BusyTime(difference(union((calls.start_ns[rare], calls.end_ns[rare])), busy)).within(starts, ends)


def _bubble(timeline: RankTimeline, messages: Flags, starts: Ints, ends: Ints) -> BusyTime:
    """Return when a stage waits in these steps."""
    spans = timeline.spans
    between_stages = (spans.kind == COMM) & np.append(messages, False)[
        np.where(spans.collective == NONE, -1, spans.collective)
    ]
    busy = union((spans.start_ns[~between_stages], spans.end_ns[~between_stages]))
    may_wait = union((starts, ends))
    if not timeline.has_device:
        # A host without a device is in its messages while it waits, and idles for reasons of its own.
        may_wait = intersection(may_wait, union((spans.start_ns[between_stages], spans.end_ns[between_stages])))
    return BusyTime(difference(may_wait, busy))
