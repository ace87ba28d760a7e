"""The documents that reports are made of, and the decoding and checking of their saved JSON."""

import re
from typing import Final, cast

import msgspec

from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.fleet import Fleet
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.graph.answers import Chain
from overlapscope.analysis.job_step.metrics import METRICS, OF_JOB_STEPS
from overlapscope.analysis.mean_step import with_mean_step
from overlapscope.analysis.result import Analysis, with_headline
from overlapscope.errors import InputError, NewerSchemaError
from overlapscope.gate.calibrate import NoiseFloor
from overlapscope.gate.policy import GATING
from overlapscope.gate.verdict import Gate
from overlapscope.whatif.pricing.result import Prices
from overlapscope.whatif.result import WhatIf

Document = Analysis | Comparison | Gate | History | Scaling
HEAD_BYTES: Final = 200
REPORTABLE: Final = ("analysis", "comparison", "gate", "history", "scaling")
"""Names of the documents that reports are made of."""
_ALWAYS: Final = ("comm_ns", "compute_ns", "overlapped_ns", "exposed_comm_ns", "compute_only_ns", "idle_ns")
"""Figures that every window has; memcpy time is unknown where only events were recorded."""
DOCUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "analysis": Analysis,
    "comparison": Comparison,
    "whatif": WhatIf,
    "gate": Gate,
    "history": History,
    "scaling": Scaling,
    "fleet": Fleet,
    "floor": NoiseFloor,
    "chain": Chain,
    "price": Prices,
}
"""The type of each JSON document by the name in its `schema`: `overlapscope.NAME/1`."""
_HEAD: Final = re.compile(rf'\s*\{{\s*"schema"\s*:\s*"overlapscope\.({"|".join(DOCUMENTS)})/(\d{{1,9}})"'.encode())


def is_document(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is one of DOCUMENTS, saved."""
    return _HEAD.match(head) is not None


def decoded(content: bytes) -> Document:
    """Return the document of a saved file.

    Raises InputError where no report is made of it, or the content does not match its schema; NewerSchemaError where a
    newer version wrote it.
    """
    head = _HEAD.match(content)
    if head is None:
        raise InputError("is not JSON written by analyze, compare, gate or report")
    name = head[1].decode()
    if name not in REPORTABLE:
        raise InputError(
            f"is overlapscope.{name}/{int(head[2])}, of which no report is made; "
            "name JSON written by analyze, compare, gate or report"
        )
    if int(head[2]) > 1:
        raise NewerSchemaError("was written by a newer OverlapScope; update this one to read it")
    try:
        document = cast("Document", msgspec.json.decode(content, type=DOCUMENTS[name]))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"is damaged, or was edited: {error}") from error
    _check(document)
    try:
        return with_mean_step(with_headline(document)) if isinstance(document, Analysis) else document
    except OverflowError as error:
        raise InputError(f"is damaged, or was edited: {error}") from error


def comparison_of(document: Document) -> Comparison | None:
    """Return the comparison of a comparison or of a gate result; None for any other document."""
    if isinstance(document, Gate):
        return document.comparison
    return document if isinstance(document, Comparison) else None


def _check(document: Document) -> None:
    """Raise InputError for content that no command writes and that reports cannot be made of."""
    if isinstance(document, Scaling):
        if len(document.points) < 2 or any(each.step_ns <= 0 for each in document.points):
            raise InputError("is damaged, or was edited: it needs two world sizes and steps longer than 0")
        return
    if isinstance(document, Analysis):
        windows = [each for info in document.ranks for each in (info.whole, *info.steps)]
        if any(each.window_ns is not None and None in (getattr(each, name) for name in _ALWAYS) for each in windows):
            raise InputError("is damaged, or was edited: a window lacks a figure that every window has")
        head = document.headline
        if {*head.ranks} - {info.rank for info in document.ranks} or (head.window is not None and not head.ranks):
            raise InputError("is damaged, or was edited: its headline is not of its ranks")
        return
    if isinstance(document, History):
        if any({each.name for each in METRICS} - {*OF_JOB_STEPS} - set(run.values) for run in document.runs):
            raise InputError("is damaged, or was edited: a run lacks a metric that every run has")
        return
    comparison = document.comparison if isinstance(document, Gate) else document
    if not {*GATING} <= {each.name for each in comparison.metrics}:
        raise InputError("is damaged, or was edited: it lacks a metric that every comparison has")
    found = comparison.attribution
    attributions = [found.step_time, found.exposed_by_collective, found.exposed_by_cause] if found else []
    named = [part.collective for each in attributions for part in each.parts if part.collective is not None]
    if not all(0 <= at < len(comparison.collectives) for at in named):
        raise InputError("is damaged, or was edited: a part names a collective that is not there")
