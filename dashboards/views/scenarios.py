"""What each setting gives: the scenarios of a what-if prediction, of any kind of recording, as rows and sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from overlapscope.advice.replayed_settings import recommended_scenario
from overlapscope.analysis.compare.prediction_check import Outcome
from overlapscope.report.formats.svg import ticks
from overlapscope.report.formatting import ms, percent, signed_percent, signed_size
from overlapscope.report.verdicts import NO_CHANGE
from overlapscope.whatif.result import CAP, Scenario, WhatIf, knob_words, largest_gain, settings_replayed
from overlapscope_dashboards.parts.forest import Forest, ScenarioRow
from overlapscope_dashboards.parts.quantities import Figure, Time, Words, rounded_ms

AS_RECORDED: Final = "recorded"
"""Value of `set` in an address: the settings of the recording, where an address without settings means the best."""
SETTING_NAMES: Final = ("cap", "hook", "views", "passes", "sync", "link", "late")
"""Names in an address of the settings of a DDP job, in the order of their controls."""
DDP_NAMES: Final[Mapping[str, str]] = {
    CAP: "cap", "hook": "hook", "gradient_as_bucket_view": "views", "link_speed": "link", "late_ranks": "late",
}  # fmt: skip
"""Names in an address of the settings that controls of a DDP job have, by knob."""
_SPELLED: Final = {True: "yes", False: "no"}
TRIED_BY: Final = {"shared_cores": "host_pauses_ms", "late_rank": "straggler_removed"}
"""By recommendation without settings of its own the hypothetical knob whose replay says what it is worth."""
LEAST_SPAN: Final = 0.5
"""The axis starts at 0 where the shortest step is below this share of the longest."""


def knobs_text(knobs: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Return settings as Python writes them, without those that are as recorded; empty where all are."""
    changed = {name: value for name, value in knobs.items() if present.get(name, ...) != value}
    return ", ".join(
        f"{name}=[{', '.join(f'{each:.3g}' for each in value)}]" if isinstance(value, list) else knob_words(name, value)
        for name, value in changed.items()
    )


def query_of(knobs: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, str]:
    """Return the query that selects settings: by their controls, where these can express it, else by their words."""
    changed = {name: value for name, value in knobs.items() if present.get(name, ...) != value}
    if not changed:
        return {"set": AS_RECORDED}
    if CAP in present and set(changed) <= set(DDP_NAMES) and changed.get(CAP, 1) is not None:
        return {DDP_NAMES[name]: _spelled(name, value) for name, value in changed.items()}
    return {"try": knobs_text(knobs, present)}


def query_of_advice(advice: str, knobs: Mapping[str, Any]) -> dict[str, str]:
    """Return the query that tries a recommendation; empty where nothing that can be replayed answers for it."""
    if knobs:
        return query_of(knobs, {CAP: ...} if CAP in knobs else {})
    name = TRIED_BY.get(advice.partition(":")[0])
    return {"try": name} if name else {}


def _spelled(name: str, value: Any) -> str:
    if name == "late_ranks":
        return "none"
    return (
        _SPELLED[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, int | float) else str(value)
    )


def chosen(found: WhatIf, query: Mapping[str, str]) -> Scenario | None:
    """Return the scenario that an address selects by words or by a knob; without either the recommended one; None where
    it names none of these."""
    asked = query.get("try")
    if asked is None:
        best = None if query.get("set") == AS_RECORDED else recommended_scenario(found)
        return best or found.scenarios[0]
    present = found.baseline.knobs
    named = [each for each in found.scenarios if knobs_text(each.knobs, present) == asked]
    like = [each for each in found.scenarios[1:] if asked in each.knobs and asked not in present]
    return next(iter([*named, *like]), None)


def settings_of(query: Mapping[str, str], found: WhatIf) -> dict[str, str]:
    """Return the query of an address with the settings that it means: the recommended ones where it names none."""
    if any(each in query for each in ("try", "set", *SETTING_NAMES)):
        return dict(query)
    return {**query, **best_query(found)}


def best_query(found: WhatIf) -> dict[str, str]:
    """Return the query of the recommended settings; that of the recorded ones where no change is recommended."""
    best = recommended_scenario(found)
    return query_of((best or found.scenarios[0]).knobs, found.baseline.knobs)


def forest(
    found: WhatIf, selected: Mapping[str, Any], outcomes: Sequence[Outcome], address: Callable[[dict[str, str]], str]
) -> Forest:
    """Return all scenarios as rows, the recorded step first, then settings, then what is no setting.

    `address` returns the address of the page with a query.
    """
    best, present = recommended_scenario(found), found.baseline.knobs
    good = _good_ns(found, best)
    measured = {_key(each.prediction.knobs): each.measured_step_ns for each in outcomes}
    rows = [
        ScenarioRow(
            name=knobs_text(each.knobs, present) or "as recorded",
            remarks=_remarks(each, best),
            step_ns=each.predicted_step_ns, low_ns=each.low_ns, high_ns=each.high_ns, gain=each.gain,
            is_best=each is best,
            is_good=good is not None and each.predicted_step_ns <= good[1] and _is_plain(each),
            selected=each.knobs == selected,
            address=address(query_of(each.knobs, present)),
            measured_ns=each.predicted_step_ns if each.known_from == "measured" else measured.get(_key(each.knobs)),
        )
        for each in sorted(found.scenarios, key=lambda each: (each is not found.scenarios[0], each.hypothetical))
    ]  # fmt: skip
    low, high = min(each.low_ns for each in rows), max(each.high_ns for each in rows)
    marks = [each * 1e6 for each in ticks(high / 1e6)]
    start = max([each for each in marks if each <= low], default=0.0) if low >= LEAST_SPAN * high else 0.0
    return Forest(
        rows=tuple(rows), start_ns=start, end_ns=marks[-1], good_ns=good,
        ticks_ns=tuple(each for each in marks if each >= start),
    )  # fmt: skip


def _key(knobs: Mapping[str, Any]) -> str:
    return repr(sorted(knobs.items(), key=lambda each: each[0]))


def _good_ns(found: WhatIf, best: Scenario | None) -> tuple[int, int] | None:
    """Return the steps that cannot be told apart from the best: of caps those within the noise, else its interval."""
    if best is None:
        return None
    flat = found.flat_region.get(CAP, ())
    steps = [each.predicted_step_ns for each in found.scenarios if each.knobs.get(CAP, ...) in flat and _is_plain(each)]
    return (min(steps), max(steps)) if steps else (best.low_ns, best.high_ns)


def _is_plain(each: Scenario) -> bool:
    """Return whether settings could be recommended: they exist, and change no numerics."""
    return not each.hypothetical and not each.changes_numerics


def _remarks(each: Scenario, best: Scenario | None) -> str:
    known = [
        ("recommended", each is best), ("measured", each.known_from == "measured"),
        ("changes numerics", each.changes_numerics), ("no setting does this", each.hypothetical),
        (f"memory {signed_size(each.memory_bytes)}", bool(each.memory_bytes) and not each.buckets),
        (f"{each.buckets} bucket{'s' * (each.buckets != 1)}", each.buckets > 0),
    ]  # fmt: skip
    return ", ".join(words for words, holds in known if holds)


def lead(found: WhatIf, scenario: Scenario) -> Words:
    """Return a sentence on the step under a scenario, and what it gains."""
    base, present = found.scenarios[0], found.baseline.knobs
    known = "measured" if found.baseline.measured_step_ns is not None else "replayed"
    if scenario is base:
        return ("A step takes ", Time(base.predicted_step_ns), f" ({known}).")
    sign = 1 if scenario.gain >= 0 else -1
    low, high = sorted(sign * each * base.predicted_step_ns for each in (scenario.gain_low, scenario.gain_high))
    first = "Set" if _is_plain(scenario) else "With"
    return (
        f"{first} {knobs_text(scenario.knobs, present)}: a step takes ", Time(scenario.predicted_step_ns),
        " instead of ", Time(base.predicted_step_ns), f" ({known}), {signed_percent(-scenario.gain)}. That "
        f"{'saves' if sign > 0 else 'costs'} ", Time(sign * scenario.gain * base.predicted_step_ns),
        f" ({ms(low)} to {ms(high)} ms, 90 %).",
        " It changes numerics." if scenario.changes_numerics else "",
        " No setting achieves this on its own." if scenario.hypothetical else "",
    )  # fmt: skip


def beside_recorded(found: WhatIf) -> Words:
    """Return a sentence on what is faster than the recorded settings, and the largest gain where no setting is."""
    if recommended_scenario(found) is not None:
        return (" Other settings are faster.",)
    most, nothing = largest_gain(found), NO_CHANGE[settings_replayed(found)]
    if most is None:
        return (f" {nothing}.",)
    base, name = found.scenarios[0].predicted_step_ns, knobs_text(most.knobs, found.baseline.knobs)
    caveat = "no setting does this" if most.hypothetical else "it changes numerics"
    return (
        f" {nothing}. The largest gain on this page is that of {name} ({caveat}): ", Time(most.gain * base),
        f", {percent(most.gain)}.",
    )  # fmt: skip


def figures(found: WhatIf, scenario: Scenario) -> list[Figure]:
    """Return the key figures of a scenario as (name, value, unit, text below)."""
    base = found.scenarios[0]
    change = scenario.memory_bytes - base.memory_bytes
    return [
        ("Step", Time(scenario.predicted_step_ns), ("now ", Time(base.predicted_step_ns))),
        ("90 % interval", f"{rounded_ms(scenario.low_ns)} to {rounded_ms(scenario.high_ns)}",
         (f"ms: {ms(scenario.low_ns)} to {ms(scenario.high_ns)}",)),
        ("Gain", percent(scenario.gain), ("of a step",)),
        ("Memory", signed_size(change) if change else "unchanged", ("of a rank",)),
        ("Numerics", "changed" if scenario.changes_numerics else "unchanged", ()),
    ]  # fmt: skip


def good_sentence(found: Forest) -> str:
    """Return a sentence on the rows that are as good as the best; empty where no change is recommended."""
    if found.good_ns is None:
        return ""
    low, high = (rounded_ms(ns) for ns in found.good_ns)
    good = [each.name for each in found.rows if each.is_good]
    named = f": {'; '.join(good)}" if len(good) > 1 else f": {good[0]} alone"
    return f"Shaded: {low} to {high} ms, as good as the best within the noise{named}."
