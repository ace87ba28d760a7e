"""Labels and colours of verdicts, confidence and severity, shared by text, report and dashboard."""

from typing import Final, Literal

import msgspec

Tone = Literal["good", "bad", "warn", ""]
TONES: Final[dict[str, tuple[str, str]]] = {
    "bad": ("#a3320b", "#ff9d73"),
    "good": ("#00684a", "#5fd3ab"),
    "warn": ("#7a5600", "#e8bf55"),
}
"""Text colours by tone: on a light and on a dark background."""


class VerdictStyle(msgspec.Struct, kw_only=True, frozen=True):
    """How a verdict is displayed."""

    words: str
    tone: Tone = ""


GATE: Final[dict[str, VerdictStyle]] = {
    "passed": VerdictStyle(words="passed", tone="good"),
    "improved": VerdictStyle(words="improved", tone="good"),
    "unchanged": VerdictStyle(words="unchanged"),
    "regressed": VerdictStyle(words="regressed", tone="bad"),
    "inconclusive": VerdictStyle(words="inconclusive", tone="warn"),
    "missing": VerdictStyle(words="missing", tone="warn"),
    "not_comparable": VerdictStyle(words="not comparable", tone="warn"),
    "not_applicable": VerdictStyle(words="not applicable"),
    "kept": VerdictStyle(words="kept", tone="good"),
    "not_kept": VerdictStyle(words="not kept", tone="bad"),
}
"""Verdicts of a gate, of its metrics and of its budgets, by the word in JSON."""
ADVICE: Final[dict[str, str]] = {
    "change": "worth changing",
    "trial": "worth a trial",
    "look": "look at it first",
    "no_change": "leave it as it is",
    "insufficient_data": "not enough data",
}
"""Verdicts of a recommendation and of a what-if prediction, by the word in JSON."""
NO_CHANGE: Final = {True: "No setting that was replayed is surely faster", False: "No setting was replayed"}
"""Verdict `no_change` of a what-if prediction, by whether settings were replayed: a hypothetical, which may gain, is
none."""
CONFIDENCE: Final[dict[str, str]] = {
    "measured": "measured times",
    "mixed": "measured times and varied assumptions",
    "assumed": "assumptions, varied within their ranges",
}
"""What a predicted gain is based on, by the word in JSON."""
SEVERITY_MARKS: Final[dict[str, str]] = {"warning": "!", "info": "-"}
"""The mark before a finding in text."""


def tone_of(words: str) -> Tone:
    """Return the tone of a table cell that holds the label of a verdict; empty for a neutral one or any other text."""
    tones = [each.tone for each in GATE.values() if each.words == words and each.tone != "warn"]
    return tones[0] if tones else ""
