"""Render recommendations as text: what to change, the gain, how to apply and verify it, and the page to read."""

import textwrap
from collections.abc import Sequence
from typing import Final

from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.chains import PAUSE_NS
from overlapscope.analysis.result import GAIN_AT_MOST, PublishedEffect, Recommendation, ShownBy
from overlapscope.report.formatting import EXPLAIN, MAX_WIDTH, count, ms, one_row
from overlapscope.report.text.chain import pause_words
from overlapscope.report.text.throughput import cost_text

MOST_BRIEF: Final = 3
"""Recommendations below an analysis."""
BEHIND_WAITS: Final = frozenset({"launch_bound", "host_pauses"})
"""Losses of hosts that may be late because they had waited for their devices, ..."""
WAITS: Final = frozenset({"blocking_calls", "blocking_launches"})
"""... where none of these is listed."""
REPLAY_SAYS: Final = (
    "Hosts may be late because they had waited for devices: overlapscope advise may list that first, by replay."
)
MOST_LINKS: Final = 5
MOST_LETTERS: Final = 40
LINKS: Final = {
    "host": "host:", "hand": "another thread:", "call": "inside", "alloc": "allocation by", "launch": "launched by",
    "owncall": "carried out by", "lane": "stream, after", "event": "event, after", "occupancy": "device full of",
    "sync": "synchronisation with", "poll": "poll for", "compute": "compute", "comm": "communication", "copy": "copy",
    "arrive": "arrival of", "transfer": "transfer of",
}  # fmt: skip
"""Words for the kinds of links of a chain."""
REPLAYED: Final = {"launch_bound": "in which hosts take no time, but for waits and batches,"}
"""What a replay leaves out, where that is more than the loss."""
REPLAY_CAPPED: Final = "a replay with pauses of at most 3 ms is"
"""Of a gain in which shorter pauses of hosts stay: without these, too, it may be larger."""


def render(recommendations: Sequence[Recommendation], reasons: Sequence[str], bound: str = "") -> str:
    """Return the whole text, ending in a newline; `bound` says what there is to gain at most, where nothing is
    recommended."""
    nothing = "Nothing to recommend." + (f" {bound}" if bound else "")
    parts = [_one(number, each) for number, each in enumerate(recommendations, 1)] or [_wrapped(nothing, "")]
    parts += ["\n".join(f"- {each}" for each in reasons)] if reasons else []
    return "\n\n".join(parts) + "\n"


def _one(number: int, each: Recommendation) -> str:
    lines = [f"{number}. {one_row(each.title)} [{each.id}]"]
    cost = cost_text(each.gpu_hours_a_day, each.price_a_day)
    cost = cost and f", {cost}"
    if each.predicted_gain_ns is not None and each.verdict != "look":
        low, high = ms(each.gain_low_ns or 0), ms(each.gain_high_ns or 0)
        lines.append(f"   {gain(each)} ({low} to {high}, 90 %){cost}, {each.confidence}")
    elif gain(each):
        lines.append(f"   {gain_with_cost(each)}, {each.confidence}")
    for name, reasons in (("measured", each.measured), ("assumed", each.assumed)):
        lines += [f"   {name + ':':11}{'; '.join(reasons)}"] if reasons else []
    for name, text in each.apply.items():
        lines += [
            f"   {name + ':':11}{line}" if at == 0 else f"   {'':11}{line}" for at, line in enumerate(text.split("\n"))
        ]
    if each.shown_by is not None:
        lines.append(f"   {'shown by:':11}{shown_text(each.shown_by)}")
    if each.published:
        lines.append(f"   {'elsewhere:':11}{published_text(each.published)}")
    return "\n".join([*lines, f"   verify:    {each.verify}", f"   more:      {EXPLAIN} {each.id}"])


def shown_text(shown: ShownBy) -> str:
    """Return the longest piece of a loss, and the chain of what the span after it waited for."""
    taken = ms(shown.end_ns - shown.start_ns)
    by = f" {'after' if shown.after_call else 'in'} {one_row(shown.call)}" if shown.call else ""
    by += f" of {one_row(shown.op)}" if shown.op else ""
    by += " had emptied the device" if shown.call and shown.after_call else ""
    chain = " <- ".join(one_row(_link(each)) for each in shown.chain[:MOST_LINKS])
    return f"{taken} ms on rank {shown.rank}{by}{': ' if chain else ''}{chain}"


def _link(link: Link) -> str:
    what = (link.what or "unnamed").partition("(")[0].partition("<")[0][:MOST_LETTERS].strip()
    if link.during:
        return f"host in {link.during[:MOST_LETTERS]}, before {what}"
    if link.kind == "host" and link.calls > 1:
        pause = f", longest pause {ms(link.longest_ns)} ms {pause_words(link)}" if link.longest_ns >= PAUSE_NS else ""
        return f"{link.calls} calls of the host, until {what}{pause}"
    return f"{LINKS.get(link.kind, link.kind)} {what}"


def published_text(effects: Sequence[PublishedEffect]) -> str:
    """Return the range of what such changes did elsewhere, and the conditions of its ends."""
    whole = [each for each in effects if each.kind == "end-to-end"] or list(effects)
    least, most = min(whole, key=lambda each: each.gain), max(whole, key=lambda each: each.gain)
    number = f"{count(len(whole), 'published measurement')} of other jobs, no prediction for this one"
    if least is most:
        return f"{_whole(least.gain)} throughput in {number}: {one_row(f'{least.change} ({least.condition})')}"
    ends = "; ".join(one_row(f"{_whole(each.gain)} {each.change} ({each.condition})") for each in (least, most))
    return f"{_whole(least.gain)} to {_whole(most.gain)} throughput in {number}: {ends}"


def _whole(gain: float) -> str:
    return f"{gain * 100:+.0f} %"


def render_brief(recommendations: Sequence[Recommendation], most: int = MOST_BRIEF, *, may_replay: bool = True) -> str:
    """Return the first `most` recommendations, one line each with the gain; empty without any. `may_replay`: whether
    a replay may find others."""
    if not recommendations:
        return ""
    lines = []
    for number, each in enumerate(recommendations[:most], 1):
        title, saved = _wrapped(f"{number}. {one_row(each.title)}"), gain_with_cost(each)
        apart = " " if len(title.rpartition("\n")[2]) + len(saved) + len(" ()") <= MAX_WIDTH else "\n   "
        lines.append(f"{title}{apart}({saved})" if saved else title)
    left = len(recommendations) - most
    where = f"How: {EXPLAIN} {' '.join(sorted({each.id for each in recommendations[:most]}))}"
    more = [f"{left} more"] if left > 0 else []
    return "\n".join(
        ["What to change:", *lines, *more, *(_by_replay_alone(recommendations) if may_replay else []), where]
    )


def _by_replay_alone(recommendations: Sequence[Recommendation]) -> list[str]:
    """Return that a replay may list another loss first: waits for the device that idle it only by the launches after
    them, beside late launches that no replay was asked of."""
    ids = {each.id for each in recommendations}
    late = any(each.id in BEHIND_WAITS and each.bound_from == "loss" for each in recommendations)
    return [REPLAY_SAYS] if late and not ids & WAITS else []


def _wrapped(text: str, indent: str = "   ") -> str:
    return textwrap.fill(text, MAX_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def gain(each: Recommendation) -> str:
    """Return the predicted gain, or its upper bound and what that is, as text; empty where neither is known."""
    if each.predicted_gain_ns is not None and each.verdict == "look":  # a replay that no error bar is known of
        return _gain_of_look(each.predicted_gain_ns, each.gain_low_ns or 0, each.gain_high_ns or 0, each.per)
    if each.predicted_gain_ns is not None:
        return f"saves {ms(each.predicted_gain_ns)} ms a {each.per}"
    return "" if each.gain_high_ns is None else _gain_of_bound(each, ms(each.gain_high_ns))


def _gain_of_bound(each: Recommendation, most: str) -> str:
    if "pauses_capped_ns" in each.evidence:
        return f"{REPLAY_CAPPED} {most} ms a {each.per} shorter"
    if each.bound_from == "loss":
        return f"costs {most} ms a {each.per}"
    if each.bound_from == "replay":
        (before, after), costs = replay_words(each), _costs(each)
        return f"{costs}; {before}{most} ms {after}" if costs else f"{before}{most} ms a {each.per} {after}"
    return f"saves at most {most} ms a {each.per}"


def replay_words(each: Recommendation) -> tuple[str, str]:
    """Return the words before and after the time by which a replay without a loss is shorter, at most: what it leaves
    out, and why it may gain more than the loss."""
    bound = "at most " * bool(each.evidence.get(GAIN_AT_MOST))
    more = ", as other losses get shorter, too" * (0 < (each.loss_ns or 0) < (each.gain_high_ns or 0))
    return f"a replay {REPLAYED.get(each.id, 'without it')} is {bound}", f"shorter{more}"


def _costs(each: Recommendation) -> str:
    """Return what a loss costs as text, where a replay without it gains less or more; else an empty text."""
    if each.bound_from != "replay" or each.loss_ns is None or each.loss_ns == each.gain_high_ns:
        return ""
    return f"costs {ms(each.loss_ns)} ms a {each.per}"


def _gain_of_look(middle_ns: float, low_ns: float, high_ns: float, per: str) -> str:
    middle, low, high = map(ms, (middle_ns, low_ns, high_ns))
    if middle == low != high:
        return f"saves at least {low} ms a {per}, up to {high}"
    return f"saves about {middle} ms a {per}, between {low} and {high}"


def gain_with_cost(each: Recommendation) -> str:
    """Return the gain as text, with the GPU-hours of a day and their price where they are known: of what the loss costs
    where that is said."""
    words, hours, costs = gain(each), cost_text(each.gpu_hours_a_day, each.price_a_day), _costs(each)
    if costs and hours and words.startswith(costs):
        return f"{costs}, {hours}{words.removeprefix(costs)}"
    return ", ".join(part for part in (words, hours) if part)
