"""Render what a moment of a run waited for, link by link, the latest first."""

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from overlapscope.analysis.graph.answers import Chain, Link, Moment
from overlapscope.analysis.graph.chains import MOST_READ, PAUSE_NS, row_of_link
from overlapscope.analysis.graph.model import KNOWN, ORDER
from overlapscope.report.formatting import EXPLAIN, aligned, count, ms, short

LONGEST_NAME: Final = 36
LONGEST_CALL: Final = 40
"""Characters of a call's name in a list of moments."""
MOST_FRAMES: Final = 30
LONGEST_FRAME: Final = 110
WORTH: Final = (
    "gone saves: how much earlier the recording would have ended without the step, at most; steps are not added up."
)
REPEATED: Final = 3
"""Equal rows that share one. A choice: two are read as fast."""
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
WORTH_A_WORD: Final = 0.1
"""Least share of a transfer that came after its end on another rank, for that to be said."""
_UNNAMED: Final = {"launch": "launched", "host": "what its thread did before"}
_LAUNCHES: Final = "Launch"
"""In the names of calls that launch kernels."""
_GAPS: Final = {
    "begins": "nothing before it was recorded",
    "not_launched": "its launch was not recorded",
    "first_of_lane": "what its stream did before was not recorded",
    "in_graph": "inside a replayed graph",
    "occupied": "the device was busy, the holder is not known",
}


def render(found: Chain, gains_ns: Sequence[int | None] = ()) -> str:
    """Return the whole text, ending in a newline; `gains_ns` are what the rows are worth, where that was asked."""
    lines = [heading(found)]
    if found.chain:
        lines += ["", *chain_lines(found.chain, gains_ns)]
        lines += [WORTH] if any(each is not None for each in gains_ns) else []
    lines += python_lines(found.python)
    if found.slack_ns is not None:
        lines.append(slack_words(found))
    if found.is_cut:
        lines.append(f"Earlier links: --links {more_links(found)}")
    if found.reason:
        lines.append(f"The rest is not known: {found.reason}.")
    return "\n".join(lines) + "\n"


def more_links(found: Chain) -> int:
    """Return the number of links to ask for, to see what is before those of a chain."""
    links = len(found.chain)
    return 2 * (links if links >= MOST_READ else len(stretches(found.chain)))


def python_lines(stack: Sequence[str]) -> list[str]:
    """Return the Python stack of a chain, of a deep one the innermost functions; nothing without one."""
    if not stack:
        return []
    more = len(stack) - MOST_FRAMES
    return [
        "In Python, the outermost first:",
        *([f"  ... {more} more; --json has them all"] if more > 0 else []),
        *(f"  {short(each, LONGEST_FRAME)}" for each in stack[-MOST_FRAMES:]),
    ]


def heading(found: Chain) -> str:
    """Return the sentence that says what the rank did at the moment, and which span is explained."""
    asked, span, name = found.moment_ns, found.explains, _explained_name(found)
    runs = span.start_ns <= asked < span.end_ns
    until = f"{name} since {ms(span.start_ns)} ms" if runs else f"until {name} begins at {ms(span.start_ns)} ms"
    return f"Rank {found.rank} at {ms(asked)} ms: {found.doing}, {until}."


def slack_words(found: Chain) -> str:
    """Return the sentence on the slack of the explained span; empty where it is not known."""
    name = _explained_name(found)
    if found.slack_ns is None:
        return ""
    if not found.slack_ns:
        return f"Slack of {name}: none; had it begun later, the recording would have ended later."
    slack = ms(found.slack_ns)
    return f"Slack of {name}: {slack} ms; had it begun so much later, the recording would have ended no later."


def _explained_name(found: Chain) -> str:
    return f"{found.explains.kind} {_named(found.explains.name, found.explains.op)}"


def moments_text(moments: Sequence[Moment], given: str) -> str:
    """Return the longest times without compute with the commands that explain them; `given` is the input as typed."""
    if not moments:
        return "No time without compute lies between two recorded pieces of work.\n"
    rows = [[f"{ms(each.end_ns - each.start_ns)} ms", f"rank {each.rank}", _explains(each, given)] for each in moments]
    head = "Longest losses: times without compute or copies, and what explains each:"
    return "\n".join([head, *aligned(rows, left=0)]) + "\n"


def _explains(each: Moment, given: str) -> str:
    """Return the command that explains a moment, or the call that no compute follows."""
    if each.in_call is None:
        return f"{EXPLAIN} {given} --at {each.rank}:{(each.start_ns + each.end_ns) / 2e6:.3f}"
    call = short(each.in_call, LONGEST_CALL)
    return f"from {ms(each.start_ns)} ms on, in {call} until {ms(each.end_ns)} ms: no compute follows"


def chain_lines(chain: Sequence[Link], gains_ns: Sequence[int | None] = ()) -> list[str]:
    """Return a table of the links; what ran on one stream without waiting for anything else is one row, and so is what
    is repeated: it begins with the first, and lasts as long as all."""
    found = stretches(chain)
    rows, words = [["begins at ms", "lasts ms", "rank"]], ["known     it waited for, the latest first"]
    folds = folded([(each.rank, each.known, each.words) for each in found])
    for fold in folds:
        every = [found[at] for at in fold]
        lasted = [max(each.end_ns - each.start_ns, 0) for each in every]
        rows.append([ms(every[-1].start_ns), ms(sum(lasted)), str(every[0].rank)])
        words.append(f"{every[0].known:9} {times_words(every[0].words, lasted)}")
    if any(each is not None for each in gains_ns):
        gains = ["gone saves ms", *(_gain_cell([gains_ns[at] for at in fold]) for fold in folds)]
        rows = [[*row, gain] for row, gain in zip(rows, gains, strict=True)]
    return [f"{line}  {said}" for line, said in zip(aligned(rows, left=0), words, strict=True)]


def _gain_cell(gains_ns: Sequence[int | None]) -> str:
    """Return what a row is worth; of a repeated one the most of any, as steps are not added up."""
    known = [each for each in gains_ns if each is not None]
    return ms(max(known, default=None)) if len(gains_ns) == 1 else f"<= {ms(max(known, default=None))}"


def times_words(words: str, lasted_ns: Sequence[int]) -> str:
    """Return the words of a row that stands for several, with how many they are and how long they lasted each."""
    if len(lasted_ns) == 1:
        return words
    least, most = ms(min(lasted_ns)), ms(max(lasted_ns))
    each = f"{most} ms each" if least == most else f"{least} to {most} ms each"
    return f"{len(lasted_ns)} x {words}, {each}"


def folded(rows: Sequence[Hashable]) -> list[list[int]]:
    """Return the positions of rows by the line that shows them: a row, or two in turn, that follow each other REPEATED
    times or more share it."""
    found: list[list[int]] = []
    at = 0
    while at < len(rows):
        shared = {period: _repeated(rows, at, period) for period in (1, 2)}
        period, many = max(
            ((period, many) for period, many in shared.items() if many >= REPEATED * period),
            key=lambda each: each[1], default=(1, 1),
        )  # fmt: skip
        found += [list(range(first, at + many, period)) for first in range(at, at + period)]
        at += many
    return found


def _repeated(rows: Sequence[Hashable], at: int, period: int) -> int:
    """Return how many rows from one on are the same as that `period` rows before, with the first ones."""
    until = at + period
    while until < len(rows) and rows[until] == rows[until - period]:
        until += 1
    return until - at


def gain_words(gain_ns: int | None) -> str:
    """Return what a step of a chain is worth, in a few words."""
    if gain_ns is None:
        return "gain n/a"
    return f"gone: saves {ms(gain_ns)} ms" if gain_ns else "gone: saves nothing"


class Stretch(NamedTuple):
    """One row of a chain: a link, or links of one rank that follow each other on its stream."""

    start_ns: int
    end_ns: int
    rank: int
    known: str
    words: str
    links: int
    """Number of links it stands for."""


def stretches(chain: Sequence[Link], *, brief: bool = False, step: int | None = None) -> list[Stretch]:
    """Return the rows of a chain, the latest first; `brief` names no kernels. Where a host was mostly in another step
    than `step`, that is said."""
    found = []
    for _, group in groupby(chain, key=row_of_link()):
        links = list(group)
        known = links[0].known if len(links) == 1 else KNOWN[ORDER]
        words = _words(links, brief=brief)
        if step is not None and len(links) == 1 and links[0].step not in (None, step):
            words = words.replace("host: ", f"host, mostly in step {links[0].step}: ", 1)
        found.append(Stretch(links[-1].start_ns, links[0].end_ns, links[0].rank, known, words, len(links)))
    return found


def _words(links: Sequence[Link], *, brief: bool) -> str:
    work = [each for each in links if each.kind in ("compute", "copy")]
    if len(links) == 1 or not work:
        return link_words(links[0], brief=brief)
    longest = max(work, key=lambda each: each.end_ns - each.start_ns)
    if len(work) == 1:
        return link_words(work[0], brief=brief)
    pieces = f"{len(work)} pieces of work on its stream or thread"
    if not (longest.what or longest.op):
        return pieces
    return f"{pieces}, the longest {_named(longest.what, longest.op, brief=brief)}"


def link_words(each: Link, *, brief: bool = False) -> str:
    """Return what the time of a link is, in one line."""
    words = _WORDS.get(each.kind, each.kind + " {what}").format(what=_named(each.what, each.op, brief=brief))
    if each.what is None and each.kind in _UNNAMED:  # a CPU run records no calls
        words = _UNNAMED[each.kind]
    elif each.kind == "launch" and each.span is not None:
        words = f"launch of {_named(each.what, each.op, brief=brief)}"
    elif each.kind == "host":
        words = f"host: {_host_words(each, brief=brief)}"
    lasted_ns = each.end_ns - each.start_ns
    if each.late_end_ns >= max(WORTH_A_WORD * lasted_ns, 1):
        late = "all" if each.late_end_ns >= lasted_ns else f"{ms(each.late_end_ns)} ms"
        words += f", {late} of it after the call had ended on another rank"
    if not each.unexplained_ns:
        return words
    return f"{words}; {ms(each.unexplained_ns)} ms not explained: {_GAPS.get(each.gap, 'no rule names why')}"


def _host_words(each: Link, *, brief: bool) -> str:
    """Return what a host did in the time of a link."""
    last = _named(each.what, each.op, brief=brief)
    inside = _call_words(each) if each.in_call else f"in {last}, before its launch" if each.in_op else ""
    if each.during:
        return f"in {_named(each.during, None, brief=brief)}, {inside or f'before {last}'}"
    if each.span is not None and each.calls <= 1:
        return "no recorded work of the thread: it waited, slept, or ran Python"
    if each.calls > 1:
        calls = f"{each.calls} calls"
        if 2 * each.inside_ns > each.end_ns - each.start_ns:
            names = " and ".join(short(name, LONGEST_NAME) for name in each.inside)
            calls = f"{count(each.inside_calls, 'call')} of {names}, {ms(each.inside_ns)} ms,"
        return f"{calls} until {last}, longest pause {ms(each.longest_ns)} ms {pause_words(each)}"
    if each.longest_ns < PAUSE_NS:
        return last
    return inside or f"until {last}"


def pause_words(each: Link) -> str:
    """Return where the longest pause of a host lay."""
    where = _call_words(each) if each.in_call else f"before {short(each.before or 'a call', LONGEST_NAME)}"
    return f"in {short(each.pause_during, LONGEST_NAME)}, {where}" if each.pause_during else where


def _call_words(each: Link) -> str:
    """Return the call inside of which the longest pause of a host lay, with its operation."""
    call = each.in_call or ""
    of = f" of {short(each.before, LONGEST_NAME)}" if each.before and each.before != call else ""
    return f"in the {'launch ' if _LAUNCHES in call else ''}call {short(call, LONGEST_NAME)}{of}"


def _named(name: str | None, op: str | None, *, brief: bool = False) -> str:
    if brief or op == name or not op:
        return short(op or name or "unnamed", LONGEST_NAME)
    return f"{short(op, LONGEST_NAME)} ({short(name or 'unnamed', LONGEST_NAME)})"
