"""FSDP is to prefetch parameters in backward, where each gather begins after the reduction before it."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.advice.calls.backward_prefetch import prefetches_nothing
from overlapscope.advice.step_shape import FSDP_UNITS
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.step_graph.graph_predict import predict_graph_run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.calls.test_savings import looked_at
from tests.unit.advice.test_advice_rules import fired
from tests.unit.whatif.test_fsdp_without_prefetch import without_prefetch

MIB = 1 << 20


def fsdp(
    *, name: str = "FullyShardedDataParallel.forward", ahead: float = 0, computed: float = 0, late: float = 0,
    size_bytes: int = 64 * MIB, first: str = "reduce_scatter",
) -> Run:  # fmt: skip
    """Return a job of three layers, whose backward reduces for 60 us, gathers for 60, and computes for 150."""

    def step(_: int) -> list[Item]:
        items: list[Item] = [Kernel(start=0, end=250), Range(name=name, start=0, end=1)]
        for at in (250, 520):
            reduce = Sent(start=at, end=at + 60 - ahead, launch=20, op=first, size_bytes=size_bytes)
            gather = Sent(
                start=at + 60, end=at + 120, launch=at + 70 if late else 21, op="all_gather", size_bytes=size_bytes
            )
            items += [reduce, gather, Kernel(start=at + 120 + late, end=at + 270, launch=22)]
            items += [Kernel(start=at + 40, end=at + 40 + computed, launch=21)] if computed else []
        return [*items, Sent(start=790, end=850, launch=23, op="reduce_scatter", size_bytes=size_bytes),
                Kernel(start=850, end=995, launch=24)]  # fmt: skip

    return made(step)


def test_gathers_that_wait_for_the_reduction_before_them_are_to_be_prefetched() -> None:
    found = fired(fsdp())["backward_prefetch"]
    assert found.gain_high_ns == 240 * US
    assert found.title.startswith("Prefetch parameters in backward: 2 times a step")
    assert found.apply == {"torch": "FullyShardedDataParallel(module, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"}
    assert "exposed_communication" not in fired(fsdp())
    assert set(fired(fsdp(name="FSDP::all_gather"))["backward_prefetch"].apply) == {"fsdp2"}


@pytest.mark.parametrize(
    "other",
    [
        {"name": "DeepSpeedEngine"}, {"computed": 40}, {"late": 30}, {"size_bytes": 4096}, {"first": "all_gather"},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_advised_elsewhere(other: dict[str, object]) -> None:
    assert "backward_prefetch" not in fired(fsdp(**other))  # type: ignore[arg-type]


def sharded(*, early: float = 0, blocks: int = 4, launch: float = 1) -> Run:
    """Return a job of FSDP whose step gathers each block for 100 us, of which so many before the compute of the one
    before it ends, then reduces all at the end; the host launches everything in the first `launch` us of each piece."""

    def step(_: int) -> list[Item]:
        items: list[Item] = [Range(name="FSDP::all_gather", start=0, end=1), Kernel(start=0, end=100, launch=0)]
        each = 700 // blocks
        for at in range(blocks):
            begin = 100 + at * each
            launched = at * 2 + 1.0 if launch else begin
            gather = Sent(
                start=begin - early, end=begin + 90 - early, launch=launched, op="all_gather", size_bytes=64 * MIB
            )
            items += [gather, Kernel(start=begin + 90, end=begin + each, launch=launched + 1)]
        return [*items, Sent(start=800, end=900, launch=30, op="reduce_scatter", size_bytes=64 * MIB),
                Kernel(start=900, end=995, launch=31)]  # fmt: skip

    return made(step)


def test_blocks_that_are_gathered_only_when_the_compute_before_has_ended_are_to_be_prefetched_in_both_passes() -> None:
    found = fired(sharded())
    prefetch = found["backward_prefetch"]
    assert prefetch.title.startswith("Prefetch parameters in forward and backward: ")
    assert prefetch.gain_high_ns == (4 * 90 + 100) * US
    assert set(prefetch.apply) == {"fsdp2"}
    assert "set_modules_to_forward_prefetch" in prefetch.apply["fsdp2"]
    assert "set_modules_to_backward_prefetch" in prefetch.apply["fsdp2"]
    assert not {"overlap_without_effect", "busy_lane"} & found.keys(), "they are of the same calls"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(sharded(early=20), None, id="gathers that begin earlier"),
        pytest.param(sharded(blocks=3), FSDP_UNITS, id="few gathers"),
        pytest.param(sharded(launch=0), None, id="gathers that were not launched earlier"),
    ],
)
def test_of_other_gathers_nothing_is_said_of_prefetch_in_both_passes(run: Run, said: str | None) -> None:
    found = fired(run)
    assert "forward" not in getattr(found.get("backward_prefetch"), "title", "")
    other = found.get("overlap_without_effect")
    assert (other.apply.get("fsdp2") if other else None) == said
    if other and not said:
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in str(other.apply)


def with_copies(run: Run, *, stream: int) -> Run:
    """Return the run with FSDP's copies of gradients on a stream."""

    def moved(timeline: RankTimeline) -> RankTimeline:
        spans, code = timeline.spans, timeline.names.index("chunk_cat")
        return replace(timeline, spans=replace(spans, lane=np.where(spans.name == code, stream, spans.lane)))

    return replace(run, ranks={rank: moved(each) for rank, each in run.ranks.items()})


@pytest.mark.parametrize(
    ("stream", "took", "early", "said"),
    [
        pytest.param(1, 10, 0.5, True, id="copies beside them, times that were rounded"),
        pytest.param(1, 10, 3, False, id="before compute has ended"),
        pytest.param(0, 10, 0, False, id="compute of the main stream beside them"),
        pytest.param(1, 60, 0, False, id="no main stream"),
    ],
)
def test_gathers_begin_late_by_compute_of_the_main_stream(
    stream: int, took: float, early: float, *, said: bool
) -> None:
    """Each gather of 90 us runs beside a copy that was launched before it."""

    def step(_: int) -> list[Item]:
        items: list[Item] = [Range(name="FSDP::all_gather", start=0, end=1), Kernel(start=0, end=100, launch=0)]
        for at, begin in enumerate((100, 275, 450, 625)):
            gather = Sent(start=begin - early, end=begin + 90, launch=at * 2 + 1, op="all_gather", size_bytes=64 * MIB)
            copy = Kernel(start=begin + 5, end=begin + 5 + took, launch=at * 2 + 0.5, name="chunk_cat")
            items += [gather, copy, Kernel(start=begin + 90, end=begin + 175, launch=at * 2 + 2)]
        return [*items, Sent(start=800, end=900, launch=30, op="reduce_scatter", size_bytes=64 * MIB),
                Kernel(start=900, end=995, launch=31)]  # fmt: skip

    run = with_copies(made(step), stream=stream)
    assert prefetches_nothing(looked_at(run)) == said
    assert "forward and backward" in getattr(fired(run).get("backward_prefetch"), "title", "") or not said


def test_a_call_that_waits_for_one_that_is_to_be_prefetched_needs_no_communicator_of_its_own() -> None:
    found = fired(fsdp())
    assert "backward_prefetch" in found
    assert "busy_lane" not in found


def named(run: Run) -> Run:
    """Return the recording of one rank with a name of FSDP's first version."""
    names = (*run.ranks[0].names, "FullyShardedDataParallel._post_backward_hook")
    return replace(run, ranks={0: replace(run.ranks[0], names=names)})


def test_a_replay_says_what_it_would_gain() -> None:
    run = named(without_prefetch())
    together = match_and_align(run)
    found = {each.id: each for each in advise(run, analyze(run, together), together)[0]}
    assert found["fsdp_gathers"].title == "Set sharding_strategy=SHARD_GRAD_OP"
    prefetch = found["backward_prefetch"]
    assert prefetch.verdict == "change"
    assert 0 < (prefetch.gain_low_ns or 0) < (prefetch.predicted_gain_ns or 0) < 400 * US < (prefetch.gain_high_ns or 0)
    assert prefetch.title == fired(run)["backward_prefetch"].title
    assert prefetch.memory_bytes == 1 << 24, "one gathered layer more"
    assert "that parameters do not stay gathered: then backward gathers none" in prefetch.assumed


def test_of_prefetch_in_both_passes_the_gain_of_both_is_replayed_beside_a_straggler_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = named(without_prefetch(in_forward=True))
    together = match_and_align(run)
    by_rule = fired(run)["backward_prefetch"]
    assert by_rule.title.startswith("Prefetch parameters in forward and backward: ")
    monkeypatch.setattr("overlapscope.advice.advise._by_rules", lambda *_: ([by_rule], True))
    ((prefetch,), _) = advise(run, analyze(run, together), together)
    rows = {
        tuple(each.knobs): each for each in predict_graph_run(run, together).scenarios if 0 not in each.knobs.values()
    }
    both = rows["forward_prefetch", "backward_prefetch"]
    assert both.gain > max(rows["forward_prefetch",].gain, rows["backward_prefetch",].gain)
    assert prefetch.predicted_gain_ns == round(both.gain * prefetch.evidence["step_ns"])
    assert prefetch.title == by_rule.title
    assert prefetch.memory_bytes == 1 << 24, "one gathered layer more, in one pass or the other"
