"""What a reader should not overlook: kernels that no rule places, gaps in the recording."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from overlapscope.timeline.run import Source

MILLISECOND_NS = 1_000_000
FEW_LINKED = 0.95
MANY_UNCLASSIFIED = 0.02
"""Share of the compute time from which unplaced kernels could change the picture."""


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One observation, with the figures that carry it."""

    id: str
    severity: Literal["info", "warning"]
    title: str
    evidence: dict[str, Any]
    known_from: str


def titles(findings: Sequence[Finding]) -> tuple[list[str], list[str]]:
    """Return the titles of warnings, and of all other findings."""
    warnings = [each.title for each in findings if each.severity == "warning"]
    return warnings, [each.title for each in findings if each.severity != "warning"]


class Listed(msgspec.Struct, kw_only=True, frozen=True):
    """Kernels counted as compute that deserve a look: how many, how long in sum, and their names."""

    spans: int = 0
    duration_ns: int = 0
    names: list[str] = []


def unplaced(unclassified: Listed, fused: Listed, compute_ns: int) -> list[Finding]:
    """Report kernels that count as compute although they may communicate."""
    findings = []
    if unclassified.spans:
        share = unclassified.duration_ns / compute_ns if compute_ns else 0.0
        findings.append(
            Finding(
                id="unclassified_kernels",
                severity="warning" if share >= MANY_UNCLASSIFIED else "info",
                title=f"{unclassified.spans} kernels ({in_ms(unclassified.duration_ns)}) on streams of their own fit "
                "no rule and count as compute; if they communicate, name them with --comm",
                evidence={"share_of_compute": share, "names": unclassified.names[:20]},
                known_from="trace",
            )
        )
    if fused.spans:
        findings.append(
            Finding(
                id="fused_kernels",
                severity="info",
                title=f"{fused.spans} kernels ({in_ms(fused.duration_ns)}) compute and communicate at once and count "
                "as compute",
                evidence={"names": fused.names[:20]},
                known_from="trace",
            )
        )
    return findings


def recording_gaps(sources: Sequence[Source], spans: Mapping[int, tuple[int, int]]) -> list[Finding]:
    """Report what the recordings lack. `spans` holds (device spans, of these without a launch) by rank."""
    findings = []
    for rank, (total, unlinked) in spans.items():
        if total and (total - unlinked) / total < FEW_LINKED:
            findings.append(
                Finding(
                    id=f"unlinked_spans:rank{rank}",
                    severity="info",
                    title=f"{unlinked} of {total} device spans of rank {rank} have no recorded launch: they count in "
                    "whatever window they fall into, but no step can claim them as its own",
                    evidence={"rank": rank, "spans": total, "unlinked": unlinked},
                    known_from="trace",
                )
            )
    for source in sources:
        if source.truncated or source.repaired or source.dropped:
            what = ", ".join(
                text
                for text, there in (
                    ("ends early, what would follow is missing", source.truncated),
                    (f"broken events repaired: {source.repaired}", source.repaired),
                    (f"broken events left out: {source.dropped}", source.dropped),
                )
                if there
            )
            findings.append(
                Finding(
                    id=f"damaged_source:{source.path}",
                    severity="warning",
                    title=f"{source.path}: {what}",
                    evidence={"truncated": source.truncated, "repaired": source.repaired, "dropped": source.dropped},
                    known_from="trace",
                )
            )
    return findings


def in_ms(ns: float) -> str:
    """Return a time for a title."""
    return f"{ns / MILLISECOND_NS:.3f} ms"
