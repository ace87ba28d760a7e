"""Any inputs to one run: find the files, read each, put what they give together."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.archives import Unpacked, renamed, unpacked
from overlapscope.ingest.assemble import assemble
from overlapscope.ingest.bytestream import MAX_BYTES
from overlapscope.ingest.classify import Classifier
from overlapscope.ingest.cores import processes_for
from overlapscope.ingest.read_file import NO_MEMORY, read_file, reason
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.shown import shown, shown_name
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


def given_options(
    *, ranks: Mapping[str, int] | int | None, comm: str | Iterable[str], compute: str | Iterable[str]
) -> ReadOptions:
    """Give the options as a user of the package writes them."""
    patterns = [(each,) if isinstance(each, str) else tuple(each) for each in (comm, compute)]
    return ReadOptions(
        comm=patterns[0], compute=patterns[1], ranks={"": ranks} if isinstance(ranks, int) else dict(ranks or {})
    )


def read_inputs(
    paths: Sequence[Path],
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    workers: int | None = 1,
) -> Run:
    """Read traces, logs and other sources of one job, folders of them, or one run directory.

    A file that cannot be used costs only itself: it stands in the run's sources with the reason. More than one worker,
    or None where there are cores for it and the files are large, reads them in processes side by side. Raises
    InputError when nothing is usable, UsageError when runs and traces are mixed.
    """
    options = options or ReadOptions()
    with unpacked(list(paths), options.max_bytes) as found:
        run = stored_run(found, options)
        if run is not None:
            return run
        require_files(found, paths)
        count = 1 if workers == 1 else processes_for(workers, found.inputs.files)
        if count == 1:
            gathered = _read_here(found, options, progress)
        else:
            from overlapscope.ingest.gather_apart import gather_whole  # noqa: PLC0415 - traces need no Arrow

            gathered = gather_whole(found, options, count, progress)
        return joined(gathered, found, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the files gave, one after another."""

    readings: list[tuple[Path, Reading]]
    """Each with what its file is called."""
    failed: list[Source]
    """Files that gave nothing, and why."""
    idle_patterns: list[str]
    """The user's patterns that no kernel of any file matched."""


def stored_run(found: Unpacked, options: ReadOptions) -> Run | None:
    """Give the run if the inputs are one run directory, None without any. Raises UsageError for more than that."""
    inputs = found.inputs
    if not inputs.runs:
        return None
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


def require_files(found: Unpacked, paths: Sequence[Path]) -> None:
    """Raise InputError where no file may be a source."""
    if not found.inputs.files:
        why = f": {found.notes[0].warnings[0]}" if found.notes else ""
        others = found.inputs.passed_over
        listed = f" ({_some(others)})" if others else ""
        raise InputError(f"{', '.join(map(shown, paths))}: none of the {len(others)} files is a trace{listed}{why}")


def _read_here(found: Unpacked, options: ReadOptions, progress: Callable[[Path, int], None] | None) -> Gathered:
    classifier = Classifier(options.comm, options.compute)
    readings: list[tuple[Path, Reading]] = []
    failed: list[Source] = []
    for path in found.inputs.files:
        named = found.shown_path(path)
        report = (lambda done, path=named: progress(path, done)) if progress else None
        context = ReadContext(classifier=classifier, max_bytes=options.max_bytes, progress=report)
        try:
            readings += [(named, renamed(reading, found.renamings)) for reading in read_file(path, context)]
        except InputError as error:
            failed.append(refused(named, reason(error, path)))
        except MemoryError:
            failed.append(refused(named, NO_MEMORY))
    return Gathered(readings=readings, failed=failed, idle_patterns=classifier.idle_patterns)


def refused(named: Path, why: str) -> Source:
    """Give what stands in the sources for a file that gave nothing."""
    return Source(path=shown(named), format="unknown", warnings=(why,))


def joined(gathered: Gathered, found: Unpacked, options: ReadOptions) -> Run:
    """Put together what the files gave, and say what was left. Raises InputError when none of them gave anything."""
    failed = [*found.notes, *gathered.failed]
    if not gathered.readings:
        first = failed[0]
        more = f" (and {len(failed) - 1} more files like it)" if len(failed) > 1 else ""
        raise InputError(f"{first.path}: {first.warnings[0]}{more}")
    run = assemble(gathered.readings, options.ranks)
    notes = []
    if found.inputs.passed_over:
        others = found.inputs.passed_over
        notes.append(f"files passed over that look like no trace and no known log: {len(others)} ({_some(others)})")
    idle = gathered.idle_patterns
    if idle:
        notes.append(f"no kernel matches {', '.join(repr(each) for each in idle)} (--comm, --compute)")
    first, *rest = run.sources
    return replace(run, sources=(replace(first, warnings=(*first.warnings, *notes)), *rest, *failed))


def _some(paths: Sequence[Path]) -> str:
    """Give the names of the first files of many."""
    return ", ".join([*(shown_name(path) for path in paths[:3]), *(["..."] if len(paths) > 3 else [])])
