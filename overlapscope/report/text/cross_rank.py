"""Render the comparison of ranks as text: wait time by rank, stragglers and their causes, unmatched calls, clocks."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from textwrap import fill, shorten
from typing import Any, Final

from overlapscope.analysis.common.cause_table import WAITS_FOR_ANOTHER_RANK, WAITS_FOR_LATE_RANK
from overlapscope.analysis.common.wording import first_and_count, rank_list, short
from overlapscope.analysis.cross_rank.wait_transfer import late_from_ns
from overlapscope.analysis.result import Analysis, Skew, SkewRank
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.analysis.unseen_waits import comes_last, has_unmatched, lacks_members
from overlapscope.report.formatting import EXPLAIN, MAX_WIDTH, aligned, count, ms, percent
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.operations import POINT_TO_POINT

MAX_ROWS: Final = 4
"""Ranks in the table; of more than these one less, and how many are left out."""
PAIR: Final = 2
"""Of two ranks only one waits for the other: there is no mean over several."""
MAX_REASONS: Final = 3
LONGEST_REASON: Final = 480
"""Characters: four lines."""
CLOCK_SHOWS_NS: Final = 100_000
"""A clock offset above this gets a line: without its correction, another rank may seem to come last."""
LEAD_HEAD: Final = "its lead ms"
LEADS_MORE: Final = 0.02
"""A lead that is longer than what the others waited by more than this share of it is explained. A choice."""
WAIT_HEAD: Final = (
    "wait time, whole recording", "waited ms", "of collective time", "others waited for it ms", LEAD_HEAD,
    "late arrivals",
)  # fmt: skip
HEAD_OF_SOME: Final = (
    "recorded ranks, whole recording", "waited ms", "others waited while it was last ms", LEAD_HEAD, "late arrivals",
)  # fmt: skip
"""Where members of groups were not recorded: these may have come later, and what is waited of all collective time is
not known."""
COUNTED_ONCE: Final = "A lead that lasts over several calls counts at each. Counted once,"
NO_DELAY: Final = 0.001
"""Where nobody was late, and no rank delayed others by this share of the recording, ..."""
NO_WAITING: Final = 0.005
"""... or waited for this share of it, a sentence says so instead of a table. Choices: far less than steps vary by."""
LATE_ENDS: Final = 0.1
"""Waiting after the last rank came is said from this share of all."""
INDIRECT: Final = 1.05
"""A straggler's blame is split into direct and indirect delay where it exceeds that of the table by this factor."""
MOSTLY_EXPOSED: Final = 0.9
"""What is exposed of the blame is said where it is less than this share."""
OFF_CORE: Final = "host stall (it neither ran nor waited for a core: it slept, was stopped, or waited for a lock)"
ON_CORE: Final = "host stall (it ran, but started nothing: Python, or code of which no operation is recorded)"
"""Of a host of which the system's account was recorded."""
WORDS: Final[Mapping[str, str]] = {
    "calls": "arrived last at {} calls",
    "late_steps": "late in at least {} steps",
    "steps": "of {} in which any rank was",
    "computed_more_ns": "computed {} more than its peers",
    "communicated_more_ns": "communicated {} more",
    "copied_more_ns": "copied {} more",
    "idle_more_ns": "idle {} longer than its peers",
    "before_first_launch_ns": "{} of that before the first launch of a step",
    "unrecorded_more_ns": "{} longer before its first recorded span",
    "input_elements_times": "inputs of its operations {} times as large as its peers'",
    "longer_op_ns": "{} more than its peers in one operation",
    "launched_late_ns": "{} in calls that were launched late",
    "on_core_more_ns": "on a CPU core {} longer",
    "off_core_more_ns": "off the CPU {} longer",
    "waited_for_core_more_ns": "waited {} longer for a CPU core",
    "kernels_alone": "{} kernels that no other rank ran",
    "kernels_alone_ns": "{} in these",
    "operations_more": "{} more operations than its peers",
    "operation_names": "of {} names",
    "operations_more_ns": "about {} in these",
    "range_more_ns": "{} more in one range",
    "pauses": "{} pauses at one place that no other host has",
    "compute_ns": "compute {} in total",
    "peers_compute_ns": "its peers' compute {}",
    "work_ns": "its kernels would take {} at the usual speed",
    "peers_work_ns": "its peers' kernels would take {} at the usual speed",
    "slowness": "its kernels take {} times as long as usual",
    "optimizer_times": "kernels of its optimizer take {} times as long as its peers'",
    "since_step": "since step {}",
    "times_since": "compute {} times as long from there on",
    "only_step": "in step {} alone",
    "times_in_only_step": "compute {} times as long there",
    "times_in_slow_steps": "its kernels {} times as long in the slow steps",
    "grids_times": "its grids {} times as large as its peers'",
    "in_larger_grids": "{} of its compute in larger grids than its peers'",
    "garbage_collector_ns": "{} more in garbage collection pauses",
    "data_loading_ns": "{} longer between steps (for example data loading)",
    "cpu_throttled_ns": "CPU throttled {} longer by its cgroup limit",
    "allocator_retries_more": "{} more allocator retries",
    "recording_cost_ns": "recording overhead at most {}",
    "sm_clock_mhz": "its SM clock {} MHz",
    "peers_sm_clock_mhz": "its peers' SM clock {} MHz",
}
"""The text of each figure of evidence; a figure that is not listed is shown under its own name."""
COMPUTED_LONGER: Final = ("more_work", "slower_compute", "longer_compute")
"""Causes of a rank that computed longer than its peers."""
LARGER_INPUTS: Final[Mapping[str, str]] = {
    "more_work": "more work ({})", "longer_compute": "longer compute ({}, or it is slower)",
}  # fmt: skip
"""Of a rank whose operations had larger inputs: where that explains most of it, and where it does not."""
MAX_DELAYING: Final = 4
MOST_TOGETHER: Final = 8
"""Ranks that are late together and named."""
WORTH_DELAY: Final = 0.01
"""Least share of the longest delay of a rank for that of another one to be named."""
MOSTLY_HIDDEN: Final = 0.5
"""Where ranks were exposed to less than this share of their waiting, the text says so."""
LONGER: Final = 1.03
"""From this ratio on it is said that ranks computed longer than others: equal devices differ by less."""
OWN_DELAY: Final = 0.5
"""Where less than this share of its delays is a rank's own, in a pipeline, that is said. A choice: mostly."""
REPEATED: Final = 1.25
"""From this ratio on of delays to what is left of them where a lead that lasts counts once, that is said."""
SHARES: Final = frozenset({"in_larger_grids"})
CHANCE: Final = "chance"
LEAST_CHANCE: Final = 1e-4
"""Smaller probabilities are shown as `p < 0.0001`."""


def lines(analysis: Analysis, *, all_rows: bool) -> str:
    """Return the text, ranks with the most blame first; without matched calls, only the reasons why there are none."""
    skew = analysis.skew
    parts = [] if all_rows else _nobody_late(analysis)
    if not parts:
        parts = [*_table(analysis, all_rows=all_rows), *hidden_text(analysis), *in_flight_text(analysis)]
        parts += [_filled(each) for each in [late_together_text(analysis)] if each]
        parts += [*unseen_text(skew), *drained_text(analysis)]
        parts += [*_stragglers(analysis, all_rows=all_rows), *late_end_text(skew)]
    parts += matched_text(skew, lacks=lacks_members(analysis), known=bool(analysis.run.missing_ranks))
    shown = skew.reasons if all_rows else skew.reasons[:MAX_REASONS]
    parts += [_reason(each, all_rows=all_rows) for each in shown]
    if len(shown) < len(skew.reasons):
        parts.append(f"  {count(len(skew.reasons) - len(shown), 'more reason')}: --all")
    in_sets = analysis.headline.longest_because == "clocks"
    return "\n".join([*parts, *_clocks(skew, all_rows=all_rows, in_sets=in_sets)])


def _nobody_late(analysis: Analysis) -> list[str]:
    """Return in a sentence that no rank was late and how long one waited at most, where both are next to nothing."""
    ranks, window_ns = analysis.skew.ranks, max((each.whole.window_ns or 0 for each in analysis.ranks), default=0)
    late = any(each.times_last for each in ranks) or bool(analysis.skew.stragglers)
    if late or not ranks or max(each.blame_ns for each in ranks) >= NO_DELAY * window_ns:
        return []
    most = max(ranks, key=lambda each: each.wait_ns)
    if most.wait_ns >= NO_WAITING * window_ns:
        return []
    who = "recorded rank" if lacks_members(analysis) else "rank"
    said = f"No {who} was late at any matched call; rank {most.rank} waited most, {ms(most.wait_ns)} ms"
    return [f"{said} of {ms(window_ns)} ms: --all"]


def in_flight_text(analysis: Analysis) -> list[str]:
    """Return that sums of waits count calls in flight at once each, where a rank waited longer so than it communicated,
    and what of the delays is left where a lead that lasts counts once; else nothing."""
    whole = {info.rank: info.whole for info in analysis.ranks}
    longer = any(
        each.wait_ns > own.exposed_comm_ns + (own.overlapped_ns or 0)
        for each in analysis.skew.ranks
        if (own := whole.get(each.rank)) is not None and own.exposed_comm_ns is not None
    )
    found = ["Calls in flight at once are counted each: the sums exceed the time in communication."] if longer else []
    ranks = sorted(analysis.skew.ranks, key=lambda each: -each.blame_ns)[:MAX_DELAYING]
    if analysis.run.has_device:
        # Beside asynchronous calls it is not certain which leads are one: stragglers alone have the figure.
        return [*found, *_once_on_devices(analysis.skew)]
    blame_ns, delayed_ns = sum(each.blame_ns for each in ranks), sum(each.delayed_ns or 0 for each in ranks)
    unknown = all(each.delayed_ns is None for each in ranks)
    if unknown or blame_ns <= REPEATED * delayed_ns:
        return found
    first, *others = sorted(ranks, key=lambda each: -(each.delayed_ns or 0))
    others = [each for each in others if (each.delayed_ns or 0) >= WORTH_DELAY * (first.delayed_ns or 1)]
    once = f"rank {first.rank} delayed others by {ms(first.delayed_ns or 0)} ms"
    once += "".join(f", rank {each.rank} by {ms(each.delayed_ns or 0)} ms" for each in others)
    return [*found, f"{COUNTED_ONCE} {once}."]


def _once_on_devices(skew: Skew) -> list[str]:
    """Return what the delays of stragglers are where a lead that lasts over several calls counts once."""
    of_calls = {each.rank: each.blame_ns for each in skew.ranks}
    found = [each for each in skew.stragglers if of_calls.get(each.rank, 0) > REPEATED * each.blame_ns > 0]
    if not found:
        return []
    once = ", ".join(f"rank {each.rank} delayed others by {ms(each.blame_ns)} ms" for each in found[:MAX_DELAYING])
    return [f"{COUNTED_ONCE} {once}."]


def late_together_text(analysis: Analysis) -> str:
    """Return which ranks came last together, how long others waited for them, and how many times as long they computed,
    if each did for longer than all others; empty where that is not known, or stages of a pipeline may have drained."""
    found = analysis.skew.late_together
    if found is None or _between_stages(analysis):
        return ""
    who = rank_list(found.ranks)
    said = f"{who[0].upper()}{who[1:]} came last together at {found.calls} of {found.of_calls} calls: each of "
    said += f"{count(len(found.others), 'other rank')} waited {ms(found.waited_ns)} ms for them"
    computed = {info.rank: info.whole.compute_ns or 0 for info in analysis.ranks}
    own, theirs = ([computed.get(rank, 0) for rank in ranks] for ranks in (found.ranks, found.others))
    times = median(own) / median(theirs) if min(theirs) else 0.0
    longer = times >= LONGER and min(own) > max(theirs)
    return f"{said}{f', and they computed {times:.2f} times as long' if longer else ''}."


def _between_stages(analysis: Analysis) -> bool:
    return any(row.dimension == PIPELINE and row.op in POINT_TO_POINT for row in analysis.collectives)


def drained_text(analysis: Analysis) -> list[str]:
    """Return how much of the delay of the rank which delayed others most is its own, and what the rest may be: where
    there are messages between stages, less than half of it is, and the rank is not named as a straggler."""
    messages = _between_stages(analysis)
    most = max(analysis.skew.ranks, key=lambda each: each.blame_ns, default=None)
    named = {each.rank for each in analysis.skew.stragglers}
    if not messages or most is None or most.rank in named:
        return []
    if most.delayed_ns is None or most.delayed_ns >= OWN_DELAY * most.blame_ns:
        return []
    said = (
        f"Of the {ms(most.blame_ns)} ms that rank {most.rank} leads by, {ms(most.delayed_ns)} are its own delay: the "
        "rest is a lead that lasts over several calls, or it had waited for others longer itself, as the first stages "
        "of a pipeline do while it drains."
    )
    return [fill(said, MAX_WIDTH, break_on_hyphens=False)]


def late_end_text(skew: Skew) -> list[str]:
    """Return how much of the wait time was waiting for nobody, as calls ended late; empty where that is little."""
    ended, waited = (sum(getattr(each, name) for each in skew.ranks) for name in ("late_end_ns", "wait_ns"))
    if ended < LATE_ENDS * waited or not ended:
        return []
    return [
        f"Of the waiting, {ms(ended)} ms over all ranks came after the last rank: calls ended later on some ranks than "
        "on others."
    ]


def matched_text(skew: Skew, *, lacks: bool = False, known: bool = True) -> list[str]:
    """Return how many calls were matched across ranks and how many not; empty where there was nothing to match. `lacks`
    says that members of their groups were not recorded, or may not have been, and `known` that they were not."""
    if not (skew.ranks or skew.pairs or skew.unmatched):
        return []
    messages = f" and {count(skew.pairs, 'send')} with their receives" if skew.pairs else ""
    alone = " The wait times above are of collectives alone." if skew.pairs and skew.ranks else ""
    left = [f"{count(skew.uneven, 'call')} whose members send different sizes"] if skew.uneven else []
    left += [f"{count(skew.not_split, 'call')} with a root that nobody was seen to wait in"] if skew.not_split else []
    if left and skew.ranks:
        alone += f" {'They' if alone else 'The wait times above'} leave out {' and '.join(left)}."
    matched = (
        f"{count(skew.matched, 'collective')}{messages} matched {'among the recorded' if lacks else 'across'} ranks"
    )
    unmatched = f", {skew.unmatched} calls unmatched" if skew.unmatched else ""
    known |= any(each.waited_for_unseen_ns for each in skew.ranks)
    missing = "; other members of their groups are missing" if known else ""
    missing = (missing or "; whether their groups have other members is not recorded") if lacks else ""
    return [f"{matched}{unmatched}{missing}.{alone}"]


def straggler_sentences(analysis: Analysis, limit: int) -> list[str]:
    """Return a sentence for each of the first `limit` stragglers, the one with the most blame first; one for those that
    are late together."""
    found: dict[tuple[int, ...], list[Straggler]] = {}
    for each in analysis.skew.stragglers[:limit]:
        found.setdefault(tuple(sorted([each.rank, *each.late_with])), []).append(each)
    return [_alone(own[0], analysis) if len(ranks) == 1 else _together(own, analysis) for ranks, own in found.items()]


def _alone(each: Straggler, analysis: Analysis) -> str:
    own = f"Rank {each.rank}{_on_host(each)} is a straggler"
    return f"{own}: {_delayed(each, analysis, 'it')}{_worth(each, analysis)}cause: {_cause(each)}."


def _together(held: Sequence[Straggler], analysis: Analysis) -> str:
    """Return the sentence on stragglers that are late together, with all of these ranks, what delayed others most
    first: not all of them are stragglers."""
    listed = {each.rank: each.blame_ns for each in analysis.skew.ranks}
    ranks = sorted([held[0].rank, *held[0].late_with], key=lambda rank: (-listed.get(rank, 0), rank))
    who = first_and_count(list(map(str, ranks)), MOST_TOGETHER, ", ")
    delays = "".join(_delayed(each, analysis, f"rank {each.rank}") for each in held)
    causes = "; ".join(f"cause for rank {each.rank}{_on_host(each)}: {_cause(each)}" for each in held)
    return f"Ranks {who} are late together: {delays}{_worth(held[0], analysis)}{causes}."


def _delayed(each: Straggler, analysis: Analysis, who: str) -> str:
    """Return the delay of a straggler, which counts a lead that lasts once; at least that, where many of its calls
    could not be matched. Empty where its removal gains more, and where such a rank is perhaps not the last one: the
    delay may then be more or less."""
    more = has_unmatched(analysis, [each.rank])
    if (each.removal_ns or 0) > each.blame_ns or (more and not comes_last(analysis, each.rank)):
        return ""
    listed = {rank.rank: rank.blame_ns for rank in analysis.skew.ranks}
    others = "other recorded ranks" if analysis.run.missing_ranks else "others"
    when = each.alone_in or each.late_in
    least = "at least " * more
    return f"{who} delayed the {others} by {least}{_delay(each, listed)}{when}{_exposed(each, analysis)}; "


def _exposed(each: Straggler, analysis: Analysis) -> str:
    """Return how much of the delay was exposed, where that is less: calls are in flight beside others, or compute."""
    others = [info.whole for info in analysis.ranks if info.rank != each.rank]
    known = [figures.causes for figures in others if figures.causes]
    if len(known) < len(others) or len(analysis.skew.stragglers) > 1 or not known or analysis.run.missing_ranks:
        return ""
    if has_unmatched(analysis, [each.rank]):
        return ""  # what is exposed of waiting in calls that were not matched is not known
    exposed_ns = max(sum(causes.get(cause, 0) for cause in WAITS_FOR_LATE_RANK) for causes in known)
    less = exposed_ns < MOSTLY_EXPOSED * each.blame_ns
    return f", at most {ms(exposed_ns)} ms of it exposed on a rank" if less else ""


def _worth(each: Straggler, analysis: Analysis) -> str:
    """Return what the recording would gain without its excess: at most that where members that were not recorded may be
    late, too, at least that where calls could not be matched. Empty where that is not known."""
    if each.removal_ns is None or each.removal_low_ns is None or each.removal_high_ns is None:
        return ""
    least, most = has_unmatched(analysis, [each.rank, *each.late_with]), lacks_members(analysis)
    if least and most:
        return ""
    whose = "their" if each.late_with else "its"
    span = f" ({ms(each.removal_low_ns)} to {ms(each.removal_high_ns)})"
    between = "" if each.removal_low_ns == each.removal_high_ns else span
    gain = f"{ms(each.removal_ns)} ms{between}"
    if least or most:
        gain = f"at least {ms(each.removal_low_ns)} ms" if least else f"at most {ms(each.removal_high_ns)} ms"
    return f"without {whose} excess the recording would be {gain} shorter; "


def _on_host(each: Straggler) -> str:
    return f" (host {short(each.host)})" if each.host else ""


def _reason(text: str, *, all_rows: bool) -> str:
    """Return a reason in lines; of a very long one only the begin, but for all rows."""
    flat = text if all_rows else shorten(text, LONGEST_REASON, placeholder=" ...: --all")
    return fill(
        flat, MAX_WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _table(analysis: Analysis, *, all_rows: bool) -> list[str]:
    skew = analysis.skew
    if not skew.ranks:
        return []
    lacks = lacks_members(analysis)
    cells = wait_rows(skew, lacks=lacks)
    shown = cells if all_rows or len(cells) <= MAX_ROWS else cells[: MAX_ROWS - 1]
    rows = [*aligned([wait_head(lacks=lacks), *shown])]
    left = f"{len(cells) - len(shown)} more ranks: --all. " if len(shown) < len(cells) else ""
    rows.append(_filled(f"{left}{columns_text(analysis)}"))
    late_ns = late_from_ns(skew.residual_ns)
    listed = sorted(skew.ranks, key=_most_waited_for)[: len(shown)]
    if any(not each.times_last and each.blame_ns > late_ns for each in listed):
        rows.append(f"An arrival is late from more than {ms(late_ns)} ms on; leads also include smaller ones.")
    return rows


def _filled(text: str) -> str:
    return fill(text, MAX_WIDTH, break_on_hyphens=False)


def _most_waited_for(each: SkewRank) -> tuple[int, int, int]:
    """Return a key that sorts the rank for which the others waited longest first; by its leads where that is not known,
    as in older documents."""
    return -(each.mean_waited_for_ns or 0), -each.blame_ns, each.rank


def columns_text(analysis: Analysis) -> str:
    """Return what the columns of `wait_rows` are, in a sentence."""
    lacks = lacks_members(analysis)
    of_several = "the mean of these, " if len(analysis.skew.ranks) > PAIR else ""
    lead = f"; its lead: over the second-latest{' recorded' * lacks}"
    known = "" if analysis.run.missing_ranks else ", if any,"
    later = f". Members that were not recorded{known} may have come later" if lacks else ""
    leads_more = any(
        each.mean_waited_for_ns is not None and each.blame_ns - each.mean_waited_for_ns > LEADS_MORE * each.blame_ns
        for each in analysis.skew.ranks
    )
    why = " Waits are without transfer, and may be shorter than leads."
    return f"Others waited: {of_several}at calls to which it came last{lead}{later}.{why * leads_more}"


def hidden_text(analysis: Analysis) -> list[str]:
    """Return to how much of their waiting ranks were exposed, where that is less than half of it; else nothing."""
    exposed = [each.whole.causes for each in analysis.ranks]
    exposed_ns = sum(causes.get(cause, 0) for causes in exposed for cause in WAITS_FOR_ANOTHER_RANK)
    waited_ns = sum(each.wait_ns for each in analysis.skew.ranks)
    if not all(exposed) or exposed_ns >= MOSTLY_HIDDEN * waited_ns:
        return []
    said = f"Of {ms(waited_ns)} ms waited over all ranks, {ms(exposed_ns)} ms were exposed"
    return [f"{said}: most is beside compute or other calls."]


def unseen_text(skew: Skew) -> list[str]:
    """Return how long ranks waited at least for ranks that were not recorded, where tasks of their calls show it."""
    known = [(each.waited_for_unseen_ns, each.rank) for each in skew.ranks if each.waited_for_unseen_ns]
    if not known:
        return []
    known.sort(key=lambda each: (-each[0], each[1]))
    more = f" and {count(len(known) - MAX_ROWS, 'more rank')}" if len(known) > MAX_ROWS else ""
    waited = ", ".join(f"rank {rank} at least {ms(ns)} ms" for ns, rank in known[:MAX_ROWS])
    said = (
        f"Ranks that were not recorded came last: by the waiting tasks of their calls, {waited}{more} waited for them "
        "or for others that came before."
    )
    return [fill(said, MAX_WIDTH, break_on_hyphens=False)]


def wait_head(*, lacks: bool) -> tuple[str, ...]:
    """Return the columns of `wait_rows`."""
    return HEAD_OF_SOME if lacks else WAIT_HEAD


def wait_rows(skew: Skew, *, lacks: bool = False) -> list[tuple[str, ...]]:
    """Return a row of cells for each rank, the one that others waited longest for first; their columns are
    `wait_head`."""
    return [
        (
            f"rank {each.rank}", ms(each.wait_ns), *([] if lacks else [percent(each.wait_fraction)]),
            ms(each.mean_waited_for_ns), ms(each.blame_ns), str(each.times_last),
        )
        for each in sorted(skew.ranks, key=_most_waited_for)
    ]  # fmt: skip


def _stragglers(analysis: Analysis, *, all_rows: bool) -> list[str]:
    sentences = straggler_sentences(analysis, len(analysis.skew.stragglers) if all_rows else MAX_ROWS)
    return [*sentences, f"What to do: {EXPLAIN} straggler"] if sentences else []


def _delay(straggler: Straggler, listed: Mapping[int, int]) -> str:
    """Return the delay, and the part of it that the table does not contain."""
    more = straggler.blame_ns - listed.get(straggler.rank, 0)
    time = f"{ms(straggler.blame_ns)} ms"
    if straggler.blame_ns <= INDIRECT * listed.get(straggler.rank, 0):
        return time
    return f"{time}, {ms(more)} ms of it through ranks that waited for it, or in all-to-alls of uneven sizes"


def _cause(straggler: Straggler) -> str:
    evidence: Mapping[str, Any] = straggler.evidence
    words = "not known" if straggler.held_by == "unknown" else STRAGGLER_CAUSES[straggler.held_by]
    off_core, on_core = (evidence.get(key, 0) for key in ("off_core_more_ns", "on_core_more_ns"))
    if straggler.held_by == "host" and max(off_core, on_core) > 0:
        words = OFF_CORE if off_core >= on_core else ON_CORE
    idle, before = evidence.get("idle_more_ns"), evidence.get("before_first_launch_ns")
    if straggler.held_by == "host" and idle and before and before > 0:
        words += f" ({ms(min(before, idle))} of {ms(idle)} ms before the first launch of a step)"
    name, number, took = (evidence.get(key) for key in ("host_op", "operations_more", "operations_more_ns"))
    if name and number and took:
        several = "operation_names" in evidence
        ran = f"{number} more operations, {short(name)} among them," if several else f"{number} more {short(name)}"
        words = (
            f"more work ({ran} than ranks that waited for it, about {ms(took)} of the "
            f"{ms(evidence.get('computed_more_ns'))} ms that it computed longer)"
        )
    words += _beside_compute(straggler)
    times = evidence.get("input_elements_times")
    if times and straggler.held_by in LARGER_INPUTS:
        words = LARGER_INPUTS[straggler.held_by].format(
            f"its operations were given {times:.2f} times as many elements as its peers'"
        )
    if isinstance(evidence.get("longer_op"), str):
        words += f"; {ms(evidence.get('longer_op_ns'))} ms more than its peers in {short(evidence['longer_op'])}"
    if isinstance(evidence.get("range"), str):
        words += f"; {ms(evidence.get('range_more_ns'))} ms more than its peers in {short(evidence['range'])}"
        words += ", which no other rank has" if evidence.get("range_alone") else ""
    if straggler.paused:
        words += f"; its host alone pauses {straggler.paused}, as one that logs or writes to a tracker does"
    if straggler.slow_in:
        words += f"{straggler.slow_in}, and longer than in its other steps"
    if straggler.since and (times := evidence.get("times_since")):
        words += f"{straggler.since} its kernels take {times:.2f} times as long as its peers'"
    if straggler.alone_in and (times := evidence.get("times_in_only_step")):
        words += f"; in step {evidence['only_step']} its kernels take {times:.2f} times as long as its peers'"
    if evidence.get("recording_may_explain"):
        words += "; the overhead of recording may explain it"
    return words


def _beside_compute(straggler: Straggler) -> str:
    """Return words to follow the cause of a rank that computed longer: kernels that no other rank ran, and that its
    device idled as long as it computed longer, or more. Both together are what tuning or compilation looks like."""
    evidence = straggler.evidence
    computed, idle = (evidence.get(key) or 0 for key in ("computed_more_ns", "idle_more_ns"))
    if straggler.held_by not in COMPUTED_LONGER or not computed:
        return ""
    number, took, name = (evidence.get(key) for key in ("kernels_alone", "kernels_alone_ns", "kernels_alone_op"))
    words = f"; of {ms(computed)} ms that it computed longer, {ms(took)} ms are " if number else ""
    if number and isinstance(name, str):
        many = f"of {number} kernels" if number > 1 else "of one kernel"
        words += f"{many} that no other rank ran, {short(name)}{' the longest' * (number > 1)}"
    if idle < computed:
        return words
    words += f"; its device also idled {ms(idle)} ms longer, as its host started nothing"
    return words + ": perhaps compilation or tuning of kernels, as for a new shape" * bool(number)


def _clocks(skew: Skew, *, all_rows: bool, in_sets: bool) -> list[str]:
    """Return the clock offsets that are large enough to mislead readers of logs, and how well the clocks agree.

    `in_sets` is for clocks that cannot all be compared: offsets are those within each set of ranks that calls connect.
    """
    far = sorted(((rank, off) for rank, off in skew.clock_offset_ns.items()), key=lambda each: -abs(each[1]))
    far = [(rank, off) for rank, off in far if all_rows or abs(off) >= CLOCK_SHOWS_NS]
    if not far:
        return []
    shown = far if all_rows else far[:MAX_ROWS]
    offsets = ", ".join(f"rank {rank} {'+' if off >= 0 else '-'}{ms(abs(off))}" for rank, off in shown)
    more = f", {len(far) - len(shown)} more: --all" if len(shown) < len(far) else ""
    residual = f", residual {ms(skew.residual_ns)} ms" if skew.residual_ns is not None else ""
    differ = any(skew.clock_offset_ns.values())
    one = ", though all hosts have one name: it may be one clock" if skew.one_host and differ else ""
    zero = [int(rank) for rank, off in skew.clock_offset_ns.items() if not off]
    of_whom = f"rank {min(zero)}" if zero else "the reference rank"
    if in_sets:
        of_whom = "the reference rank of each set of ranks that share calls"
    return [f"Clock offsets from {of_whom}, ms (corrected above{residual}): {offsets}{more}{one}."]


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return the figures of a straggler's evidence in one line, without times of 0 or less."""
    parts = [_template(key).format(_figure(key, value)) for key, value in evidence.items() if _is_shown(key, value)]
    chance = evidence.get(CHANCE)
    if isinstance(chance, int | float):
        parts.append(f"p < {LEAST_CHANCE:.4f}" if chance < LEAST_CHANCE else f"p = {chance:.4f}")
    return "; ".join(parts)


def _is_shown(key: str, value: Any) -> bool:
    """Return whether a figure is listed: flags are part of the sentence, lists are too long for a line."""
    if key in (CHANCE, "throttle_reasons") or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0 or not key.endswith("_ns")


def _template(key: str) -> str:
    return WORDS.get(key) or f"{key.removesuffix('_ns').replace('_', ' ').replace('{', '').replace('}', '')} {{}}"


def _figure(key: str, value: float) -> str:
    if key.endswith("_ns"):
        return f"{ms(value)} ms"
    return percent(value) if key in SHARES else f"{value:,.4g}"


def missing_ranks_text(missing: Collection[int], unread: Collection[int]) -> str:
    """Return both numbers, for example `6 not recorded, 1 not readable`; empty where no rank is missing."""
    unreadable = len({*unread}.intersection(missing)) if missing else len(unread)
    parts = ((len(missing) - (unreadable if missing else 0), "not recorded"), (unreadable, "not readable"))
    return ", ".join(f"{number} {what}" for number, what in parts if number)
