"""The same step of both runs, one above the other, on the page that compares them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.analysis.cause_table import cause_label
from overlapscope.errors import InputError
from overlapscope.report.formatting import count, ms, signed_ms, size
from overlapscope_dashboards.parts import card, empty, figure_card, notes, table
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.site import Unknown, query_of, run_address
from overlapscope_dashboards.timeline.labels import NAMES
from overlapscope_dashboards.timeline.side_by_side import (
    Side,
    draw_beside,
    early,
    side_of,
    spent,
    whole_steps,
    window_of,
)
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.views.paired_calls import Call, Link, Linked, lasted, linked, total

TITLE = "The same step in both runs"
MAX_MARKED = 5
"""Collectives that are marked in the figure; those that changed most."""
MAX_LISTED = 50
MAX_TRIED: Final = 16
"""Ranks that are looked at for a common step, where the address names none."""
MAX_OFFERED: Final = 32
Steps = dict[int, tuple[int, int]]
"""Start and end by number."""
StepsOf = Callable[[int], Steps]


def step_cards(base: Opened, candidate: Opened, query: Mapping[str, str]) -> list[Component]:
    """Return the card; `?step=8&rank=0` chooses. Raises Unknown where there is no such step or rank."""
    try:
        sources = source_of(base), source_of(candidate)
        ranks = sources[0].ranks, sources[1].ranks
        found = choose(query, ranks, (partial(whole_steps, sources[0]), partial(whole_steps, sources[1])))
    except InputError as error:
        return [card(TITLE, empty(f"There is nothing to lay above each other: {error}."))]
    except Unknown as unknown:
        own = {"base": base.id, "candidate": candidate.id}
        there = [(words, f"/compare?{urlencode(own)}&{tail}") for words, tail in unknown.there]
        raise Unknown(str(unknown), there) from None
    if isinstance(found, str):
        return [card(TITLE, empty(found))]
    for each in sources:
        if each.figures is None:
            each.work_out()
    ours, theirs = (
        side_of(opened.name, source, found.rank, found.step, window)
        for opened, source, window in zip((base, candidate), sources, (found.base, found.candidate), strict=True)
    )
    return [_card(base, candidate, found, ours, theirs)]


def register(app: Dash) -> None:
    """Put the step and the rank that were typed into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("compare-step", "value"),
        Input("compare-rank", "value"),
        State("compare-shown", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose_step(step: str | None, rank: str | None, shown: list[int] | None, search: str | None) -> Any:
        return asked_for(step, rank, shown, search) or no_update


def asked_for(step: str | None, rank: str | None, shown: Sequence[int] | None, search: str | None) -> str | None:
    """Return the query for what was typed, where an empty field leaves the choice open; None where that is shown."""
    typed = {"step": (step or "").strip(), "rank": (rank or "").strip()}
    if shown is None or list(typed.values()) == [str(each) for each in shown]:
        return None
    query = {name: value for name, value in query_of(search).items() if name not in typed}
    return f"?{urlencode(query | {name: value for name, value in typed.items() if value})}"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A step on a rank that both runs recorded whole; `steps` and `ranks` are what else there is."""

    rank: int
    step: int
    base: tuple[int, int]
    candidate: tuple[int, int]
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    usual: bool
    """Whether the address left the step open."""


def _card(base: Opened, candidate: Opened, found: Chosen, ours: Side, theirs: Side) -> Component:
    sides = (ours, theirs)
    links = None if ours.calls is None or theirs.calls is None else linked(ours.calls, theirs.calls)
    marked = [each for each in links.links if each.change_ns][:MAX_MARKED] if links else []
    drawn = draw_beside(ours, theirs, marked)
    longer = signed_ms(theirs.length_ns - ours.length_ns)
    words = (
        f"Step {found.step} of rank {found.rank} lasts {ms(ours.length_ns)} ms in the base and {ms(theirs.length_ns)} "
        f"ms in the candidate: a difference of {longer} ms."
    )
    if found.usual and len(found.steps) > 2:
        words += f" Of {len(found.steps)} steps it is the one whose difference is the middle one."
    twin = html.Div([_states(sides), *_calls(links)])
    remarks = [*([_linked_words(links, len(marked))] if links else []), *drawn.notes]
    return figure_card(
        TITLE, drawn.figure, twin, words=words, id="compare-timelines", height=drawn.height,
        beside=[_controls(base, candidate, found), _legend(sides)],
        after=[*_changed(marked), notes(remarks), _ways(base, candidate, sides)],
    )  # fmt: skip


def _controls(base: Opened, candidate: Opened, found: Chosen) -> Component:
    fields = [
        part
        for name, value in (("step", found.step), ("rank", found.rank))
        for part in (
            html.Label(name.capitalize(), htmlFor=f"compare-{name}"),
            dcc.Input(id=f"compare-{name}", type="text", value=str(value), debounce=True, autoComplete="off",
                      maxLength=9, className="field few"),
        )
    ]  # fmt: skip
    at = found.steps.index(found.step)
    ways = []
    for words, place in (("step before", at - 1), ("step after", at + 1)):
        if 0 <= place < len(found.steps):
            own = {"base": base.id, "candidate": candidate.id, "step": found.steps[place], "rank": found.rank}
            ways.append(dcc.Link(words, href=f"/compare?{urlencode(own)}", className="chip"))
    there = f"{count(len(found.steps), 'step')} and {count(len(found.ranks), 'rank')} in common"
    shown = dcc.Store(id="compare-shown", data=[found.step, found.rank])
    return html.Div([*fields, *ways, html.Span(there, className="note"), shown], className="choose")


def _legend(sides: Sequence[Side]) -> Component:
    ours, theirs = (spent(each) for each in sides)
    rows = []
    for state in dict.fromkeys([*ours, *theirs]):
        before, after = ours.get(state, 0), theirs.get(state, 0)
        rows.append(html.Div([
            html.Span(className=f"swatch k-{state}"),
            html.Span(NAMES[state], className="what"),
            html.Span(f"{ms(before)} → {ms(after)} ms", className="amount"),
            html.Span(f"{signed_ms(after - before)} ms", className="share"),
        ]))  # fmt: skip
    return html.Div(rows, className="tl-legend")


def _states(sides: Sequence[Side]) -> Component:
    ours, theirs = (spent(each) for each in sides)
    rows = [
        (NAMES[state], ms(ours.get(state, 0)), ms(theirs.get(state, 0)),
         signed_ms(theirs.get(state, 0) - ours.get(state, 0)))
        for state in dict.fromkeys([*ours, *theirs])
    ]  # fmt: skip
    return table(("ms of the step", "base", "candidate", "difference"), rows, caption="The step by state")


def _changed(marked: Sequence[Link]) -> list[Component]:
    if not marked:
        return []
    head = ("marked", "collective", "calls", "length, ms", "waited, ms", "exposed, ms", "difference", "exposed by")
    rows = [
        (
            str(number),
            _named(each),
            _change(str(len(each.base)), str(len(each.candidate))),
            _change(ms(lasted(each.base)), ms(lasted(each.candidate))),
            _change(ms(total(each.base, _waited)), ms(total(each.candidate, _waited))),
            _change(ms(total(each.base, _exposed)), ms(total(each.candidate, _exposed))),
            signed_ms(each.change_ns),
            html.Span(_change(_causes(each.base), _causes(each.candidate)), className="why"),
        )
        for number, each in enumerate(marked, 1)
    ]
    told = table(head, rows, caption="Collectives that changed most, base → candidate", left=2)
    return [html.Div(told, className="verdicts changed")]


def _calls(links: Linked | None) -> list[Component]:
    if links is None:
        return []
    rows: list[tuple[str, ...]] = [
        (_named(each), str(len(each.base)), str(len(each.candidate)), ms(each.base[0].start_ns),
         ms(each.candidate[0].start_ns), ms(lasted(each.base)), ms(lasted(each.candidate)), signed_ms(each.change_ns))
        for each in links.links
    ]  # fmt: skip
    for place, calls in ((0, links.only_base), (1, links.only_candidate)):
        for each in calls:
            cells = ["1", ms(each.start_ns), ms(lasted([each]))]
            none = [""] * 3
            pairs = zip(cells, none, strict=True) if place == 0 else zip(none, cells, strict=True)
            rows.append((_call_words(each, each.size_bytes), *(cell for pair in pairs for cell in pair), ""))
    head = ("collective", "calls, base", "calls, candidate", "start, base, ms", "start, candidate, ms",
            "length, base, ms", "length, candidate, ms", "difference, ms")  # fmt: skip
    note = f"{MAX_LISTED} of {len(rows)}" if len(rows) > MAX_LISTED else ""
    return [table(head, rows[:MAX_LISTED], caption="Collectives of the step, what changed most first", note=note)]


def _linked_words(links: Linked, marked: int) -> str:
    if not links.links and not links.only_base and not links.only_candidate:
        return "The step has no collective in either run."
    said = []
    if marked:
        said.append(
            "a ribbon leads from a collective of the base to the same in the candidate, with its number in the table"
        )
    recut = sum(len(each.base) + len(each.candidate) > 2 for each in links.links)
    if recut:
        said.append(f"{recut} of them {'carries' if recut == 1 else 'carry'} the same bytes in other calls")
    for words, calls in (("base", links.only_base), ("candidate", links.only_candidate)):
        if calls:
            said.append(f"{count(len(calls), 'call')} of the {words} have no partner of the same operation and bytes")
    told = "; ".join(said) or "no collective changed"
    return f"{told[0].upper()}{told[1:]}."


def _ways(base: Opened, candidate: Opened, sides: Sequence[Side]) -> Component:
    longest, before = max(each.length_ns for each in sides), early(sides)
    links: list[Any] = ["The same window in the timeline: "]
    for opened, side in zip((base, candidate), sides, strict=True):
        window = window_of(side, longest, before)
        query = {"t0": max(window.start_ns, 0), "t1": min(window.end_ns, side.source.whole.end_ns), "ranks": side.rank}
        links += [dcc.Link(opened.name, href=run_address(opened.id, "timeline", query)), ", "]
    return html.P(links[:-1], className="note")


def _named(link: Link) -> str:
    return _call_words(link.base[0], link.size_bytes)


def _call_words(call: Call, size_bytes: int | None) -> str:
    over = "" if call.group_size is None else f" over {count(call.group_size, 'rank')}"
    return f"{call.op[:40]}{'' if size_bytes is None else ', ' + size(size_bytes)}{over}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _causes(calls: Sequence[Call]) -> str:
    """Name why most of what is exposed of some calls is exposed."""
    by_cause: dict[str, int] = {}
    for each in calls:
        if each.cause is not None:
            by_cause[each.cause] = by_cause.get(each.cause, 0) + (each.exposed_ns or 0)
    return cause_label(max(by_cause, key=lambda cause: by_cause[cause])) if by_cause else "n/a"


def _waited(call: Call) -> int | None:
    return call.wait_ns


def _exposed(call: Call) -> int | None:
    return call.exposed_ns


def choose(
    asked: Mapping[str, str], ranks: tuple[Sequence[int], Sequence[int]], steps: tuple[StepsOf, StepsOf]
) -> Chosen | str:
    """Choose by `rank` and `step` of an address; says why where the runs have no whole step of a rank in common.

    Nobody asked: the first rank with such a step, and of its steps the one whose difference in length is the middle
    one. Raises Unknown, with what there is, where what is asked for is not there.
    """
    common = sorted(set(ranks[0]) & set(ranks[1]))
    if not common:
        ours, theirs = (_few(sorted(each), "rank") for each in ranks)
        return f"No rank was recorded in both runs: {ours} in the base, {theirs} in the candidate."
    wanted = _number(asked.get("rank"))
    if "rank" in asked and wanted not in common:
        raise Unknown(f"Rank {asked['rank'][:20]} was not recorded in both runs.", _links("rank", common, {}))
    tried = common[:MAX_TRIED] if wanted is None else [wanted]
    for rank in tried:
        own = [each(rank) for each in steps]
        both = sorted(set(own[0]) & set(own[1]))
        if both:
            return _of_rank(asked, rank, common, both, own)
    said = f"rank {tried[0]}" if len(tried) == 1 else f"the first {len(tried)} ranks that both recorded"
    ours, theirs = (_few(sorted(each(tried[0])), "step") for each in steps)
    there = f"of rank {tried[0]} the base has {ours}, the candidate {theirs}"
    return f"No step of the same number is whole in both runs on {said}: {there}."


def _of_rank(
    asked: Mapping[str, str], rank: int, ranks: Sequence[int], both: Sequence[int], own: Sequence[Steps]
) -> Chosen:
    step = _number(asked.get("step"))
    if "step" in asked and step not in both:
        there = _links("step", both, {"rank": rank})
        raise Unknown(f"Step {asked['step'][:20]} of rank {rank} is not whole in both runs.", there)
    if step is None:
        longer = {each: _length(own[1][each]) - _length(own[0][each]) for each in both}
        step = sorted(both, key=lambda each: (longer[each], each))[len(both) // 2]
    base, candidate = (each[step] for each in own)
    return Chosen(rank=rank, step=step, base=base, candidate=candidate, steps=tuple(both), ranks=tuple(ranks),
                  usual="step" not in asked)  # fmt: skip


def _length(window: tuple[int, int]) -> int:
    return window[1] - window[0]


def _links(name: str, values: Sequence[int], others: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return links to the first of what there is, as (words, query)."""
    more = "".join(f"&{key}={value}" for key, value in others.items())
    return [(f"{name} {each}", f"{name}={each}{more}") for each in values[:MAX_OFFERED]]


def _few(values: Sequence[int], noun: str) -> str:
    if not values:
        return f"no {noun}"
    if len(values) == 1:
        return f"{noun} {values[0]}"
    whole = values[-1] - values[0] + 1 == len(values)
    return f"{noun}s {values[0]} to {values[-1]}" + ("" if whole else f" ({len(values)} of them)")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
