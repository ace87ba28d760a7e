"""Any inputs to one run: read every file, give each its rank, put them together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from overlapscope.errors import InputError, OverlapScopeError, UsageError
from overlapscope.ingest.bytestream import MAX_BYTES
from overlapscope.ingest.classify import Classifier
from overlapscope.ingest.discover import discover, rank_from_path, shown
from overlapscope.ingest.kineto import ReadTrace, read_kineto
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import MAX_RANKS, Group, RankTimeline, Run, Source, join_recordings


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
    """Read trace files, folders of them, or one run directory.

    A file that cannot be used costs only itself: it stands in the run's sources with the reason. Raises InputError
    when nothing is usable, UsageError when runs and traces are mixed.
    """
    options = options or ReadOptions()
    inputs = discover(list(paths))
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
        raise InputError(f"{', '.join(map(shown, paths))}: none of the {len(inputs.passed_over)} files is a trace")
    classifier = Classifier(options.comm, options.compute)
    traces: list[tuple[Path, ReadTrace]] = []
    failed: list[Source] = []
    for path in inputs.files:
        report = (lambda done, path=path: progress(path, done)) if progress else None
        try:
            traces.append((path, read_kineto(path, classifier, max_bytes=options.max_bytes, progress=report)))
        except InputError as error:
            failed.append(Source(path=shown(path), format="unknown", warnings=(_without_path(error, path),)))
        except MemoryError:
            failed.append(Source(path=shown(path), format="unknown", warnings=("not enough memory to read it",)))
    if not traces:
        first = failed[0]
        more = f" (and {len(failed) - 1} more files like it)" if len(failed) > 1 else ""
        raise InputError(f"{first.path}: {first.warnings[0]}{more}")
    run = _assemble(_with_ranks(traces, options.ranks), failed, len(inputs.passed_over))
    idle = classifier.idle_patterns
    if idle:
        note = f"no kernel matches {', '.join(repr(each) for each in idle)} (--comm, --compute)"
        first, *rest = run.sources
        return replace(run, sources=(replace(first, warnings=(*first.warnings, note)), *rest))
    return run


def _without_path(error: OverlapScopeError, path: Path) -> str:
    return str(error).removeprefix(f"{shown(path)}: ").removeprefix(f"{path}: ")


def _with_ranks(traces: list[tuple[Path, ReadTrace]], given: Mapping[str, int]) -> list[tuple[int, ReadTrace]]:
    """Give each trace its rank: as the trace says, else as its name says, else as the user says.

    One trace alone that says nothing is rank 0; one among many is left out, with the reason.
    """
    unused = set(given) - {path.name for path, _ in traces} - {""}
    if unused or ("" in given and len(traces) > 1):
        wrong = next(iter(unused), "")
        raise UsageError(
            f"--rank {wrong}={given[wrong]}: no input has that name"
            if wrong
            else f"--rank {given['']}: there are {len(traces)} inputs; say whose rank it is with FILE={given['']}"
        )
    ranked: list[tuple[int, ReadTrace]] = []
    for path, read in traces:
        trace = read
        said = given.get(path.name, given.get(""))
        rank = trace.rank if trace.rank is not None else rank_from_path(path)
        if said is not None and rank is not None and said != rank:
            where = "it" if trace.rank is not None else "its name"
            trace = _with_warning(trace, f"--rank {said} is not used: {where} says rank {rank}")
        rank = said if rank is None else rank
        if rank is None and len(traces) == 1:
            trace = _with_warning(trace, "no rank stands in the trace or its name; taken as rank 0")
            rank = 0
        if rank is None:
            trace = _with_warning(trace, f"left out: no rank stands in the trace or its name; use --rank {path.name}=N")
        ranked.append((-1 if rank is None else rank, trace))
    if all(rank < 0 for rank, _ in ranked):
        names = [path.name for path, _ in traces]
        raise InputError(
            f"none of the {len(traces)} traces says which rank it is; use --rank {names[0]}=0 --rank {names[1]}=1 ..."
        )
    return ranked


def _apart(ranked: list[tuple[int, ReadTrace]]) -> list[tuple[int, ReadTrace]]:
    """Tell groups of one name and different ranks apart, by putting the ranks behind the name."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for _, trace in ranked:
        for group in trace.groups:
            if group.ranks is not None:
                members.setdefault(group.name, set()).add(group.ranks)
    shared = {name for name, ranks in members.items() if len(ranks) > 1}
    return [(rank, _renamed(trace, shared) if shared else trace) for rank, trace in ranked]


def _renamed(trace: ReadTrace, shared: set[str]) -> ReadTrace:
    new = {
        group.name: f"{group.name} {list(group.ranks)}"
        for group in trace.groups
        if group.name in shared and group.ranks is not None
    }
    timeline = trace.timeline
    names = NameTable(timeline.names)
    codes = np.append(np.arange(len(timeline.names), dtype=np.int32), np.int32(-1))
    for old, name in new.items():
        if old in timeline.names:
            codes[timeline.names.index(old)] = names.code(name)
    calls = replace(timeline.collectives, group=codes[timeline.collectives.group])
    groups = tuple(replace(group, name=new.get(group.name, group.name)) for group in trace.groups)
    renamed = replace(timeline, names=tuple(names.to_list()), collectives=calls)
    return replace(trace, timeline=renamed, groups=groups)


def _with_warning(trace: ReadTrace, warning: str) -> ReadTrace:
    return replace(trace, source=replace(trace.source, warnings=(*trace.source.warnings, warning)))


def _assemble(ranked: list[tuple[int, ReadTrace]], failed: list[Source], passed_over: int) -> Run:
    parts: dict[int, list[RankTimeline]] = {}
    groups: dict[str, Group] = {}
    fingerprint: dict[str, str | int | None] = {}
    sizes = set()
    sources = []
    for rank, trace in _apart(ranked):
        sources.append(replace(trace.source, ranks=() if rank < 0 else (rank,)))
        if rank < 0:
            continue
        parts.setdefault(rank, []).append(replace(trace.timeline, rank=rank))
        sizes.add(trace.world_size)
        for group in trace.groups:
            known = groups.get(group.name)
            if known is None or (known.ranks is None and group.ranks is not None):
                groups[group.name] = group
        for key, value in trace.fingerprint.items():
            fingerprint.setdefault(key, value)
            if fingerprint[key] != value:
                fingerprint[key] = "mixed"
    ranks = {rank: join_recordings(parts[rank]) for rank in sorted(parts)}
    known_sizes = [size for size in sizes if size]
    world_size = max([*known_sizes, max(ranks) + 1]) if known_sizes else None
    sources += failed
    different = [key for key in ("device", "backend") if fingerprint.get(key) == "mixed"]
    if different:
        note = f"the traces differ in {' and '.join(different)}: are they of one job?"
        sources[0] = replace(sources[0], warnings=(*sources[0].warnings, note))
    if len(set(known_sizes)) > 1:
        listed = ", ".join(map(str, sorted(known_sizes)))
        note = f"the traces name different world sizes ({listed}): are they of one job?"
        sources[0] = replace(sources[0], warnings=(*sources[0].warnings, note))
    if passed_over:
        note = f"{passed_over} files of the folder do not look like traces and were passed over"
        sources[0] = replace(sources[0], warnings=(*sources[0].warnings, note))
    return Run(
        world_size=world_size,
        ranks=ranks,
        groups=tuple(groups[name] for name in sorted(groups)),
        sources=tuple(sources),
        fingerprint=dict(sorted(fingerprint.items())),
    )
