"""Run a step as one rank after the other, and make a run of what was recorded."""

import gc
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from overlapscope.capture.host.environment import groups
from overlapscope.dry_run.build_function import accepts
from overlapscope.dry_run.failures import explained
from overlapscope.dry_run.fake_world import FakeWorld
from overlapscope.dry_run.fusion import fused_bytes
from overlapscope.dry_run.modules import OTHER
from overlapscope.dry_run.program import Program
from overlapscope.dry_run.recorder import CallRow, Recorder
from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.columns import (
    ATTENTION,
    IS_PREFETCHED,
    MATMUL,
    MEMORY,
    NONE,
    NOT_PREFETCHED,
    OPTIMIZER_UPDATE,
    UNKNOWN_PREFETCH,
    WAIT,
    Annotations,
    Collectives,
    Lanes,
    Operations,
    Recordings,
    Schedule,
    Spans,
    Steps,
    make,
    or_missing,
)
from overlapscope.timeline.dimensions import fill_group_columns
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT, volume_bytes
from overlapscope.timeline.run import DRY_RUN, Group, RankTimeline, Run, Source

MAX_WORLD: Final = 1 << 20
LOWEST_TORCH: Final = (2, 7)
"""Older ones take a fake parameter for one without a shape, or have no FSDP2 without CUDA; the extra `dryrun`."""
_WORK_OF_A_DEVICE: Final = (MATMUL, ATTENTION, MEMORY, OPTIMIZER_UPDATE)

Build = Callable[..., Any]


def record(
    build: Build,
    *,
    world_size: int,
    ranks: Sequence[int] = (0,),
    mesh: Mapping[str, int] | None = None,
    name: str = "",
) -> Run:
    """Return the run of one step of each rank in `ranks`, of a job of `world_size` ranks.

    `build(device)` makes model, optimizer and batch and returns the step, a function without arguments, which is called
    once to warm up and once to be recorded. With `mesh`, sizes by the names of its dimensions, it is
    `build(device, mesh)`, with a `DeviceMesh`. `name` is what the run's source is called.

    Raises UsageError for a misuse, InputError where the step cannot run without a device or without values.
    """
    _check(build, world_size, ranks)
    _check_mesh(mesh, world_size)
    require_torch()
    timelines: dict[int, RankTimeline] = {}
    found: dict[str, Group] = {}
    for rank in ranks:
        world = FakeWorld(rank, world_size)
        try:
            with world.opened():
                timelines[rank] = _pass(world, build, mesh)
                found |= {each.name: each for each in groups()}
        finally:
            gc.collect()
    every = tuple(sorted(found.values(), key=lambda each: each.name))
    return Run(
        world_size=world_size,
        ranks=fill_group_columns(timelines, every, world_size),
        groups=every,
        sources=tuple(_source(name, each) for each in timelines.values()),
        fingerprint=_fingerprint(),
    )


def _check(build: Build, world_size: int, ranks: Sequence[int]) -> None:
    if not callable(build):
        raise UsageError(
            f"the first argument must be a function that takes a device and returns the step, not {build!r}"
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 1 <= world_size <= MAX_WORLD:
        must = f"must be a number of ranks from 1 to {MAX_WORLD}, not {world_size!r}"
        raise UsageError(f"world_size {must}", in_shell=f"--world {must}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise UsageError("ranks must name each rank once", in_shell="--rank must name each rank once")
    for rank in ranks:
        if not 0 <= rank < world_size:
            last = world_size - 1
            raise UsageError(f"rank {rank} is none of a job of {world_size}: choose from 0 to {last}")


def _check_mesh(mesh: Mapping[str, int] | None, world_size: int) -> None:
    for name, size in (mesh or {}).items():
        if not str(name).isidentifier() or isinstance(size, bool) or not isinstance(size, int) or size < 1:
            must = f"must be names of dimensions with their sizes, such as dp=128,tp=8, not {name}={size}"
            raise UsageError(f"mesh {must}", in_shell=f"--mesh {must}")
    if mesh and math.prod(mesh.values()) != world_size:
        sizes = " x ".join(map(str, mesh.values()))
        raise UsageError(f"the mesh has {sizes} = {math.prod(mesh.values())} ranks, the world {world_size}")


def require_torch() -> None:
    """Raise UsageError where torch is missing, or older than dry runs are promised on."""
    try:
        import torch.distributed  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("a dry run needs torch: pip install 'overlapscope[dryrun]'") from error
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LOWEST_TORCH:
        lowest = ".".join(map(str, LOWEST_TORCH))
        raise UsageError(
            f"a dry run needs torch {lowest} or later, this is {torch.__version__}: it may run on any machine, "
            "pip install 'overlapscope[dryrun]' in an environment of its own"
        )
    if not torch.distributed.is_available():
        raise UsageError("this torch has no torch.distributed: install a build that has it")


def _pass(world: FakeWorld, build: Build, mesh: Mapping[str, int] | None) -> RankTimeline:
    """Build, warm up and record as one rank."""
    import torch  # noqa: PLC0415

    program, begun = Program(world), time.perf_counter()
    try:
        step = _built(build, torch.device("cpu"), mesh)
        world.accelerate.check()
        built = time.perf_counter()
        program.run(step)
    except (Exception, SystemExit) as error:
        raise explained(error) from error
    seconds = (built - begun, program.begun_seconds - built, program.ended_seconds - program.begun_seconds)
    return _timeline(world, seconds)


def _built(build: Build, device: Any, mesh: Mapping[str, int] | None) -> Callable[[], None]:
    import torch  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    if mesh:
        if not accepts(build, device, mesh):
            raise InputError(f"{_name(build)} cannot be called with device and mesh: write def build(device, mesh)")
        step = build(device, init_device_mesh(device.type, tuple(mesh.values()), mesh_dim_names=tuple(mesh)))
    else:
        if not accepts(build, device):
            raise InputError(f"{_name(build)} cannot be called with the device alone: write def build(device)")
        step = build(device)
    what = "a function without arguments that does forward, backward and the optimizer"
    if isinstance(step, torch.nn.Module):
        raise InputError(
            f"{_name(build)} returned a module instead of the step: return {what}, or let --ddp or --fsdp2 make it"
        )
    if not callable(step):
        raise InputError(
            f"{_name(build)} returned {type(step).__name__} instead of a function: return the step, {what}"
        )
    if not accepts(step):
        raise InputError(f"the step that {_name(build)} returned takes arguments: return {what}")
    return step  # type: ignore[no-any-return] # whatever build returns


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _timeline(world: FakeWorld, seconds: Sequence[float]) -> RankTimeline:
    recorder, names = world.recorder, NameTable()
    memory = recorder.memory
    operations = _operations(recorder, names)
    return RankTimeline(
        rank=world.rank,
        basis=DRY_RUN,
        has_device=True,
        recordings=make(Recordings, 1),
        spans=make(Spans, 0),
        collectives=_collectives(recorder, names),
        steps=make(Steps, 1, recording=0, step=0, cut=False),
        lanes=make(Lanes, 0),
        annotations=make(Annotations, 0),
        operations=operations,
        schedule=_schedule(recorder, operations, names),
        names=tuple(names.to_list()),
        recorded={
            "memory": {
                "peak_bytes": memory.peak_bytes,
                "peak_order": memory.peak_order,
                "at_peak_bytes": {kind: size for kind, size in memory.peak.items() if size},
            },
            "assumptions": list(recorder.assumptions),
            "set_up": recorder.places.wrapping_lines(),
            "seconds": dict(zip(("build", "warm_up", "record"), [round(each, 3) for each in seconds], strict=True)),
        },
    )


def _operations(recorder: Recorder, names: NameTable) -> Operations:
    rows = recorder.rows
    fused = fused_bytes(recorder.traffic, recorder.memory.numbers())
    fused = [0 if row.collective is not None or row.work == WAIT else size
             for row, size in zip(rows, fused, strict=True)]  # fmt: skip
    return make(
        Operations,
        len(rows),
        order=np.arange(len(rows)),
        work=[each.work for each in rows],
        name=names.codes(each.name for each in rows),
        stream=names.codes(each.stream for each in rows),
        phase=names.codes(each.phase for each in rows),
        module=names.codes(each.module for each in rows),
        dtype=names.codes(each.dtype for each in rows),
        flops=[each.flops for each in rows],
        read_bytes=[each.read_bytes for each in rows],
        written_bytes=[each.written_bytes for each in rows],
        fused_bytes=fused,
        live_bytes=[each.live_bytes for each in rows],
        collective=[or_missing(each.collective) for each in rows],
        awaited=[or_missing(each.awaited) for each in rows],
        source=names.codes(each.source for each in rows),
    )


def _collectives(recorder: Recorder, names: NameTable) -> Collectives:
    calls = [each.call for each in recorder.calls]
    unnumbered = {each.group for each in calls if each.op in POINT_TO_POINT}
    made: dict[str, int] = {}
    seq = []
    for each in calls:
        made[each.group] = made.get(each.group, 0) + 1
        seq.append(NONE if each.group in unnumbered else made[each.group])
    return make(
        Collectives,
        len(calls),
        recording=0,
        step=0,
        seq=seq,
        group=names.codes(each.group for each in calls),
        op=names.codes(each.op for each in calls),
        dtype=names.codes(each.dtype for each in calls),
        elements=[or_missing(each.elements) for each in calls],
        bytes=[or_missing(volume_bytes(each.elements, each.dtype)) for each in calls],
        group_size=[each.group_size for each in calls],
        phase=names.codes(each.phase if each.phase != OTHER else None for each in recorder.calls),
        module=names.codes(each.module for each in recorder.calls),
        peer=[or_missing(each.peer) for each in calls],
        received_bytes=[or_missing(volume_bytes(each.received_elements, each.dtype)) for each in calls],
    )


def _schedule(recorder: Recorder, operations: Operations, names: NameTable) -> Schedule:
    calls = recorder.calls
    works = np.isin(operations.work, _WORK_OF_A_DEVICE) & (operations.stream == names.code("compute"))
    before = np.concatenate([[0], np.cumsum(works)])
    return make(
        Schedule,
        len(calls),
        launch_order=[each.launch_order for each in calls],
        ready_order=[NONE if each.ready_order < 0 else each.ready_order for each in calls],
        needed_order=[or_missing(each.needed_order) for each in calls],
        prefetched=[_prefetched(each, before) for each in calls],
        parameters=[or_missing(each.parameters) for each in calls],
        source=names.codes(each.source for each in calls),
    )


def _prefetched(call: CallRow, before: Any) -> int:
    if call.needed_order is None:
        return UNKNOWN_PREFETCH
    between = before[call.needed_order] - before[call.ready_order + 1]
    return IS_PREFETCHED if between > 0 else NOT_PREFETCHED


def _source(name: str, timeline: RankTimeline) -> Source:
    return Source(path=name, format=DRY_RUN, ranks=(timeline.rank,), events=len(timeline.operations.order),
                  warnings=tuple(timeline.recorded["assumptions"]))  # fmt: skip


def _fingerprint() -> dict[str, str | int | None]:
    import torch  # noqa: PLC0415

    return {"torch_version": str(torch.__version__), "python": platform.python_version(), "device": "dry run"}
