"""The type of a finding, and findings about kernels without a classification and gaps in the recording."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from overlapscope.analysis.common.wording import MAX_LISTED, rank_list
from overlapscope.display import percent_text
from overlapscope.timeline.run import Source

MILLISECOND_NS = 1_000_000
FEW_LINKED = 0.95
OF_GRAPHS = 0.5
"""Of a rank that launches CUDA graphs, the share of device spans without a launch from which they are the graphs'. A
choice: what a profiler that begins late misses are the first ones, never most of several steps."""
GRAPHS = "; CUDA graphs are launched, whose kernels have no launch of their own: record a few eager steps, too"
LAUNCHED_BEFORE = "were launched before the recording began"
MANY_UNCLASSIFIED = 0.02
"""Share of the compute time from which unclassified kernels could change the figures."""


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One observation, with the figures that support it."""

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
    """Kernels counted as compute that may need a rule: number of spans, total duration, names."""

    spans: int = 0
    duration_ns: int = 0
    names: list[str] = []


def unplaced(unclassified: Listed, fused: Listed, compute_ns: int) -> list[Finding]:
    """Return findings for kernels that count as compute although they may communicate."""
    findings = []
    if unclassified.spans:
        share = unclassified.duration_ns / compute_ns if compute_ns else 0.0
        findings.append(
            Finding(
                id="unclassified_kernels",
                severity="warning" if share >= MANY_UNCLASSIFIED else "info",
                title=f"{unclassified.spans} kernels ({format_ms(unclassified.duration_ns)}) on separate streams match "
                "no rule and count as compute; if they communicate, name them with --comm",
                evidence={"share_of_compute": share, "names": unclassified.names[:20]},
                known_from="trace",
            )
        )
    if fused.spans:
        share = fused.duration_ns / compute_ns if compute_ns else 0.0
        findings.append(
            Finding(
                id="fused_kernels",
                severity="info",
                title=f"{fused.spans} kernels ({format_ms(fused.duration_ns)}, {percent_text(share)} of compute) "
                "communicate in or beside products and count as compute: what they wait for other ranks is in no "
                "figure; to count them as communication, name them with --comm",
                evidence={"share_of_compute": share, "names": fused.names[:20]},
                known_from="trace",
            )
        )
    return findings


def recording_gaps(
    sources: Sequence[Source],
    spans: Mapping[int, tuple[int, int]],
    launch_graphs: Collection[int] = (),
    launched_before: Callable[[int], bool] = lambda _: False,
) -> list[Finding]:
    """Return findings for gaps in recordings. `spans` holds (device spans, those without a launch) by rank, without
    ranks of which no host events exist; `launch_graphs` are the ranks that launch CUDA graphs, and `launched_before`
    says of a rank whether all that lack a launch were launched before its recording began."""
    findings = _unlinked(
        {
            rank: (total, unlinked)
            for rank, (total, unlinked) in spans.items()
            if total and (total - unlinked) / total < FEW_LINKED
        },
        launch_graphs,
        launched_before,
    )
    for source in sources:
        if source.truncated or source.repaired or source.dropped:
            what = ", ".join(
                text
                for text, there in (
                    ("truncated, the rest is missing", source.truncated),
                    (f"broken events repaired: {source.repaired}", source.repaired),
                    (f"broken events dropped: {source.dropped}", source.dropped),
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


def _unlinked(
    spans: Mapping[int, tuple[int, int]], launch_graphs: Collection[int], launched_before: Callable[[int], bool]
) -> list[Finding]:
    """Return one finding for all ranks of which many device spans have no launch, as (device spans, those) by rank."""
    if not spans:
        return []
    totals, without = zip(*spans.values(), strict=True)
    one = next(iter(spans)) if len(spans) == 1 else None
    where = f"of {rank_list(spans)}" if one is not None else f"on each of {rank_list(spans)}"
    which = {"ranks": sorted(spans)[:MAX_LISTED]} if one is None else {"rank": one}
    of_graphs = GRAPHS if _mostly_graphs(spans, launch_graphs) else ""
    what = "have no recorded launch" if of_graphs or not all(map(launched_before, spans)) else LAUNCHED_BEFORE
    return [
        Finding(
            id="unlinked_spans" if one is None else f"unlinked_spans:rank{one}",
            severity="info",
            title=f"{_range(without)} of {_range(totals)} device spans {where} {what}: they count in "
            f"the window in which they ran, but belong to no step{of_graphs}",
            evidence={**which, "spans": sum(totals), "unlinked": sum(without)},
            known_from="trace",
        )
    ]


def _mostly_graphs(spans: Mapping[int, tuple[int, int]], launch_graphs: Collection[int]) -> bool:
    """Return whether every one of these ranks launches CUDA graphs, and more than `OF_GRAPHS` have no launch."""
    return all(rank in launch_graphs and unlinked > OF_GRAPHS * total for rank, (total, unlinked) in spans.items())


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def format_ms(ns: float) -> str:
    """Return a time as text in milliseconds, for a title."""
    return f"{ns / MILLISECOND_NS:.3f} ms"
