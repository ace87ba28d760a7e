"""Findings of a comparison: sides that are not comparable, changed collectives and kernels, new and gone stragglers.

Stragglers are findings of their own because means over ranks dilute what one rank does.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import DDP, ENVIRONMENT, JOB, RECORDING, Difference, Sort
from overlapscope.analysis.common.wording import first_and_count, id_part, rank_list, short
from overlapscope.analysis.compare.collective_changes import FamilyChange
from overlapscope.analysis.compare.kernel_changes import KernelChanges
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.step_table import StepTable
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES

KNOWN_FROM: Final = "comparison"
MAX_LISTED: Final = 8
"""Changed kinds of collective, and differing keys of a sort, that are listed."""
SYNCHRONISATIONS: Final = 0.5
"""An increase per step above this is a finding; smaller ones come from every n-th step, such as logging."""
_WORDS: Final[dict[Sort, str]] = {
    "job": "not the same job",
    "recording": "recorded differently, which alone may change the figures",
    "setting": "another setting",
    "software": "other software",
}
MOST_RUNS: Final = 0.5
"""A rank is a straggler of a side when it is one in more than this share of the side's runs."""


def side_findings(
    side: str, runs: Sequence[MeasuredRun], tables: Sequence[StepTable], *, of_steps: bool, communicates: bool
) -> list[Finding]:
    """Return findings for what a side lacks: times, complete steps, communication."""
    found = []
    if not any(run.ranks for run in runs):
        return [
            Finding(
                id=f"no_times:{side}",
                severity="warning",
                title=f"{side}: no times were recorded, so there is nothing to compare",
                evidence={},
                known_from=KNOWN_FROM,
            )
        ]
    lacking = [run.name for run, table in zip(runs, tables, strict=True) if not table.recorded.any()]
    if of_steps and lacking:
        names = first_and_count([short(name) for name in lacking], 4, ", ")
        title = f"{side}: left out because no step was recorded completely: {names}"
        found.append(
            Finding(
                id=f"run_left_out:{side}",
                severity="warning",
                title=title,
                evidence={"runs": lacking[:MAX_LISTED]},
                known_from=KNOWN_FROM,
            )
        )
    if not of_steps and not any(run.steps.recorded.any() for run in runs):
        title = (
            f"{side}: no step was recorded completely; whole recordings are compared, which is valid only if they hold "
            "the same work"
        )
        found.append(
            Finding(id=f"no_steps:{side}", severity="warning", title=title, evidence={}, known_from=KNOWN_FROM)
        )
    if not communicates:
        title = f"{side}: no communication was recorded: its exposed time is unknown, not 0"
        found.append(
            Finding(id=f"no_communication:{side}", severity="warning", title=title, evidence={}, known_from=KNOWN_FROM)
        )
    return found


def unread_findings(side: str, runs: Sequence[MeasuredRun], unread: Sequence[str]) -> list[Finding]:
    """Return findings for runs of a side that could not be read, and for damaged files of the others."""
    found = []
    if unread:
        named = first_and_count(unread, 3, "; ")
        title = f"{side}: {len(unread)} of {len(unread) + len(runs)} runs could not be read: {named}"
        found.append(
            Finding(
                id=f"run_left_out:{side}:unread",
                severity="warning",
                title=title,
                evidence={"first": list(unread[:MAX_LISTED])},
                known_from=KNOWN_FROM,
            )
        )
    damaged = [each for run in runs for each in run.damaged]
    for each in damaged[:MAX_LISTED]:
        kept = {"id": f"damaged_source:{side}:{each.id.partition(':')[2]}", "title": f"{side}: {each.title}"}
        found.append(msgspec.structs.replace(each, **kept))
    return found


def rank_findings(runs: Iterable[MeasuredRun], ranks: Sequence[int]) -> list[Finding]:
    """Return a finding for the ranks that are not compared because not all runs have them."""
    recorded = {run.ranks for run in runs if run.ranks}
    others = sorted({rank for each in recorded for rank in each} - set(ranks))
    if not others or (not ranks and len(recorded) < 2):
        return []
    if not ranks:
        title = "no rank was recorded in all runs, or the world sizes differ: all ranks of each run are compared"
        return [Finding(id="ranks_differ", severity="warning", title=title, evidence={}, known_from=KNOWN_FROM)]
    lacking = "without a complete step in some run" if len(recorded) < 2 else "not recorded whole in all runs"
    title = f"compared: {rank_list(ranks)}; {lacking}: {rank_list(others)}"
    return [
        Finding(
            id="ranks_differ",
            severity="warning",
            title=title,
            evidence={"left_out": others[:MAX_LISTED]},
            known_from=KNOWN_FROM,
        )
    ]


def difference_findings(differences: Iterable[Difference]) -> list[Finding]:
    """Return findings for the keys in which the runs differ."""
    found = []
    counts = dict.fromkeys(_WORDS, 0)
    for each in differences:
        counts[each.sort] += 1
        if counts[each.sort] > MAX_LISTED:
            continue
        key = each.key.removeprefix(DDP).removeprefix(ENVIRONMENT).removeprefix(RECORDING)
        values = [first_and_count([short(value) for value in side], 3, ", ") for side in (each.base, each.candidate)]
        change = (
            f"{values[0]} became {values[1]}" if each.base != each.candidate else f"differs between runs: {values[0]}"
        )
        title = f"{_WORDS[each.sort]}: {short(key)} {change}"
        severity: Literal["info", "warning"] = "warning" if each.sort in ("job", "recording") else "info"
        evidence = {"base": each.base[:MAX_LISTED], "candidate": each.candidate[:MAX_LISTED]}
        found.append(
            Finding(
                id=f"differs_{each.sort}:{short(each.key)}",
                severity=severity,
                title=title,
                evidence=evidence,
                known_from=KNOWN_FROM,
            )
        )
    return found


def unknown_job(base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> list[Finding]:
    """Return a finding for the keys that identify a job and were not recorded on both sides."""
    unknown = [key for key in JOB if any(all(key not in run.identity for run in side) for side in (base, candidate))]
    if not unknown:
        return []
    title = f"not recorded on both sides: {', '.join(unknown)}; so it is not known whether it is the same job"
    return [
        Finding(id="job_not_known", severity="info", title=title, evidence={"keys": unknown}, known_from=KNOWN_FROM)
    ]


def change_findings(families: Iterable[FamilyChange], kernels: KernelChanges | None) -> list[Finding]:
    """Return findings for collectives that changed, and for a host that began to wait for the device."""
    found = []
    for each in [each for each in families if each.change != "same"][:MAX_LISTED]:
        what = " ".join(filter(None, (short(each.op), short(each.dtype or ""), short(each.dimension or ""))))
        members = "" if each.group_size is None else f" of {each.group_size} ranks"
        where = f" on group {short(each.group)}" if each.group else f" on groups{members}" if members else ""
        title = f"{what}{where}: {_call_words(each)}"
        evidence = {
            "base_calls": each.base_calls,
            "candidate_calls": each.candidate_calls,
            "base_bytes": each.base_bytes,
            "candidate_bytes": each.candidate_bytes,
            "exposed_difference_ns": each.exposed_difference_ns,
        }
        place = f"{id_part(each.group)}:{short(each.op)}:{short(each.dtype or '?')}:{each.group_size or '?'}"
        found.append(
            Finding(
                id=f"collective_{each.change}:{place}",
                severity="info",
                title=title,
                evidence=evidence,
                known_from=KNOWN_FROM,
            )
        )
    if kernels and kernels.candidate_synchronisations - kernels.base_synchronisations > SYNCHRONISATIONS:
        before, after = kernels.base_synchronisations, kernels.candidate_synchronisations
        how_often = f"{after:.4g} times a step instead of {before:.4g}"
        title = f"the host waits for values from the device (as in .item()) {how_often}"
        found.append(
            Finding(
                id="synchronisation",
                severity="warning",
                title=title,
                evidence={"base": before, "candidate": after},
                known_from=KNOWN_FROM,
            )
        )
    return found


def few_runs(base: int, candidate: int) -> list[Finding]:
    """Return a finding that a single run does not show how much runs of the same code vary."""
    if base > 1 and candidate > 1:
        return []
    title = "one run a side does not show how much runs of the same code vary; compare a folder of runs instead"
    return [
        Finding(
            id="single_runs",
            severity="info",
            title=title,
            evidence={"base": base, "candidate": candidate},
            known_from=KNOWN_FROM,
        )
    ]


def _call_words(each: FamilyChange) -> str:
    before, after = (f"{c:.4g} call{'' if c == 1 else 's'} a step" for c in (each.base_calls, each.candidate_calls))
    if each.change == "appeared":
        return f"{after} in the candidate, none in the base"
    if each.change == "vanished":
        return f"{before} in the base, none in the candidate"
    if each.change == "regrouped":
        return f"{after} instead of {before}, moving the same bytes"
    if each.base_bytes and each.candidate_bytes:
        share = each.candidate_bytes / each.base_bytes
        return f"{share:.4g} times the bytes a step, in {after} instead of {before}"
    return f"{after} instead of {before}"


def straggler_changes(base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> list[Finding]:
    """Return a finding for each straggler and cause of only one side: `straggler_appeared`, `straggler_vanished`."""
    before, after = _named(base), _named(candidate)
    found = []
    for appeared, own, other in ((True, after, before), (False, before, after)):
        for (rank, held_by), blame_ns in sorted(own.items(), key=lambda each: (-each[1], each[0])):
            if (rank, held_by) in other:
                continue
            when = "is now a straggler" if appeared else "is no longer a straggler"
            found.append(
                Finding(
                    id=f"straggler_{'appeared' if appeared else 'vanished'}:rank{rank}",
                    severity="warning" if appeared else "info",
                    title=f"rank {rank} {when} ({blame_ns / 1e6:.3f} ms of delay): {STRAGGLER_CAUSES[held_by]}",
                    evidence={"rank": rank, "held_by": held_by, "blame_ns": blame_ns},
                    known_from="comparison",
                )
            )
    return found


def _named(runs: Sequence[MeasuredRun]) -> dict[tuple[int, str], int]:
    """Return the stragglers of most runs of a side, by (rank, cause), with the median of their blame."""
    blamed: dict[tuple[int, str], list[int]] = {}
    for run in runs:
        for each in run.stragglers:
            blamed.setdefault((each.rank, each.held_by), []).append(each.blame_ns)
    return {key: round(median(each)) for key, each in blamed.items() if len(each) > MOST_RUNS * len(runs)}
