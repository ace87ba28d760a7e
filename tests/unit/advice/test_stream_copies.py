"""Copies on the compute stream cost what they keep compute from, whatever else runs beside them."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.copies.stream_copies import copies_on_compute_stream
from overlapscope.advice.losses.replayed_losses import with_replayed_gains
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COPY, NONE, take
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline, Run
from tests.property.synthetic import simulate, write_kineto
from tests.property.synthetic.job_faults import draw
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_exposed_calls import looked_at

NAME = "Memcpy HtoD (Pinned -> Device)"


def copying(*sent: Sent, copied: tuple[float, float] = (600, 700)) -> Run:
    run = made(
        lambda _: [
            Kernel(start=0, end=600), Kernel(start=copied[0], end=copied[1], name=NAME), *sent,
            Kernel(start=copied[1], end=990),
        ]
    )  # fmt: skip
    return replace(run, ranks={rank: _as_copies(each) for rank, each in run.ranks.items()})


def _as_copies(timeline: RankTimeline) -> RankTimeline:
    spans = timeline.spans
    kinds = np.where(rows_named(spans.name, timeline.names, re.compile("Memcpy").match), COPY, spans.kind)
    return replace(timeline, spans=replace(spans, kind=kinds.astype(np.int8)))


@pytest.mark.parametrize(("until", "beside_us", "said"), [(590, 0, False), (615, 15, False), (650, 50, True)])
def test_they_are_named_beside_communication_too_and_that_it_is_counted_there(
    until: float, beside_us: int, *, said: bool
) -> None:
    found = fired(copying(Sent(start=500, end=until)))["copies_on_compute_stream"]
    assert (found.loss_ns, found.gain_high_ns) == (100 * US, 100 * US)
    assert found.evidence["beside_communication_ns"] == beside_us * US
    assert ("of it is exposed, too)" in found.title) == said
    assert found.title.endswith(")") == said


def test_where_a_host_is_slow_they_may_cost_nothing_and_are_a_bound() -> None:
    given = looked_at(copying(Sent(start=500, end=590)))
    slow = Finding(id="slow_host", severity="warning", title="", evidence={"ranks": [1]}, known_from="trace")
    found = copies_on_compute_stream(replace(given, analysis=replace(given.analysis, findings=[slow])))
    assert found is not None
    assert found.title.endswith("computed beside them; it may save nothing before the slow hosts are faster")
    assert (found.loss_ns, found.bound_from, found.gain_high_ns) == (None, None, 100 * US)


def test_those_that_communication_covers_whole_are_named() -> None:
    assert fired(copying(Sent(start=500, end=800)))["copies_on_compute_stream"].loss_ns == 100 * US


def test_short_ones_are_not() -> None:
    assert "copies_on_compute_stream" not in fired(copying(Sent(start=500, end=800), copied=(600, 615)))


@pytest.mark.slow
def test_a_replay_bounds_the_gain_only_where_all_ranks_were_recorded(tmp_path: Path) -> None:
    """What others copied is in the waits that a replay of few keeps."""
    write_kineto(simulate(draw("offload_copies", 3).job), tmp_path / "job")
    run = read_inputs([tmp_path / "job"])
    assert replayed(run) == "replay"
    assert replayed(replace(run, world_size=len(run.ranks) + 1)) == "loss"


def replayed(run: Run) -> str | None:
    together = match_and_align(run)
    found = by_rules(run, analyze(run, together), together)
    bounded = {
        each.id: each for each in with_replayed_gains(found, run, together, BuiltGraphs(run), summarize_ranks(run))
    }
    return bounded["copies_on_compute_stream"].bound_from


def stepping(*items: Item) -> Run:
    run = made(lambda _: items)
    return replace(run, ranks={rank: _as_copies(each) for rank, each in run.ranks.items()})


BATCH = Kernel(start=0, end=100, name=NAME)
MODEL = Kernel(start=100, end=900)


def test_what_is_copied_before_a_step_computes_is_its_batch_and_nobody_is_told_to_offload() -> None:
    found = fired(stepping(BATCH, MODEL))["copies_on_compute_stream"]
    assert list(found.apply) == ["torch"]
    assert "next batch" in found.title
    assert "next(batches)" in found.apply["torch"]
    of_layers = fired(copying())["copies_on_compute_stream"]
    assert "host_tensor" in of_layers.apply["torch"]
    assert "deepspeed" not in of_layers.apply


@pytest.mark.parametrize(("end", "pins"), [(905, False), (990, True)])
def test_pinned_memory_is_advised_for_copies_from_pageable_memory_that_take_long(end: float, *, pins: bool) -> None:
    pageable = Kernel(start=900, end=end, name="Memcpy DtoH (Device -> Pageable)")
    found = fired(stepping(BATCH, MODEL, pageable))["copies_on_compute_stream"]
    assert found.evidence["pageable"] == pins
    assert ("pin_memory" in found.apply["torch"]) == pins


def test_copies_count_in_the_step_that_launched_them_where_they_ran_before_its_window() -> None:
    run = stepping(BATCH, MODEL)
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    begin, end = EPOCH_NS + 150 * US, EPOCH_NS + 150 * US + STEPS * STEP * US
    windows = tuple((at, at + STEP * US) for at in range(begin, end, STEP * US))
    every = {"windows": windows, "numbers": tuple(range(STEPS))}
    found = copies_on_compute_stream(
        replace(given, **{name: dict.fromkeys(run.ranks, of) for name, of in every.items()})
    )
    assert found is not None
    assert found.loss_ns == 100 * US  # of which the windows hold 5 of 6


TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def test_what_is_copied_to_the_host_is_no_weight_of_a_layer() -> None:
    found = fired(stepping(MODEL, Kernel(start=900, end=990, name=TO_HOST)))["copies_on_compute_stream"]
    assert "copies to the host on the compute stream take 0.09 ms of a " in found.title
    assert "pin_memory=True" in found.apply["torch"]
    assert "async_save" not in found.apply["torch"], "what each step copies is no checkpoint"
    assert "weight" not in found.apply["torch"]
    assert "copied later" in found.assumed[0]


def test_copies_to_the_host_are_counted_without_those_to_the_device() -> None:
    back = Kernel(start=0, end=40, name=NAME)
    model = Kernel(start=40, end=900)
    found = fired(stepping(back, model, Kernel(start=900, end=990, name=TO_HOST)))["copies_on_compute_stream"]
    assert "copies to the host on the compute stream take 0.09 ms of a " in found.title
    assert (found.loss_ns, found.evidence["to_device_ns"]) == (90 * US, 0)


@pytest.mark.parametrize(("launch", "memory", "said"), [(999, "Pinned", False), (950, "Pinned", True),
                                                        (999, "Pageable", True)])  # fmt: skip
def test_what_a_host_waits_for_before_it_launches_more_could_run_beside_nothing(
    launch: float, memory: str, *, said: bool
) -> None:
    copy = Kernel(start=900, end=990, name=f"Memcpy DtoH (Device -> {memory})")
    model = Kernel(start=100, end=900, launch=5)
    small = Kernel(start=995, end=1000, launch=launch - 1)
    assert ("copies_on_compute_stream" in fired(stepping(model, copy, small))) == said


@pytest.mark.parametrize(("others_us", "alone"), [(0, True), (15, True), (40, False)])
def test_copies_of_a_single_step_are_of_that_step_and_not_a_mean(others_us: int, *, alone: bool) -> None:
    """A checkpoint of 400 us: no step has the mean over 6 of them."""
    run = made(
        lambda number: [
            Kernel(start=0, end=500),
            Kernel(start=500, end=900 if number == 3 else 500 + max(others_us, 1), name=TO_HOST),
        ]
    )
    run = replace(run, ranks={rank: _as_copies(each) for rank, each in run.ranks.items()})
    found = fired(run)["copies_on_compute_stream"]
    if alone:
        assert "take 0.4 ms in step 3 alone, and" in found.title
        assert (found.per, found.loss_ns) == ("recording", (400 + (STEPS - 1) * max(others_us, 1)) * US)
        assert "async_save" in found.apply["torch"]
    else:
        assert "of a 1 ms step, and" in found.title
        assert found.per == "step"


def unmarked(run: Run) -> Run:
    """Return the run without marks of steps."""
    return replace(
        run,
        ranks={
            rank: replace(
                each,
                steps=take(each.steps, np.zeros(each.steps.step.size, np.bool_)),
                spans=replace(each.spans, step=np.full_like(each.spans.step, NONE)),
            )
            for rank, each in run.ranks.items()
        },
    )


@pytest.mark.parametrize(
    ("name", "launch", "is_batch"),
    [("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, True),
     ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 150, False),  # compute was launched before
     ("forward", 0, False)],
)  # fmt: skip
def test_without_steps_what_is_copied_next_after_a_batch_is_fetched_is_that(
    name: str, launch: float, *, is_batch: bool
) -> None:
    fetched = Range(name=name, start=-50, end=-10)
    batch = Kernel(start=200, end=300, launch=launch, name=NAME)
    run = unmarked(stepping(fetched, Kernel(start=100, end=200, launch=90), batch, Kernel(start=300, end=900)))
    found = fired(run)["copies_on_compute_stream"]
    assert found.per == "recording"
    assert ("next(batches)" in found.apply["torch"]) == is_batch


@pytest.mark.parametrize(("pinned", "is_batch"), [("Pinned", False), ("Pageable", True)])
def test_what_a_host_copies_from_pageable_memory_beside_a_pinned_batch_is_not_known(
    pinned: str, *, is_batch: bool
) -> None:
    """Parameters that it received, for one."""
    batch = Kernel(start=0, end=10, name=f"Memcpy HtoD ({pinned} -> Device)")
    others = Kernel(start=10, end=100, name="Memcpy HtoD (Pageable -> Device)")
    found = fired(stepping(batch, others, MODEL))["copies_on_compute_stream"]
    assert ("next batch" in found.title) == is_batch
    assert found.evidence["of_inputs_ns"] == (100 if is_batch else 10) * US
