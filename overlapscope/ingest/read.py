"""Any inputs to one run: find the files, read each, put what they give together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from overlapscope.errors import InputError, OverlapScopeError, UsageError
from overlapscope.ingest import kineto
from overlapscope.ingest.archives import Unpacked, unpacked
from overlapscope.ingest.assemble import assemble
from overlapscope.ingest.bytestream import MAX_BYTES
from overlapscope.ingest.classify import Classifier
from overlapscope.ingest.readers import head_of, named_readers_of, readers_of
from overlapscope.ingest.reading import Head, ReadContext, Reading
from overlapscope.ingest.shown import shown
from overlapscope.ingest.text_head import FURTHER_BYTES, is_text
from overlapscope.ingest.unread_forms import what_unread
from overlapscope.timeline.run import MAX_RANKS, Run, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read."""

    comm: tuple[str, ...] = ()
    """Patterns of kernel names that communicate, besides the known ones."""
    compute: tuple[str, ...] = ()
    """Patterns of kernel names that compute."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Rank by file name; the name "" stands for a single file."""
    max_bytes: int = MAX_BYTES


def parse_ranks_option(values: Sequence[str]) -> dict[str, int]:
    """Read `3` or `NAME=3` into a mapping from file name to rank. Raises UsageError for anything else."""
    ranks: dict[str, int] = {}
    for value in values:
        found = re.fullmatch(r"(?:(?P<name>.+)=)?(?P<rank>[0-9]{1,9})", value, re.DOTALL)
        if not found or int(found["rank"]) > MAX_RANKS:
            raise UsageError(f"--rank {value}: give a number up to {MAX_RANKS}, or FILE=NUMBER")
        ranks[Path(found["name"]).name if found["name"] else ""] = int(found["rank"])
    return ranks


def read_inputs(
    paths: Sequence[Path], options: ReadOptions | None = None, *, progress: Callable[[Path, int], None] | None = None
) -> Run:
    """Read traces, logs and other sources of one job, folders of them, or one run directory.

    A file that cannot be used costs only itself: it stands in the run's sources with the reason. Raises InputError
    when nothing is usable, UsageError when runs and traces are mixed.
    """
    options = options or ReadOptions()
    with unpacked(list(paths), options.max_bytes) as found:
        return _read_found(found, paths, options, progress)


def _read_found(
    found: Unpacked, paths: Sequence[Path], options: ReadOptions, progress: Callable[[Path, int], None] | None
) -> Run:
    inputs = found.inputs
    if inputs.runs:
        if len(inputs.runs) > 1 or inputs.files:
            listed = ", ".join(shown(path) for path in [*inputs.runs, *inputs.files][:4])
            raise UsageError(f"a run directory stands alone, but these were found together: {listed}; name one of them")
        if options.comm or options.compute or options.ranks:
            raise UsageError(
                f"{shown(inputs.runs[0])} is a run that was read before: --comm, --compute and --rank say how to read "
                "traces; give those instead"
            )
        from overlapscope.timeline.store import load_run  # noqa: PLC0415 - traces need no Arrow

        return load_run(inputs.runs[0])
    if not inputs.files:
        why = f": {found.notes[0].warnings[0]}" if found.notes else ""
        others = inputs.passed_over
        listed = f" ({_some(others)})" if others else ""
        raise InputError(f"{', '.join(map(shown, paths))}: none of the {len(others)} files is a trace{listed}{why}")
    classifier = Classifier(options.comm, options.compute)
    readings: list[tuple[Path, Reading]] = []
    failed: list[Source] = list(found.notes)
    for path in inputs.files:
        named = found.shown_path(path)
        report = (lambda done, path=named: progress(path, done)) if progress else None
        context = ReadContext(classifier=classifier, max_bytes=options.max_bytes, progress=report)
        try:
            readings += [(named, found.shown_reading(reading)) for reading in _read(path, context)]
        except InputError as error:
            failed.append(Source(path=shown(named), format="unknown", warnings=(_without_path(error, path),)))
        except MemoryError:
            failed.append(Source(path=shown(named), format="unknown", warnings=("not enough memory to read it",)))
    if not readings:
        first = failed[0]
        more = f" (and {len(failed) - 1} more files like it)" if len(failed) > 1 else ""
        raise InputError(f"{first.path}: {first.warnings[0]}{more}")
    run = assemble(readings, options.ranks)
    notes = []
    if inputs.passed_over:
        others = inputs.passed_over
        notes.append(f"files passed over that look like no trace and no known log: {len(others)} ({_some(others)})")
    idle = classifier.idle_patterns
    if idle:
        notes.append(f"no kernel matches {', '.join(repr(each) for each in idle)} (--comm, --compute)")
    first, *rest = run.sources
    return replace(run, sources=(replace(first, warnings=(*first.warnings, *notes)), *rest, *failed))


def _read(path: Path, context: ReadContext) -> list[Reading]:
    """Read a file with the readers that know it; one that none knows is tried as a trace, which tells what it lacks.

    A log that several readers know gives what each finds; a reader that finds nothing after all is a warning.
    """
    try:
        head = head_of(path)
        known = readers_of(head)
        if not known and (unread := what_unread(head.content)) is not None:
            raise InputError(f"{shown(path)}: {unread}")
        known = known or named_readers_of(head)
        if not known and _is_other_text(head):
            raise InputError(
                f"{shown(path)}: holds nothing that is read: no trace, "
                f"and in its first {FURTHER_BYTES >> 20} MiB no line of a known log or table"
            )
        known = known or [kineto.READER]
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    readings: list[Reading] = []
    failed: list[InputError] = []
    for reader in known:
        try:
            readings.append(reader.read(path, context))
        except InputError as error:
            failed.append(error)
    if not readings:
        raise failed[0]
    first = readings[0]
    warnings = (*first.source.warnings, *(_without_path(error, path) for error in failed))
    return [replace(first, source=replace(first.source, warnings=warnings)), *readings[1:]]


def _without_path(error: OverlapScopeError, path: Path) -> str:
    return str(error).removeprefix(f"{shown(path)}: ")


def _is_other_text(head: Head) -> bool:
    """Whether a file that no reader knows is plain text, which no trace is: it does not begin as JSON would."""
    begin = head.text.lstrip()[:64]
    return is_text(head.content) and re.match(r"\{|\[\s*(?:[\[{\]\",]|$)|$", begin) is None


def _some(paths: Sequence[Path]) -> str:
    """Give the names of the first files of many."""
    return ", ".join([*(shown(Path(path.name)) for path in paths[:3]), *(["..."] if len(paths) > 3 else [])])
