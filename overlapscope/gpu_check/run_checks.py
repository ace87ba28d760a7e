"""Run the checks one after the other, each in a process of its own with a limit, and gather their figures."""

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.errors import InputError, UsageError
from overlapscope.gpu_check.checks import CHECKS, INVENTORY, KEPT
from overlapscope.gpu_check.document import Check, CheckResult, GpuCheck, Measured, judge
from overlapscope.gpu_check.inventory import REASONS
from overlapscope.gpu_check.kept_files import MAX_BYTES, keep, summed
from overlapscope.gpu_check.measurements import KEEP_FOLDER, measure
from overlapscope.gpu_check.table import as_markdown
from overlapscope.version import __version__

DOCUMENT: Final = "gpu_check.json"
TABLE: Final = "gpu_check.md"
RECORDINGS: Final = "recordings"


def run_checks(
    keep_in: Path | None,
    say: Callable[[str], None],
    *,
    chosen: Sequence[str] = (),
    checks: Sequence[Check] = CHECKS,
    inventory: Check = INVENTORY,
) -> GpuCheck:
    """Run the checks, all or those `chosen` by name, and return the document.

    With `keep_in`, an existing folder, the document so far, its table and small recordings are written there after each
    check. Raises InputError without a device, UsageError for the name of a check that there is not.
    """
    unknown = sorted(set(chosen) - {each.name for each in checks})
    if unknown:
        names = ", ".join(each.name for each in checks)
        raise UsageError(f"there is no check {unknown[0]}; checks are {names}")
    document = GpuCheck(overlapscope=__version__, date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    left = MAX_BYTES
    lost = 0
    kept: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="overlapscope-gpu-", ignore_cleanup_errors=True) as working:
        for check in (inventory, *checks):
            folder = Path(working) / check.name
            reason = None if check is inventory else _not_run(check, chosen, document)
            if reason is not None:
                result = judge(check, Measured(not_run=reason))
            else:
                if check is not inventory:  # without a device one line is all that is said
                    say(f"{check.name} {check.title} (at most {check.limit_seconds:g} s) ...")
                measured, ended = measure(check.measure, folder, check.limit_seconds)
                files: list[Path] = []
                if keep_in is not None:
                    files, left_out = keep(_recordings(folder), keep_in / RECORDINGS, check.name, left)
                    left -= sum(path.stat().st_size for path in files)
                    lost += left_out
                    kept += files
                kept_names = [f"{RECORDINGS}/{path.name}" for path in files]
                result = judge(check, measured, seconds=ended.seconds, kept=kept_names, output=ended.output)
            if check is inventory:
                if result.verdict == "not run":
                    raise InputError(
                        f"{result.reason}; doctor --gpu needs an NVIDIA GPU and a torch for it. "
                        "Without --gpu, doctor says what this machine can record"
                    )
                document = msgspec.structs.replace(document, versions=dict(result.figures))
            say(f"{check.name} {result.verdict}{f': {result.reason}' if result.reason else ''}")
            document = _with(document, result, keep_in)
    measured = summed(kept, lost) if keep_in is not None else Measured(not_run="no folder was given with -o")
    return _with(document, judge(KEPT, measured), keep_in)


def _not_run(check: Check, chosen: Sequence[str], document: GpuCheck) -> str | None:
    """Return why a check cannot be run here, or was not asked for."""
    if chosen and check.name not in chosen:
        return "not chosen"
    return next((why for need in check.needs if (why := REASONS[need](document.versions)) is not None), None)


def _recordings(folder: Path) -> list[Path]:
    return [path for path in (folder / KEEP_FOLDER).glob("*") if path.is_file()]


def _with(document: GpuCheck, result: CheckResult, keep_in: Path | None) -> GpuCheck:
    """Return the document with one more result; write it, so that an interruption loses only the check under way."""
    document = msgspec.structs.replace(document, checks=(*document.checks, result))
    if keep_in is not None:
        (keep_in / DOCUMENT).write_text(as_json(document), encoding="utf-8")
        (keep_in / TABLE).write_text(as_markdown(document), encoding="utf-8")
    return document


def as_json(document: GpuCheck) -> str:
    """Return the document `overlapscope.gpu_check/1`."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
