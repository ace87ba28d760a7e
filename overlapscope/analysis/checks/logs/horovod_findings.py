"""Findings from a Horovod timeline's figures: a late rank, smaller fusion buffers, more fusion."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.display import percent_text
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Source

FEW_CALLS: Final = 20
"""Fewer operations say little about training: a job begins with broadcasts."""
NEGOTIATES: Final = 2.0
"""Negotiation is reported from so many times the transfer time ..."""
NEGOTIATES_SHARE: Final = 0.3
"""... if it also takes this share of the operations' time ..."""
NEGOTIATES_US: Final = 5000
"""... and this long on average: less may be the cycle time (1 to 5 ms by version), which every report waits for."""
LAST_SHARE: Final = 0.5
"""A rank is named when it alone was last in this share of the negotiations."""
FEW_NEGOTIATIONS: Final = 10
COPIES_SHARE: Final = 0.1
FEW_TRANSFERS: Final = 100
SINGLE_SHARE: Final = 0.5
TINY_SHARE: Final = 0.8
_SUBJECTS: Final = ("all tensors", "negotiations", "transfers")

_Figures = Mapping[tuple[str, str], list[tuple[int, float]]]
"""Lists of (rank, value) by (subject, name)."""


def horovod_findings(facts: Facts, sources: Sequence[Source]) -> list[Finding]:
    """Return the findings of each Horovod timeline among the sources."""
    findings = []
    for path in dict.fromkeys(source.path for source in sources if source.format == "horovod"):
        figures_of = _read_figures(facts, path)
        if _one(figures_of, "all tensors", "calls") >= FEW_CALLS:
            findings += [*_negotiation(figures_of, path), *_copies(figures_of, path)]
        findings += _unfused(figures_of, path)
    return findings


def _read_figures(facts: Facts, path: str) -> _Figures:
    figures = facts.figures
    codes = {name: code for code, name in enumerate(facts.names)}
    subjects = [codes[name] for name in _SUBJECTS if name in codes]
    rows = np.flatnonzero((figures.source == codes.get(path, -2)) & np.isin(figures.subject, subjects))
    figures_of: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows.tolist():
        key = (facts.names[figures.subject[row]], facts.names[figures.name[row]])
        figures_of.setdefault(key, []).append((int(figures.rank[row]), float(figures.value[row])))
    return figures_of


def _one(figures_of: _Figures, subject: str, name: str) -> float:
    return figures_of.get((subject, name), [(0, 0.0)])[0][1]


def _negotiation(figures_of: _Figures, path: str) -> list[Finding]:
    negotiation, transfer = (_one(figures_of, "all tensors", f"{part}_us") for part in ("negotiation", "transfer"))
    share = _one(figures_of, "all tensors", "negotiation_share")
    if not transfer or negotiation < NEGOTIATES * transfer or share < NEGOTIATES_SHARE:
        return []
    if negotiation < NEGOTIATES_US * _one(figures_of, "all tensors", "calls"):
        return []
    judged = _one(figures_of, "negotiations", "with_all_ticks")
    last = max(figures_of.get(("negotiations", "times_last"), []), key=lambda row: row[1], default=(-1, 0.0))
    evidence: dict[str, Any] = {"negotiation_us": negotiation, "transfer_us": transfer, "negotiation_share": share}
    if judged >= FEW_NEGOTIATIONS and last[1] >= LAST_SHARE * judged:
        who = f"rank {last[0]} alone was last in {last[1]:.0f} of {judged:.0f}"
        evidence |= {"rank": last[0], "times_last": last[1], "with_all_ticks": judged}
    elif judged >= FEW_NEGOTIATIONS:
        who = f"no rank stands out in the ready ticks of {judged:.0f}"
    else:
        who = "the file does not record which (set HOROVOD_CACHE_CAPACITY=0 to record it)"
    return [
        Finding(
            id=f"horovod_negotiation:{path}",
            severity="warning",
            title=f"Horovod negotiates {negotiation / transfer:.1f} times as long as it transfers "
            f"({percent_text(share)} of its time): ranks become ready at different times; {who}",
            evidence=evidence,
            known_from="log",
        )
    ]


def _copies(figures_of: _Figures, path: str) -> list[Finding]:
    copies, transfer = (_one(figures_of, "all tensors", f"{part}_us") for part in ("fusion_copy", "transfer"))
    share = _one(figures_of, "all tensors", "fusion_copy_share")
    if not transfer or copies <= transfer or share < COPIES_SHARE:
        return []
    return [
        Finding(
            id=f"horovod_fusion_copies:{path}",
            severity="warning",
            title=f"Horovod copies into and out of its fusion buffer {copies / transfer:.1f} times as long as it "
            f"transfers ({percent_text(share)} of its time): try a smaller HOROVOD_FUSION_THRESHOLD",
            evidence={"fusion_copy_us": copies, "transfer_us": transfer, "fusion_copy_share": share},
            known_from="log",
        )
    ]


def _unfused(figures_of: _Figures, path: str) -> list[Finding]:
    transfers, single = (_one(figures_of, "transfers", name) for name in ("transfers", "of_one_tensor"))
    sized, tiny = (_one(figures_of, "transfers", name) for name in ("of_known_size", "below_1_mib"))
    if transfers < FEW_TRANSFERS or single < SINGLE_SHARE * transfers:
        return []
    if sized < FEW_TRANSFERS or tiny < TINY_SHARE * sized:
        return []
    return [
        Finding(
            id=f"horovod_unfused:{path}",
            severity="warning",
            title=f"{single:.0f} of {transfers:.0f} Horovod transfers are of one tensor, and {tiny:.0f} of "
            f"{sized:.0f} are below 1 MiB: a longer HOROVOD_CYCLE_TIME or a larger HOROVOD_FUSION_THRESHOLD would fuse "
            "more tensors into each",
            evidence={"transfers": transfers, "of_one_tensor": single, "of_known_size": sized, "below_1_mib": tiny},
            known_from="log",
        )
    ]
