"""The same step of both runs, one above the other, on the compare page; and the choice of that step and rank."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.analysis.common.cause_table import cause_label
from overlapscope.errors import InputError
from overlapscope.report.formatting import count, inert, ms, signed_ms, size
from overlapscope_dashboards.parts import card, empty, figure_card, notes, table
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, parse_query, run_address
from overlapscope_dashboards.timeline.labels import NAMES, format_duration, longest_spans
from overlapscope_dashboards.timeline.side_by_side import (
    StepSide,
    complete_steps,
    draw_side_by_side,
    early_start_ns,
    side_of,
    state_durations,
    window_of,
)
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.timeline.window import TimeWindow
from overlapscope_dashboards.views.paired_calls import (
    CallPairing,
    PairedCalls,
    StepCall,
    pair_calls,
    sum_durations,
    sum_if_known,
)

TITLE = "The same step in both runs"
MAX_MARKED = 5
"""Collectives marked in the figure: those that changed most."""
MAX_LISTED = 50
MAX_SPANS = 15
"""Longest spans of each run in the table."""
MAX_TRIED: Final = 16
"""Ranks that are searched for a common step if the address names no rank."""
MAX_OFFERED: Final = 32
Steps = dict[int, tuple[int, int]]
"""Start and end by number."""
StepsOf = Callable[[int], Steps]


def step_cards(base: OpenRun, candidate: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the card; `?step=8&rank=0` selects. Raises NotFound where there is no such step or rank."""
    try:
        sources = source_of(base), source_of(candidate)
        ranks = sources[0].ranks, sources[1].ranks
        found = choose_step(query, ranks, (partial(complete_steps, sources[0]), partial(complete_steps, sources[1])))
    except InputError as error:
        return [card(TITLE, empty(f"The steps cannot be shown: {error}."))]
    except NotFound as unknown:
        own = {"base": base.id, "candidate": candidate.id}
        there = [(words, f"/compare?{urlencode(own)}&{tail}") for words, tail in unknown.alternatives]
        raise NotFound(str(unknown), there) from None
    if isinstance(found, str):
        return [card(TITLE, empty(found))]
    for each in sources:
        if each.figures is None:
            each.start_analysis()
    ours, theirs = (
        side_of(opened.name, source, found.rank, found.step, window)
        for opened, source, window in zip((base, candidate), sources, (found.base, found.candidate), strict=True)
    )
    return [_card(base, candidate, found, ours, theirs)]


def register(app: Dash) -> None:
    """Register the callback that writes the typed step and rank into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("compare-step", "value"),
        Input("compare-rank", "value"),
        State("compare-shown", "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose_step(step: str | None, rank: str | None, shown: list[int] | None, search: str | None) -> Any:
        return query_for_choice(step, rank, shown, search) or no_update


def query_for_choice(step: str | None, rank: str | None, shown: Sequence[int] | None, search: str | None) -> str | None:
    """Return the query for the typed step and rank (empty: automatic); None if these are already shown."""
    plotly_array = {"step": (step or "").strip(), "rank": (rank or "").strip()}
    if shown is None or list(plotly_array.values()) == [str(each) for each in shown]:
        return None
    query = {name: value for name, value in parse_query(search).items() if name not in plotly_array}
    return f"?{urlencode(query | {name: value for name, value in plotly_array.items() if value})}"


class ChosenStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank that is complete in both runs; `steps` and `ranks` are the other possible choices."""

    rank: int
    step: int
    base: tuple[int, int]
    candidate: tuple[int, int]
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    is_default: bool
    """Whether the address names no step."""


def _card(base: OpenRun, candidate: OpenRun, found: ChosenStep, ours: StepSide, theirs: StepSide) -> Component:
    sides = (ours, theirs)
    links = None if ours.calls is None or theirs.calls is None else pair_calls(ours.calls, theirs.calls)
    marked = [each for each in links.links if each.change_ns][:MAX_MARKED] if links else []
    drawn = draw_side_by_side(ours, theirs, marked)
    longer = signed_ms(theirs.length_ns - ours.length_ns)
    words = (
        f"Step {found.step} of rank {found.rank} lasts {ms(ours.length_ns)} ms in the base and {ms(theirs.length_ns)} "
        f"ms in the candidate: a difference of {longer} ms."
    )
    if found.is_default and len(found.steps) > 2:
        words += f" It is the step with the median difference of {len(found.steps)} steps."
    twin = html.Div([_states(sides), *_calls(links), _spans(sides)])
    remarks = [*([_linked_words(links, len(marked))] if links else []), *drawn.notes]
    return figure_card(
        TITLE, drawn.figure, twin, words=words, id="compare-timelines", height=drawn.height,
        controls=[_controls(base, candidate, found), _legend(sides)],
        after=[*_changed(marked), notes(remarks), _ways(base, candidate, sides)],
    )  # fmt: skip


def _controls(base: OpenRun, candidate: OpenRun, found: ChosenStep) -> Component:
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


def _legend(sides: Sequence[StepSide]) -> Component:
    ours, theirs = (state_durations(each) for each in sides)
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


def _states(sides: Sequence[StepSide]) -> Component:
    ours, theirs = (state_durations(each) for each in sides)
    rows = [
        (NAMES[state], ms(ours.get(state, 0)), ms(theirs.get(state, 0)),
         signed_ms(theirs.get(state, 0) - ours.get(state, 0)))
        for state in dict.fromkeys([*ours, *theirs])
    ]  # fmt: skip
    return table(("ms of the step", "base", "candidate", "difference"), rows, caption="The step by state")


def _changed(marked: Sequence[CallPairing]) -> list[Component]:
    if not marked:
        return []
    head = ("marked", "collective", "calls", "duration, ms", "wait, ms", "exposed, ms", "difference", "exposed by")
    rows = [
        (
            str(number),
            _named(each),
            _change(str(len(each.base)), str(len(each.candidate))),
            _change(ms(sum_durations(each.base)), ms(sum_durations(each.candidate))),
            _change(ms(sum_if_known(each.base, _waited)), ms(sum_if_known(each.candidate, _waited))),
            _change(ms(sum_if_known(each.base, _exposed)), ms(sum_if_known(each.candidate, _exposed))),
            signed_ms(each.change_ns),
            html.Span(_change(_causes(each.base), _causes(each.candidate)), className="why"),
        )
        for number, each in enumerate(marked, 1)
    ]
    changed = table(head, rows, caption="Collectives that changed most, base → candidate", left=2)
    return [html.Div(changed, className="verdicts changed")]


def _calls(links: PairedCalls | None) -> list[Component]:
    if links is None:
        return []
    rows: list[tuple[str, ...]] = [
        (_named(each), str(len(each.base)), str(len(each.candidate)), ms(each.base[0].start_ns),
         ms(each.candidate[0].start_ns), ms(sum_durations(each.base)), ms(sum_durations(each.candidate)),
         signed_ms(each.change_ns))
        for each in links.links
    ]  # fmt: skip
    for place, calls in ((0, links.only_base), (1, links.only_candidate)):
        for each in calls:
            cells = ["1", ms(each.start_ns), ms(sum_durations([each]))]
            none = [""] * 3
            pairs = zip(cells, none, strict=True) if place == 0 else zip(none, cells, strict=True)
            rows.append((_call_words(each, each.size_bytes), *(cell for pair in pairs for cell in pair), ""))
    head = ("collective", "calls, base", "calls, candidate", "start, base, ms", "start, candidate, ms",
            "duration, base, ms", "duration, candidate, ms", "difference, ms")  # fmt: skip
    note = f"{MAX_LISTED} of {len(rows)}" if len(rows) > MAX_LISTED else ""
    return [table(head, rows[:MAX_LISTED], caption="Collectives of the step, largest change first", note=note)]


def _spans(sides: Sequence[StepSide]) -> Component:
    """Return the longest spans of the step with their whole names, which bars of the picture show only in part."""
    rows = [
        (inert(name), run, lane, ms(start - side.start_ns), format_duration(taken))
        for run, side in zip(("base", "candidate"), sides, strict=True)
        for taken, name, _, lane, start in longest_spans(
            side.source, TimeWindow(start_ns=side.start_ns, end_ns=side.end_ns), [side.rank], MAX_SPANS
        )
    ]
    head = ("span", "run", "lane", "start, ms", "length")
    return table(head, rows, caption=f"Spans of the step, the {MAX_SPANS} longest of each run", left=3)


def _linked_words(links: PairedCalls, marked: int) -> str:
    if not links.links and not links.only_base and not links.only_candidate:
        return "The step has no collective in either run."
    parts = []
    if marked:
        parts.append(
            "a ribbon connects a collective of the base with its match in the candidate, numbered as in the table"
        )
    recut = sum(len(each.base) + len(each.candidate) > 2 for each in links.links)
    if recut:
        parts.append(f"{recut} of them {'carries' if recut == 1 else 'carry'} the same bytes in different calls")
    for words, calls in (("base", links.only_base), ("candidate", links.only_candidate)):
        if calls:
            parts.append(f"{count(len(calls), 'call')} of the {words} have no match of the same operation and bytes")
    sentence = "; ".join(parts) or "no collective changed"
    return f"{sentence[0].upper()}{sentence[1:]}."


def _ways(base: OpenRun, candidate: OpenRun, sides: Sequence[StepSide]) -> Component:
    longest, before = max(each.length_ns for each in sides), early_start_ns(sides)
    links: list[Any] = ["The same window in the timeline: "]
    for opened, side in zip((base, candidate), sides, strict=True):
        window = window_of(side, longest, before)
        query = {"t0": max(window.start_ns, 0), "t1": min(window.end_ns, side.source.whole.end_ns), "ranks": side.rank}
        links += [dcc.Link(opened.name, href=run_address(opened.id, "timeline", query)), ", "]
    return html.P(links[:-1], className="note")


def _named(link: CallPairing) -> str:
    return _call_words(link.base[0], link.size_bytes)


def _call_words(call: StepCall, size_bytes: int | None) -> str:
    over = "" if call.group_size is None else f" over {count(call.group_size, 'rank')}"
    return f"{call.op[:40]}{'' if size_bytes is None else ', ' + size(size_bytes)}{over}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _causes(calls: Sequence[StepCall]) -> str:
    """Return the label of the cause of most exposed time of some calls."""
    by_cause: dict[str, int] = {}
    for each in calls:
        if each.cause is not None:
            by_cause[each.cause] = by_cause.get(each.cause, 0) + (each.exposed_ns or 0)
    return cause_label(max(by_cause, key=lambda cause: by_cause[cause])) if by_cause else "n/a"


def _waited(call: StepCall) -> int | None:
    return call.wait_ns


def _exposed(call: StepCall) -> int | None:
    return call.exposed_ns


def choose_step(
    query: Mapping[str, str], ranks: tuple[Sequence[int], Sequence[int]], steps: tuple[StepsOf, StepsOf]
) -> ChosenStep | str:
    """Return the step selected by `rank` and `step` of an address, or a sentence why the runs share no complete step.

    Default: the first rank with such a step, and its step with the median difference in duration. Raises NotFound, with
    the existing choices, where the requested rank or step is missing.
    """
    common = sorted(set(ranks[0]) & set(ranks[1]))
    if not common:
        ours, theirs = (_few(sorted(each), "rank") for each in ranks)
        return f"No rank was recorded in both runs: {ours} in the base, {theirs} in the candidate."
    wanted = _number(query.get("rank"))
    if "rank" in query and wanted not in common:
        raise NotFound(f"Rank {query['rank'][:20]} was not recorded in both runs.", _links("rank", common, {}))
    tried = common[:MAX_TRIED] if wanted is None else [wanted]
    for rank in tried:
        own = [each(rank) for each in steps]
        both = sorted(set(own[0]) & set(own[1]))
        if both:
            return _of_rank(query, rank, common, both, own)
    where = f"rank {tried[0]}" if len(tried) == 1 else f"the first {len(tried)} ranks that both recorded"
    ours, theirs = (_few(sorted(each(tried[0])), "step") for each in steps)
    there = f"of rank {tried[0]} the base has {ours}, the candidate {theirs}"
    return f"No step of the same number is complete in both runs on {where}: {there}."


def _of_rank(
    query: Mapping[str, str], rank: int, ranks: Sequence[int], both: Sequence[int], own: Sequence[Steps]
) -> ChosenStep:
    step = _number(query.get("step"))
    if "step" in query and step not in both:
        there = _links("step", both, {"rank": rank})
        raise NotFound(f"Step {query['step'][:20]} of rank {rank} is not complete in both runs.", there)
    if step is None:
        longer = {each: _length(own[1][each]) - _length(own[0][each]) for each in both}
        step = sorted(both, key=lambda each: (longer[each], each))[len(both) // 2]
    base, candidate = (each[step] for each in own)
    return ChosenStep(rank=rank, step=step, base=base, candidate=candidate, steps=tuple(both), ranks=tuple(ranks),
                  is_default="step" not in query)  # fmt: skip


def _length(window: tuple[int, int]) -> int:
    return window[1] - window[0]


def _links(name: str, values: Sequence[int], others: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return links to the first existing values, as (label, query)."""
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
