"""Render a what-if prediction as text: the verdict, steps with intervals, assumptions, and what to try next."""

from collections.abc import Iterable, Mapping
from typing import Any

from overlapscope.advice.replayed_settings import recommended_scenario
from overlapscope.report.formatting import aligned, ms, percent, signed_size
from overlapscope.report.verdicts import ADVICE, NO_CHANGE
from overlapscope.whatif.listing import ReplayableSettings
from overlapscope.whatif.parallelism import NOT_REPLAYED
from overlapscope.whatif.result import CAP, Assumed, Scenario, WhatIf, knob_words, largest_gain, settings_replayed

MAX_LIST = 3
REPLAYED_EXPOSED = "Exposed time is that of the replay."
SCALED_EXPOSED = "Exposed time: as recorded in the first row; the others change it as much as their replay does."
NOT_ADVISED = frozenset({"zero_stage", "channels"})
"""Settings that are predicted only on request and never suggested."""


def render(answer: WhatIf, *, recorded: bool = False) -> str:
    """Return the whole text, ending in a newline.

    `recorded` says that the prediction is based on a recording, not on a described workload.
    """
    parts = [
        _headline(answer),
        _table(answer, recorded=recorded),
        _bounds(answer),
        _assumptions(answer, "measured" if recorded else "fitted"),
        _reasons(answer),
        _trials(answer),
        _next(answer, recorded=recorded),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(answer: WhatIf) -> str:
    base = answer.baseline
    now = base.measured_step_ns if base.measured_step_ns is not None else base.replayed_step_ns
    known = "measured" if base.measured_step_ns is not None else "replayed, not measured"
    under = _knobs(base.knobs, base.knobs)
    verdict = (
        NO_CHANGE[settings_replayed(answer)] if answer.verdict == "no_change" else ADVICE[answer.verdict].capitalize()
    )
    line = f"{verdict}: a step takes {ms(now)} ms ({known})"
    line += f" with {under}" if under else ""
    best = recommended_scenario(answer)
    if best is None:
        return f"{line}.{_largest_gain(answer, now)}"
    gain, low, high = (ms(now * share) for share in (best.gain, best.gain_low, best.gain_high))
    saved = f"{_knobs(best.knobs, answer.baseline.knobs)} saves {gain} ms ({low} to {high}), {percent(best.gain)}."
    near = answer.equally_good.get(CAP)
    also = (
        f"\nCaps of {near[0]:g} to {near[1]:g} MiB are equally good; of these it makes the fewest buckets."
        if near
        else ""
    )
    return f"{line};\n{saved}{also}"


def _largest_gain(answer: WhatIf, now: int) -> str:
    most = largest_gain(answer)
    no_settings = answer.verdict == "no_change" and _only_what_ifs(answer)
    rows = "\nThe rows below are what-ifs that no setting makes." if no_settings else ""
    if most is None:
        return rows
    gain, low, high = (ms(now * share) for share in (most.gain, most.gain_low, most.gain_high))
    knobs = _changed(most.knobs, answer.baseline.knobs)
    caveat = "no setting does this" if most.hypothetical else "it changes numerics"
    said = f"The largest gain is that of {knobs} ({caveat}): {gain} ms ({low} to {high}), {percent(most.gain)}."
    return f"{rows}\n{said}"


def _only_what_ifs(answer: WhatIf) -> bool:
    """Return whether rows are replayed, none of them of a setting."""
    return len(answer.scenarios) > 1 and not settings_replayed(answer)


def _table(answer: WhatIf, *, recorded: bool) -> str:
    bucketed = any(each.buckets for each in answer.scenarios)
    first = "what-ifs" if _only_what_ifs(answer) else "settings"
    head = [first, "step ms", "90 % interval", "gain", "exposed ms", "buckets" if bucketed else "memory"]
    rows = [
        [
            _knobs(each.knobs, answer.baseline.knobs) or "as recorded",
            ms(each.predicted_step_ns),
            f"{ms(each.low_ns)} .. {ms(each.high_ns)}",
            percent(each.gain),
            ms(each.exposed_comm_ns),
            str(each.buckets) if bucketed else signed_size(each.memory_bytes) if each.memory_bytes else "",
        ]
        for each in answer.scenarios
    ]
    remarks = ["", *(_remark(each, answer) for each in answer.scenarios)]
    lines = _beside(aligned([head, *rows]), remarks)
    if recorded:
        return "\n".join([*lines, *([SCALED_EXPOSED] if len(answer.scenarios) > 1 else [])])
    return "\n".join([*lines, *([REPLAYED_EXPOSED] if answer.baseline.measured_step_ns is not None else [])])


def _remark(scenario: Scenario, answer: WhatIf) -> str:
    remarks = ["measured"] if scenario.known_from == "measured" else []
    remarks += ["changes numerics"] if scenario.changes_numerics else []
    remarks += ["hypothetical"] if scenario.hypothetical else []
    if "zero_stage" in scenario.knobs:
        more = scenario.memory_bytes - answer.scenarios[0].memory_bytes
        remarks.append(f"assumed, {signed_size(more)} a rank")
    near = answer.flat_region.get("bucket_cap_mb", [])
    if "bucket_cap_mb" in scenario.knobs and scenario.knobs["bucket_cap_mb"] in near and not remarks:
        remarks.append("near the best")
    return ", ".join(remarks)


def _bounds(answer: WhatIf) -> str:
    bounds, measured = answer.bounds, answer.baseline.measured_step_ns
    steps = (
        f"without communication {ms(bounds.no_comm_ns)} ms; all overlapped {ms(bounds.perfect_overlap_ns)} ms; "
        f"nothing overlapped {ms(bounds.no_overlap_ns)} ms."
    )
    if bounds.known_from == "recorded":
        how = "By the parts of the recorded step, with idle time and calls as long as recorded:"
        return f"Bounds by replay: n/a, as nothing is predicted. {how}\n{steps}"
    said = f"Bounds: {steps}"
    if measured is None or measured <= bounds.no_overlap_ns:
        return said
    return f"{said}\nThey count no interference and no late ranks, so the measured step may be longer."


def _assumptions(answer: WhatIf, how: str) -> str:
    found = answer.interference
    known = f"{found.slowdown:.2f}x ({how}, {found.low:.2f} to {found.high:.2f})"
    if not found.identified:
        known = f"could not be measured; assumed {found.slowdown:.2f}x"
    lines = [f"Slowdown of compute and communication that overlap: {known}."]
    if answer.assumptions:
        lines.append("Assumptions: value, range, and the best step in ms at both ends of the range:")
        rows = aligned([_assumed(each) for each in answer.assumptions])
        lines += _beside(rows, [each.known_from for each in answer.assumptions])
    return "\n".join(lines)


def _assumed(each: Assumed) -> list[str]:
    return [
        f"  {each.name.replace('_', ' ')}",
        f"{each.value:.3g}",
        f"{each.low:.3g} .. {each.high:.3g}",
        f"{ms(each.step_low_ns)} .. {ms(each.step_high_ns)}",
    ]


def _beside(rows: Iterable[str], remarks: Iterable[str]) -> list[str]:
    """Return the rows of a table, each followed by its remark."""
    return [f"{row}  {remark}".rstrip() for row, remark in zip(rows, remarks, strict=True)]


def _reasons(answer: WhatIf) -> str:
    return "\n".join(f"- {each}" for each in answer.reasons)


def _trials(answer: WhatIf) -> str:
    """Return the settings worth a try whose gain could not be predicted."""
    lines = ["Worth a try; the gain could not be predicted:"] if answer.trials else []
    for each in answer.trials:
        lines.append(f"  {_knobs(each.knobs, {})}: {each.why}")
        lines += [f"    {line}" for text in each.apply.values() for line in text.splitlines()]
    return "\n".join(lines)


def _next(answer: WhatIf, *, recorded: bool) -> str:
    if answer.waiting:
        return "To see what ranks wait for:\nnext: overlapscope analyze RUN"
    advised = recommended_scenario(answer)
    if recorded and advised is None:
        return ""
    plain = [
        each
        for each in ([advised] if advised else answer.scenarios)
        if each.known_from != "measured"
        and not each.changes_numerics
        and not each.hypothetical
        and not NOT_ADVISED & each.knobs.keys()
    ]
    candidates = [each for each in plain if each.knobs == answer.best.knobs]
    candidates = candidates or [each for each in plain if "bucket_cap_mb_list" not in each.knobs]
    if not candidates:
        return ""
    best = min(candidates, key=lambda each: each.predicted_step_ns)
    knobs = _knobs(best.knobs, answer.baseline.knobs)
    if recorded:
        return f"Record a run with {knobs} and compare both:\nnext: overlapscope compare RUN NEW_RUN"
    return f"To test this, measure a step with {knobs} and add it as [[measured]]."


def _changed(knobs: dict[str, Any], base: dict[str, Any]) -> str:
    return _knobs({name: value for name, value in knobs.items() if base.get(name, ...) != value}, base)


def _knobs(knobs: dict[str, Any], base: dict[str, Any]) -> str:
    """Return settings as Python writes them: bucket caps, and what differs from `base`; long lists are cut."""
    shown = []
    for name, value in knobs.items():
        if isinstance(value, list):
            listed = ", ".join(f"{each:.3g}" for each in value[:MAX_LIST])
            shown.append(f"{name}=[{listed}{', ...' if len(value) > MAX_LIST else ''}]")
        elif name == "bucket_cap_mb" or base.get(name) != value:
            shown.append(knob_words(name, value))
    return ", ".join(shown)


def render_list(listing: ReplayableSettings) -> str:
    """Return what can be replayed of a recording, and what not and why, ending in a newline."""
    heading = f"kind of this recording: {listing.kind}."
    if listing.kind == "other":
        heading = (
            f"This recording is recognised as DDP, but no bucket is replayed: {listing.ddp}."
            if listing.ddp
            else "This recording is not recognised as DDP, FSDP, tensor or pipeline parallel."
        )
    if listing.reason:
        return f"{heading} Nothing can be replayed: {listing.reason}\n"
    lines = [f"{heading} Settings that can be replayed:", *_list_table(listing.knobs)]
    lines.append(f"Supported options: {', '.join(listing.options)}.")
    if listing.refused:
        by_reason: dict[str, list[str]] = {}
        for name, why in listing.refused.items():
            by_reason.setdefault(why, []).append(name)
        lines += ["Not supported, and why:", *_list_table({", ".join(names): why for why, names in by_reason.items()})]
    return "\n".join([*lines, f"Not replayed: {NOT_REPLAYED}."]) + "\n"


def _list_table(rows: Mapping[str, str]) -> list[str]:
    wide = max(map(len, rows), default=0)
    return [f"  {name:<{wide}}  {what}" for name, what in rows.items()]
