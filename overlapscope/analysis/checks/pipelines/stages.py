"""Find the recorded stages of pipelines: how long a step is, how long a stage waits in it, how much it sends.

A stage's bubble is the time of a step in which it neither computes, nor copies, nor communicates, except with other
stages; without a device, while it communicates with other stages and does nothing else.

Of its schedule the activations are counted that a stage sends to the next in a step: v m, for m microbatches and v
chunks a stage. Where there are chunks, the last stage sends the first one (v - 1) m of them, and gets as many gradients
back: both ends of the pipeline tell m, a stage between them does not. Where no receiver is
recorded, a stage between the ends sends 2 v m in all, an end v m + (v - 1) m, of which both follow where both were
recorded. Some jobs also send other messages (shapes, several tensors): the least frequent size counts, which makes the
ideal bubble larger rather than smaller.

Where no steps were marked, a step of a device is the time from one optimizer to the next.
"""

from collections.abc import Mapping, Sequence, Set
from statistics import median

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.checks.pipelines.stage_of_ranks import pipelines
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import COMM, NONE, Flags, Ints, size
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import BusyTime, difference, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.optimizer_marks import optimizer_marks, optimizers_on_device
from overlapscope.timeline.rows import factorize_rows
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
    unaddressed: bool = False
    """Whether `activations` and `at_most` are all that an end of a pipeline sends, as no receiver is recorded."""


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


def counted_stages(run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]) -> dict[int, dict[str, PipelineStage]]:
    """Return the stages of every rank, where those of which no receiver is recorded are counted by the others of their
    pipeline, or left out; `stages` holds the result of `own_stages` for every rank.

    Left out are those of groups of a part of a pipeline, such as two neighbours: their schedule is that of the whole.
    """
    whole = pipelines(run)
    parts = {group.name for group in run.groups if any(set(group.ranks or ()) < set(ranks) for ranks in whole)}
    between: dict[str, set[int]] = {}
    for group in run.groups:
        own = [stages[rank][group.name] for rank in group.ranks or () if group.name in stages.get(rank, ())]
        between[group.name] = {each.at_most for each in own if not each.unaddressed}
    return {
        rank: {
            name: counted
            for name, each in own.items()
            if name not in parts
            if (counted := _counted_by(each, between[name]) if each.unaddressed else each) is not None
        }
        for rank, own in stages.items()
    }


def _counted_by(end: PipelineStage, between: Set[int]) -> PipelineStage | None:
    """Return an end of a pipeline, of whose other stages each sends so many activations; None where what it sends does
    not fit to that: m micro-batches in a whole number of chunks."""
    if len(between) != 1:
        return None
    (activations,) = between
    wrapped = end.at_most - activations
    if not 0 <= wrapped < activations or activations % (activations - wrapped):
        return None
    return replace(end, activations=activations, at_most=activations, wrapped=wrapped, unaddressed=False)


def alike_stages(
    run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]
) -> list[tuple[Group, list[PipelineStage]]]:
    """Return the recorded stages of each pipeline whose stages send equally many activations; `stages` holds the result
    of `counted_stages`."""
    found = []
    for group in run.groups:
        own = [stages[rank][group.name] for rank in group.ranks or () if group.name in stages.get(rank, ())]
        if own and len({stage.activations for stage in own}) == 1:
            found.append((group, own))
    return found


def pipeline_stages(run: Run, windows: Mapping[int, Sequence[StepWindow]]) -> list[tuple[Group, list[PipelineStage]]]:
    """Return the recorded stages of each pipeline with a known number of microbatches."""
    of_rank = groups_by_rank(run.groups)
    own = {rank: own_stages(own, of_rank.get(rank, ()), windows[rank]) for rank, own in run.ranks.items()}
    return alike_stages(run, counted_stages(run, own))


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
    is_end = place in (0, len(ranks) - 1)
    addressed = len(ranks) == 2 or bool((calls.peer[messages] != NONE).any())
    if addressed:
        # The last stage sends no activations, but a gradient back for each activation that it received.
        to = ranks[place + 1] if place + 1 < len(ranks) else ranks[place - 1]
        at_most = _sent(timeline, messages, ranks, to, chosen)
    else:
        at_most, odd = divmod(_sent_to_any(timeline, messages, chosen), 1 if is_end else 2)
        at_most = 0 if odd else at_most
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
        wrapped=_wrapped(timeline, messages, ranks, place, chosen) if addressed else None,
        unaddressed=is_end and not addressed,
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
    found = optimizers_on_device(timeline)
    which, first = found.mark.tolist(), found.start_ns.tolist()
    recording = timeline.annotations.recording[optimizer_marks(timeline)[found.mark]].tolist()
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
    return _each_step(timeline, sent & ((calls.peer == to) | ((calls.peer == NONE) & (len(ranks) == 2))), windows)


def _sent_to_any(timeline: RankTimeline, messages: Flags, windows: Sequence[StepWindow]) -> int:
    """Return how many messages a stage sends in each step; 0 where one call may hold several, or it differs."""
    ops, names = timeline.collectives.op, timeline.names
    if (messages & rows_named(ops, names, "send_recv".__eq__)).any():
        return 0
    return _each_step(timeline, messages & rows_named(ops, names, "send".__eq__), windows)


def _each_step(timeline: RankTimeline, sent: Flags, windows: Sequence[StepWindow]) -> int:
    """Return how many of the calls that are `sent` each step has, of the least frequent size; 0 where it differs."""
    calls = timeline.collectives
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
