"""Where hosts launch all the time, fewer launches come before overlap, which saves no more than they leave."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls.savings import kept_by_hosts, saved_by_overlap_ns, saved_without_ns
from overlapscope.advice.hosts.host_paced import host_paced
from overlapscope.advice.model_parallel import expert_parallel
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans, make
from overlapscope.timeline.run import RankTimeline
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Kernel, Range, Sent, made
from tests.unit.advice.calls.test_savings import looked_at

EVERY = 25
"""A host that works launches so often, in us."""


def with_host(timeline: RankTimeline, until: float) -> RankTimeline:
    """Return a rank whose host launches from the begin of each step until this time of it, in us."""
    begin = EPOCH_NS + np.arange(STEPS) * STEP * US
    starts = (begin[:, None] + np.arange(0, until, EVERY)[None, :].astype(np.int64) * US).ravel()
    correlation = np.where(np.arange(starts.size) == 0, 1, NONE)
    names = (*timeline.names, "cudaLaunchKernel")
    spans = replace(timeline.spans, correlation=np.ones_like(timeline.spans.correlation))
    host = make(
        HostSpans, starts.size, recording=0, lane=2, kind=RUNTIME, name=len(timeline.names), start_ns=starts,
        end_ns=starts + EVERY * US // 2, correlation=correlation,
    )  # fmt: skip
    recordings = replace(timeline.recordings, host_events=np.ones_like(timeline.recordings.host_events))
    return replace(timeline, names=names, spans=spans, host=host, recordings=recordings)


def serving(until: float, *, longer: float = 0.5, graphs: bool = False, ranks: int = 1) -> RuleInput:
    """Return a job whose hosts work until a time of each step, and whose experts exchange for 600 us of it; `longer`
    is the share of it that calls take longer than their like."""
    exchange = Sent(start=300, end=900, launch=1, op="all_to_all", dimension="expert")
    marks = [Range(name="execute_context_0(0)_generation_1(1)", start=0, end=990)]
    marks += [Range(name="cudaGraphLaunch", start=1, end=2)] * graphs
    run = made(lambda _: [Kernel(start=0, end=300, launch=0), exchange, Kernel(start=900, end=990, launch=2), *marks])
    given = looked_at(run, ranks=ranks)
    evidence = {"usual_longer_ns": round(longer * 600 * US)}
    found = Finding(id="longer_than_like", severity="info", title="", evidence=evidence, known_from="trace")
    analysis = replace(given.analysis, findings=[found] if longer else [])
    hosts = {rank: with_host(each, until) for rank, each in given.run.ranks.items()}
    return replace(given, analysis=analysis, run=replace(given.run, ranks=hosts))


def test_overlap_saves_no_more_than_the_work_of_the_busiest_host_leaves() -> None:
    given, idle = serving(750), serving(100)
    rows = given.analysis.collectives
    assert given.host_free_ns == pytest.approx((1000 - 737.5) * US, rel=0.01)
    assert saved_without_ns(given, rows) == 600 * US
    assert saved_by_overlap_ns(given, rows) == given.host_free_ns
    assert saved_by_overlap_ns(idle, rows) == 600 * US
    found = expert_parallel(given)
    assert found is not None
    assert found.gain_high_ns == round(given.host_free_ns)
    assert found.assumed[-1:] == kept_by_hosts(given, given.host_free_ns) != []
    assert kept_by_hosts(idle, 600 * US) == []


def test_a_host_that_gains_on_its_device_needs_no_more_than_the_work_from_one_mark_to_the_next() -> None:
    """It works 737.5 us of each 1,000 us of the device: 487.5 to 500 us of the first half, 237.5 to 250 of the second.
    Marks come every 500 us, whenever they end."""
    given = serving(750)
    assert [len(given.numbers[rank]) for rank in given.run.ranks] == [STEPS] * len(given.run.ranks)
    ranks = {}
    for rank, each in given.run.ranks.items():
        starts = each.steps.start_ns[0] + np.arange(STEPS) * 500 * US
        ends = starts + np.append([100] * (STEPS - 1), 500) * US
        ranks[rank] = replace(each, steps=replace(each.steps, start_ns=starts, end_ns=ends))
    gaining = replace(given, run=replace(given.run, ranks=ranks))
    assert gaining.host_free_ns == pytest.approx((1000 - 737.5 / 2) * US, rel=0.02)
    assert gaining.host_free_ns > given.host_free_ns


def test_what_hosts_do_that_were_not_recorded_bounds_nothing() -> None:
    given = looked_at(made(lambda _: [Kernel(start=0, end=300)]))
    assert given.host_work_ns == {}
    assert given.host_free_ns == np.inf


def test_hosts_that_launch_all_the_time_are_to_launch_less() -> None:
    found = host_paced(serving(950))
    assert found is not None
    assert found.title.startswith("Launch less: hosts work at least 9")
    assert (
        "0.3 ms of exposed communication is waiting for ranks that were not recorded, or other traffic" in found.title
    )
    assert set(found.apply) == {"serving"}
    assert "--enforce-eager" in found.apply["serving"]
    assert found.loss_ns == 610 * US, "what is not computed: no bound of what launches gain"
    assert found.gain_high_ns is None


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(serving(750), id="hosts that are free for longer"),
        pytest.param(serving(950, longer=0), id="calls that take as long as their like"),
        pytest.param(serving(950, graphs=True), id="graphs"),
    ],
)
def test_hosts_are_not_spoken_of_elsewhere(given: RuleInput) -> None:
    assert host_paced(given) is None


def test_the_exchange_of_a_server_is_overlapped_by_two_batches_and_balanced_only_where_it_is_uneven() -> None:
    found = expert_parallel(serving(100))
    assert found is not None
    assert "; at least 0.3 ms of all exposed communication is waiting for ranks that were not recorded" in found.title
    assert "--enable-dbo" in found.apply["serving"]
    assert "--enable-two-batch-overlap" in found.apply["serving"]
    assert "--enable-eplb" not in found.apply["serving"]
    given = serving(100, longer=0)
    uneven = Finding(id="expert_imbalance", severity="warning", title="", evidence={}, known_from="trace")
    balanced = expert_parallel(replace(given, analysis=replace(given.analysis, findings=[uneven])))
    assert balanced is not None
    assert "--enable-eplb" in balanced.apply["serving"]
    assert "not recorded" not in balanced.title
