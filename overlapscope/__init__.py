"""OverlapScope: exact communication-compute overlap of distributed training.

import overlapscope

run = overlapscope.load("traces/")     # trace files, a folder of them, or a run directory
run.breakdown()                        # a pandas frame: one row per rank and window
run.analysis()                         # everything, as the value behind `overlapscope analyze --json`

    with overlapscope.profile("runs/baseline", model=model) as scope:   # every rank calls it
        for batch in loader:
            with scope.step():
                ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlapscope.errors import InputError, NewerSchemaError, NotATraceError, OverlapScopeError, UsageError
from overlapscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor
    from os import PathLike
    from typing import Any, Literal

    from overlapscope.capture.session import Session
    from overlapscope.capture.settings import Trigger
    from overlapscope.ingest.write_run import Written
    from overlapscope.loaded_run import LoadedRun

__all__ = [
    "InputError",
    "NewerSchemaError",
    "NotATraceError",
    "OverlapScopeError",
    "Trigger",
    "UsageError",
    "__version__",
    "dryrun",
    "load",
    "profile",
    "write_run",
]


def __getattr__(name: str) -> Any:
    """Load `Trigger` where it is first used."""
    if name == "Trigger":
        from overlapscope.capture.settings import Trigger  # noqa: PLC0415 - `import overlapscope` loads nothing heavy

        return Trigger
    raise AttributeError(f"module 'overlapscope' has no attribute {name!r}")


def load(
    *paths: str | PathLike[str],
    ranks: Mapping[str, int] | Literal["by-name"] | int | None = None,
    comm: str | Iterable[str] = (),
    compute: str | Iterable[str] = (),
    workers: int | None = None,
) -> LoadedRun:
    """Read trace files, folders of them, or one run directory.

    `ranks` is the rank of a single file, or of files by name, where neither trace nor name states it; "by-name" numbers
    such files in the order of their names. `comm` and
    `compute` are regular expressions for names of kernels that communicate or compute, besides the known ones. Large
    files are read by `workers` processes in parallel (None: chosen by the size of the input, 1: only this process).

    Raises InputError when nothing is usable; a bad file among good ones is left out and reported in `run.sources`.
    """
    from overlapscope.ingest.options import (  # noqa: PLC0415 - `import overlapscope` loads nothing heavy
        check_options,
        check_workers,
    )
    from overlapscope.loaded_run import read  # noqa: PLC0415

    options = check_options(ranks=ranks, comm=comm, compute=compute)
    return read(paths, options, workers=check_workers(workers))


def write_run(
    *paths: str | PathLike[str],
    to: str | PathLike[str],
    ranks: Mapping[str, int] | Literal["by-name"] | int | None = None,
    comm: str | Iterable[str] = (),
    compute: str | Iterable[str] = (),
    workers: int | None = None,
    executor: Executor | None = None,
    force: bool = False,
) -> Written:
    """Read as `load` does, and write the run directory `to`, without ever having the whole run in memory.

    Files are read by `workers` processes of this machine (None: chosen by the size of the input), or by `executor`: any
    `concurrent.futures.Executor` whose workers have overlapscope installed and see `paths` and `to` under the same
    names, such as a Dask client's. `force` replaces an existing run. After an interruption, the next call with the same
    `to` continues.

    Raises InputError when nothing is usable, UsageError when `to` exists.
    """
    from overlapscope.ingest.options import (  # noqa: PLC0415 - as above
        check_executor,
        check_options,
        check_paths,
        check_workers,
    )
    from overlapscope.ingest.write_run import write_run as write  # noqa: PLC0415

    options = check_options(ranks=ranks, comm=comm, compute=compute)
    inputs, (out,) = check_paths("write_run", paths), check_paths("write_run", [to])
    workers = check_workers(workers)
    return write(inputs, out, options, workers=workers, executor=check_executor(executor, workers), force=force)


def dryrun(
    build: Callable[..., Callable[[], Any]],
    *,
    world_size: int,
    ranks: Sequence[int] = (0,),
    mesh: Mapping[str, int] | None = None,
    to: str | PathLike[str] | None = None,
    force: bool = False,
) -> LoadedRun:
    """Run one training step on fake tensors as each rank in `ranks` of a job of `world_size`, and record it.

    `build(device)` makes model, optimizer and batch on that device and returns the step, a function without arguments.
    It is called in a fake process group; nothing is computed, allocated or sent. With `mesh`, such as `{"dp": 128,
    "tp": 8}`, it is `build(device, mesh)`, with a `DeviceMesh` of these dimensions. The run has every collective with
    operation, group, bytes and order, every operation with FLOPs and bytes, and memory; it has no times. With `to` the
    run directory is written; `force` replaces an existing one.

    Raises UsageError for a misuse, InputError where the step needs a device or the values of tensors.
    """
    from overlapscope.dry_run.passes import record  # noqa: PLC0415 - `import overlapscope` loads nothing heavy
    from overlapscope.loaded_run import LoadedRun  # noqa: PLC0415

    name = f"{getattr(build, '__module__', '')}:{getattr(build, '__qualname__', '')}"
    run = LoadedRun(record(build, world_size=world_size, ranks=ranks, mesh=mesh, name=name))
    if to is not None:
        run.save(to, force=force)
    return run


def profile(
    path: str | PathLike[str],
    *,
    model: Any = None,
    mode: Literal["trace", "events"] = "trace",
    warmup: int = 3,
    steps: int = 4,
    repeat: int | None = None,
    measure_overhead: bool = True,
    wait_seconds: float = 30.0,
    grace_seconds: float = 10.0,
    events_every: int | None = None,
    flush_seconds: float = 30.0,
    keep: str | None = None,
    trigger: Trigger | None = None,
    expect: str | PathLike[str] | None = None,
) -> Session:
    """Record training steps on this rank into the run directory `path`; every rank calls it with the same arguments.

    A context manager whose `scope.step()` wraps one training step, or a decorator for a function that does one.
    `mode="trace"` runs torch.profiler for `steps` steps after `warmup`, again every `repeat` steps; `mode="events"`
    runs no profiler and can stay on. `model` is needed to find forward, to name gradients and to read DDP's buckets.
    With `measure_overhead`, `events` does not capture some of the first 66 steps, to measure the cost of capture;
    `trace` compares with the steps that it does not record. At the end rank 0 waits at most `wait_seconds` for the
    other ranks and prints a summary; at most `grace_seconds` where SIGTERM ends the job and nodes share no disk. With
    `trigger`, `events` records a trace of a few steps where the job becomes slower, or somebody asks for one.

    `events` mode records every step while its mean cost is below 1 % of them, else one in as many as keeps it there;
    `events_every=1` records all. It writes what is recorded every `flush_seconds`, and keeps all of it, or with
    `keep="10m"` the last ten minutes.

    With `expect`, a dry run of the job, rank 0 also prints how the recorded steps differ from it.

    Raises UsageError for a misuse. Nothing else of ours is raised into the training loop: a failure is a warning, and
    the run is marked as incomplete.
    """
    from pathlib import Path  # noqa: PLC0415 - `import overlapscope` loads nothing heavy

    from overlapscope.capture.session import Session  # noqa: PLC0415
    from overlapscope.capture.settings import Settings  # noqa: PLC0415
    from overlapscope.profiling import finish  # noqa: PLC0415

    settings = Settings(
        mode=mode,
        warmup=warmup,
        steps=steps,
        repeat=repeat,
        measure_overhead=measure_overhead,
        wait_seconds=wait_seconds,
        grace_seconds=grace_seconds,
        events_every=events_every,
        flush_seconds=flush_seconds,
        keep=keep,
        trigger=trigger,
        expect=None if expect is None else str(Path(expect)),
    )
    return Session(Path(path), model, settings, finish)
