"""The words and colours of verdicts, confidence and severity, in text, report and dashboard."""

from typing import Final, Literal

import msgspec

Tone = Literal["good", "bad", "warn", ""]
TONES: Final[dict[str, tuple[str, str]]] = {
    "bad": ("#a3320b", "#ff9d73"),
    "good": ("#00684a", "#5fd3ab"),
    "warn": ("#7a5600", "#e8bf55"),
}
"""Colours of text on light and on dark paper."""


class Verdict(msgspec.Struct, kw_only=True, frozen=True):
    """How a verdict is shown."""

    words: str
    tone: Tone = ""


GATE: Final[dict[str, Verdict]] = {
    "passed": Verdict(words="passed", tone="good"),
    "improved": Verdict(words="improved", tone="good"),
    "unchanged": Verdict(words="unchanged"),
    "regressed": Verdict(words="regressed", tone="bad"),
    "inconclusive": Verdict(words="inconclusive", tone="warn"),
    "missing": Verdict(words="missing", tone="warn"),
    "not_comparable": Verdict(words="not comparable", tone="warn"),
    "not_applicable": Verdict(words="not applicable"),
    "kept": Verdict(words="kept", tone="good"),
    "not_kept": Verdict(words="not kept", tone="bad"),
}
"""Of a gate, its metrics and its budgets."""
ADVICE: Final[dict[str, str]] = {
    "change": "worth changing",
    "trial": "worth a trial",
    "look": "look at it first",
    "no_change": "leave it as it is",
    "insufficient_data": "not enough to tell",
}
"""Of a recommendation, and of a what-if answer."""
CONFIDENCE: Final[dict[str, str]] = {
    "measured": "measured times",
    "mixed": "measured times, and assumptions that were varied",
    "assumed": "assumptions, varied within their ranges",
}
"""What a predicted gain rests on."""
SEVERITY_MARKS: Final[dict[str, str]] = {"warning": "!", "info": "-"}
"""What stands before a finding in text."""


def tone_of(words: str) -> Tone:
    """Return how the cell of a table is coloured that holds the words of a verdict: good, bad, or not at all."""
    tones = [each.tone for each in GATE.values() if each.words == words and each.tone != "warn"]
    return tones[0] if tones else ""
