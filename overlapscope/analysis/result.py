"""The result types of an analysis (`overlapscope.analysis/1`), and figures derived from the result alone."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, median
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.checks.steps.odd_step_findings import ODD_LENGTH, OTHER_WORK
from overlapscope.analysis.checks.steps.outlier_steps import ODD_FACTOR, Steps, long_steps
from overlapscope.analysis.common.cause_table import (
    MAY_BE_WAITING,
    START_OF_RECORDING,
    WAITS_FOR_LATE_RANK,
    NoCauses,
)
from overlapscope.analysis.common.findings import Finding, Listed
from overlapscope.analysis.cost.throughput import Throughput, gpu_hours_a_day
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.late_together import LateTogether
from overlapscope.analysis.cross_rank.wait_transfer import mostly_waited_for
from overlapscope.analysis.dry_step import DryStep
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.exposed import ExposedBy
from overlapscope.analysis.graph.answers import CriticalPath, Link
from overlapscope.analysis.job_step.headline import ALIKE, SHORTER, Headline, headline
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.job_step.two_kinds import TwoKinds
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.interference import Interference, NoInterference
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.analysis.source_tables import Told
from overlapscope.analysis.stragglers.stragglers import Straggler

SCHEMA: Literal["overlapscope.analysis/1"] = "overlapscope.analysis/1"
NEARLY_ALL_LATE = 0.9
"""A rank with this share of all late arrivals, ..."""
FEWEST_STEPS = 3
"""... for which, in each of so many steps or more, ..."""
WAITS_OF_STEP = 0.02
"""... its peers wait for at least this share of the step, and ..."""
WAITS_ITSELF = 0.1
"""... which waits for at most this share of that itself, is not late by chance. Choices."""
MOST_OF_IT = 0.5
"""A step waits for the one before where a rank waits for more than this share of what that one took longer, ..."""
OF_STEP = 0.1
"""... which is at least this share of the median step. Choices."""
NOT_ALONE_NS = 1_000_000
"""A call of a device that takes as long has other members: for a group of one rank NCCL makes a copy at most. A choice:
a copy of some hundred MiB takes less."""


class SourceInfo(msgspec.Struct, kw_only=True, frozen=True):
    """One input file and what was read from it."""

    path: str
    format: str
    ranks: list[int]
    events: int
    repaired: int
    dropped: int
    truncated: bool
    warnings: list[str]


class RecordedSteps(msgspec.Struct, kw_only=True, frozen=True):
    """How many of a job's steps were recorded, where not all were."""

    recorded: int
    of: int
    """Steps after warm-up that the recording timed, recorded or not."""
    every: int
    """At last one step in so many was recorded."""
    mean_ns: float | None = None
    """How long these steps took, recorded or not, in the mean, and ..."""
    recorded_mean_ns: float | None = None
    """... the recorded ones, by the same clock of the same rank; null where that was not read."""


class CaptureCost(msgspec.Struct, kw_only=True, frozen=True):
    """What recording itself cost a recorded step, as capture measured it on the rank where it was most: a median, which
    single steps that something else disturbed leave as it is."""

    rank: int
    median_ns: float
    """How much longer a recorded step took, and ..."""
    low_ns: float
    """... the lower and ..."""
    high_ns: float
    """... the upper bound of its 95 % interval."""
    step_ns: float
    """The step without it."""


class TriggeredTrace(msgspec.Struct, kw_only=True, frozen=True):
    """A trace that a running job recorded of itself, because its trigger found a reason."""

    reason: str
    trace: str | None = None
    """Its folder in the run directory; null where this recording is that trace."""


class RunInfo(msgspec.Struct, kw_only=True, frozen=True):
    """The job as a whole."""

    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int]
    """Ranks of the world that no file was read for."""
    unread_ranks: list[int] = []
    """Missing ranks that have a file, which could not be read."""
    fingerprint: dict[str, str | int | None]
    has_device: bool = True
    """Whether any rank's times are of a device: without one, what computes is the host itself."""
    recorded_steps: RecordedSteps | None = None
    """How many steps were recorded; null where all were, or nobody counted the others."""
    capture_cost: CaptureCost | None = None
    """Null where capture did not measure it, or ranks contradict each other."""
    triggers: list[TriggeredTrace] = []


class StepBreakdown(Breakdown, kw_only=True, frozen=True):
    """The breakdown of one step."""

    step: int
    complete: bool


class RankInfo(msgspec.Struct, kw_only=True, frozen=True):
    """The breakdown of one rank: of its whole recording and of each of its steps."""

    rank: int
    host: str | None = None
    """Its host, where the hosts of several are known."""
    whole: Breakdown
    steps: list[StepBreakdown]
    before_first_step_ns: int | None = None
    """From when its host began the first complete step until the window of that begins, with its first kernel; null
    without a device."""
    no_causes_reason: NoCauses | None = None
    """Why its dependency graph names no causes of idle and exposed time; null where it does."""
    unsplit_causes: dict[str, int] | None = None
    """Of the causes of its whole recording, what lies in calls that are not split into wait and transfer: it may be
    waiting. Null in older documents."""
    interference: Interference | None = None
    """How many times as long its compute takes beside communication; null in documents of version 0.1, too."""
    no_interference_reason: NoInterference | None = None
    """Why that is not known; null where it is."""
    empty_ranges_ns: int | None = None
    """Of the compute of a CPU run's median step: in ranges in which autograd runs a node and its hooks, without any
    operation in them; null without steps or host events."""


class SkewRank(msgspec.Struct, kw_only=True, frozen=True):
    """How long a rank waited for other ranks, and other ranks for it."""

    rank: int
    collective_ns: int
    wait_ns: int
    wait_fraction: float | None
    blame_ns: int
    blame_estimate: Literal["matched", "upper_bound"] = "matched"
    """`upper_bound`: some members of its groups were not recorded, so its blame may be smaller and its wait longer."""
    start_of_recording_ns: int = 0
    """Of the wait time, what the spread explains with which the ranks began to record; nobody is blamed for it."""
    late_end_ns: int = 0
    """Of it, what lies after the last member of a call began, as the call ended later than on another rank: known where
    no device computes and ranks share a clock."""
    delayed_ns: int | None = None
    """As `blame_ns`, but a lead that lasts over several calls counts once, and less what other ranks made it late by,
    which is theirs. Null in older documents of runs with a device."""
    waited_for_ns: int | None = None
    """How long the others waited, in sum over them, in calls that it came last to: more than `blame_ns`, which is by
    how much it came after the one before it, where several were late together. Null in older documents."""
    mean_waited_for_ns: int | None = None
    """The same, but of each call the mean over the other members: for how long one of them waited, as `wait_ns` counts.
    Null in older documents."""
    unmatched_share: float | None = None
    """Share of its calls with times that is matched with none of another rank: what is waited in these is in no other
    figure. Null in older documents."""
    waited_for_unseen_ns: int | None = None
    """At least how long it waited in calls whose last member was not recorded, by tasks of these calls; null where no
    task shows that."""
    times_last: int
    idle_ns: int | None


class Skew(msgspec.Struct, kw_only=True, frozen=True):
    """Matched collectives, clock offsets, wait time and stragglers across ranks."""

    matched: int = 0
    unmatched: int = 0
    pairs: int = 0
    """Sends matched with their receives; the others are counted in `unmatched`."""
    uneven: int = 0
    """Of the matched collectives those whose members send different sizes: not in the wait time of `ranks`."""
    not_split: int = 0
    """Calls with a root, such as broadcasts, in which members were not seen to wait: not in `ranks`, and in `matched`
    where all left together; of the rank that recorded most of them."""
    reasons: list[str] = []
    clock_offset_ns: dict[str, int] = {}
    one_host: bool = False
    """Whether the hosts of all these ranks have one name: it may be one clock then, whatever ends of calls show."""
    residual_ns: int | None = None
    ranks: list[SkewRank] = []
    stragglers: list[Straggler] = []
    in_turn: list[int] = []
    """Ranks that are late, but wait for those that wait for them, too, as with different roles: no stragglers."""
    late_together: LateTogether | None = None
    """Ranks that came last together to most calls, for which the others waited most; null where there are none, and in
    older documents."""


class ShownBy(msgspec.Struct, kw_only=True, frozen=True):
    """The place in a recording that shows a loss best: its longest piece, on the rank's own clock."""

    rank: int
    start_ns: int
    end_ns: int
    call: str | None = None
    """The call in which the host was, or that had emptied the device."""
    op: str | None = None
    """The operation that made this call."""
    after_call: bool = False
    """Whether it lies after this call, which had emptied the device, and not in it."""
    chain: list[Link] = []
    """What the span after it waited for, the latest first."""


class PublishedEffect(msgspec.Struct, kw_only=True, frozen=True):
    """What was measured before and after a change elsewhere: a fact about another job, no prediction for this one."""

    change: str
    condition: str
    """Model, devices, parallelism and other settings, as far as the source states them."""
    metric: str
    """What was measured, in which unit."""
    before: float
    after: float
    gain: float
    """Of throughput, as a share: 0.1 is ten percent more, negative is a loss."""
    kind: str
    """`end-to-end`, or what was measured alone."""
    source: str
    """Address of the page that states it."""


GAIN_AT_MOST: Final = "gain_at_most"
"""In the evidence of a recommendation: whether what a replay gains is more than can be had."""
GAIN_COUNTS: Final = "gain_counts"
"""In the same: whether what a replay gains, which is far more than the loss, counts instead of it in the order."""


class Recommendation(msgspec.Struct, kw_only=True, frozen=True):
    """A change worth trying, with its predicted gain.

    Without a predicted gain, `gain_high_ns` is an upper bound, which no change may save completely: `bound_from` says
    of what.
    """

    id: str
    title: str
    verdict: str
    predicted_gain_ns: int | None
    gain_low_ns: int | None
    gain_high_ns: int | None
    confidence: Literal["measured", "mixed", "assumed"]
    memory_bytes: int | None
    changes_numerics: bool
    apply: dict[str, str]
    """What to change, by framework, in that framework's units."""
    verify: str
    per: Literal["step", "recording"] = "step"
    """What the gains, and `loss_ns`, refer to: one step, or the whole recording."""
    gpu_hours_a_day: float | None = None
    """The predicted gain, else what the cause takes (`loss_ns`, where `bound_from` says that more is known), else the
    upper bound, in GPU-hours a day of the whole job; null without any, and for CPU runs."""
    price_a_day: float | None = None
    """That times the price of a GPU-hour; null where no price is stated."""
    bound_from: Literal["loss", "replay"] | None = None
    """What `gain_high_ns` is, where a replay can say more than the time that the cause takes: that time, which is not
    replayed (`loss`; others may lose more by waiting, or less), or what a replay without it gains (`replay`). Null for
    other recommendations."""
    loss_ns: int | None = None
    """The time that its cause takes today; the largest is listed first. Null where it is not known."""
    shown_by: ShownBy | None = None
    evidence: dict[str, Any] = {}
    """The figures that it is based on."""
    measured: list[str] = []
    assumed: list[str] = []
    published: list[PublishedEffect] = []
    """What such changes did elsewhere, losses included."""
    knobs: dict[str, Any] = {}
    """The settings of the what-if prediction that the gain is from; empty where it is from no such prediction."""


Because = Literal["few_communicate", "steps_overlap", "few_lose", "two_kinds"]
"""Why a median step misleads: at most half of the steps communicate; steps of ranks overlap; some steps lose much, and
the median one has next to nothing of it; steps are of two kinds by their lengths."""


class MeanStep(msgspec.Struct, kw_only=True, frozen=True):
    """The mean step of a job, which text, reports and the dashboard say before the median one where that misleads.

    Times are means over steps of means over ranks; the parts add up to `step_ns`, unless steps overlap: then it is that
    of the ranks' own steps, and exposed and idle time are without the start of the recording.
    """

    because: Because
    steps: int
    """Number of steps of the mean: without those that are cut short, unless few communicate. And ..."""
    numbers: list[int]
    """... which these are."""
    step_ns: int
    exposed_comm_ns: int | None
    exposed_wait_ns: int | None
    overlapped_ns: int
    compute_only_ns: int
    copy_only_ns: int | None
    idle_ns: int
    start_of_recording_ns: int
    outside_ns: int
    exposed_fraction: float | None
    overlap_efficiency: float | None
    causes: dict[str, int] = {}
    """`exposed_comm_ns` by cause, divided as the exposed time of all steps, and ..."""
    idle_causes: dict[str, int] = {}
    """... `idle_ns` likewise; they add up to it."""
    lossy: int = 0
    """Of `few_lose`: how many steps lose more than this one."""
    kinds: TwoKinds | None = None
    """The two kinds, where steps are of two, whatever `because` is."""


class Analysis(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.analysis/1`. Times are integer nanoseconds, ratios 0..1, missing is null."""

    schema_: Literal["overlapscope.analysis/1"] = SCHEMA
    sources: list[SourceInfo]
    run: RunInfo
    ranks: list[RankInfo]
    unclassified: Listed
    fused: Listed
    collectives: list[CollectiveRow]
    exposed_by: ExposedBy = ExposedBy()
    skew: Skew
    findings: list[Finding]
    recommendations: list[Recommendation]
    told: dict[str, Told] = {}
    """What the sources report besides times: communicators, links, measurements, their own figures."""
    critical_path: CriticalPath = CriticalPath()
    """The chain of dependencies that decided how long each step took."""
    throughput: Throughput | None = None
    """Tokens, samples, FLOPs and GPU-hours; null in documents of versions that did not compute it."""
    headline: Headline = Headline()
    """The main figures, the same in every output: medians over the steps of the job."""
    mean_step: MeanStep | None = None
    """The mean step, where text, reports and the dashboard say it before these medians, as they mislead; null
    elsewhere, and in older documents."""
    dry_step: DryStep | None = None
    """What a dry run says of the step; null for a recorded run."""

    @property
    def main_figures(self) -> MeanStep | Headline:
        """The mean step where the median one misleads, else the headline: what text and pages show of a step."""
        return self.mean_step or self.headline


def has_others(analysis: Analysis) -> bool:
    """Return whether a recorded rank may have waited for another one: not in a job of a single process.

    Where the number of ranks is not recorded, the number of the rank shows others, and so do long calls of a device.
    """
    several = len(analysis.ranks) > 1 or bool(analysis.run.missing_ranks)
    at_least = analysis.throughput is not None and analysis.throughput.devices_at_least
    unsized = analysis.run.has_device and analysis.run.world_size is None
    return (
        several
        or at_least
        or any(
            (row.group_size or 0) > 1
            or (unsized and row.group_size is None and (row.transfer_ns_median or 0) >= NOT_ALONE_NS)
            for row in analysis.collectives
        )
    )


def may_wait_shares(analysis: Analysis, causes: Iterable[str]) -> dict[str, float]:
    """Return which share of each of these causes calls have that are not split into wait and transfer, where
    these may hold waiting; all of it where that is not known, as in older documents."""
    if analysis.headline.exposed_wait_ns is not None or not has_others(analysis):
        return {}
    found = dict.fromkeys({*MAY_BE_WAITING, "unknown"}.intersection(causes), 1.0)
    for cause in found:
        whole = sum(each.whole.causes.get(cause, 0) for each in analysis.ranks)
        if whole and all(each.unsplit_causes is not None for each in analysis.ranks):
            found[cause] = sum((each.unsplit_causes or {}).get(cause, 0) for each in analysis.ranks) / whole
    return found


def waits_for_late_ranks(ranks: Iterable[RankInfo]) -> dict[int, int]:
    """Return for how many ns of its whole recording each rank was exposed to waiting for late ones."""
    return {each.rank: late_waits_ns(each.whole) for each in ranks}


Lateness = Literal["in_turn", "waits_longest", "roles", "stands_still", "each_step", "not_known"]
"""For whom ranks wait where none is a straggler: for several in turn; for one that came last most often, and waited
longest itself; for one that waits for the others in turn, as with different roles; for one whose host stands still; for
one in each step; mostly for one, whether by chance is not known."""


def lateness(blame_ns: Mapping[int, int], analysis: Analysis) -> Lateness:
    """Return for whom ranks waited where none is a straggler.

    Calls that are in flight at once are late together, and are many, however little is waited for them: a rank that was
    last at most of them may have waited longest itself, of exposed time.
    """
    most = mostly_waited_for(blame_ns)
    if most is None:
        return "in_turn"
    waits = waits_for_late_ranks(analysis.ranks)
    if waits.pop(most, 0) > max(waits.values(), default=0):
        return "waits_longest"
    if most in analysis.skew.in_turn:
        return "roles"
    if any(each.id == "standing_still" and each.evidence["ranks"] == [most] for each in analysis.findings):
        return "stands_still"
    return "not_known" if late_in_each_step(most, analysis) is None else "each_step"


def waited_for(blame_ns: Mapping[int, int], analysis: Analysis) -> str:
    """Return in words for whom ranks waited where none is a straggler (`lateness`)."""
    found, most = lateness(blame_ns, analysis), mostly_waited_for(blame_ns)
    if found == "in_turn" or most is None:
        return "for several ranks in turn"
    if found == "waits_longest":
        return f"for several ranks in turn: rank {most} came last most often, and waited longest itself"
    why = {
        "roles": "which waits for the others in turn",
        "stands_still": "whose host stands still",
        "each_step": f"in each of {late_in_each_step(most, analysis)} steps",
        "not_known": "and whether by chance is not known",
    }
    return f"mostly for rank {most}, {why[found]}"


def late_in_each_step(rank: int, analysis: Analysis) -> int | None:
    """Return the number of steps where others wait for this rank in each of them, and it is nearly always the late one;
    None where that is not so, or steps are few.

    In each step it waits for next to nothing of what its peers do, which is a share of the step.
    """
    late = {each.rank: each.times_last for each in analysis.skew.ranks}
    if late.get(rank, 0) < max(NEARLY_ALL_LATE * sum(late.values()), 1):
        return None
    own, *others = sorted(analysis.ranks, key=lambda each: each.rank != rank)
    of = {each.step: each for each in own.steps if each.complete}
    waits = [{each.step: late_waits_ns(each) for each in info.steps} for info in others]
    if own.rank != rank or len(of) < FEWEST_STEPS or not waits:
        return None
    for step, mine in of.items():
        theirs_ns = median(each.get(step, 0) for each in waits)
        if theirs_ns < max(WAITS_OF_STEP * (mine.window_ns or 0), 1) or late_waits_ns(mine) > WAITS_ITSELF * theirs_ns:
            return None
    return len(of)


def late_waits_ns(of: Breakdown) -> int:
    """Return for how many ns of a window a rank was exposed to waiting for late ones."""
    return sum(of.causes.get(cause, 0) for cause in WAITS_FOR_LATE_RANK)


def with_costs(analysis: Analysis) -> Analysis:
    """Return the analysis with GPU-hours a day, and their price where one is stated, of causes and recommendations."""
    found, head = analysis.throughput, analysis.headline
    if found is None or not found.on_device or not found.devices:
        return analysis
    whole = found.repeated is None  # causes are not of the repeated part
    found = replace(
        found,
        exposed_causes_gpu_hours_a_day=_divided(
            found.exposed_gpu_hours_a_day,
            causes_of_all_steps(analysis) if whole else {},
            head.causes if whole else {},
        ),
        idle_causes_gpu_hours_a_day=_divided(
            found.idle_gpu_hours_a_day,
            idle_causes_of_all_steps(analysis) if whole else {},
            head.idle_causes if whole else {},
        ),
    )
    recommendations = []
    for each in analysis.recommendations:
        saved_ns = _paid_ns(each)
        of_ns = of_a_day_ns(analysis, each.per) if whole or each.per == "step" else None
        share = None if saved_ns is None or not of_ns else saved_ns / of_ns
        hours, rate = gpu_hours_a_day(share, found.paid_devices or 0), found.price_per_gpu_hour
        price = None if hours is None or rate is None else hours * rate
        recommendations.append(replace(each, gpu_hours_a_day=hours, price_a_day=price))
    return replace(analysis, throughput=found, recommendations=recommendations)


def _paid_ns(each: Recommendation) -> int | None:
    """Return the time of which GPU-hours are: the predicted gain, else what its cause takes, else the bound. What a
    replay without a loss gains may be more than that, as other losses get shorter, and is no figure of the rules."""
    if each.predicted_gain_ns is not None:
        return each.predicted_gain_ns
    return each.loss_ns if each.bound_from == "replay" and each.loss_ns is not None else each.gain_high_ns


def of_a_day_ns(analysis: Analysis, per: Literal["step", "recording"]) -> float | None:
    """Return how long a step, or the recording, of a rank takes in the mean, as shares of a day are of it: without what
    is due to the start of the recording, without steps that are cut short, and with the time by which ranks began later
    than others. None without times.

    A day has so many steps, whether a loss is in each of them or its mean.
    """
    ranks = [info for info in analysis.ranks if info.rank in analysis.headline.ranks]
    figures: list[Breakdown] = [info.whole for info in ranks]
    if per == "step" and analysis.headline.window == "step":
        figures = [each for info in ranks for each in _whole_steps(info, analysis)]
    windows = [
        each.window_ns - sum(of.get(START_OF_RECORDING, 0) for of in (each.causes, each.idle_causes))
        for each in figures
        if each.window_ns
    ]
    return fmean(windows) + _late_ns(analysis, per) if windows else None


def _late_ns(analysis: Analysis, per: Literal["step", "recording"]) -> float:
    """Return how much later ranks began than others, mean over ranks: of a step, or of the recording."""
    found = analysis.throughput
    if found is None or found.late_starts is None:
        return 0.0
    of_steps = per == "step" and analysis.headline.window == "step"
    return found.late_starts.mean_ns / max(found.steps if of_steps else 1, 1)


def _whole_steps(info: RankInfo, analysis: Analysis) -> list[StepBreakdown]:
    """Return the complete steps of a rank that the headline is of, without those that are cut short."""
    steps = {each.step for each in analysis.headline.job_steps} - {*_cut_short(analysis)}
    return [each for each in info.steps if each.complete and each.step in steps]


def overlapping_ns(analysis: Analysis) -> float | None:
    """Return the time that a step of the job takes in the mean, where its steps are longer than that: a rank begins one
    then while another ends the one before, or now this, now that rank has the longest window, and the steps' lengths
    sum to more than was recorded of them.

    It is the mean over ranks of how long their own steps take: with a device, a window lasts until the next one begins.
    None elsewhere, and where the recorded time of these steps is not known.
    """
    found, head = analysis.throughput, analysis.headline
    if found is None or head.window != "step" or not found.time_ns or not found.steps:
        return None
    lengths = [each.step_ns for each in head.job_steps if each.step not in found.cut_short]
    longest_ns = found.time_ns / found.steps
    if len(lengths) != found.steps or longest_ns >= SHORTER * fmean(lengths):
        return None
    own = [
        each.window_ns or 0
        for info in analysis.ranks
        if info.rank in head.ranks
        for each in _whole_steps(info, analysis)
    ]
    return min(fmean(own) + _late_ns(analysis, "step"), longest_ns) if own else longest_ns


def recording_ns(analysis: Analysis) -> int:
    """Return how long the job was recorded: the headline's window if that is the recording, else the longest rank's."""
    head = analysis.headline
    whole = [info.whole.window_ns or 0 for info in analysis.ranks]
    return (head.step_ns or 0) if head.window == "recording" else max(whole, default=0)


def _divided(hours: float | None, of_all: Mapping[str, int], of_median: Mapping[str, int]) -> dict[str, float]:
    """Return hours by cause, as the causes of all steps, which hours are of: as those of the median step where there is
    nothing in them that a step of a day repeats, and `unknown` where none has."""
    if not hours:
        return {}
    for causes in (of_all, of_median):
        repeated = {cause: ns for cause, ns in causes.items() if cause != START_OF_RECORDING}
        if total := sum(repeated.values()):
            return {cause: hours * ns / total for cause, ns in repeated.items()}
    return {"unknown": hours}


def slowed_by_communication(analysis: Analysis) -> tuple[float, float, float] | None:
    """Return by how many ns of a step compute is longer beside communication, and the ends of its interval of 90 %.

    It is the mean over the headline's ranks that have an estimate, of their complete steps (without any: of their
    recordings). None where no rank has one.
    """
    found = []
    for info in analysis.ranks:
        if info.rank in analysis.headline.ranks and info.whole.interference_ns is not None:
            steps = [each for each in info.steps if each.complete and each.interference_ns is not None]
            own = steps if analysis.headline.window == "step" else [info.whole]
            found += (
                [[fmean(getattr(each, f"interference_{end}ns") or 0 for each in own) for end in ("", "low_", "high_")]]
                if own
                else []
            )
    if not found:
        return None
    value, low, high = (fmean(each) for each in zip(*found, strict=True))
    return value, low, high


def with_headline(analysis: Analysis) -> Analysis:
    """Return an analysis that version 0.1 saved with the headline of its ranks' windows; raises OverflowError.

    When those windows began was not saved: the step of several ranks is their longest window.
    """
    if analysis.headline.window is not None:
        return analysis
    ranks = {
        info.rank: RankWindows(
            steps=[
                (StepWindow(step=each.step, recording=0, window=_length(each), complete=each.complete), each)
                for each in info.steps
            ],
            whole=info.whole,
            recordings=[(0, info.whole.window_ns)],
        )
        for info in analysis.ranks
        if info.whole.window_ns
    }
    return replace(analysis, headline=replace(headline(ranks, CrossRank()), longest_because=None))


class WithoutOutliers(msgspec.Struct, kw_only=True, frozen=True):
    """What the main figures would be without the steps that are outliers in length on some rank."""

    outliers: list[int]
    """Numbers of these steps."""
    step_ns: float
    exposed_comm_ns: float
    longer_of: dict[int, float]
    """By step, how much longer the outliers took than other steps of their kind, but for waiting, on the rank where
    that is most."""

    @property
    def longer_ns(self) -> float:
        """Return that in sum."""
        return sum(self.longer_of.values())


def without_outliers(analysis: Analysis) -> WithoutOutliers | None:
    """Return the medians of the other steps of the job, where outliers are so many that the median step is one.

    It is one where its length beside that of the others would be; and so, if it is not about as long as theirs, where
    half of the steps or more are outliers: one pause lies in a step of the rank that pauses, and in the next step of
    those that wait for it. None elsewhere, and where all steps are outliers.
    """
    found, head = _without_outliers(analysis), analysis.headline
    if found is None:
        return None
    least = ALIKE if 2 * len(found.outliers) >= len(head.job_steps) else ODD_FACTOR
    return found if (head.step_ns or 0) >= least * found.step_ns else None


def costly_outliers(analysis: Analysis, loss_ns: float) -> WithoutOutliers | None:
    """Return the medians of the other steps where outliers cost the recording more than a loss of each of its steps.

    Steps that do other work than the others, as an evaluation, are no loss: none of these outliers.
    """
    found = _without_outliers(analysis)
    if found is None:
        return None
    work = {
        each.evidence["step"]
        for each in analysis.findings
        if each.id.startswith(ODD_LENGTH) and OTHER_WORK in each.evidence
    }
    lost = replace(
        found,
        outliers=[step for step in found.outliers if step not in work],
        longer_of={step: ns for step, ns in found.longer_of.items() if step not in work},
    )
    return lost if lost.longer_ns > loss_ns * analysis.headline.steps else None


def _without_outliers(analysis: Analysis) -> WithoutOutliers | None:
    head = analysis.headline
    long = long_steps(complete_figures(analysis.ranks)) if head.window == "step" else []
    having = [info for info in analysis.ranks if info.rank in {each.rank for each in long}]
    waits = {info.rank: waits_by_step([info]) for info in having}
    usual = {rank: median(own.values()) for rank, own in waits.items() if own}
    longer: dict[int, float] = {}
    for each in long:
        # A rank that waits for another one's long step may do so in its next one.
        waited_ns = waits[each.rank].get((each.rank, each.step), 0)
        own_ns = each.more_ns - max(waited_ns - usual.get(each.rank, 0), 0)
        longer[each.step] = max(longer.get(each.step, 0.0), own_ns)
    outliers = set(longer) | _waiting_for(longer, waits_by_step(analysis.ranks) if longer else {}, head)
    others = [each for each in head.job_steps if each.step not in outliers]
    if not outliers or not others:
        return None
    step_ns = median(each.step_ns for each in others)
    return WithoutOutliers(
        outliers=sorted(outliers),
        step_ns=step_ns,
        exposed_comm_ns=median(each.exposed_comm_ns for each in others),
        longer_of=longer,
    )


def _waiting_for(longer: Mapping[int, float], waits: Mapping[tuple[int, int], int], head: Headline) -> set[int]:
    """Return the steps right after outliers in which another rank waits, beyond what it usually does, for most of what
    the outlier took longer: they are as long for the same reason. An outlier that took little longer is none's."""
    least_ns = OF_STEP * (head.step_ns or 0)
    costly = {step: ns for step, ns in longer.items() if ns >= max(least_ns, 1)}
    if not costly:
        return set()
    by_rank: dict[int, dict[int, int]] = {}
    for (rank, step), ns in waits.items():
        by_rank.setdefault(rank, {})[step] = ns
    steps = {each.step for each in head.job_steps}
    found = set()
    for own in by_rank.values():
        usual = median(own.values())
        waiting = ((step, own.get(step + 1, 0) - usual) for step in costly)
        found |= {step + 1 for step, more_ns in waiting if more_ns > MOST_OF_IT * costly[step]}
    return found & steps


def complete_figures(ranks: Iterable[RankInfo]) -> dict[int, Steps]:
    """Return the figures of complete steps by rank, as outliers are looked for: without waits for later recordings."""
    return {info.rank: [_without_starts(step) for step in info.steps if step.complete] for info in ranks}


def causes_of_all_steps(analysis: Analysis, left_out: Collection[int] = ()) -> Counter[str]:
    """Return the nanoseconds of each cause in all complete steps of the headline's ranks but these, those that are cut
    short, and those whose causes are others as no step follows them; empty of a single step."""
    every: Counter[str] = Counter()
    without = {*left_out, *_cut_short(analysis), *analysis.headline.causes_cut}
    ranks, steps = set(analysis.headline.ranks), {each.step for each in analysis.headline.job_steps} - without
    if analysis.headline.window == "step" and len(steps) > 1:
        for info in (each for each in analysis.ranks if each.rank in ranks):
            for step in info.steps:
                if step.complete and step.step in steps:
                    every.update(step.causes)
    return every if every.total() else Counter()


def idle_causes_of_all_steps(analysis: Analysis) -> Counter[str]:
    """Return the same of causes of idle time."""
    every, without = Counter[str](), _cut_short(analysis)
    for info in analysis.ranks:
        for step in info.steps if info.rank in analysis.headline.ranks else ():
            if step.complete and step.step not in without:
                every.update(step.idle_causes)
    return +every


def _cut_short(analysis: Analysis) -> Collection[int]:
    """Return the steps that sums over all steps leave out, as GPU-hours do: they lack what the others end with."""
    return () if analysis.throughput is None else analysis.throughput.cut_short


def usual_causes(analysis: Analysis) -> Counter[str]:
    """Return the nanoseconds of each cause in the complete steps that are no outliers, in all where a single one is
    none; empty of a single step."""
    found = _without_outliers(analysis)
    others = Counter[str]() if found is None else causes_of_all_steps(analysis, set(found.outliers))
    return others or causes_of_all_steps(analysis)


def waits_by_step(ranks: Iterable[RankInfo]) -> dict[tuple[int, int], int]:
    """Return how long each rank waited, exposed, for late ranks in each complete step."""
    return {
        (info.rank, step.step): sum(step.causes.get(cause, 0) for cause in WAITS_FOR_LATE_RANK)
        for info in ranks
        for step in info.steps
        if step.complete
    }


def _without_starts(step: StepBreakdown) -> tuple[int, int | None, int | None, int | None, int | None]:
    apart, before = (of.get("start_of_recording", 0) for of in (step.causes, step.idle_causes))
    window, comm = (None if ns is None else ns - apart for ns in (step.window_ns, step.comm_ns))
    idle = None if step.idle_ns is None else step.idle_ns - before
    return step.step, window, comm, step.compute_ns, idle


def _length(figures: Breakdown) -> tuple[int, int] | None:
    return None if figures.window_ns is None else (0, figures.window_ns)
