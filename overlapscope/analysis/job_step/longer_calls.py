"""Findings on what calls take longer than the shortest of their like: in sum, and a single call that is most of it."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Final

import msgspec
import numpy as np
from msgspec import to_builtins

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.cross_rank.across_ranks import first_span_ns
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.corresponding_groups import SlowerGroup, slower_groups
from overlapscope.analysis.exposure.longer_than_like import LIKE_CALLS, LONGER, LongerThanLike
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.display import percent_text, size_text
from overlapscope.timeline.columns import NONE, Collectives, Flags, Ints, or_none
from overlapscope.timeline.intervals import BusyTime, WindowSets, difference, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline, Run

LONGER_THAN_LIKE: Final = "longer_than_like"
"""Id of the finding on all calls, which the text shows below the causes."""
ONE_LONG_CALL: Final = "one_long_call"
"""Begin of the id of the finding on a single call."""
APART: Final = 0.05
"""The median is said beside the mean where they differ by this share of it."""
USUAL_LONGER_NS: Final = "usual_longer_ns"
"""Evidence of that finding: what calls take longer in the median step."""
SLOWER_GROUPS: Final = "slower_groups"
"""Evidence of that finding: groups whose calls take longer than those of one like it."""
WORTH: Final = 0.05
"""Least share of exposed communication that is said, ... A choice."""
OF_STEP: Final = 0.001
"""... if it is also this share of a step, or of the recording. A choice: of less nothing is gained by looking at it."""
OF_CUT_STEP: Final = 0.01
"""What the calls of a step that is cut short take longer is said from this share of a step on, ... A choice: it is one
step, and in no figure that repeats."""
FAR_LONGER: Final = 2.0
"""... and from so many times what they take longer in the others, in the mean: else that is said of all."""
OF_ONE_CALL: Final = 0.25
"""A single call is named whose excess is this share of all that its rank exposed, and ... A choice."""
MOST_OF_LONGER: Final = 0.5
"""... more than this share of all excess: one event is then most of what is longer."""
SET_UP_NS: Final = 10_000_000
"""A call that is this much longer than its like may hold the set-up of its communicator, ... A choice: NCCL takes tens
of milliseconds or more for it."""
AS_LONG: Final = 0.95
"""... if it is the first of its like, and lasts on each recorded rank for at least this share of the longest: all came
together then, and none of them was late. A choice."""
MOST_NAMED: Final = 3
"""So many ranks that were not recorded are named."""
MOST_GROUPS: Final = 2
"""Groups that are named whose calls take longer than those of one like it, the one with most excess first, if ..."""
OF_GROUP: Final = 0.1
"""... they have this share of it. A choice: a rank is in few groups at once."""
MOST_AWAITED: Final = 0.8
"""A group waits for another if at least this share of its long calls end as long after a call of that one ended as they
need themselves, ..."""
BY_CHANCE: Final = 0.5
"""... and if they ended at any time at most this share would. Choices."""


class _SingleCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is much of what its rank exposed."""

    longer_ns: int
    """Its exposed time beyond what its like need, and ..."""
    exposed_ns: int
    """... all exposed time of its rank."""
    row: int
    """Its row in the rank's `Collectives`."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of a rank take longer, and its exposed time, in a step; `step` is None for its recordings."""

    step: int | None
    longer_ns: int
    exposed_ns: int


def longer_calls(
    run: Run, head: Headline, ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike], clocks: Clocks
) -> list[Finding]:
    """Return what calls take longer than their like, over the whole steps of the main figures, else the recordings;
    nothing where that is little, or too few calls are alike."""
    in_cut_steps = _in_cut_steps(run, head, ranks, longer)
    there = [rank for rank in head.ranks if rank in longer]
    parts = [each for rank in there for each in _parts(ranks[rank], longer[rank].exposed, head)]
    longer_ns, exposed_ns = (sum(getattr(each, name) for each in parts) for name in ("longer_ns", "exposed_ns"))
    if not exposed_ns or longer_ns < WORTH * exposed_ns:
        return in_cut_steps
    mean_ns, share = longer_ns / len(parts), longer_ns / exposed_ns
    if mean_ns < OF_STEP * (head.step_ns or 0):
        return in_cut_steps
    single, slower = _single_calls(ranks, longer), _slower_groups(run, longer, clocks)
    within = f"{format_ms(mean_ns)} a {head.window}" + (" in the mean" if len(parts) > 1 else "")
    usual_ns = _usual_ns(run, head, {rank: ranks[rank] for rank in there}, longer, single)
    if abs(usual_ns - mean_ns) >= APART * mean_ns:
        within = f"{within}, {format_ms(usual_ns)} in the median one"
    compared, are_longer = (
        sum(int(which.sum()) for which in each)
        for each in zip(*((own.needs_ns != NONE, own.is_longer) for own in longer.values()), strict=True)
    )
    found = Finding(
        id="longer_than_like",  # written out: a test finds the page of each id
        severity="info",
        title=f"at least {percent_text(share)} of exposed communication ({within}) is what calls take longer than the "
        f"shortest of their like: waiting for {_others(run)}, or other traffic on the link{_of_groups(run, slower)}",
        evidence={
            "longer_ns": round(mean_ns),
            USUAL_LONGER_NS: usual_ns,
            "share_of_exposed": share,
            "calls_compared": compared,
            "calls_longer": are_longer,
        }
        | ({SLOWER_GROUPS: [to_builtins(each) for each in slower]} if slower else {}),
        known_from="trace",
    )
    return [found, *in_cut_steps, *_one_call(run, head, longer, single, clocks)]


def _in_cut_steps(
    run: Run, head: Headline, ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike]
) -> list[Finding]:
    """Return a finding for each step that causes are without (`Headline.causes_cut`), where its calls take far longer
    than their like: what such a step lacks comes after its calls, which were recorded whole."""
    there = {rank: ranks[rank] for rank in head.ranks if rank in longer}
    every = [each for rank, own in there.items() for each in _parts(own, longer[rank].exposed, head, whole=False)]
    usual_ns = [each.longer_ns for each in every if each.step not in head.causes_cut]
    findings = []
    for step in head.causes_cut:
        own = [each for each in every if each.step == step]
        exposed_ns, longer_ns = sum(each.exposed_ns for each in own), sum(each.longer_ns for each in own)
        mean_ns, others_ns = longer_ns / max(len(own), 1), fmean(usual_ns) if usual_ns else 0.0
        least_ns = max(OF_CUT_STEP * (head.step_ns or 0), FAR_LONGER * others_ns)
        if not usual_ns or not longer_ns or longer_ns < WORTH * exposed_ns or mean_ns < least_ns:
            continue
        share, mean = percent_text(longer_ns / exposed_ns), ", mean over ranks" if len(own) > 1 else ""
        findings.append(
            Finding(
                id=f"longer_in_cut_step:step{step}",
                severity="info",
                title=f"calls of step {step} take at least {format_ms(mean_ns)} longer than the shortest of their like"
                f"{mean}, {share} of its exposed communication, in other steps {format_ms(others_ns)}: waiting for "
                f"{_others(run)}, or other traffic on the link; no step follows it, so causes are without this",
                evidence={
                    "step": step, "longer_ns": round(mean_ns), "share_of_exposed": longer_ns / exposed_ns,
                    "others_longer_ns": round(others_ns), "calls_longer": _longer_in(run, step, longer, list(there)),
                },
                known_from="trace",
            )
        )  # fmt: skip
    return findings


def _longer_in(run: Run, step: int, longer: Mapping[int, LongerThanLike], ranks: Sequence[int]) -> int:
    """Return how many calls of a step take longer than their like, over these ranks."""
    return sum(int((longer[rank].is_longer & (run.ranks[rank].collectives.step == step)).sum()) for rank in ranks)


def _slower_groups(run: Run, longer: Mapping[int, LongerThanLike], clocks: Clocks) -> list[SlowerGroup]:
    """Return the groups whose calls usually take longer than like calls of a corresponding one, with enough excess."""
    excess_ns = {rank: each.exposed_ns for rank, each in longer.items()}
    least_ns = OF_GROUP * sum(int(each.sum()) for each in excess_ns.values())
    found = slower_groups(run.ranks, excess_ns, run.groups, LONGER, least_ns)
    links = [each for each in found if each.of_link]
    return [_with_awaited(run, longer, clocks, each, links) for each in found[:MOST_GROUPS]]


def _with_awaited(
    run: Run, longer: Mapping[int, LongerThanLike], clocks: Clocks, group: SlowerGroup, links: Sequence[SlowerGroup]
) -> SlowerGroup:
    """Return a group with the one of a slower link for which a common member lets it wait, if it has none itself."""
    common = [each for each in links if not group.of_link and set(each.ranks) & set(group.ranks)]
    awaited = (each.group for each in common if _wait_for(run, longer, clocks, group.group, each.group))
    return msgspec.structs.replace(group, waits_for=next(awaited, None))


def _wait_for(run: Run, longer: Mapping[int, LongerThanLike], clocks: Clocks, group: str, other: str) -> bool:
    """Return whether most long calls of one group last about as long as they need from the end of one of another on,
    far more than would by chance."""
    ends = np.sort(np.concatenate([clocks.aligned_ns(rank, _ends(run.ranks[rank], other)) for rank in longer]))
    hits = calls = 0
    chance = 0.0
    for rank, own in longer.items():
        until = clocks.aligned_ns(rank, _ends(run.ranks[rank], group, own.is_longer))
        if not until.size or not ends.size:
            continue
        needs = own.needs_ns[_timed_rows(run.ranks[rank], group, own.is_longer)]
        first, last = np.searchsorted(ends, [until - (needs * LONGER).astype(np.int64), until - needs // 2])
        hits, calls = hits + int((last > first).sum()), calls + until.size
        after = union((ends + int(np.median(needs)) // 2, ends + int(LONGER * np.median(needs))))
        chance += until.size * length(after) / max(int(ends[-1] - ends[0]), 1)
    return calls >= LIKE_CALLS and hits >= MOST_AWAITED * calls and chance <= BY_CHANCE * calls


def _timed_rows(timeline: RankTimeline, group: str, chosen: Flags | None = None) -> Ints:
    """Return the rows of the calls of a group with times, of the chosen ones if these are given."""
    calls = timeline.collectives
    own = rows_named(calls.group, timeline.names, group.__eq__) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
    return np.flatnonzero(own if chosen is None else own & chosen)


def _ends(timeline: RankTimeline, group: str, chosen: Flags | None = None) -> Ints:
    """Return when these calls (`_timed_rows`) end, on the rank's own clock."""
    return timeline.collectives.end_ns[_timed_rows(timeline, group, chosen)]


def _of_groups(run: Run, slower: Sequence[SlowerGroup]) -> str:
    """Return the end of a title that names groups whose calls take longer, why, as far as calls show that, and whom to
    record; empty without."""
    of_link = [each for each in slower if each.of_link]
    waiting = [each for each in slower if each.waits_for is not None]
    others = [each for each in slower if each not in (*of_link, *waiting)]
    parts = []
    if of_link:
        why = ", whatever their size, and in rows: a slower link, or steady other traffic on it, is there"
        parts.append(f"{_times(run, of_link)}{why}")
    members = {group.name: group.ranks or () for group in run.groups}
    for each in waiting:
        common = sorted({*each.ranks} & {*members[each.waits_for or ""]})
        verb = "is" if len(common) == 1 else "are"
        parts.append(
            f"{_times(run, [each])}, as {rank_list(common)} {verb} in calls of group {short(each.waits_for or '')} "
            "until then"
        )
    if others:
        parts.append(f"{_times(run, others)}: a late rank, or a slower link, is there")
    return "".join(f"; calls of {each}" for each in parts)


def _times(run: Run, slower: Sequence[SlowerGroup]) -> str:
    """Return how many times as long calls of groups take, with their members, in words."""
    parts = []
    for each in slower:
        missing = [rank for rank in each.ranks if rank not in run.ranks]
        members = f" ({rank_list(missing)} not recorded)" if missing else f" ({rank_list(each.ranks)})"
        parts.append(f"group {short(each.group)}{members} take {each.times:.2g} times as long as those of group "
                     f"{short(each.than)}")  # fmt: skip
    return ", and of ".join(parts)


def _others(run: Run, *, one: bool = False) -> str:
    """Return whom calls may wait for, or `one` of them: where the size of the job is not known, several recorded ranks
    may be all."""
    missing = [rank for rank in range(run.world_size or 0) if rank not in run.ranks]
    if 0 < len(missing) <= MOST_NAMED:
        return f"{'one of ' if one and len(missing) > 1 else ''}{rank_list(missing)} (not recorded)"
    all_known = len(run.ranks) == run.world_size or (run.world_size is None and len(run.ranks) > 1)
    return f"{'one of the ' if one else ''}{'other ranks' if all_known else 'ranks that were not recorded'}"


def _parts(own: RankWindows, exposed: BusyTime, head: Headline, *, whole: bool = True) -> Iterator[_Part]:
    """Yield how much of this exposed time of a rank lies in each step of the main figures, of the `whole` ones alone or
    of all, else in its recordings."""
    if head.window == "step":
        numbers = {each.step for each in head.job_steps}.difference(head.causes_cut if whole else ())
        chosen = [(at, figures) for at, figures in own.steps if at.complete and at.step in numbers]
        sets = WindowSets.of([() if at.window is None else (at.window,) for at, _ in chosen])
        steps: list[tuple[int | None, int]] = [(at.step, figures.exposed_comm_ns or 0) for at, figures in chosen]
    else:
        sets, steps = WindowSets.of([own.recordings]), [(None, own.whole.exposed_comm_ns or 0)]
    for ns, (step, exposed_ns) in zip(sets.within(exposed), steps, strict=True):
        yield _Part(step=step, longer_ns=ns, exposed_ns=exposed_ns)


def _usual_ns(
    run: Run, head: Headline, ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike],
    single: Mapping[int, _SingleCall],
) -> int:  # fmt: skip
    """Return what calls take longer than their like in the median of the whole steps, mean over ranks, in ns.

    A single call that is most of what its rank's calls take longer is no part of a usual step, unless it is the only
    one, or a whole recording.
    """
    by_step: dict[int | None, list[int]] = {}
    for rank, own in ranks.items():
        exposed = longer[rank].exposed
        if rank in single and head.steps > 1:
            calls, row = run.ranks[rank].collectives, [single[rank].row]
            exposed = BusyTime(difference(exposed.intervals, union((calls.start_ns[row], calls.end_ns[row]))))
        for part in _parts(own, exposed, head):
            by_step.setdefault(part.step, []).append(part.longer_ns)
    return round(median(map(fmean, by_step.values())))


def _single_calls(ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike]) -> dict[int, _SingleCall]:
    """Return, by rank, the single call that is much of what it exposed, and most of what its calls take longer."""
    found = {}
    for rank in sorted(longer.keys() & ranks.keys()):
        each, exposed_ns = longer[rank].exposed_ns, ranks[rank].whole.exposed_comm_ns or 0
        most_ns = int(each.max(initial=0))
        if most_ns >= OF_ONE_CALL * exposed_ns and most_ns > MOST_OF_LONGER * int(each.sum()):
            found[rank] = _SingleCall(longer_ns=most_ns, exposed_ns=exposed_ns, row=int(each.argmax()))
    return found


def _one_call(
    run: Run, head: Headline, longer: Mapping[int, LongerThanLike], single: Mapping[int, _SingleCall], clocks: Clocks
) -> list[Finding]:
    """Return the single call that is most of what its rank exposed, of the rank where it is longest; its begin counts
    from the first span of any rank, as moments do that can be explained."""
    if not single:
        return []
    rank = max(single, key=lambda each: (single[each].longer_ns, single[each].exposed_ns))
    timeline, one = run.ranks[rank], single[rank]
    calls, row = timeline.collectives, one.row
    lasted_ns = int(calls.end_ns[row] - calls.start_ns[row])
    after_ns = int(clocks.aligned_ns(rank, calls.start_ns[row : row + 1])[0]) - first_span_ns(run, clocks)
    like_ns, like = _like(timeline, row)
    op, size_bytes = timeline.name(int(calls.op[row])) or "call", or_none(int(calls.bytes[row]))
    size = "" if size_bytes is None else f" of {size_text(size_bytes)}"
    of_like = f", its {like} like {format_ms(like_ns)} in the median" if like else ""
    per = f"recording of {format_ms(head.step_ns or 0)}" if head.window == "recording" else f"{head.steps} steps"
    share = percent_text(one.longer_ns / one.exposed_ns)
    is_first = _is_first(timeline, row)
    set_up = one.longer_ns >= SET_UP_NS and _came_together(run, single) and _is_first_of_like(timeline, row)
    why = _why(run, first=is_first, set_up=set_up)
    return [
        Finding(
            id=f"one_long_call:rank{rank}",
            severity="info" if is_first else "warning",
            title=f"one {short(op)}{size} of rank {rank}, {format_ms(after_ns)} after the first span of the recording, "
            f"takes {format_ms(lasted_ns)}{of_like}; that is {share} of what the rank exposed: {why}; "
            f"GPU-hours a day count on it once in each {per}",
            evidence={
                "ranks": sorted(single),
                "rank": rank,
                "step": or_none(int(calls.step[row])),
                "op": op,
                "group": run.ranks[rank].name(int(run.ranks[rank].collectives.group[row])),
                "bytes": size_bytes,
                "after_ns": after_ns,
                "duration_ns": lasted_ns,
                "like": like,
                "like_ns": like_ns,
                "exposed_longer_ns": one.longer_ns,
                "share_of_exposed": one.longer_ns / one.exposed_ns,
                "is_first": is_first,
                "may_set_up": set_up,
            },
            known_from="trace",
        )
    ]


def _came_together(run: Run, single: Mapping[int, _SingleCall]) -> bool:
    """Return whether each of several recorded ranks has such a call, of one operation and about as long on each."""
    rows = {rank: (run.ranks[rank], each.row) for rank, each in single.items()}
    lasted = [int(own.collectives.end_ns[row] - own.collectives.start_ns[row]) for own, row in rows.values()]
    one_op = len({own.name(int(own.collectives.op[row])) for own, row in rows.values()}) == 1
    return len(rows) == len(run.ranks) > 1 and one_op and min(lasted) >= AS_LONG * max(lasted)


def _why(run: Run, *, first: bool, set_up: bool) -> str:
    late = f"{_others(run, one=True)} was late once, or the network stalled"
    if set_up:
        late = f"no recorded rank was late to it, so perhaps the set-up of a communicator; else {late}"
    if not first:
        return late
    return f"it is the first of its group in the recording, so ranks may just have begun to record apart; else {late}"


def _is_first_of_like(timeline: RankTimeline, row: int) -> bool:
    """Return whether none of its like began before it in its recording."""
    calls = timeline.collectives
    before = (calls.recording == calls.recording[row]) & (calls.start_ns < calls.start_ns[row])
    return not bool((_alike(calls, row) & before).any())


def _is_first(timeline: RankTimeline, row: int) -> bool:
    """Return whether no call of its group, where that is known, else of the rank, began before it in its recording."""
    calls = timeline.collectives
    alike = (calls.start_ns != NONE) & (calls.recording == calls.recording[row])
    if calls.group[row] >= 0:
        alike &= calls.group == calls.group[row]
    return int(calls.start_ns[row]) == int(calls.start_ns[alike].min())


def _like(timeline: RankTimeline, row: int) -> tuple[float, int]:
    """Return how long the other calls of one operation, group, type and size last in the median, and their number; none
    where the size is not known."""
    calls = timeline.collectives
    lasted = (calls.end_ns - calls.start_ns)[_alike(calls, row)]
    return (float(np.median(lasted)), lasted.size) if lasted.size else (0.0, 0)


def _alike(calls: Collectives, row: int) -> Flags:
    """Return which other calls, with times, are of its operation, group, number of members, type and size."""
    alike: Flags = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes != NONE)
    for column in (calls.op, calls.group, calls.group_size, calls.dtype, calls.bytes):
        alike &= column == column[row]
    alike[row] = False
    return alike
