"""A recording that is not DistributedDataParallel is told by what it shows."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.advice.job_kind import job_kind
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.per_rank.host_operations import has_shapes
from overlapscope.errors import InputError
from overlapscope.timeline.columns import COMM, NONE
from overlapscope.timeline.run import SHAPES, Run
from overlapscope.whatif.ddp.not_ddp import why_not_ddp
from overlapscope.whatif.ddp.recorded_steps import recorded_steps
from overlapscope.whatif.parallelism import other_framework, parallelism_of
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.step_graph.graph_predict import DEFAULTS
from tests.support.graph_programs import Launch, Record, Wait, simulate
from tests.support.step_cases import Item, Kernel, Range, Ready, Sent, made

MS, US = 1_000_000, 1_000
WORK = Kernel(start=0, end=700)


def job(*items: Item, description: str | None = None, names: tuple[str, ...] = ()) -> Run:
    run = made(lambda _: [WORK, *items], description=description)
    ranks = {rank: replace(each, names=(*each.names, *names)) for rank, each in run.ranks.items()}
    return replace(run, ranks=ranks)


REDUCED = Sent(start=300, end=400, launch=290)
GATHERED = Sent(start=900, end=950, launch=895, op="all_gather")
PROGRAM = [Launch(0, MS), Launch(1, 0, COMM, "nccl", "sum"), Record("done", 1), Wait("done", 0), Launch(0, MS)]
UPDATE = Range(name="Optimizer.step#AdamW.step", start=880, end=890)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "name"),
    [
        (job(REDUCED, names=("FSDP::post_forward (layers.0)",)), "FSDP2"),
        (job(REDUCED, names=("FullyShardedDataParallel.forward",)), "FSDP"),
        (job(REDUCED, names=("fsdp::all_gather_copy_in",)), "operations of FSDP"),
        (job(REDUCED, names=("fsdp::chunk_cat", "PartitionedParameterCoordinator.wait")), "DeepSpeed"),
        (job(REDUCED, names=("void horovod::common::batched_memcpy_k<1024>()",)), "Horovod"),
        (job(REDUCED, description="TENSOR_MODEL_PARALLEL_GROUP"), "groups of Megatron"),
        (job(REDUCED, names=("vllm::all_reduce",)), "an inference server"),
        (
            job(REDUCED, GATHERED, UPDATE),
            "what looks like a sharded optimizer (reductions before it, gathers of parameters after it)",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_another_framework_is_named_and_nothing_said_of_ddp(run: Run, name: str) -> None:
    assert other_framework(run) == name
    assert why_not_ddp(run) == f"it shows {name}, of which no buckets are replayed"
    _, reasons = advise(run, analyze(run))
    assert not any("DistributedDataParallel" in each for each in reasons)


def test_where_ddp_is_seen_or_nothing_is_no_other_is_named() -> None:
    assert other_framework(job(REDUCED)) is None
    assert other_framework(job(REDUCED, names=("FSDP::x", "DistributedDataParallel.forward"))) is None
    # Gathers before the optimizer too are not those of its parameters.
    early = Sent(start=410, end=450, launch=405, op="all_gather")
    assert other_framework(job(REDUCED, early, GATHERED, UPDATE)) is None


def test_gathers_of_fsdp_without_a_module_are_its_own_where_they_have_one_group() -> None:
    gather = Sent(start=100, end=200, launch=90, op="all_gather")
    scatter = Sent(start=500, end=600, launch=490, op="reduce_scatter")
    assert parallelism_of(job(gather, scatter)) == "tensor"
    fsdp = ("fsdp::all_gather_copy_in",)
    assert parallelism_of(job(gather, scatter, names=fsdp)) == "fsdp"
    other = Sent(start=610, end=650, launch=605, op="all_gather", group="t")
    assert parallelism_of(job(gather, scatter, other, names=fsdp)) == "tensor"


GATHERED_AGAIN = Sent(start=600, end=640, launch=595, op="all_gather", dimension="data", phase="backward")


@pytest.mark.parametrize(
    ("more", "description", "names", "kind"),
    [
        ((), None, (), "fsdp"),
        ((), "DATA_PARALLEL_GROUP", (), "other"),
        ((), None, ("DeepSpeedEngine.step",), "other"),
        ((GATHERED_AGAIN,), None, ("PartitionedParameterCoordinator.wait", "fsdp::chunk_cat"), "other"),
        ((GATHERED_AGAIN,), None, ("DeepSpeedEngine.step", "FSDP::pre_forward"), "fsdp"),
        ((GATHERED_AGAIN,), "DATA_PARALLEL_GROUP", (), "fsdp"),
        ((Sent(start=100, end=140, launch=90, dimension="tensor"),), "DATA_PARALLEL_GROUP", (), "mixed"),
    ],
)
def test_gathers_of_a_sharded_optimizer_have_no_settings_of_fsdp(
    more: tuple[Item, ...], description: str | None, names: tuple[str, ...], kind: str
) -> None:
    scatter = Sent(start=500, end=590, launch=490, op="reduce_scatter", dimension="data")
    gather = Sent(start=900, end=950, launch=895, op="all_gather", dimension="data")
    run = job(*more, scatter, gather, description=description, names=names)
    assert parallelism_of(run) == kind
    assert ("fsdp2" in job_kind(run).frameworks) == (kind == "fsdp")


def test_steps_in_a_graph_record_no_gradients() -> None:
    assert why_not_ddp(job(REDUCED)) is None
    why = why_not_ddp(job(REDUCED, names=("cudaGraphLaunch", "DistributedDataParallel.forward")))
    assert why is not None
    assert why.startswith("its steps are CUDA graphs, which record no gradients: record a few eager steps")


@pytest.mark.parametrize(("elements", "says"), [(1, True), (1 << 15, False)])
def test_sizes_of_gradients_far_from_those_of_buckets_are_none(elements: int, says: bool) -> None:
    ready = [Ready(name=f"p{n}", elements=elements, at=200 + n) for n in range(4)]
    why = why_not_ddp(job(REDUCED, *ready, names=("DistributedDataParallel.forward",)))
    assert (why is not None) == says
    if says:
        assert why is not None
        assert why.startswith("the gradients of a step have 4 elements, its all-reduces carry 262,144")


def test_a_reason_names_what_whatif_replays() -> None:
    kept = simulate({0: PROGRAM, 1: PROGRAM}, {"sum": 500 * US}).run
    for run, replayed in ((kept, True), (job(REDUCED), False)):  # the latter has no host events, so no graph answers
        _, reasons = advise(run, analyze(run))
        (reason,) = (each for each in reasons if "setting was replayed" in each)
        assert reason.startswith("no DDP setting" if replayed else "no setting")
        assert ("`overlapscope whatif RUN` replays faster links" in reason) == replayed
    assert "link_speed" in {knob for each in predict_recording(kept, (), DEFAULTS, search=True).scenarios
                            for knob in each.knobs}  # fmt: skip


@pytest.mark.parametrize(("elements", "asks"), [(NONE, True), (64, False)])
def test_shapes_are_asked_for_where_none_were_recorded(elements: int, asks: bool) -> None:
    """A profiler that records shapes leaves those of gradients empty: with them there is nothing more to ask for."""
    run = job(REDUCED, names=("DistributedDataParallel.forward",))
    ranks = {
        rank: replace(each, steps=replace(each.steps, input_elements=np.full(len(each.steps.step), elements)))
        for rank, each in run.ranks.items()
    }
    with pytest.raises(InputError, match="it holds no gradients with sizes") as raised:
        recorded_steps(replace(run, ranks=ranks), match_and_align(run))
    assert ("record_shapes=True" in str(raised.value)) == asks
    assert ("though it records shapes" in str(raised.value)) != asks
    stated = {rank: replace(each, recorded={SHAPES: True}) for rank, each in ranks.items()}
    assert has_shapes(replace(run, ranks=stated)), "as the profiler says, though no step or gradient has any"
