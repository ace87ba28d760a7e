"""The critical path of a typical step, and its longest loss, in a few lines."""

from textwrap import fill
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.graph.answers import CriticalPath, LateBefore, Link, LongestLoss, PathOperation, StepPath
from overlapscope.analysis.job_step.headline import FewSteps
from overlapscope.analysis.result import Analysis
from overlapscope.report.formatting import EXPLAIN, MAX_WIDTH, aligned, count, ms, percent, short
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text.chain import folded, stretches, times_words
from overlapscope.timeline.operations import AUTOGRAD_NODE, COMPUTATION

NO_BREAK: Final = "\N{NO-BREAK SPACE}"
"""A space at which `fill` breaks no line."""
_GAPS: Final = "gaps"
"""Of the part `idle`: gaps between kernels beside which the device does something else, so that it is not idle."""
_PATH_WORDS: Final = {
    "compute": "compute",
    "transfer": "transfer",
    "late_end": "late ends of calls",
    "communication": "communication (wait time not separated)",
    "copy": "memcpy",
    "launch": "launch latency",
    "host": "host",
    "host_or_wait": "host, or host waiting for the device",
    "idle": "idle",
    _GAPS: "gaps between kernels, other work beside them",
    "unknown": "unknown",
    "before_recording": "before the recording of its rank",
}
MORE_LINKS: Final = 1000
"""Links to ask `explain` for, where those of the longest loss end within it."""
MOST_LINKS: Final = 5
MOST_RANKS = 4
WORTH_SHOWING = 0.001
WORTH_STANDING_STILL = 0.05
"""Least share of a critical path in which a host stood still, for that to be said."""
MAY_WAIT = 0.1
"""From this share of a path in communication that may be waiting, it is not said on which ranks it lies."""
MOST_NAMES = 3
LONGEST_NAME = 48
WORTH_LATE: Final = 0.1
"""Least share of a loss for which a rank came late, and of that of what it did longer, for these to be said."""
_LONGER: Final = {
    "peer_compute": "computed", "peer_core": "waited for a core", "peer_comm": "communicated", "peer_copy": "copied",
    "peer_host": "idled",
}  # fmt: skip
WORTH_NAMING: Final = 0.01
"""Least share of a loss of what is named."""


def critical_path_text(found: CriticalPath, few: FewSteps | None = None, own_ns: int | None = None) -> str:
    """Return the critical path of a typical step in a few lines; the reason where there is no path. `few`: where few
    steps communicate; `own_ns`: how long its ranks' own windows take, where they are much shorter."""
    path = next((each for each in found.steps if each.step == found.median_step), None)
    if path is None or not path.length_ns:
        return fill(f"No critical path: {found.reason}.", MAX_WIDTH) if found.reason else ""

    def share(ns: int) -> str:
        return f"{ns / path.length_ns * 100:.1f}"

    parts, bands = _without_gaps(path)

    def band(part: str, ns: int) -> str:
        least, most = map(share, bands.get(part, (ns, ns)))
        return f"{_PATH_WORDS[part]} {least if least == most else f'{least} to {most}'} %"

    typical = " (a typical step)" if len(found.steps) > 1 else ""
    if few is not None and typical and path.parts.get("transfer", 0) + path.parts.get("communication", 0):
        of_steps = "most" if 2 * few.communicate < few.steps else "half"
        typical = f" (it communicates, unlike {of_steps}: {few.communicate} of {few.steps} steps do)"
    what = "the recording" if path.step is None else f"step {path.step}{typical}"
    within = "" if found.scope == "ranks" else f", within rank {path.rank}: its waits for other ranks are not recorded"
    if own_ns is not None and not within:
        own = f"its ranks' own windows take {ms(own_ns)} ms in the mean"
        within = f", from its begin on one rank to its end on another; {own}"
    shown = {part: ns for part, ns in parts.items() if ns >= WORTH_SHOWING * path.length_ns}
    text = [
        fill(f"Critical path of {what}: {ms(path.length_ns)} ms{within}.", MAX_WIDTH),
        ", ".join(band(part, ns) for part, ns in sorted(shown.items(), key=lambda item: -item[1])),
    ]
    if found.scope == "ranks" and path.parts.get("communication", 0) >= MAY_WAIT * path.length_ns:
        text[-1] += "; its ranks are not given, as that communication may be waiting for others"
    elif found.scope == "ranks":
        ranks = list(path.ranks.items())
        more = f", {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
        text[-1] += "; on " + ", ".join(f"rank {rank} {share(ns)} %" for rank, ns in ranks[:MOST_RANKS]) + more
    text[-1:] = [f"  {line}" for line in fill(text[-1], MAX_WIDTH - 2).split("\n")]
    text += _within_work(path)
    if path.operations:
        named = ", ".join(_unbroken(f"{_on_path(each)} {ms(each.ns)} ms") for each in path.operations[:MOST_NAMES])
        lines = fill(f"longest operations: {named}", MAX_WIDTH - 2).replace(NO_BREAK, " ").split("\n")
        text += [f"  {line}" for line in lines]
    return "\n".join([*text, *_of_own_chains(path)])


def _without_gaps(path: StepPath) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Return the parts of a path and their bands, with gaps beside other work apart from idle time. Each way along
    ties is taken to have as much of these gaps as the one that is shown."""
    gaps_ns, idle_ns = path.gaps_beside_work_ns, path.parts.get("idle", 0)
    if not gaps_ns:
        return path.parts, path.bands
    least, most = path.bands.get("idle", (idle_ns, idle_ns))
    parts = path.parts | {"idle": idle_ns - gaps_ns, _GAPS: gaps_ns}
    return parts, path.bands | {"idle": (max(least - gaps_ns, 0), max(most - gaps_ns, 0))}


def _within_work(path: StepPath) -> list[str]:
    """Return lines about what is no work in the compute and the communication of the path."""
    each = [
        (path.stood_still_ns, "compute, at least, its host stood still"),
        (path.waited_for_core_ns, "compute its host waited for a core"),
        (path.garbage_collected_ns, "compute its host collected garbage"),
        (path.computed_in_calls_ns, "communication its own threads computed"),
    ]
    return [f"  in {ms(ns)} ms of the {what}" for ns, what in each if ns >= WORTH_STANDING_STILL * path.length_ns]


def _of_own_chains(path: StepPath) -> list[str]:
    """Return lines about when the step would end if no rank waited for another; none of a single rank."""
    others = {rank: ns for rank, ns in path.own_chains_ns.items() if int(rank) != path.rank}
    if not others:
        return []
    latest, first = (choose(others, key=others.__getitem__) for choose in (max, min))
    said = (
        f"The host of rank {path.rank} waits for next to nothing, so its calls are the path by construction. If no "
        f"rank waited for another, the step would end after {ms(path.own_chains_ns[str(path.rank)])} ms on rank "
        f"{path.rank}, after {ms(others[latest])} ms on rank {latest}, first after {ms(others[first])} ms on rank "
        f"{first}."
    )
    return [f"  {line}" for line in fill(said, MAX_WIDTH - 2).split("\n")]


def bound_text(analysis: Analysis) -> str:
    """Return what most of the critical path is, and what changes of communication can gain at most, in a sentence.

    Empty where either is not known.
    """
    found = analysis.critical_path
    path = next((each for each in found.steps if each.step == found.median_step), None)
    ranks, head = set(analysis.headline.ranks), analysis.headline
    exposed = [rank_figures(each)["exposed_comm_ns"] for each in analysis.ranks if each.rank in ranks]
    most_ns = max((ns for ns in exposed if ns is not None), default=None)
    if path is None or not path.length_ns or not path.parts or most_ns is None:
        return ""
    on_path_ns = sum(path.parts.get(each, 0) for each in ("transfer", "late_end", "communication"))
    part = max(path.parts, key=path.parts.__getitem__)
    where = "of the recording" if path.step is None else f"of step {path.step}"
    share, gain = percent(path.parts[part] / path.length_ns), ms(max(most_ns, on_path_ns))
    return (
        f"{_PATH_WORDS[part].capitalize()} is {share} of the critical path {where}: no change of communication gains "
        f"more than {gain} ms a {head.window}, but for compute that it slows."
    )


def _unbroken(words: str) -> str:
    """Return words between which `fill` breaks no line."""
    return words.replace(" ", NO_BREAK)


def _on_path(each: PathOperation) -> str:
    """Return an operation of a path in words: host time is in a range, or before an operation."""
    name = short(each.name, LONGEST_NAME)
    if each.part != "host":
        empty = " (no operation in it)" if each.name.startswith(AUTOGRAD_NODE) else ""
        return f"{each.part.replace('_', ' ')}: {name}{empty}"
    if each.name == COMPUTATION:
        return "host between operations"
    return f"host {'in' if each.inside else 'before'} {name}"


def longest_loss_text(loss: LongestLoss | None) -> str:
    """Return the longest stretch that a rank lost in a typical step, and what it waited for, in a few lines.

    Where some of it is not shown, the command that shows it names the input RUN.
    """
    if loss is None:
        return ""
    lost_ns = loss.end_ns - loss.start_ns
    of = "the recording" if loss.step is None else f"step {loss.step}"
    more = f"{EXPLAIN} RUN --at {loss.rank}:{(loss.start_ns + loss.end_ns) / 2e6:.3f}"
    without = f"{ms(lost_ns)} ms without compute or copies on rank {loss.rank}"
    lines = [f"Longest loss of {of}: {without}; in that time it waited for:"]
    links = [_within(link, loss) for link in loss.chain.chain if link.end_ns > loss.start_ns]
    inside = [
        (each.end_ns - each.start_ns, each.rank, each.known, each.words)
        for each in stretches(links, brief=True, step=loss.step)
    ]
    folds = [[inside[at] for at in fold] for fold in folded([each[1:] for each in inside])]
    rows = [
        (sum(each[0] for each in fold), *fold[0][1:3], times_words(fold[0][3], [each[0] for each in fold]))
        for fold in folds
    ]
    worth = sorted((each[0] for each in rows), reverse=True)[:MOST_LINKS]
    shown = [each for each in rows if each[0] >= max(WORTH_NAMING * lost_ns, worth[-1])]
    cells = aligned([[ms(ns), "ms", f"rank {rank}"] for ns, rank, _, _ in shown], left=0) if shown else ()
    for line, (_, _, known, words) in zip(cells, shown, strict=True):
        lines.append(f"  {line}  {short(f'{words} ({known})', MAX_WIDTH - len(line) - 4)}")
    left_ns = sum(each[0] for each in inside) - sum(each[0] for each in shown)
    if left_ns >= WORTH_NAMING * lost_ns:
        lines.append(f"  ... {count(len(rows) - len(shown), 'more line')}, {ms(left_ns)} ms: {more}")
    links = loss.chain.chain
    if loss.chain.is_cut and links and links[-1].start_ns > loss.start_ns:
        before_ns = min(links[-1].start_ns, loss.end_ns) - loss.start_ns
        lines.append(f"  The {ms(before_ns)} ms before the last links: {more} --links {MORE_LINKS}")
    if not loss.chain.is_cut and (not links or links[-1].start_ns > loss.start_ns):
        lines.append(f"  Nothing before that was recorded of rank {links[-1].rank if links else loss.rank}.")
    if loss.left_out_ns:
        lines.append(f"  One of {ms(loss.left_out_ns)} ms is left out: it waited for what began before the recording.")
    if loss.late is not None and loss.late.later_ns >= WORTH_LATE * lost_ns:
        lines.append(f"  {_late_words(loss.late, loss.rank)}")
    return "\n".join(lines)


def _within(link: Link, loss: LongestLoss) -> Link:
    """Return the part of a link that lies in a loss."""
    start_ns, end_ns = max(link.start_ns, loss.start_ns), min(link.end_ns, loss.end_ns)
    late_ns = end_ns - max(link.end_ns - link.late_end_ns, start_ns)
    paused_ns = min(link.longest_start_ns + link.longest_ns, end_ns) - max(link.longest_start_ns, start_ns)
    return replace(
        link, start_ns=start_ns, end_ns=end_ns, late_end_ns=max(late_ns, 0), longest_ns=max(paused_ns, 0),
        unexplained_ns=min(link.unexplained_ns, max(end_ns - start_ns, 0)),
    )  # fmt: skip


def _late_words(late: LateBefore, waiting: int) -> str:
    """Return how much later a rank came than one that waited, and what it had done longer since they last met."""
    did = [(_LONGER[cause], ns) for cause, ns in late.longer_ns.items() if ns >= WORTH_LATE * late.later_ns]
    longer = ", ".join(f"{word} {ms(ns)} ms longer" for word, ns in sorted(did, key=lambda item: -item[1]))
    came = f"Rank {late.rank} came {ms(late.later_ns)} ms later than rank {waiting}"
    return f"{came}: since they last waited for each other it {longer}." if longer else f"{came}."
