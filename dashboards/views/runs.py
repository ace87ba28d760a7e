"""What a list of runs shows of one: figures, where a step goes, the trend over steps, and the largest loss in words."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.common.cause_table import (
    CAUSES,
    IDLE_CAUSES,
    WAITS_FOR_ANOTHER_RANK,
    cause_label,
    idle_label,
)
from overlapscope.analysis.common.job_identity import identity
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import Analysis, MeanStep
from overlapscope.display import size_text
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import count, ms, one_row, percent, short, signed_ms, signed_percent
from overlapscope.report.sheet.gate import headline as gate_headline
from overlapscope.report.text.cross_rank import missing_ranks_text
from overlapscope.report.verdicts import GATE
from overlapscope.timeline.run import Run, began

WORTH_NAMING: Final = 0.05
"""Least share of a step that one cause takes to be named as the run's largest loss."""
MOST_POINTS: Final = 60
"""Points of a trend; of more steps each point is the maximum of neighbours, so that outliers stay visible."""
LEAST_SPREAD: Final = 0.25
"""Share of the median step that a trend's height stands for at least: smaller noise is drawn small."""
NOBODYS: Final = ("start_of_recording",)
"""Causes that are of the recording, not of the job."""
VERSIONS: Final = {"torch_version": "torch", "nccl_version": "NCCL"}
DIGITS: Final = 6
"""Of a share that is drawn: a hundredth of a pixel of the widest screen."""
MAX_TAG: Final = 28
MAX_TITLES: Final = 3
"""Most warnings of a run that its row holds."""


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the small bar; `kind` is its colour and pattern, a class of the style sheet."""

    name: str
    ns: int
    kind: str


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The cause that takes most of a step besides compute, and the place on the timeline that shows it."""

    words: str
    ns: int
    kind: str
    chain: str
    """Empty where the timeline has no name for it."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a list shows it. Times are those of its headline; None where not known."""

    window: str | None
    step_ns: int | None
    exposed_ns: int | None
    exposed_fraction: float | None
    parts: tuple[StepPart, ...]
    loss: Loss | None
    """None where no cause takes `WORTH_NAMING` of a step."""
    step_lengths_ns: tuple[int, ...]
    """Of complete steps, in order."""
    steps: int
    of_mean: bool
    """Whether times are those of the mean step, not of the median one."""
    ranks: int
    world_size: int | None
    missing: str
    began_ns: int | None
    what: tuple[str, ...]
    """Device and backend."""
    tags: tuple[str, ...]
    warnings: tuple[str, ...]


class BaselineVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate says of a run against the pinned baseline."""

    words: str
    moved: str
    """How much longer or shorter a step takes; empty where that is not known."""
    tone: str
    headline: str


def summary_of(run: Run, analysis: Analysis) -> RunSummary:
    """Return what a list shows of an analysed run."""
    head, info, main = analysis.headline, analysis.run, analysis.main_figures
    return RunSummary(
        window=head.window,
        step_ns=main.step_ns,
        exposed_ns=main.exposed_comm_ns,
        exposed_fraction=main.exposed_fraction,
        parts=parts_of(main),
        loss=largest_loss(main, on_cpu=not info.has_device),
        step_lengths_ns=tuple(each.step_ns for each in head.job_steps if each.step is not None),
        steps=main.steps,
        of_mean=analysis.mean_step is not None,
        ranks=len(info.ranks),
        world_size=info.world_size,
        missing=missing_ranks_text(info.missing_ranks, info.unread_ranks),
        began_ns=began(int(each.recordings.start_ns.min()) for each in run.ranks.values()
                       if each.recordings.start_ns.size),
        what=tuple(_word(info.fingerprint[key]) for key in ("device", "backend") if info.fingerprint.get(key)),
        tags=tags_of(identity(run), is_dry=analysis.dry_step is not None),
        warnings=tuple(each.title for each in analysis.findings if each.severity == "warning"),
    )  # fmt: skip


def parts_of(main: Headline | MeanStep) -> tuple[StepPart, ...]:
    """Return where a step goes, in at most seven parts; medians need not add up to the step."""
    waited = sum(ns for cause, ns in main.causes.items() if cause in WAITS_FOR_ANOTHER_RANK)
    found = (
        ("compute only", main.compute_only_ns, "compute"),
        ("overlapped communication", main.overlapped_ns, "hidden"),
        ("exposed: wait for another rank", waited, "waiting"),
        ("exposed: other" if waited else "exposed", (main.exposed_comm_ns or 0) - waited, "exposed"),
        ("memcpy only", main.copy_only_ns, "copy"),
        ("idle", main.idle_ns, "idle"),
        ("outside the rank's own step", (main.outside_ns or 0) + (main.start_of_recording_ns or 0), "idle"),
    )
    return tuple(StepPart(name=name, ns=ns, kind=kind) for name, ns, kind in found if ns)


def largest_loss(main: Headline | MeanStep, *, on_cpu: bool) -> Loss | None:
    """Return the largest loss with its share of a step, by cause where that is known; None where all are small."""
    idle = () if main.idle_causes else ((main.idle_ns or 0, "idle", "idle", "longest-idle"),)
    losses = [
        *idle,
        (main.copy_only_ns or 0, "memcpy alone", "copy", "longest-copy"),
        (main.outside_ns or 0, "outside the ranks' own steps", "idle", ""),
        *((ns, cause_label(cause, on_cpu=on_cpu), cause if cause in CAUSES else "unknown", f"longest-{cause}")
          for cause, ns in main.causes.items() if cause not in NOBODYS),
        *((ns, f"idle: {idle_label(cause, on_cpu=on_cpu)}", f"idle-{cause}" if cause in IDLE_CAUSES else "idle",
           "longest-idle")
          for cause, ns in main.idle_causes.items() if cause not in NOBODYS),
    ]  # fmt: skip
    if not main.step_ns:
        return None
    ns, label, kind, chain = max(losses)
    if ns < WORTH_NAMING * main.step_ns:
        return None
    words = "exposed, cause unknown" if label == "unknown" else label
    return Loss(words=f"{words}: {percent(ns / main.step_ns)}", ns=ns, kind=kind, chain=chain)


def tags_of(known: Mapping[str, str], *, is_dry: bool) -> tuple[str, ...]:
    """Return short words that tell runs of one job apart: parallelism, bucket size, data type, versions."""
    bucket = known.get("ddp.bucket_cap_bytes", "")
    found = [
        "dry run" if is_dry else "",
        *known.get("parallelism", "").split(", "),
        f"bucket {size_text(int(bucket))}" if bucket.isdecimal() else "",
        known.get("dtype", ""),
        *(f"{name} {known[key]}" for key, name in VERSIONS.items() if key in known),
    ]  # fmt: skip
    return tuple(_word(each) for each in found if each)


def verdict_of(gate: Gate) -> BaselineVerdict:
    """Return the verdict of a gate whose base is the baseline: on step time, unless the gate as a whole fails."""
    step = next((each for each in gate.metrics if each.name == "step_time_ns"), None)
    fails = gate.verdict in ("regressed", "not_comparable", "missing")
    style = GATE[gate.verdict if fails or step is None else step.verdict]
    moved = ""
    if step is not None and step.difference is not None and gate.verdict != "not_comparable":
        moved = f"{signed_ms(step.difference)} ms ({signed_percent(step.relative)})"
    if moved and gate.unknown_keys:
        unknown = f"not known to be the same job ({', '.join(gate.unknown_keys)}); {gate_headline(gate)}"
        return BaselineVerdict(words="same job?", moved=moved, tone="", headline=unknown)
    return BaselineVerdict(words=style.words, moved=moved, tone=style.tone, headline=gate_headline(gate))


def trend(lengths_ns: Sequence[int]) -> list[tuple[float, float]]:
    """Return points (x, y) of a trend in a unit square, y up; nothing for fewer than two steps.

    The height stands for the spread of the steps, and for at least `LEAST_SPREAD` of the median.
    """
    each = -(-len(lengths_ns) // MOST_POINTS) or 1
    shown = [max(lengths_ns[at : at + each]) for at in range(0, len(lengths_ns), each)]
    if len(shown) < 2:
        return []
    low, high = min(shown), max(shown)
    height = max(high - low, LEAST_SPREAD * sorted(shown)[len(shown) // 2]) or 1.0
    foot = (low + high - height) / 2
    return [(round(at / (len(shown) - 1), 3), round((ns - foot) / height, 3)) for at, ns in enumerate(shown)]


def cells(summary: RunSummary) -> dict[str, Any]:
    """Return the figures of a row as text, with shares for drawing and numbers for sorting."""
    drawn_ns = sum(each.ns for each in summary.parts)
    lengths = summary.step_lengths_ns
    spread = f"{ms(min(lengths))} to {ms(max(lengths))} ms" if lengths else ""
    return {
        "step": ms(summary.step_ns),
        "exposed": ms(summary.exposed_ns),
        "share": percent(summary.exposed_fraction),
        "unit": _length_of(summary),
        "parts": [
            {"kind": each.kind, "share": round(each.ns / drawn_ns, DIGITS), "words": f"{each.name} {ms(each.ns)} ms"}
            for each in summary.parts
        ],
        "trend": trend(lengths),
        "trend_words": f"step time of {len(lengths)} steps: {spread}" if len(lengths) > 1 else "",
        "what": " · ".join((_ranks(summary), *summary.what)),
        "missing": summary.missing if summary.ranks > 1 else "",
        "tags": list(summary.tags),
        "warnings": list(summary.warnings[:MAX_TITLES]),
        "warned": count(len(summary.warnings), "warning") if summary.warnings else "",
        "numbers": {
            "step": summary.step_ns,
            "exposed": summary.exposed_ns,
            "share": summary.exposed_fraction,
            "verdict": summary.loss.ns / summary.step_ns if summary.loss and summary.step_ns else 0.0,
            "ranks": summary.ranks,
        },
    }  # fmt: skip


def _length_of(summary: RunSummary) -> str:
    """Return what the length of a step is of; empty without times."""
    if summary.window != "step":
        return "whole recording" if summary.window else ""
    of = "mean of " if summary.of_mean else "median of "
    return f"{of if summary.steps > 1 else ''}{count(summary.steps, 'step')}"


def _ranks(summary: RunSummary) -> str:
    of_world = f" of {summary.world_size}" if summary.world_size and summary.world_size != summary.ranks else ""
    return f"{summary.ranks}{of_world} rank{'' if summary.ranks == 1 and not of_world else 's'}"


def _word(value: object) -> str:
    return one_row(short(str(value), MAX_TAG))
