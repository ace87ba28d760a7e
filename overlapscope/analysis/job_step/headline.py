"""The main figures of a run, which every output shows: medians over the steps of the job (docs/definitions.md)."""

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import CAUSES, EXPOSED_WAIT, IDLE_CAUSES, START_OF_RECORDING
from overlapscope.analysis.cost.whole_cycles import causes_cut
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.job_step.attribution import divided, divided_by_cause
from overlapscope.analysis.job_step.metrics import DEFINITIONS, STEP_TIME
from overlapscope.analysis.job_step.step_table import WHOLE, AlignedWindows, RankWindows, StepFigures, main_figures
from overlapscope.analysis.per_rank.steps import complete_steps, of_the_same_ranks
from overlapscope.timeline.columns import NONE, Flags, Ints

StepsBy = Literal["job_step", "longest_window"]
LongestBecause = Literal["clocks", "apart"]
PARTS: Final = ("overlapped_ns", "exposed_comm_ns", "compute_only_ns", "copy_only_ns", "idle_ns",
                "start_of_recording_ns", "outside_ns")  # fmt: skip
"""The parts of a step of the job, which add up to it."""
LONG: Final = 1.5
"""A step is long from this many times the median of all: one pause of a second would else be the cause of what others
expose. But of more than ..."""
FEWEST_STEPS: Final = 3
"""Of fewer none is an exception."""
SHORTER: Final = 0.99
"""A job's pace is said from this share of its steps. A choice: a difference of less moves no conclusion."""
FEWEST_INTERVALS: Final = 3
"""It is a median of so many times between two begins, or more, ..."""
STEADY: Final = 1.1
"""... where the longest of their middle half is at most so many times the shortest: else a job has several paces, as
where it slows down or only some steps communicate. A choice."""
AGREE: Final = 0.02
"""The ranks' own paces are one if they differ by at most this share of the slowest one. A choice: two recordings of
unchanged code differ by as much."""
NEXT_TO_NOTHING: Final = 0.01
"""Largest share of what a step communicates at most that is next to nothing. A choice: a loss summed over ranks is
less, gradients are not."""
FEW: Final = 0.2
"""... this share of the steps none is an exception, unless it is a single one and of the others ..."""
ALIKE: Final = 1.1
"""... the longest is at most so many times the shortest. A choice."""
ONE_EVENT: Final = 0.4
"""Two long steps in a row are one exception if ranks lack this share of what both take longer: a rank pauses in the
first, and in the second the others wait for it, in the same time. Each rank then lacks one of the two: half. A choice:
steps of ranks may begin apart besides."""
FAR_IN_CALLS: Final = 2.0
"""A step communicates unusually, though it is as long as the others, if it does for so many times as long as the median
step, or so many times less: as the first one recorded, whose calls began before the recording. A choice: waits vary."""
WORTH_IN_CALLS: Final = 0.02
"""Least share of a step that the median one communicates. A choice: of less it does not matter which step is shown."""
MOST_FAR: Final = 0.5
"""Where as large a share of the steps or more is far from the median, none is usual."""


class StepOfJob(msgspec.Struct, kw_only=True, frozen=True):
    """One step of the job: its length and its parts, means over ranks rounded so that they add up to it exactly."""

    step: int | None
    """Null for a whole recording."""
    step_ns: int
    overlapped_ns: int
    exposed_comm_ns: int
    compute_only_ns: int
    copy_only_ns: int | None
    """Null where a rank's copies are not known; then `idle_ns` holds those of the others."""
    idle_ns: int
    start_of_recording_ns: int
    """Time before a rank had recorded its first span."""
    outside_ns: int
    """Other time outside a rank's own window: skew between ranks, stages of a pipeline."""


class Headline(msgspec.Struct, kw_only=True, frozen=True):
    """The main figures of a run: medians over steps of means over ranks. Medians need not add up; null is not known."""

    window: Literal["step", "recording"] | None = None
    """Steps, or whole recordings where no step is complete; null without times."""
    steps_by: StepsBy = "job_step"
    """`job_step`: from the earliest start to the latest end of a step over the ranks. `longest_window`: of any rank,
    for the reason `longest_because`."""
    longest_because: LongestBecause | None = None
    """`clocks`: those of the ranks cannot be aligned. `apart`: some ranks had ended a step, or their recording, before
    others began theirs, or were recorded in fewer parts. Null for a `job_step`, and in documents of 0.1."""
    steps: int = 0
    """Number of complete steps that the medians are of; 0 for whole recordings."""
    ranks: list[int] = []
    """Ranks that the means are over."""
    step_ns: int | None = None
    pace_ns: int | None = None
    """How long after each other the job's steps begin, where that is shorter than these steps: steps of ranks overlap
    then, as one rank begins a step while another ends the one before. Null elsewhere, and where four steps that follow
    each other were not recorded, or have no one pace, as where one rank runs ahead of another ever more."""
    exposed_comm_ns: int | None = None
    """Null where no communication was recorded."""
    exposed_wait_ns: int | None = None
    overlapped_ns: int | None = None
    compute_only_ns: int | None = None
    copy_only_ns: int | None = None
    idle_ns: int | None = None
    start_of_recording_ns: int | None = None
    outside_ns: int | None = None
    comm_ns: int | None = None
    compute_ns: int | None = None
    overlap_efficiency: float | None = None
    """overlapped / comm, sums over ranks."""
    exposed_fraction: float | None = None
    """exposed_comm / step, sums over ranks."""
    causes: Annotated[dict[str, int], Meta(extra_json_schema={"propertyNames": {"enum": list(CAUSES)}})] = {}
    """`exposed_comm_ns` by cause, divided as the exposed time of all these steps together, but for few long ones (of
    1.5 times the median step: at most a fifth of them, or one beside others that are alike) and `causes_cut`; without
    `start_of_recording` where its median over these steps is 0: then that is what the median is longer by with it. They
    add up to it exactly, and those of waiting for a late rank to `exposed_wait_ns`, unless that median, of another
    step, is larger."""
    causes_cut: list[int] = []
    """Numbers of complete steps that no step follows and that lack what the others lose before the next one begins, or
    whose `tail` is, for that, what is another cause in the steps that are followed: causes of these steps, and of all,
    are without theirs; medians are not, which one such step beside two others or more moves little: beside fewer the
    text says how long the others take."""
    idle_causes: Annotated[dict[str, int], Meta(extra_json_schema={"propertyNames": {"enum": list(IDLE_CAUSES)}})] = {}
    """`idle_ns` by cause, divided likewise, but for steps of which only the exposed time has other causes; they add up
    to it exactly."""
    job_steps: list[StepOfJob] = []


class FewSteps(msgspec.Struct, kw_only=True, frozen=True):
    """Means over all steps of a job, of which only `communicate`, at most half, communicate: medians hide it, or lie
    between the two kinds."""

    communicate: int
    steps: int
    step_ns: float
    exposed_comm_ns: float
    overlapped_ns: float
    quiet_ns: float = 0.0
    """Length of a step that does not communicate, mean over them."""
    communicating_ns: float = 0.0
    """Length of one that does."""


def few_communicate(head: Headline) -> FewSteps | None:
    """Return the means where at most half of the steps communicate, as with gradient accumulation or local SGD; None
    elsewhere."""
    quiet, loud = _by_kind(head)
    if not quiet:
        return None
    return FewSteps(
        communicate=len(loud),
        steps=len(head.job_steps),
        step_ns=fmean(each.step_ns for each in head.job_steps),
        exposed_comm_ns=fmean(each.exposed_comm_ns for each in head.job_steps),
        overlapped_ns=fmean(each.overlapped_ns for each in head.job_steps),
        quiet_ns=fmean(each.step_ns for each in quiet),
        communicating_ns=fmean(each.step_ns for each in loud),
    )


def quiet_steps(head: Headline) -> frozenset[int]:
    """Return the steps that communicate next to nothing, where `few_communicate` returns means."""
    return frozenset(each.step for each in _by_kind(head)[0] if each.step is not None)


def unusual_in_calls(head: Headline) -> frozenset[int]:
    """Return the steps that communicate, exposed or overlapped, for far longer or shorter than the median one, where
    most do not: they stand for no other step, whatever their length."""
    known = {each.step: each.exposed_comm_ns + each.overlapped_ns for each in head.job_steps if each.step is not None}
    if not known:
        return frozenset()
    usual_ns = float(np.median(list(known.values())))
    if usual_ns < WORTH_IN_CALLS * float(np.median([each.step_ns for each in head.job_steps])):
        return frozenset()
    far = {step for step, ns in known.items() if not usual_ns <= FAR_IN_CALLS * ns <= FAR_IN_CALLS**2 * usual_ns}
    return frozenset(far) if len(far) < MOST_FAR * len(known) else frozenset()


def left_out(head: Headline) -> frozenset[int]:
    """Return the steps that the shares of causes leave out: few that are long."""
    lengths, outside = (
        np.array([getattr(each, name) for each in head.job_steps], np.int64) for name in ("step_ns", "outside_ns")
    )
    long = _few_long(lengths, outside)
    return frozenset(
        each.step for each, is_long in zip(head.job_steps, long, strict=True) if is_long and each.step is not None
    )


def _by_kind(head: Headline) -> tuple[list[StepOfJob], list[StepOfJob]]:
    """Return the steps that communicate next to nothing, and the others, where at most half do; else none.

    Where the first do communicate, and so does the median step, several must be others: one may be an outlier that
    waits.
    """
    comm = [each.exposed_comm_ns + each.overlapped_ns for each in head.job_steps]
    least = NEXT_TO_NOTHING * max(comm, default=0)
    quiet = [each for each, ns in zip(head.job_steps, comm, strict=True) if ns <= least]
    loud = [each for each, ns in zip(head.job_steps, comm, strict=True) if ns > least]
    silent = head.comm_ns == 0 or not any(each.exposed_comm_ns + each.overlapped_ns for each in quiet)
    return (quiet, loud) if 0 < 2 * len(loud) <= len(comm) and (silent or len(loud) > 1) else ([], [])


def headline(ranks: Mapping[int, RankWindows], cross_rank: CrossRank, cut_short: Collection[int] = ()) -> Headline:
    """Compute the headline of a run from the windows of its ranks.

    `cut_short` are the numbers of the steps that lack what the others lose before the next one begins, as sums over all
    steps leave them out (`Throughput.cut_short`).
    """
    found = main_figures(ranks, cross_rank)
    table, of_steps = found.of_most_ranks(), found.steps != (WHOLE,)
    if not table.ranks:
        return Headline()
    values: dict[str, Any] = {name: DEFINITIONS[name].median(table) for name in DEFINITIONS if name in _MEDIANS}
    if not _is_mostly_known(table, "exposed_wait_ns", "exposed_comm_ns"):
        values["exposed_wait_ns"] = None
    step_ns = DEFINITIONS[STEP_TIME].median(table)
    shared, exposed_ns = _without_single_starts(table, table.causes, "exposed_comm_ns")
    idle_shared, idle_ns = _without_single_starts(table, table.idle_causes, "idle_ns")
    waits = {cause: ns for cause, ns in shared.items() if cause in EXPOSED_WAIT}
    others = {cause: ns for cause, ns in shared.items() if cause not in EXPOSED_WAIT}
    cut = sorted({*_causes_cut(ranks), *cut_short}) if of_steps else []
    sums = _typical_sums(table, *([waits, others] if values["exposed_wait_ns"] else [waits | others]), without=cut)
    causes = divided_by_cause(exposed_ns, values["exposed_wait_ns"], sums, {*EXPOSED_WAIT})
    idle = divided(idle_ns, _typical_sums(table, idle_shared, without=cut_short))
    for found_ns, name, of_causes in ((exposed_ns, "exposed_comm_ns", causes), (idle_ns, "idle_ns", idle)):
        if (values[name] or 0) > found_ns:
            of_causes[START_OF_RECORDING] = values[name] - found_ns
    return Headline(
        window="step" if of_steps else "recording",
        steps_by="longest_window" if table.windows is None else "job_step",
        longest_because=None if table.windows else "apart" if found.windows else "clocks",
        steps=len(table.steps) if of_steps else 0,
        ranks=list(table.ranks),
        step_ns=None if step_ns is None else round(step_ns),
        pace_ns=_pace_ns(table) if of_steps and step_ns else None,
        causes={cause: ns for cause, ns in causes.items() if ns},
        causes_cut=cut,
        idle_causes={cause: ns for cause, ns in idle.items() if ns},
        job_steps=_job_steps(table),
        **values,
    )


def _pace_ns(table: StepFigures) -> int | None:
    """Return the median time between begins of steps that follow each other; None where it is about as long as these
    same steps, where they or the ranks have no one pace, or where that is not known."""
    windows, numbers = table.windows, [step for step, _ in table.steps]
    if windows is None:
        return None
    begin = np.where(windows.start_ns == NONE, np.iinfo(np.int64).max, windows.start_ns).min(axis=(0, 2))
    between = np.diff(begin)
    follows = (np.diff(numbers) == 1) & (between > 0)
    between, steps_ns = between[follows], table.job.step_ns[:-1][follows]
    if between.size < FEWEST_INTERVALS or not _keep_one_pace(windows, follows):
        return None
    low, pace, high = np.percentile(between, (25, 50, 75)).tolist()
    return round(pace) if high <= STEADY * low and np.median(between / steps_ns) < SHORTER else None


def _keep_one_pace(windows: AlignedWindows, follows: Flags) -> bool:
    """Return whether the median times between begins of these steps agree, one of each rank: else one runs ahead of
    another ever more, until it waits, and the begins of the job are its own."""
    begin = windows.start_ns[:, :, 0]  # a step is one piece
    known = (begin[:, 1:] != NONE) & (begin[:, :-1] != NONE) & follows
    paces = np.array([np.median(own[there]) for own, there in zip(np.diff(begin), known, strict=True) if there.any()])
    return bool(paces.size and paces.min() >= (1 - AGREE) * paces.max())


def _causes_cut(ranks: Mapping[int, RankWindows]) -> list[int]:
    """Return the numbers of the steps whose causes are others as no step follows them."""
    steps = of_the_same_ranks(complete_steps({
        rank: [(at.step, at.complete and at.window is not None, (at, its)) for at, its in own.steps]
        for rank, own in ranks.items()
    }))  # fmt: skip
    every = {rank: [at for at, _ in own.steps] for rank, own in ranks.items()}
    return sorted({next(iter(steps[at].values()))[0].step for at in causes_cut(steps, every)})


def _typical_sums(table: StepFigures, *kinds: Mapping[str, Ints], without: Collection[int] = ()) -> dict[str, int]:
    """Return the sum of each cause over ranks and steps that are no few long ones: a median is none of theirs.

    Nor over the steps `without`. All steps count where the others have nothing of a kind that some step has.
    """
    left_out = np.array([step in without for step, _ in table.steps], np.bool_)
    outside_ns = table.job.outside_ns.sum(axis=0) // np.maximum(table.recorded.sum(axis=0), 1)
    usual = table.recorded & ~_few_long(table.job.step_ns, outside_ns) & ~left_out
    typical, every = (
        [{cause: int(ns[chosen].sum()) for cause, ns in kind.items()} for kind in kinds]
        for chosen in (usual, table.recorded)
    )
    lacking = any(any(all_of.values()) and not any(own.values()) for own, all_of in zip(typical, every, strict=True))
    return {cause: ns for kind in (every if lacking else typical) for cause, ns in kind.items()}


def _without_single_starts(table: StepFigures, causes: Mapping[str, Ints], name: str) -> tuple[Mapping[str, Ints], int]:
    """Return the causes (rank, step) of a figure, and its median over steps, without the start of the recording where
    the median of that is 0: few steps have some of it, which is none of what the others lose."""
    begins = causes.get(START_OF_RECORDING)
    if begins is not None and np.median(begins.sum(axis=0)) == 0:
        whole = table.figures[name]
        rest = np.where(table.recorded & (whole != NONE), whole - begins, whole)
        table = replace(table, figures={**table.figures, name: rest})
        causes = {cause: ns for cause, ns in causes.items() if cause != START_OF_RECORDING}
    return causes, round(DEFINITIONS[name].median(table) or 0)


def _few_long(step_ns: Ints, outside_ns: Ints) -> Flags:
    """Return which steps are LONG; none where many are, as with gradient accumulation. `outside_ns`: how long ranks are
    outside of their own windows in each, mean over ranks."""
    long: Flags = step_ns >= LONG * np.median(step_ns) if step_ns.size else np.zeros(0, np.bool_)
    others = step_ns[~long]
    one = (long.sum() == 1 and step_ns.size >= FEWEST_STEPS) or _is_one_event(step_ns, outside_ns, long)
    few: Flags = long & ((one and others.max() <= ALIKE * others.min()) or long.sum() <= FEW * step_ns.size)
    return few


def _is_one_event(step_ns: Ints, outside_ns: Ints, long: Flags) -> bool:
    """Return whether two long steps, fewer than the others, are the same time: that of a rank that pauses, and the next
    one of those that wait for it. What ranks lack of the two is then half of what both take longer."""
    at = np.flatnonzero(long)
    if at.size != 2 or at[1] != at[0] + 1 or 2 * at.size >= step_ns.size:
        return False
    longer_ns = (step_ns[at] - np.median(step_ns[~long])).sum()
    return bool((outside_ns[at] - np.median(outside_ns[~long])).sum() >= ONE_EVENT * longer_ns)


_MEDIANS: Final = frozenset(Headline.__struct_fields__)


def _is_mostly_known(table: StepFigures, name: str, of: str) -> bool:
    """Return whether a figure is known in at least half of the steps in which that of which it is a part is: the median
    of few steps is no part of the median of all."""
    known, whole = (~np.isnan(DEFINITIONS[each].series(table)) for each in (name, of))
    return bool(2 * known.sum() >= whole.sum())


def _job_steps(table: StepFigures) -> list[StepOfJob]:
    job, here = table.job, table.recorded
    values = {name: np.where(here, table.figures[name], 0) for name in PARTS[:5]}
    values |= {"start_of_recording_ns": job.start_of_recording_ns, "outside_ns": job.outside_ns}
    copies = values["copy_only_ns"]
    unknown = (copies == NONE).any(axis=0)
    known_copies = np.where(copies == NONE, 0, copies)
    values["copy_only_ns"] = np.where(unknown, 0, known_copies)
    values["idle_ns"] = values["idle_ns"] + np.where(unknown, known_copies, 0)
    parts = _means(np.array([each.sum(axis=0) for each in values.values()]), here.sum(axis=0), job.step_ns)
    rows = zip(table.steps, job.step_ns.tolist(), unknown.tolist(), *parts.tolist(), strict=True)
    return [
        StepOfJob(
            step=None if step == NONE else step, step_ns=length,
            **{**dict(zip(PARTS, own, strict=True)), **({"copy_only_ns": None} if no_copies else {})},
        )
        for (step, _), length, no_copies, *own in rows
    ]  # fmt: skip


def _means(sums: Ints, ranks: Ints, whole_ns: Ints) -> Ints:
    """Divide sums (part, step) by the number of ranks of each step; the largest remainders are rounded up.

    The result adds up to `whole_ns` for each step, as the sums add up to it times `ranks`.
    """
    means, rest = np.divmod(sums, ranks)
    order = np.argsort(-rest, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(sums))[:, None], axis=0)
    raised: Ints = means + (place < whole_ns - means.sum(axis=0))
    return raised
