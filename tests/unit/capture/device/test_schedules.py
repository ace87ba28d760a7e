"""Kinds of training on a virtual device: what is recorded is what happened, and it happens as without a recording."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from overlapscope.capture.timeline import Carried, timeline_of
from overlapscope.timeline.columns import size
from overlapscope.timeline.run import RankTimeline, join_parts
from tests.support.builders import spelled
from tests.support.virtual.device import Graph, NcclGroup, Tensor, VirtualCuda
from tests.support.virtual.job import MS, VirtualJob, agree

QUEUES = (1, 8, 32)
STEPS = 6


class Groups:
    """The groups and streams of a job."""

    def __init__(self, cuda: VirtualCuda) -> None:
        self.first, self.second = NcclGroup(cuda, "first"), NcclGroup(cuda, "second")
        self.gather, self.reduce = cuda.new_stream(), cuda.new_stream()
        self.graphs: dict[str, Graph] = {}

    @property
    def all(self) -> list[NcclGroup]:
        return [self.first, self.second]


def compute(job: VirtualJob, name: str, kernels: int, duration_ns: int) -> None:
    with job.phase(name):
        for _ in range(kernels):
            job.cuda.launch(name, duration_ns)


def ddp(job: VirtualJob, groups: Groups, *, passes: int = 1) -> None:
    """Three buckets, the last under way when backward ends; DDP waits for each and copies it out."""
    for number in range(passes):
        compute(job, "forward", 4, 2 * MS)
        with job.phase("backward"):
            if number < passes - 1:
                job.cuda.launch("backward", 9 * MS)
                continue
            works = []
            for elements in (4000, 4000, 2000):
                job.cuda.launch("backward", 3 * MS)
                works.append(job.call(groups.first, "all_reduce", elements * 1000, Tensor(elements)))
            for work, elements in zip(works, (4000, 4000, 2000), strict=True):
                work.end.hold_back(job.cuda.current_stream())
                job.cuda.launch("copy out", elements * 100)
    compute(job, "optimizer", 1, MS)


def accumulation(job: VirtualJob, groups: Groups) -> None:
    ddp(job, groups, passes=3)


def fsdp2(job: VirtualJob, groups: Groups) -> None:
    """Gathers ahead on one stream, scatters behind on another, on their calling streams; joined by events."""
    cuda = job.cuda
    main = cuda.current_stream()

    def gather() -> Any:
        groups.gather.wait_stream(main)
        with cuda.stream(groups.gather):
            job.call(groups.first, "all_gather", 3 * MS, inline=True)
            event = cuda.Event()
            event.record()
        return event

    with job.phase("forward"):
        event = gather()
        for layer in range(3):
            main.wait_event(event)
            event = gather() if layer < 2 else None
            cuda.launch("layer", 2 * MS)
    with job.phase("backward"):
        for _ in range(3):
            cuda.launch("layer backward", 4 * MS)
            groups.reduce.wait_stream(main)
            with cuda.stream(groups.reduce):
                job.call(groups.first, "reduce_scatter", 5 * MS, inline=True)
                event = cuda.Event()
                event.record()
        main.wait_event(event)
    compute(job, "optimizer", 1, MS)


def tensor_parallel(job: VirtualJob, groups: Groups) -> None:
    """Functional collectives that are waited for at once."""
    for name in ("forward", "backward"):
        with job.phase(name):
            for _ in range(3):
                job.cuda.launch(name, 2 * MS)
                tensor = Tensor()
                work = job.call(groups.first, "all_reduce", MS, tensor)
                job.wait_tensor(work, tensor)
    compute(job, "optimizer", 1, MS)


def pipeline(job: VirtualJob, groups: Groups) -> None:
    """Sends and receives in batches: some wait for the peer, some run under computation."""
    for name in ("forward", "backward"):
        with job.phase(name):
            for microbatch in range(3):
                groups.first.start_coalescing()
                job.call(groups.first, "send", 2 * MS, peer=1)
                job.call(groups.first, "recv", 2 * MS, peer=2, arrived_ns=job.cuda.now_ns)
                work = groups.first.end_coalescing()
                if microbatch != 1:
                    job.cuda.launch(name, 4 * MS)
                work.wait()
                job.cuda.launch(name, 2 * MS)
    compute(job, "optimizer", 1, MS)


def two_communicators(job: VirtualJob, groups: Groups) -> None:
    """All-reduces of gradients on one group under tensor-parallel ones on another."""
    compute(job, "forward", 2, 2 * MS)
    with job.phase("backward"):
        works = []
        for _ in range(3):
            job.cuda.launch("backward", 2 * MS)
            works.append(job.call(groups.first, "all_reduce", 5 * MS))
            tensor = Tensor()
            job.wait_tensor(job.call(groups.second, "all_reduce", MS, tensor), tensor)
        for work in works:
            work.wait()
    compute(job, "optimizer", 1, MS)


def captured(job: VirtualJob, groups: Groups, name: str, program: Callable[[], object]) -> Graph:
    """Return the graph of that name, captured when it is first asked for."""
    if name not in groups.graphs:
        graph = groups.graphs[name] = Graph(job.cuda)
        graph.capture_begin()
        program()
        graph.capture_end()
    return groups.graphs[name]


def graphs(job: VirtualJob, groups: Groups) -> None:
    """Layers are replayed as CUDA graphs, as torch.compile makes them; gradients are sent between the replays."""
    layer = captured(job, groups, "layer", lambda: [job.cuda.launch("layer", MS) for _ in range(4)])
    with job.phase("forward"):
        layer.replay()
    with job.phase("backward"):
        works = []
        for _ in range(3):
            layer.replay()
            works.append(job.call(groups.first, "all_reduce", 5 * MS))
        for work in works:
            work.wait()
    compute(job, "optimizer", 1, MS)


def by_hand(job: VirtualJob, groups: Groups) -> None:
    """An all-reduce under computation that is in no phase, and clipping before the optimizer."""
    compute(job, "forward", 2, 2 * MS)
    compute(job, "backward", 2, 2 * MS)
    work = job.call(groups.first, "all_reduce", 3 * MS)
    job.cuda.launch("own", 5 * MS)
    work.wait()
    job.cuda.launch("clip", MS)
    compute(job, "optimizer", 1, MS)


KINDS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "ddp": (ddp, {"buckets": "copied", "bucket_group": "first"}),
    "accumulation": (accumulation, {"buckets": "copied", "bucket_group": "first"}),
    "fsdp2": (fsdp2, {}),
    "tensor parallel": (tensor_parallel, {}),
    "pipeline": (pipeline, {}),
    "two communicators": (two_communicators, {}),
    "graphs": (graphs, {}),
    "by hand": (by_hand, {}),
}


def left_under_way(job: VirtualJob, groups: Groups) -> None:
    """A transfer that nobody waits for, and that runs on under the next steps; the next one stands behind it."""
    compute(job, "forward", 2, 2 * MS)
    job.call(groups.first, "all_reduce", 9 * MS)
    compute(job, "optimizer", 1, MS)
    job.cuda.host(2 * MS)


OTHER_KINDS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {"left under way": (left_under_way, {})}


def trained(kind: str, queues: int, patch: pytest.MonkeyPatch, *, recorded: bool = True) -> tuple[VirtualJob, Groups]:
    program, options = (KINDS | OTHER_KINDS)[kind]
    cuda = VirtualCuda(queues=queues, ppm=20.0, resolution_ns=500)
    job = VirtualJob(cuda, patch, recorded=recorded, connections=queues, **options)
    groups = Groups(cuda)
    for _ in range(STEPS):
        with job.step():
            program(job, groups)
    return job, groups


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_the_truth_or_lie_in_the_stated_interval(
    kind: str, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, groups = trained(kind, queues, monkeypatch)
    job.settle()
    found = agree(job, groups.all)
    assert len(found) == STEPS - 1
    assert job.guard.failures == []
    if kind != "by hand" and (queues == 32 or kind != "two communicators"):
        assert set(found.values()) == {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("ppm", [40.0, -40.0])
@pytest.mark.parametrize("kind", ["ddp", "tensor parallel", "two communicators"])
def test_g9_figures_of_steps_over_an_hour_are_the_truth(kind: str, ppm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    program, options = KINDS[kind]
    cuda = VirtualCuda(ppm=ppm)
    job = VirtualJob(cuda, monkeypatch, connections=32, **options)
    groups = Groups(cuda)
    for _ in range(120):
        with job.step():
            program(job, groups)
            cuda.host(30_000 * MS)
    job.settle()
    assert set(agree(job, groups.all, within_ns=50_000).values()) == {"exact"}


@pytest.mark.parametrize("queues", QUEUES)
def test_g14_steps_that_replay_collectives_have_no_figures_and_others_the_truth(
    queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = VirtualCuda(queues=queues, ppm=20.0, resolution_ns=500)
    job = VirtualJob(cuda, monkeypatch, connections=queues)
    groups = Groups(cuda)

    def whole_step() -> None:
        cuda.launch("forward", 4 * MS)
        job.call(groups.first, "all_reduce", 5 * MS)
        cuda.launch("optimizer", MS)

    replayed = {3, 4}
    for number in range(8):
        with job.step():
            graph = captured(job, groups, "step", whole_step)
            if number in replayed:
                graph.replay()
            else:
                graphs(job, groups)
    job.settle()
    # In the first step the graphs are captured; `agree` leaves out the first whole one.
    assert agree(job, groups.all) == dict.fromkeys(set(range(2, 8)) - replayed, "exact")
    assert job.guard.failures == []
    assert cuda.captures_broken == 0


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("kind", KINDS)
def test_g1_the_schedule_with_us_is_the_schedule_without_us(
    kind: str, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """g1: a callback on a collective's future takes a stream of the pool, makes it wait, and keeps outputs' memory."""
    with monkeypatch.context() as patch:
        bare, _ = trained(kind, queues, patch, recorded=False)
    job, _ = trained(kind, queues, monkeypatch)
    assert job.records
    assert job.cuda.schedule == bare.cuda.schedule


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("kind", [*KINDS, *OTHER_KINDS])
def test_columns_made_part_by_part_are_those_of_the_whole(
    kind: str, queues: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = trained(kind, queues, monkeypatch)
    job.settle()
    whole = job.timeline()
    carried = Carried()
    parts = [
        timeline_of(
            0, job.records[at : at + steps], job.clock, [], {**whole.recorded},
            buckets=job.buckets, carried=carried, following=next(iter(job.records[at + steps :]), None),
        )
        for at in range(0, STEPS, steps)
    ]  # fmt: skip
    joined, rows = join_parts(parts)
    assert [each.call for each in rows] == np.cumsum([0, *(part.collectives.op.size for part in parts)])[:-1].tolist()
    assert rows_of(joined) == rows_of(whole)
    assert size(joined.lanes) == size(whole.lanes)
    for table in ("recordings", "steps"):
        assert spelled(getattr(joined, table), joined.names) == spelled(getattr(whole, table), whole.names)
    assert joined.recorded["cut_steps"] == whole.recorded["cut_steps"]
    assert joined.recorded["exposed_between_ns"] == whole.recorded["exposed_between_ns"]


def rows_of(timeline: RankTimeline) -> list[tuple[Any, ...]]:
    """Return the spans with the names of their lanes and the numbers of their calls, sorted."""
    spans, labels = spelled(timeline.spans, timeline.names), spelled(timeline.lanes, timeline.names)["label"]
    calls = spelled(timeline.collectives, timeline.names)
    own = [None if row is None else tuple(calls[name][row] for name in ("op", "group", "seq", "step", "phase"))
           for row in spans["collective"]]  # fmt: skip
    names = ("recording", "kind", "name", "start_ns", "end_ns", "launch_ns", "step")
    places = [labels[lane] for lane in spans["lane"]]
    return sorted(zip(places, own, *(spans[name] for name in names), strict=True), key=repr)
