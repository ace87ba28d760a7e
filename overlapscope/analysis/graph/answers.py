"""What the graph of a run answers, as it is published: its tests and critical paths; and which ranks have a graph."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from overlapscope.analysis.common.cause_table import NO_CAUSES
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.unseen_members import may_not_be_replayed
from overlapscope.analysis.graph.model import GAPS, NO_GAP
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.intervals import Activity
from overlapscope.timeline.run import Run

CHAIN_SCHEMA: Literal["overlapscope.chain/1"] = "overlapscope.chain/1"
Doing = Literal["computing", "exposed communication", "copying", "idle"]
REPLAY_WITHIN: Final = 0.001
REPLAY, UNKNOWN, HIDDEN_WAITS = "replay", "unknown", "hidden_waits"
REFUSED: Final[Mapping[str, str]] = {
    REPLAY: "a replay of its dependency graph does not end when the recording does",
    UNKNOWN: NO_CAUSES["unexplained_waits"],
    HIDDEN_WAITS: NO_CAUSES["hidden_waits"],
}
"""Why a graph may not answer, by the test that fails."""
UNKNOWN_MEMBERS: Final = (
    "whether these ranks are all members of their groups is not recorded, so no path across ranks is known"
)

UNSEEN_MEMBERS: Final = (
    "calls of the recorded ranks waited for ranks that were not recorded, so no path across ranks is known"
)


class StepReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A window as recorded and as replayed without what no rule explains."""

    step: int | None
    rank: int | None
    recorded_ns: int
    replayed_ns: int

    @property
    def error(self) -> float:
        """Relative difference of the replay."""
        return (self.replayed_ns - self.recorded_ns) / self.recorded_ns if self.recorded_ns else 0.0


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors when each step, with the device durations of another, predicts the length of that one."""

    pairs: int
    median: float
    worst: float
    unchanged: float
    """Median error of taking the one step's length for the other's."""
    interval: float
    """Half of the 90 % interval of a prediction, by Student's t."""
    errors: tuple[tuple[int, int, float], ...]
    """Of each pair: the step that was replayed, the one that it predicts, and the signed error."""


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the four tests; `failed` names those that do not hold."""

    windows: tuple[StepReplay, ...]
    unknown_share: float
    """Of the path: what no rule explains, or the recording cannot hold."""
    unexplained_share: float
    """Of the spans: those whose start no rule explains."""
    hidden_wait_share: float
    """Of the path's long host stretches: those that end right after a stream drained in them."""
    swap: Swap | None
    """None with fewer than three alike steps."""
    failed: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether path and scenarios may be answered."""
        return not self.failed

    def answers(self, step: int | None, rank: int | None) -> bool:
        """Return whether a window's path and scenarios may be answered: its own replay and the other tests."""
        own = [each for each in self.windows if each.step == step and each.rank == rank]
        others = set(self.failed) - {REPLAY}
        return bool(own) and not others and all(abs(each.error) <= REPLAY_WITHIN for each in own)


class PathOperation(msgspec.Struct, kw_only=True, frozen=True):
    """All pieces of a path with one name. For host time it is the operation that was about to be launched, or the range
    that the host was in."""

    part: str
    name: str
    ns: int
    count: int
    inside: bool = False
    """Of host time: whether the name is that of a range, of the user or a framework, that the host was in."""


class StepPath(msgspec.Struct, kw_only=True, frozen=True):
    """The critical path of one step; parts and ranks each add up to its length."""

    step: int | None
    """None for a whole recording without steps."""
    rank: int
    """The rank on which the step ended last."""
    length_ns: int
    """Length of the step of the job; in documents of 0.1, of the window of `rank`."""
    parts: dict[str, int]
    ranks: dict[str, int]
    operations: list[PathOperation]
    bands: dict[str, tuple[int, int]] = {}
    """The least and the most of each part over all ways to decide ties: predecessors within 20 us of each other.
    In a large recording only of a typical step."""
    own_chains_ns: dict[str, int] = {}
    """Only where the path is a host that never waits, which it then is by construction: how long after the start of the
    step each rank would end if it waited for no other rank, with transfers as recorded."""
    without_work_ns: dict[str, int] = {}
    """By rank: what of the path is neither compute, copies nor communication there."""
    stood_still_ns: int = 0
    """Of the part `compute`: for how long at least a host without a device stood still while it seemed to compute."""
    waited_for_core_ns: int = 0
    """Of the part `compute`: for how long such a host waited for a core, by the system's account."""
    garbage_collected_ns: int = 0
    """Of the part `compute`: for how long such a host collected garbage, as capture noted it."""
    computed_in_calls_ns: int = 0
    """Of the communication: for how long the threads that make the calls computed in them, without a device."""
    gaps_beside_work_ns: int = 0
    """Of the part `idle`: for how long the device did anything else beside these gaps, mostly communicate. Such time is
    no idle time of the rank: tables of causes have it in exposed communication."""


class HostPauses(msgspec.Struct, frozen=True, kw_only=True):
    """When a host without a device did not run though it seemed to compute, or computed though it seemed to
    communicate, on its own clock; None is not known."""

    stood_still: Activity | None
    waited_for_core: Activity | None
    collected: Activity
    """Garbage, as capture noted it; empty where it did not."""
    in_calls: Activity | None = None
    """When the threads of its communication computed during their calls."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a chain, the latest first; times as in the graph."""

    rank: int
    kind: str
    """Kind of the edge (`EDGE_KINDS`); `host` stands for all of a thread's calls and the time between them."""
    known: str
    what: str | None
    """Name of the span, or of the last call of the host; of what a CPU computed, the operation that took most of it; of
    a launch whose call has no name, the span that was launched."""
    start_ns: int
    end_ns: int
    calls: int = 0
    """Number of calls that a `host` link stands for."""
    longest_ns: int = 0
    """Of the times in and between the calls of a `host` link the longest, of a loss that which lay longest in it ..."""
    longest_start_ns: int = 0
    """... when it began ..."""
    before: str | None = None
    """... and the operation or call that it led to ..."""
    in_call: str | None = None
    """... or, where it lay inside of a call, the name of that call, which `before` may name by its operation ..."""
    pause_during: str | None = None
    """... and, where `during` does not say that, the range in which it lay."""
    during: str | None = None
    """Of a `host` link that lay mostly in one range of the user or a framework, such as data loading or garbage
    collection: its name."""
    inside: list[str] = []
    """Of a `host` link that lay mostly inside of calls: names of those that take most of it, the longest first ..."""
    inside_calls: int = 0
    """... how many of these calls there are ..."""
    inside_ns: int = 0
    """... and how long they last."""
    step: int | None = None
    """Of a `host` link that has a long pause, and lay mostly in the mark of one step: the number of that step."""
    op: str | None = None
    """Operation that made this call, or that launched this span ..."""
    in_op: bool = False
    """... and of a `host` link, whether most of its time lay inside of that operation, before its launch."""
    span: int | None = None
    """Row of the span in the rank's `Spans`; None for a call."""
    late_end_ns: int = 0
    """Of a transfer's time, the last part: since the call had ended on another rank, where one clock shows that."""
    unexplained_ns: int = 0
    """Of its time, what no rule explains."""
    gap: str = GAPS[NO_GAP]
    """Why, by name in `GAPS`."""


class Moment(NamedTuple):
    """A time in which a rank computed and copied nothing; its times as `chain_at` takes them."""

    rank: int
    start_ns: int
    end_ns: int
    in_call: str | None = None
    """The call that the rank is in at its end, where no compute or copy follows in the recording; None where one does,
    whose start is then explained."""


class ExplainedSpan(msgspec.Struct, kw_only=True, frozen=True):
    """The span whose start a chain explains."""

    span: int
    """Row in the rank's table of spans."""
    kind: Literal["compute", "comm", "copy"]
    name: str | None
    op: str | None
    """Host operation that launched it."""
    start_ns: int
    end_ns: int


class Chain(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """What a moment of a rank waited for: the binding dependencies back from what ran next, the latest first.

    Times are nanoseconds after `origin_ns`, on the clock that all ranks are aligned to.
    """

    schema_: Literal["overlapscope.chain/1"] = CHAIN_SCHEMA
    rank: int
    origin_ns: int
    """When the first span of any rank began."""
    moment_ns: int
    doing: Doing
    """What the device did at that moment."""
    explains: ExplainedSpan
    chain: list[Link]
    is_cut: bool
    """Whether more links would follow."""
    ranks: list[int]
    """The ranks that the chain may lead to."""
    slack_ns: int | None = None
    """How much later the span could have begun without the recorded ranks ending later, with all else as recorded; null
    where the recording cannot say, and in a `LongestLoss`."""
    reason: str | None = None
    """Why the chain ends where it does, where the recording cannot hold the rest; null where it can."""
    python: list[str] = []
    """The Python stack of the thread that launched the explained span, the outermost function first: at the moment, or
    of a span at its launch. Empty where no stack was recorded, or read (`--stacks`)."""


class LateBefore(msgspec.Struct, frozen=True, kw_only=True):
    """What the rank that came last to a call had done longer than one that waited, since the two last met."""

    rank: int
    later_ns: int
    """How much later it came."""
    longer_ns: dict[str, int]
    """By cause, as of exposed communication, in all at most that."""


class LongestLoss(msgspec.Struct, kw_only=True, frozen=True):
    """The longest stretch of a step in which a rank neither computed nor copied, and what it waited for."""

    step: int | None
    rank: int
    start_ns: int
    end_ns: int
    """Nanoseconds after the `origin_ns` of the chain."""
    chain: Chain
    late: LateBefore | None = None
    """Where it waited in a call for another rank, without a device: what that rank had done longer."""
    left_out_ns: int = 0
    """Length of the longest stretch that is left out, as it begins before what it waited for was recorded; 0 where none
    is longer."""


class CriticalPath(msgspec.Struct, kw_only=True, frozen=True):
    """The critical paths of a run's steps."""

    scope: Literal["ranks", "rank"] | None = None
    """Whether paths cross ranks or stay within one; None where no path was found, see `reason`."""
    reason: str | None = None
    median_step: int | None = None
    steps: list[StepPath] = []
    left_out: int = 0
    """Steps whose path was not followed."""
    longest_loss: LongestLoss | None = None
    """Of a typical step; null where no path was found, or less than a hundredth of the step was lost."""
    self_tests: list[SelfTest] = []
    """What the tests of the dependency graph say, one for each recording window; empty where there is no graph."""


Windows = Mapping[int, Sequence[StepWindow]]


def ranks_of_graph(run: Run, cross_rank: CrossRank) -> tuple[list[int], str | None]:
    """Return the ranks whose graph can answer; or the reason why there is none."""
    ranks, reason = _connected(run, cross_rank)
    return ranks, reason or _no_graph(run, ranks, cross_rank)


def _no_graph(run: Run, ranks: Sequence[int], cross_rank: CrossRank) -> str | None:
    """Return why these ranks have no graph that could answer; None where they have one."""
    timelines = [run.ranks[rank] for rank in ranks]
    without = [each for each in timelines if each.has_device and not each.has_host_events]
    if without:
        damaged = any(each.host_is_lost for each in without)
        return NO_CAUSES["unreadable_host_events" if damaged else "no_host_events"]
    if any(each.ends_early for each in timelines):
        return NO_CAUSES["cut_file"]
    if len(ranks) > 1 and (cross_rank.clock_set or not cross_rank.clocks.comparable(ranks)):
        return "the clocks of the ranks cannot be aligned"
    return None


def _connected(run: Run, cross_rank: CrossRank) -> tuple[list[int], str | None]:
    """Return the largest set of ranks that matched calls connect; or the reason why there is none."""
    timed = [rank for rank, timeline in run.ranks.items() if timeline.num_spans]
    if not timed:
        return [], "no times were recorded"
    if len(run.ranks) == 1:
        return timed, None
    tied = {rank: {rank} for rank in timed}
    blocks = [each.block for each in (*cross_rank.splits, *cross_rank.uneven) if each.block.whole and each.block.calls]
    pairs = {(each.sender, each.receiver) for each in cross_rank.pairs.pairs if each.send_rows.size}
    for members in {each.ranks for each in blocks} | pairs:
        joined = set().union(*{id(tied[rank]): tied[rank] for rank in members if rank in tied}.values())
        tied |= dict.fromkeys(joined, joined)
    most = max(tied.values(), key=lambda each: (len(each), -min(each)))
    if len(most) > 1:
        return sorted(most), None
    if lacking := _lacks_members(run, cross_rank):
        return [], lacking
    if any(each.block.calls for each in (*cross_rank.splits, *cross_rank.uneven)):
        return [], UNKNOWN_MEMBERS
    why = f" ({cross_rank.matching.reasons[0]})" if cross_rank.matching.reasons else ""
    return [], f"no collective could be matched across all of its ranks, so the ranks are not connected{why}"


def _lacks_members(run: Run, cross_rank: CrossRank) -> str | None:
    """Return that ranks of the groups whose calls were matched were not recorded, so that no path crosses ranks; None
    where none is known to be missing."""
    groups = {each.block.group for each in (*cross_rank.splits, *cross_rank.uneven)}
    known = {group.name: group.ranks for group in run.groups if group.ranks}
    if groups <= known.keys():
        members = {rank for name, ranks in known.items() if name in groups for rank in ranks}
    else:
        members = {*range(run.world_size or 0)} if groups else set()
    missing = members - run.ranks.keys()
    if not missing:
        return UNSEEN_MEMBERS if may_not_be_replayed(run, cross_rank.waited_for_unseen_ns) else None
    count, of = len(missing), f"{len(members)} ranks of its groups"
    if run.world_size is not None and run.world_size > len(members):  # other groups lack more
        count, of = run.world_size - len(run.ranks), f"{run.world_size} ranks"
    lacking = f"{count} of the {of} {'was' if count == 1 else 'were'}"
    return f"{lacking} not recorded, so no path across ranks is known"
