"""Render what a moment of a run waited for, link by link, the latest first."""

from collections.abc import Callable, Sequence
from itertools import count as count_from
from itertools import groupby
from typing import Final

from overlapscope.analysis.graph.answers import Chain, Link
from overlapscope.analysis.graph.model import KNOWN, ORDER
from overlapscope.report.formatting import aligned, ms, short

LONGEST_NAME: Final = 36
_ON_STREAM: Final = ("lane", "compute", "copy")
PAUSE_NS: Final = 200_000
"""Between two pieces of work, a thread that did nothing for so long is a row of its own."""
_WORDS: Final = {
    "launch": "launched by {what}",
    "owncall": "carried out by its own call {what}",
    "lane": "stream: after {what}",
    "event": "event: after {what} on another stream",
    "occupancy": "device full until the last wave of {what}",
    "sync": "synchronisation: host waited for {what}",
    "poll": "poll: host waited for {what}",
    "compute": "compute {what}",
    "comm": "communication {what}, with its wait time",
    "copy": "copy {what}",
    "transfer": "transfer of {what}",
    "arrive": "late rank: began {what} last",
}
"""What the time of a link is, by its kind."""
_GAPS: Final = {
    "begins": "nothing before it was recorded",
    "not_launched": "its launch was not recorded",
    "first_of_lane": "what its stream did before was not recorded",
    "in_graph": "inside a replayed graph",
    "occupied": "the device was busy, the holder is not known",
}


def render(found: Chain) -> str:
    """Return the whole text, ending in a newline."""
    asked, span = found.moment_ns, found.explains
    name = f"{span.kind} {_named(span.name, span.op)}"
    runs = span.start_ns <= asked < span.end_ns
    until = f"{name} since {ms(span.start_ns)} ms" if runs else f"until {name} begins at {ms(span.start_ns)} ms"
    lines = [f"Rank {found.rank} at {ms(asked)} ms: {found.doing}, {until}."]
    if found.chain:
        lines += ["", *chain_lines(found.chain)]
    elif not found.reason:
        lines.append("Nothing before it was recorded.")
    if found.slack_ns is not None:
        lines.append(_slack_words(found.slack_ns, name))
    if found.is_cut:
        lines.append(f"Earlier links: --links {2 * len(found.chain)}")
    if found.reason:
        lines.append(f"The rest is not known: {found.reason}.")
    return "\n".join(lines) + "\n"


def _slack_words(slack_ns: int, name: str) -> str:
    if not slack_ns:
        return f"Slack of {name}: none; had it begun later, the recording would have ended later."
    return f"Slack of {name}: {ms(slack_ns)} ms; had it begun so much later, the recording would have ended no later."


def chain_lines(chain: Sequence[Link]) -> list[str]:
    """Return a table of the links; what ran on one stream without waiting for anything else is one row."""
    found = stretches(chain)
    times = [[ms(start), ms(max(end - start, 0)), str(rank)] for start, end, rank, *_ in found]
    rows = [["begins at ms", "lasts ms", "rank"], *times]
    words = ["known     it waited for, the latest first", *(f"{known:9} {said}" for *_, known, said in found)]
    return [f"{line}  {said}" for line, said in zip(aligned(rows, left=0), words, strict=True)]


def stretches(chain: Sequence[Link], *, brief: bool = False) -> list[tuple[int, int, int, str, str]]:
    """Return start, end, rank, how it is known and what it is of each row of a chain; `brief` names no kernels."""
    found = []
    for _, group in groupby(chain, key=_stretch()):
        links = list(group)
        known = links[0].known if len(links) == 1 else KNOWN[ORDER]
        found.append((links[-1].start_ns, links[0].end_ns, links[0].rank, known, _words(links, brief=brief)))
    return found


def _stretch() -> Callable[[Link], tuple[int, int]]:
    """Return a key that is the same for links of one rank that follow each other on its stream, new for others."""
    number = count_from(0)
    last = -1, -1

    def key(each: Link) -> tuple[int, int]:
        nonlocal last
        between_work = each.kind == "host" and each.span is not None and each.end_ns - each.start_ns < PAUSE_NS
        follows = each.kind in _ON_STREAM or between_work
        if not follows or each.unexplained_ns:
            next(number)
            last = -1, next(number)
        elif last[0] != each.rank:
            last = each.rank, next(number)
        return last

    return key


def _words(links: Sequence[Link], *, brief: bool) -> str:
    work = [each for each in links if each.kind in ("compute", "copy")]
    if len(links) == 1 or not work:
        return link_words(links[0], brief=brief)
    longest = max(work, key=lambda each: each.end_ns - each.start_ns)
    if len(work) == 1:
        return link_words(work[0], brief=brief)
    name = _named(longest.what, longest.op, brief=brief)
    return f"{len(work)} pieces of work on its stream or thread, the longest {name}"


def link_words(each: Link, *, brief: bool = False) -> str:
    """Return what the time of a link is, in one line."""
    words = _WORDS.get(each.kind, each.kind + " {what}").format(what=_named(each.what, each.op, brief=brief))
    if each.what is None:  # a CPU run records no calls
        words = "launched" if each.kind == "launch" else "host"
    elif each.kind == "host":
        last = _named(each.what, each.op, brief=brief)
        words = f"host: {last}"
        if each.span is not None and each.calls <= 1:
            words = "no recorded work of the thread: it waited, slept, or ran Python"
        elif each.calls > 1:
            pause = f"{ms(each.longest_ns)} ms before {short(each.before or 'a call', LONGEST_NAME)}"
            words = f"host: {each.calls} calls to {last}, longest pause {pause}"
    if not each.unexplained_ns:
        return words
    return f"{words}; {ms(each.unexplained_ns)} ms not explained: {_GAPS.get(each.gap, 'no rule names why')}"


def _named(name: str | None, op: str | None, *, brief: bool = False) -> str:
    if brief or op == name or not op:
        return short(op or name or "unnamed", LONGEST_NAME)
    return f"{short(op, LONGEST_NAME)} ({short(name or 'unnamed', LONGEST_NAME)})"
