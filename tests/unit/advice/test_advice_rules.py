"""Rules beyond the replay: a run of known truth that fires each, one that must not, and real traces."""

import random
import re
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import RULES, advise, analyze_with_advice, by_rules
from overlapscope.advice.late_rank import late_rank
from overlapscope.advice.losses.blocked_host import WORKERS, _iterating
from overlapscope.advice.order import ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.shared_stream import busy_lane
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.sheet.next_steps import next_steps
from overlapscope.report.text import advice as advice_text
from overlapscope.report.text import analysis as text
from overlapscope.timeline.columns import COMM, NONE, Ints, column_kinds
from overlapscope.timeline.intervals import length, union
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.support.cpu_runs.cpu_steps import Call, Mark, Op, cpu_run
from tests.support.ddp_cases import Made, recorded
from tests.support.step_cases import STEP, US, Item, Kernel, Range, Ready, Sent, made


def fired(run: Run) -> dict[str, Recommendation]:
    """Return what rules recommend, by id."""
    together = match_and_align(run)
    return {each.id: each for each in by_rules(run, analyze(run, together), together)}


def always(*items: Item, **more: object) -> Run:
    return made(lambda _: items, **more)  # type: ignore[arg-type]


WORK = Kernel(start=0, end=STEP - 10)
"""Compute that leaves no gap worth a word."""


# --- launches -----------------------------------------------------------------------------------------------------


def about(ns: int) -> object:
    """Sums over steps are scaled to the headline's median: the last step has no gap after it."""
    return pytest.approx(ns, rel=0.01)


def test_a_collective_that_the_host_enqueues_late_is_reported_with_its_exposed_time() -> None:
    """Data is ready at 700, the call is launched at 760 and runs from 761 to 821, but for 1 us exposed."""
    beside = (Kernel(start=820, end=821, launch=761), Kernel(start=825, end=990, launch=762))
    late = fired(always(Kernel(start=0, end=700), Sent(start=761, end=821, launch=760), *beside))["launch_bound"]
    assert late.evidence["late_launch_ns"] == 59 * US
    # The device idles meanwhile: the same time, which is not counted twice.
    assert (late.gain_low_ns, late.predicted_gain_ns, late.gain_high_ns) == (0, None, late.loss_ns)
    assert 60 * US < (late.gain_high_ns or 0) < 70 * US
    early = fired(always(Kernel(start=0, end=700), Sent(start=701, end=821, launch=600), *beside))
    assert "launch_bound" not in early


def test_gaps_that_the_host_leaves_are_reported_with_and_without_communication() -> None:
    gap = (Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699))
    for run in (always(*gap), always(*gap, Sent(start=100, end=300, launch=5))):
        late = fired(run)["launch_bound"]
        assert late.evidence["idle_ns"] == 310 * US
        assert late.gain_high_ns == about(308 * US), "but for the latency of two launches"
        assert "0.301 ms of it between calls 0.2 ms or more apart" in late.title, "which are no pauses"
        assert "CUDA graphs" in late.apply["torch"]
        assert late.shown_by
        assert late.shown_by.end_ns - late.shown_by.start_ns == 299 * US


def test_calls_that_wait_are_named_with_the_idle_time_in_them() -> None:
    waits = Range(name="cudaStreamSynchronize", start=410, end=690)
    found = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699), waits))
    assert found["blocking_calls"].gain_high_ns == about(280 * US)
    assert found["blocking_calls"].evidence["calls"] == {"cudaStreamSynchronize": about(280 * US)}
    assert "synchronize()" in found["blocking_calls"].apply["torch"]
    assert "launch_bound" not in found, "the same time is not named twice"


def test_gaps_in_which_a_batch_is_fetched_are_the_loaders() -> None:
    fetch = Range(name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start=400, end=700)
    found = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699), fetch))
    loading = found["data_loading"]
    assert loading.gain_high_ns == loading.loss_ns == about(300 * US)
    assert "by the training process itself" in loading.title
    assert "num_workers" in loading.apply["torch"]
    assert "launch_bound" not in found


def test_workers_that_load_batches_are_not_advised_but_to_be_faster() -> None:
    fetch = Range(name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start=400, end=700)
    loading = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699), fetch))["data_loading"]
    assert loading.title.startswith("Load batches faster: ")
    assert loading.title.endswith("while a batch is fetched, though workers load them")
    assert "num_workers=8" not in loading.apply["torch"]


def test_what_the_loop_itself_does_for_a_batch_is_for_workers_to_do() -> None:
    collate = Range(name="collate_fn", start=400, end=690)
    fetch = Range(name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start=692, end=696)
    gap = (Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699))
    loading = fired(always(*gap, collate, fetch))["data_loading"]
    assert loading.title.endswith(
        "while a batch is fetched, in collate_fn, by the training process itself, though its loader has workers"
    )
    assert "collate_fn=collate" in loading.apply["torch"]
    assert "data_loading" in fired(always(*gap, collate)), "without a loader, too"
    launches = Kernel(start=600, end=601, launch=500)
    assert "data_loading" not in fired(always(*gap, launches, collate)), "it computes"


def test_a_range_without_a_name_is_none_of_the_iterator() -> None:
    timeline = always(WORK, Range(name=WORKERS, start=0, end=10)).ranks[0]
    notes = timeline.annotations
    iterates, unnamed = notes.name == timeline.names.index(WORKERS), replace(notes, name=np.full_like(notes.name, -1))
    last = (*(name for name in timeline.names if name != WORKERS), WORKERS)
    assert length(_iterating(timeline)) == length(union((notes.start_ns[iterates], notes.end_ns[iterates]))) > 0
    assert length(_iterating(replace(timeline, names=last, annotations=unnamed))) == 0


def test_graphs_are_not_advised_where_they_are_launched() -> None:
    launch = Range(name="cudaGraphLaunch", start=10, end=20)
    late = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699), launch))["launch_bound"]
    assert "CUDA graphs" not in late.apply["torch"]


# --- gradients that are reduced after each pass ---------------------------------------------------------------------

DDP_FORWARD = "DistributedDataParallel.forward"


def accumulated(
    *,
    forwards: Sequence[int] = (0, 450),
    optimizer: int | None = 930,
    second_bytes: int = 1 << 20,
    more: Sequence[Item] = (),
) -> Run:
    """Two passes, each of which reduces two buckets beside which nothing is computed; then the optimizer."""
    step = [] if optimizer is None else [Range(name="Optimizer.step#Adam.step", start=optimizer, end=optimizer + 20)]
    return always(
        Kernel(start=0, end=200, launch=0),
        Sent(start=200, end=300, launch=190),
        Sent(start=300, end=400, launch=195, size_bytes=1 << 19, elements=1 << 17),
        Kernel(start=450, end=650, launch=450),
        Sent(start=650, end=750, launch=640, size_bytes=second_bytes, elements=second_bytes // 4),
        Sent(start=750, end=900, launch=645, size_bytes=1 << 19, elements=1 << 17),
        Kernel(start=930, end=990, launch=930),
        *(Range(name=DDP_FORWARD, start=at, end=at + 50) for at in forwards),
        *step,
        *more,
    )


def test_gradients_that_ddp_reduces_after_each_pass_are_reduced_once_instead() -> None:
    found = fired(accumulated())["repeated_reductions"]
    assert found.evidence == {"times": 2, "exposed_ns": about(450 * US)}
    assert found.gain_high_ns == about(225 * US)
    assert "no_sync" in found.apply["ddp"]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(accumulated(forwards=[0]), id="one pass"),
        pytest.param(accumulated(forwards=[0, 60]), id="two forwards before one backward"),
        pytest.param(accumulated(forwards=[]), id="without DDP"),
        pytest.param(accumulated(optimizer=420), id="an optimizer for each pass"),
        pytest.param(accumulated(second_bytes=3 << 20), id="other gradients"),
        pytest.param(accumulated(optimizer=None), id="an evaluation"),
        pytest.param(
            accumulated(more=[Range(name="Optimizer.step#Adam.step", start=955, end=975)]),
            id="two models",
        ),
    ],
)
def test_gradients_that_are_reduced_once_are_not(run: Run) -> None:
    assert "repeated_reductions" not in fired(run)


# --- the last gradient ----------------------------------------------------------------------------------------------


def last_gradient(sizes: Sequence[int], name: str = "transformer.wte.weight") -> Run:
    """The last gradient is a bucket of its own, sent from 600 to 850; compute beside it ends at 700."""
    *layers, last = sizes
    ready = [Ready(name=f"h.{at}.weight", elements=each, at=100 + at) for at, each in enumerate(layers)]
    return always(
        Kernel(start=0, end=700, launch=0),
        Sent(start=300, end=500, launch=250, elements=sum(layers), size_bytes=4 * sum(layers)),
        Sent(start=600, end=850, launch=599, elements=last, size_bytes=4 * last),
        Kernel(start=850, end=990, launch=701),
        *ready,
        Ready(name=name, elements=last, at=590),
    )


def test_an_outstanding_gradient_that_is_ready_last_is_the_tail_that_no_cap_changes() -> None:
    tail = fired(last_gradient([100, 120, 100, 900]))["embedding_tail"]
    assert tail.gain_high_ns == 150 * US  # 850 - 700
    assert tail.evidence == {
        "gradient": "transformer.wte.weight", "bytes": 3600, "share_of_bucket": 1.0, "tail_ns": 150 * US,
        "saved_at_most_ns": 150 * US, "no_other_of_its_size": True,
    }  # fmt: skip
    assert "transformer.wte.weight (a tied embedding?)" in tail.title
    assert "tied" not in fired(last_gradient([900, 120, 100, 900]))["embedding_tail"].title
    assert "tied" not in fired(last_gradient([100, 120, 900], name="h.9.weight"))["embedding_tail"].title


LIKE_THE_OTHERS = [[100, 120, 100, 110], [100, 900, 100, 120], [500, 500, 500], [10, 900, 10, 900, 10, 900]]


@pytest.mark.parametrize("sizes", LIKE_THE_OTHERS, ids=str)
def test_a_last_gradient_like_the_others_is_none(sizes: list[int]) -> None:
    assert "embedding_tail" not in fired(last_gradient(sizes))


def test_a_job_without_ddp_is_not_told_to_leave_ddp_unsynchronized() -> None:
    by_hand = last_gradient([100, 120, 100, 900])
    assert "no_sync" not in str(fired(by_hand)["embedding_tail"].apply)
    ddp = "DistributedDataParallel.forward"
    of_ddp = replace(
        by_hand, ranks={rank: replace(each, names=(*each.names, ddp)) for rank, each in by_hand.ranks.items()}
    )
    assert "no_sync" in fired(of_ddp)["embedding_tail"].apply["ddp"]


# --- small collectives ----------------------------------------------------------------------------------------------


def many(number: int, *, size_bytes: int, op: str = "all_gather", covered: bool = False) -> Run:
    """So many calls of 20 us one after the other from 100 on, and one of 8 MiB that takes 80 us."""
    small = [
        Sent(start=100 + 20 * k, end=120 + 20 * k, launch=1 + k / 100, op=op, size_bytes=size_bytes)
        for k in range(number)
    ]
    large = Sent(start=900, end=980, launch=2, op=op, size_bytes=8 << 20)
    work = Kernel(start=0, end=990) if covered else Kernel(start=0, end=99)
    return always(work, *small, large, *([] if covered else [Kernel(start=981, end=990, launch=3)]))


def test_many_calls_that_take_their_latency_are_reported_with_what_of_them_is_exposed() -> None:
    small = fired(many(20, size_bytes=200_000))["small_collectives"]
    assert small.evidence["calls"] == 20
    assert small.evidence["exposed_ns"] == 400 * US
    assert small.gain_high_ns == 380 * US  # one of the twenty remains
    assert "horovod" not in small.apply
    assert "small_collectives" in fired(many(20, size_bytes=2000))
    assert "small_collectives" not in fired(many(20, size_bytes=2000, op="all_to_all")), "each needs the one before"


@pytest.mark.parametrize("behind", [True, False])
def test_small_calls_that_stand_behind_a_large_one_take_its_time_and_not_their_latency(*, behind: bool) -> None:
    """Twenty calls that are made while 8 MiB are sent until 600, and end one after the other after it."""
    large = Sent(start=100, end=600 if behind else 101, launch=1, op="all_gather", size_bytes=8 << 20)
    small = [
        Sent(start=110 + k, end=605 + 4 * k, launch=2 + k / 100, op="all_gather", size_bytes=2000) for k in range(20)
    ]
    if not behind:
        small = [Sent(start=200 + 20 * k, end=215 + 20 * k, launch=2 + k / 100, op="all_gather", size_bytes=2000)
                 for k in range(20)]  # fmt: skip
    found = fired(always(Kernel(start=0, end=99), large, *small, Kernel(start=900, end=990, launch=899)))
    assert ("small_collectives" in found) is not behind


def one_by_one(calls: int, spent: float = 4, computed: float = 0.5, size_bytes: int = 4096) -> Run:
    """After backward, until 200, an all-reduce every 10 us: each behind a clone, which takes `computed`."""
    begins = [200 + 10 * place for place in range(calls)]
    clones = [Kernel(start=at, end=at + computed, launch=at - 1) for at in begins]
    sent = [Sent(start=at + 5, end=at + 5 + spent, launch=at + 3, size_bytes=size_bytes) for at in begins]
    return always(Kernel(start=0, end=200), *clones, *sent, Kernel(start=900, end=990, launch=899))


@pytest.mark.slow
def test_gradients_reduced_one_by_one_after_backward_should_be_flattened_and_nothing_else() -> None:
    found = fired(one_by_one(60))
    assert set(found) == {"flatten_gradients"}
    assert found["flatten_gradients"].evidence["calls"] == 60
    # From the start of the first call, at 205, to the end of the last, at 799.
    assert found["flatten_gradients"].gain_high_ns == 594 * US
    assert fired(one_by_one(20))["flatten_gradients"].evidence["calls"] == 20, "they fit into one bucket"
    for calls in (20, 40):
        assert "flatten_gradients" not in fired(one_by_one(calls, size_bytes=4)), "metrics"
    assert "flatten_gradients" not in fired(one_by_one(20, size_bytes=48))
    assert fired(one_by_one(40, size_bytes=48))["flatten_gradients"].evidence["calls"] == 40, "a small model's biases"
    assert "flatten_gradients" not in fired(one_by_one(20, size_bytes=5 << 20)), "four buckets are no eighth of 20"
    assert "flatten_gradients" not in fired(one_by_one(60, size_bytes=25 << 20))
    assert "flatten_gradients" not in fired(one_by_one(60, computed=4))  # backward goes on
    assert "flatten_gradients" not in fired(one_by_one(60, spent=0.4, computed=0.9))  # late launches of everything


def on_cores(run: Run) -> Run:
    """Return the same run without a device: a host that computes, and waits for what it calls."""
    return replace(run, ranks={rank: replace(each, has_device=False) for rank, each in run.ranks.items()})


def calls_at_once(calls: int, waits: float = 0) -> Run:
    """All-reduces that are made at once after backward, at 200, and end every 10 us; rank 0 makes the first of them
    earlier, and waits."""
    work, ends = Kernel(start=0, end=200), Kernel(start=900, end=990)
    sent = [Sent(start=200 + at / 10, end=210 + 10 * at, size_bytes=4096 + at % 2) for at in range(calls)]
    runs = [on_cores(always(replace(work, end=200 - each), replace(sent[0], start=200 - each), *sent[1:], ends))
            for each in (waits, 0)]  # fmt: skip
    return replace(runs[1], ranks={0: runs[0].ranks[0], 1: runs[1].ranks[1]})


@pytest.mark.slow
def test_gradients_that_a_host_reduces_one_by_one_should_be_flattened_whoever_waits() -> None:
    for waits in (0, 150):
        found = fired(calls_at_once(60, waits))["flatten_gradients"]
        assert (found.evidence["calls"], found.evidence["of"]) == (60, "gradients")
        assert found.gain_high_ns == 600 * US, "what rank 0 waits before is no matter of its calls"
    assert "flatten_gradients" not in fired(calls_at_once(7))
    activations = calls_at_once(60)
    alike = {
        rank: replace(each, collectives=replace(each.collectives, bytes=np.where(each.collectives.seq % 20, 4096, 4)))
        for rank, each in activations.ranks.items()
    }
    assert "flatten_gradients" not in fired(replace(activations, ranks=alike))
    few = calls_at_once(7).ranks[1]
    some = fired(replace(activations, ranks={0: activations.ranks[0], 1: few}))
    assert some["flatten_gradients"].evidence["calls"] == 60, "a stage may have few tensors"


def without_sizes(run: Run) -> Run:
    ranks = {
        rank: replace(each, collectives=replace(each.collectives, bytes=np.full_like(each.collectives.bytes, NONE)))
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


def test_calls_of_unknown_size_are_gradients_if_made_at_once_and_layers_if_one_follows_the_other() -> None:
    assert fired(without_sizes(calls_at_once(60)))["flatten_gradients"].evidence["calls"] == 60
    assert "flatten_gradients" not in fired(without_sizes(calls_at_once(20))), "too few to be no buckets"
    sent = [Sent(start=200 + 10 * at, end=209 + 10 * at) for at in range(60)]
    layers = on_cores(always(Kernel(start=0, end=200), *sent, Kernel(start=900, end=990)))
    assert "flatten_gradients" not in fired(without_sizes(layers))


def in_phase(run: Run, phase: str) -> Run:
    """Return the run whose calls are all of a phase."""
    ranks = {}
    for rank, each in run.ranks.items():
        code = np.full_like(each.collectives.phase, len(each.names))
        ranks[rank] = replace(each, names=(*each.names, phase), collectives=replace(each.collectives, phase=code))
    return replace(run, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "ddp", "is_found"),
    [("backward", False, True), ("backward", True, False), ("forward", False, False), ("unknown", False, False)],
)
def test_gradients_that_hooks_reduce_one_by_one_beside_backward_lose_what_is_exposed(
    phase: str, *, ddp: bool, is_found: bool
) -> None:
    """Sixty calls from 200 to 800, beside which is computed until 500."""
    work, ends = Kernel(start=0, end=500), Kernel(start=900, end=990)
    sent = [Sent(start=200 + 10 * at, end=210 + 10 * at, size_bytes=4096 + at % 2) for at in range(60)]
    run = in_phase(on_cores(always(work, *sent, ends)), phase)
    names = ("DistributedDataParallel.forward",) * ddp
    run = replace(run, ranks={rank: replace(each, names=(*each.names, *names)) for rank, each in run.ranks.items()})
    found = fired(run).get("flatten_gradients")
    assert (found is not None) is is_found
    if found is not None:
        assert found.gain_high_ns == 300 * US
        assert "0.3 ms of a 1 ms step are exposed in 60 all-reduces" in found.title


@pytest.mark.parametrize(("every", "is_found"), [(3, True), (1, True), (7, False)])
def test_parameters_that_are_averaged_one_by_one_every_few_steps_should_be_flattened(
    every: int, *, is_found: bool
) -> None:
    """Of six steps; one that averages once is one event."""
    work, optimizer = Kernel(start=0, end=200), Range(name="Optimizer.step#SGD.step", start=190, end=195)
    sent = [Sent(start=200 + 10 * at, end=210 + 10 * at, size_bytes=4096 + at % 2) for at in range(60)]
    numbers = [Sent(start=10 * at, end=10 * at + 2, size_bytes=4) for at in range(5)]
    run = on_cores(made(lambda step: (work, *numbers, optimizer, *(sent if step % every == 0 else ()))))
    found = fired(run).get("flatten_gradients")
    assert (found is not None) is is_found
    if found is not None:
        assert found.evidence["of"] == "parameters"
        assert found.gain_high_ns == pytest.approx(600 * US / every)
        assert "Reduce what follows the optimizer" in found.title


def test_an_optimizer_that_ends_with_the_step_is_of_that_step() -> None:
    """What is reduced before it are gradients, in the last step as in the others."""
    sent = [Sent(start=200 + 10 * at, end=210 + 10 * at, size_bytes=4096 + at % 2) for at in range(60)]
    optimizer = Range(name="Optimizer.step#SGD.step", start=850, end=STEP)
    found = fired(on_cores(always(Kernel(start=0, end=190), *sent, Kernel(start=850, end=990), optimizer)))
    evidence = found["flatten_gradients"].evidence
    assert (evidence["of"], evidence["calls"]) == ("gradients", 60)
    assert "60 all-reduces in a row" in found["flatten_gradients"].title


def test_gradients_that_an_optimizer_reduces_before_it_updates_are_no_parameters() -> None:
    optimizer = Range(name="Optimizer.step#SGD.step", start=190, end=850)
    sent = [Sent(start=200 + 10 * at, end=210 + 10 * at, size_bytes=4096 + at % 2) for at in range(60)]
    found = fired(on_cores(always(Kernel(start=0, end=190), optimizer, *sent, Kernel(start=900, end=990))))
    assert found["flatten_gradients"].evidence["of"] == "gradients"


def test_gradients_of_two_models_in_turn_are_no_parameters_and_count_together() -> None:
    """Each of two models computes, reduces 40 gradients for 400 us, and has an optimizer."""
    items: list[Item] = []
    for begin in (0, 500):
        items += [Kernel(start=begin, end=begin + 50), Kernel(start=begin + 480, end=begin + 490)]
        items += [
            Sent(start=begin + 60 + 10 * at, end=begin + 70 + 10 * at, size_bytes=4096 + at % 2) for at in range(40)
        ]
        items += [Range(name="Optimizer.step#SGD.step", start=begin + 475, end=begin + 495)]
    found = fired(on_cores(always(*items)))["flatten_gradients"]
    assert (found.evidence["of"], found.evidence["calls"], found.gain_high_ns) == ("gradients", 80, 800 * US)
    assert "80 all-reduces in 2 rows" in found.title


def in_groups(run: Run, members: int) -> Run:
    """Split the ranks of a run into groups of so many: each makes the calls that the one group did."""
    ranks = {
        rank: replace(
            each,
            names=tuple(f"g{rank // members}" if name == "g" else name for name in each.names),
            collectives=replace(
                each.collectives, group_size=np.full_like(each.collectives.group_size, members)
            ),
        )
        for rank, each in run.ranks.items()
    }  # fmt: skip
    groups = tuple(
        Group(name=f"g{number}", size=members, ranks=tuple(range(number * members, (number + 1) * members)))
        for number in range(len(ranks) // members)
    )
    return replace(run, ranks=ranks, groups=groups)


def test_calls_of_groups_that_no_single_rank_is_in_are_not_added_up() -> None:
    """Four groups of two make twenty calls each, all at the same time: a rank sees twenty."""
    items = [
        Sent(start=100 + 20 * k, end=120 + 20 * k, launch=1 + k / 100, op="all_gather", size_bytes=2000)
        for k in range(20)
    ]
    ends = [Kernel(start=0, end=99), Kernel(start=501, end=990, launch=3)]
    split = in_groups(always(*ends, *items, ranks=8), 2)
    assert len({row.group for row in analyze(split).collectives}) == 4
    small = fired(split)["small_collectives"]
    assert (small.evidence["calls"], small.evidence["exposed_ns"]) == (20, 400 * US)
    assert small.evidence["by_op"]["all_gather"]["calls"] == 20
    assert small.evidence["by_op"]["all_gather"]["exposed_ns"] == 400 * US
    assert small.gain_high_ns == 380 * US
    # Two a step on each rank are few, however many groups there are.
    assert "small_collectives" not in fired(in_groups(always(*ends, *items[:2], ranks=8), 2))


def test_calls_of_all_groups_that_a_rank_is_in_count_together() -> None:
    items = [
        Sent(start=100 + 20 * k, end=120 + 20 * k, launch=1 + k / 100, op="all_gather", size_bytes=2000,
             group="gh"[k % 2])
        for k in range(10)
    ]  # fmt: skip
    small = fired(always(Kernel(start=0, end=99), *items, Kernel(start=301, end=990, launch=3)))["small_collectives"]
    assert (small.evidence["calls"], small.evidence["exposed_ns"]) == (10, 200 * US)


def test_calls_that_are_hidden_or_few_or_large_are_none() -> None:
    assert "small_collectives" not in fired(many(20, size_bytes=2000, covered=True))
    assert "small_collectives" not in fired(many(5, size_bytes=2000))
    assert "small_collectives" not in fired(many(20, size_bytes=2_000_000))  # as fast as the large one


def test_buckets_of_recorded_gradients_are_for_the_replay() -> None:
    items = [Sent(start=100 + 20 * k, end=120 + 20 * k, launch=1, size_bytes=2000) for k in range(20)]
    base = [Kernel(start=0, end=99), *items, Kernel(start=981, end=990, launch=3)]
    assert "small_collectives" in fired(always(*base))
    assert "small_collectives" not in fired(always(*base, Ready(name="w", elements=3, at=50)))
    # Where reduce-scatters carry the gradients, other all-reduces are no buckets.
    shards = Sent(start=900, end=980, launch=2, op="reduce_scatter", size_bytes=8 << 20, dimension="data")
    assert "small_collectives" in fired(always(*base, Ready(name="w", elements=3, at=50), shards))


# --- busy lanes -----------------------------------------------------------------------------------------------------


def queue(behind: Sent) -> Run:
    before = Sent(start=200, end=600, launch=101, op="reduce_scatter")
    return always(Kernel(start=0, end=200, launch=0), before, behind, Kernel(start=700, end=990, launch=110))


def test_a_call_behind_another_operation_on_its_lane_is_reported() -> None:
    busy = fired(queue(Sent(start=600, end=690, launch=105, op="all_gather")))["busy_lane"]
    assert busy.gain_high_ns == 90 * US
    assert busy.evidence["pairs"][0]["before"] == ["reduce_scatter", "g"]
    assert busy.evidence["pairs"][0]["behind"] == ["all_gather", "g"]
    assert "busy_lane" in fired(queue(Sent(start=600, end=690, launch=105, op="reduce_scatter", group="h")))


def test_what_ran_ahead_of_a_needed_call_is_lost_as_what_queued_behind_it() -> None:
    run = queue(Sent(start=600, end=690, launch=105, op="all_gather"))
    given = RuleInput.of(run, analyze(run), match_and_align(run))
    figures = replace(given.figures, causes={"queued": 30 * US, "ahead": 60 * US})
    busy = busy_lane(replace(given, figures=figures))
    assert busy is not None
    assert busy.gain_high_ns == 90 * US
    assert (busy.evidence["queued_ns"], busy.evidence["ahead_ns"]) == (90 * US, 60 * US)


def test_a_call_that_begins_later_than_the_one_before_it_ends_had_not_waited_for_that() -> None:
    """It had waited for its data: compute runs between them."""
    behind = Sent(start=600, end=690, launch=105, op="all_gather")
    later = Sent(start=800, end=890, launch=111, op="reduce_scatter")
    before = Sent(start=200, end=600, launch=101, op="reduce_scatter")
    first, second = Kernel(start=0, end=200, launch=0), Kernel(start=690, end=800, launch=110)
    last = Kernel(start=890, end=990, launch=112)
    busy = fired(always(first, before, behind, second, later, last))["busy_lane"]
    pairs = [(each["before"][0], each["behind"][0]) for each in busy.evidence["pairs"]]
    assert pairs == [("reduce_scatter", "all_gather")]


def test_a_call_behind_its_own_kind_waits_for_the_link() -> None:
    run = queue(Sent(start=600, end=690, launch=105, op="reduce_scatter"))
    assert "queued" not in analyze(run).ranks[0].steps[0].causes
    assert "busy_lane" not in fired(run)


# --- interference ---------------------------------------------------------------------------------------------------


def slowed(*in_turn: float) -> Run:
    """Six kernels a round, eight rounds; a transfer covers half of the launches, others in each step, and slows them so
    many times, in turn."""
    drawn = random.Random(7)
    shape = [drawn.uniform(8, 22) for _ in range(48)]

    def step(number: int) -> list[Item]:
        covered, truth = range(4 * number, 4 * number + 24), in_turn[number % len(in_turn)]
        now, items = 1.0, []
        begun = now
        for place in range(48):
            if place == covered.start:
                begun = now
            took = (
                shape[place]
                * (truth if place in covered else 1.0)
                * random.Random(number + 9 * place).uniform(0.99, 1.01)
            )
            items.append(Kernel(start=now, end=now + took, launch=0, name=f"kernel{place % 6}"))
            now += took
            if place == covered.stop - 1:
                items.append(Sent(start=begun, end=now, launch=0))
        return items

    return made(step)


def test_kernels_that_a_transfer_slows_give_a_trial_of_fewer_channels() -> None:
    found = fired(slowed(1.4))["fewer_channels"]
    assert found.evidence["slowdown"] == pytest.approx(1.4, rel=0.03)
    assert found.verdict == "trial"
    # About half of the compute of a step is beside the transfer, and 0.4 / 1.4 of that is the slowing.
    assert 0.1 * STEP * US < (found.gain_high_ns or 0) < 0.2 * STEP * US
    assert list(found.apply) == ["nccl_communicator", "nccl_variables"]
    assert "fewer_channels" not in fired(slowed(1.0))


def with_channels(run: Run, blocks: tuple[int, ...]) -> Run:
    """Return the run with so many channels of its calls, in turn."""
    in_turn = np.resize(blocks, run.ranks[0].collectives.op.size)
    ranks = {
        rank: replace(each, spans=replace(each.spans, blocks=np.append(in_turn, each.spans.blocks[in_turn.size :])))
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


def test_channels_are_not_why_where_calls_with_few_slow_compute_as_much() -> None:
    run = slowed(1.4)
    assert "fewer_channels" in fired(with_channels(run, (32, 32)))
    assert "fewer_channels" not in fired(with_channels(run, (32, 8)))
    assert "fewer_channels" in fired(with_channels(slowed(1.4, 1.1), (32, 8)))
    assert "fewer_channels" not in fired(with_channels(slowed(1.1, 1.4), (32, 8))), "slower beside few"


@pytest.mark.parametrize(("blocks", "share"), [((32, 32), 1), ((32, 16), 14 / 25), ((32, 8, 8), 14 / 36)])
def test_calls_that_have_no_more_channels_than_are_tried_gain_nothing(blocks: tuple[int, ...], share: float) -> None:
    """The grids of the kernels of calls say how many each one has: half of the most are tried. Compute takes 1.4
    times as long beside calls with more, 1.1 times beside the others: of all of it the share."""
    run = slowed(*(1.4 if each == 32 else 1.1 for each in blocks))
    found, all_of_it = fired(with_channels(run, blocks))["fewer_channels"], fired(run)["fewer_channels"]
    assert found.evidence["channels"] == 32
    assert "try 16 channels (now 32)" in found.title
    assert found.gain_high_ns == pytest.approx(share * (all_of_it.gain_high_ns or 0), rel=0.1)
    assert ("such compute is beside calls with more" in found.title) is (share < 1)


# --- copies ---------------------------------------------------------------------------------------------------------


def test_copies_that_only_serve_communication_are_reported_by_framework() -> None:
    out = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    body = [Kernel(start=0, end=600), Sent(start=100, end=500)]
    of_ddp = fired(always(*body, Kernel(start=600, end=640, host_op=out), Kernel(start=640, end=990)))
    assert of_ddp["communication_copies"].gain_high_ns == 40 * US
    assert list(of_ddp["communication_copies"].apply) == ["ddp"]
    gather = [Range(name="FSDP::all_gather_copy_out (layers.7)", start=30, end=33)]
    copy = Kernel(start=600, end=655, launch=31)
    of_fsdp = fired(always(*body, *gather, copy, Kernel(start=655, end=990, launch=40)))
    assert of_fsdp["communication_copies"].loss_ns == 55 * US / 2, "half: no gather in backward was recorded"
    assert of_fsdp["communication_copies"].gain_high_ns is None, "to gather once saves the gather, too"
    assert list(of_fsdp["communication_copies"].apply) == ["fsdp2"]
    beside = fired(always(*body, *gather, Kernel(start=600, end=655, launch=34), Kernel(start=655, end=990)))
    assert "communication_copies" not in beside


def test_copies_of_fsdp_in_a_cpu_run_are_its_operations() -> None:
    """Ranges that also gather or reduce are not."""
    copies = [
        Mark("FSDP::all_gather (blocks.0)", 0, 100), Op("fsdp::all_gather_copy_in", 10, 40),
        Op("fsdp::split_with_sizes_copy", 110, 140), Op("aten::split_with_sizes_copy", 111, 139),
        Op("fsdp::chunk_cat", 600, 620),
    ]  # fmt: skip
    work = [Op("aten::mm", 0, 100), Op("aten::mm", 100, 700), Call(start=701, end=720), Op("aten::mul", 720, 990)]
    found = fired(cpu_run(lambda step, rank: [*work, *copies]))["communication_copies"]
    assert found.evidence["FSDP copies"] == (30 + 30 + 20) * US
    assert found.loss_ns == (30 + 30 + 20) * US / 2


# --- connections ----------------------------------------------------------------------------------------------------

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
FSDP = Range(name="FSDP::all_gather", start=1, end=2)
TP = Sent(start=100, end=200, dimension="tensor")


def connected(*items: Item, environment: dict[str, str] | None, **more: object) -> str | None:
    found = fired(always(WORK, *items, environment=environment, **more)).get("max_connections")
    return found.apply["environment"] if found else None


def test_one_connection_under_fsdp_is_reported_only_where_it_was_recorded() -> None:
    gather = Sent(start=100, end=200, op="all_gather")
    assert (connected(gather, FSDP, environment={NAME: "1"}) or "").startswith(f"unset {NAME}")
    assert connected(gather, FSDP, environment={NAME: "8"}) is None
    assert connected(gather, FSDP, environment={}) is None
    assert connected(gather, FSDP, environment=None) is None
    assert connected(gather, environment={NAME: "1"}) is None
    assert connected(TP, FSDP, environment={NAME: "1"}) is None


def test_megatrons_tensor_parallelism_needs_one_connection_before_blackwell() -> None:
    megatron = {"description": "TENSOR_MODEL_PARALLEL_GROUP"}
    assert connected(TP, environment={}, **megatron) == f"export {NAME}=1"
    assert connected(TP, environment={NAME: "1"}, **megatron) is None
    assert connected(TP, environment={}) is None
    newer = {"backend": "nccl", "device": "NVIDIA B200"}
    assert connected(TP, environment={}, fingerprint=newer, **megatron) is None


# --- what the recording shows of its job ----------------------------------------------------------------------------

LATE = (Kernel(start=0, end=400), Sent(start=100, end=300, launch=5), Kernel(start=700, end=990, launch=699))


@pytest.mark.parametrize(
    ("names", "frameworks"),
    [
        ((), ["host", "torch"]),
        (("FSDP::pre_forward",), ["fsdp2", "host", "torch"]),
        (("DistributedDataParallel.forward",), ["host", "torch"]),
        (("megatron/core/pipeline_parallel/schedules.py(500): forward_step",), ["megatron", "host", "torch"]),
    ],
)
def test_code_is_for_frameworks_that_the_recording_shows_and_theirs_comes_first(
    names: Sequence[str], frameworks: list[str]
) -> None:
    marks = [Range(name=name, start=1, end=2) for name in names]
    assert list(fired(always(*LATE, *marks))["launch_bound"].apply) == frameworks


def test_an_inference_server_gets_no_code_for_training() -> None:
    calls = many(20, size_bytes=200_000)
    assert "deepspeed" in fired(calls)["small_collectives"].apply
    for marked, frameworks in (
        (("vllm::all_reduce",), ["torch"]),
        (("vllm::x", "AddmmBackward0"), ["torch", "deepspeed"]),
    ):
        named = replace(
            calls, ranks={rank: replace(each, names=(*each.names, *marked)) for rank, each in calls.ranks.items()}
        )
        assert list(fired(named)["small_collectives"].apply) == frameworks


@pytest.mark.parametrize(
    ("names", "optimizer"),
    [
        ((), None),
        (("Optimizer.step#SGD.step",), "SGD"),
        (("Optimizer.zero_grad#AdamW.zero_grad",), "AdamW"),
        (("Optimizer.step#Muon.step",), None),
        (("Optimizer.step#SGD.step", "Optimizer.step#AdamW.step"), None),
        (("Optimizer.step#AdamW.step", "FusedAdamMathFunctor<float, 4>"), None),
    ],
)
def test_fusing_is_advised_for_the_optimizer_that_was_recorded(names: Sequence[str], optimizer: str | None) -> None:
    code = fired(always(*LATE, *(Range(name=name, start=1, end=2) for name in names)))["launch_bound"].apply["torch"]
    assert re.findall(r"torch\.optim\.(\w+)", code) == ([optimizer] if optimizer else [])


# --- all together ---------------------------------------------------------------------------------------------------


def test_a_sound_step_gets_nothing() -> None:
    assert fired(always(WORK, Sent(start=100, end=500))) == {}


@pytest.mark.slow
def test_where_hosts_share_cores_that_comes_first_and_no_setting_is_advised() -> None:
    run = read_inputs([shared_file("kineto/megatron_tp8")])
    together = match_and_align(run)
    analysis = analyze(run, together)
    (cores,) = by_rules(run, analysis, together)
    assert cores.id == "shared_cores"
    found = next(each for each in analysis.findings if each.id == "shared_cores")
    for title in (cores.title, found.title):
        assert "scheduler decides" in title, "one recording does not show that the same rank is late in no other"
        assert "random" not in title
    assert cores.gain_high_ns == pytest.approx(341.8e6, rel=0.01)
    assert [each.id for each in advise(run, analysis, together)[0]] == ["shared_cores"]


@pytest.mark.parametrize(("share", "first"), [(0.3, True), (0.2, False)])
def test_cores_that_are_seldom_short_are_one_loss_among_others(share: float, first: bool) -> None:
    run = always(Kernel(start=0, end=STEP // 2), Sent(start=STEP // 2, end=STEP - 10))
    together = match_and_align(run)
    analysis = analyze(run, together)
    cores = Finding(
        id="shared_cores", severity="warning", title="cores", evidence={"waited_ns": {"0": 1}, "median_share": share},
        known_from="telemetry",
    )  # fmt: skip
    analysis = replace(analysis, findings=[*analysis.findings, cores])
    found = {each.id: each for each in by_rules(run, analysis, together)}
    assert (list(found) == ["shared_cores"]) == first
    held = Straggler(rank=1, held_by="data_loading", blame_ns=1_000 * US, evidence={})
    beside = replace(analysis, skew=replace(analysis.skew, stragglers=[held]))
    (title,) = (each.title for each in by_rules(run, beside, together) if each.id == "shared_cores")
    assert title.endswith(f"training threads waited for one for {100 * share:.1f} % of the time")
    bound = replace(cores, evidence={**cores.evidence, "cores_of": {"0": [0], "1": [1]}})
    (each,) = (each for each in by_rules(run, replace(beside, findings=[bound]), together) if each.id == "shared_cores")
    assert each.title.startswith("Keep other programs off the cores of the ranks; ")


def beginning_earlier(timeline: RankTimeline, by_ns: Ints) -> RankTimeline:
    """Return a rank whose calls begin so much earlier each."""
    calls, spans = timeline.collectives, timeline.spans
    calls = replace(calls, start_ns=calls.start_ns - by_ns, launch_ns=calls.launch_ns - by_ns)
    of_call = calls.start_ns[np.maximum(spans.collective, 0)]
    start = np.where(spans.kind == COMM, of_call, spans.start_ns)
    return replace(timeline, collectives=calls, spans=replace(spans, start_ns=start))


@pytest.mark.parametrize(
    ("late_in", "who"),
    [((0, 1), "for several ranks in turn"), ((0, 0, 1), "mostly for rank 0, and whether by chance is not known")],
)
def test_a_rank_that_chance_may_have_made_last_is_not_accused(late_in: tuple[int, ...], who: str) -> None:
    """Two ranks are late in turn, or one of them more often: none is to blame."""
    run = always(Sent(start=100, end=200), Kernel(start=210, end=STEP - 10))
    ranks = {}
    for rank, each in run.ranks.items():
        before = np.where(np.array(late_in)[each.collectives.step % len(late_in)] != rank, 3 * 90 * US, 0)
        ranks[rank] = beginning_earlier(each, before)
    late = fired(replace(run, ranks=ranks))
    assert late.keys() <= {"late_rank", "exposed_communication", "launch_bound"}, "no setting of communication"
    assert late["late_rank"].title.startswith("Waiting is 57.4 % of the time")
    assert late["late_rank"].title.endswith(f", {who}")
    analysis = analyze(replace(run, ranks=ranks))
    delayed_ns = round((analysis.skew.ranks[0].delayed_ns or 0) / analysis.headline.steps)
    gain = (late["late_rank"].gain_low_ns, late["late_rank"].gain_high_ns)
    assert gain == ((0, delayed_ns) if who.startswith("mostly") else (None, None)), "at most what it delayed others by"


@pytest.mark.parametrize(
    ("blame_us", "whom"),
    [
        ((780, 600, 480, 16), "most for rank 0, then 1, 2"),
        ((780, 300, 280, 16), "mostly for rank 0, and whether by chance is not known"),
        ((500, 500, 500, 500), "for several ranks in turn"),
    ],
    ids=["less than half of all", "more than half", "all of them"],
)
def test_waiting_is_mostly_for_a_rank_with_more_than_half_of_all_blame_and_is_said_in_ms(
    blame_us: tuple[int, ...], whom: str
) -> None:
    """Of leads that last over several calls, counted once, rank 0 has 60 % each time."""
    analysis = analyze(always(Sent(start=100, end=200), Kernel(start=210, end=STEP - 10)))
    skew = analysis.skew
    ranks = [
        replace(
            skew.ranks[0], rank=rank, blame_ns=us * US, delayed_ns=(330 if rank == 0 else 70) * US,
            wait_ns=STEP * US, collective_ns=2 * STEP * US, start_of_recording_ns=0, late_end_ns=0,
        )
        for rank, us in enumerate(blame_us)
    ]  # fmt: skip
    waits = {"peer_host": STEP * US // 2}
    infos = [replace(each, whole=replace(each.whole, causes=waits, exposed_wait_ns=1)) for each in analysis.ranks]
    head = replace(analysis.headline, causes=waits, exposed_wait_ns=1)
    shown = late_rank(replace(analysis, skew=replace(skew, ranks=ranks, stragglers=[]), ranks=infos, headline=head))
    assert shown
    wait = f"{STEP / 2e3:.3g} ms of a {(head.step_ns or 0) / 1e6:.3g} ms step exposed"
    assert shown.title == f"Waiting is 50.0 % of the time in matched collectives, {wait}, {whom}"


@pytest.mark.parametrize(
    ("share_of_others", "title"),
    [
        (0.25, None),
        (0.6, "Waiting is 60.0 % of the time in matched collectives even without step 2, which has most of it, for "
         "several ranks in turn: rank 1 came last most often, and waited longest itself"),
    ],
)  # fmt: skip
def test_one_step_with_most_of_the_waiting_does_not_decide_for_all(share_of_others: float, title: str | None) -> None:
    """Rank 0 is late by 5 ms once, as with a checkpoint: to the call before the first kernel of step 3, which lies in
    the window of step 2. In the five others rank 1 in three, rank 0 in two."""
    run = always(Sent(start=100, end=200), Kernel(start=210, end=STEP - 10))
    wait_ns = round(2 * 100 * US * share_of_others / (1 - share_of_others))  # one of two ranks waits
    ranks = {}
    for rank, each in run.ranks.items():
        step = each.collectives.step
        before = np.where(step % 2 == rank, wait_ns, 0)
        before = np.where(step == 3, 5_000 * US if rank else 0, before)
        ranks[rank] = beginning_earlier(each, before)
    found = fired(replace(run, ranks=ranks))
    assert (found["late_rank"].title if "late_rank" in found else None) == title


def test_waiting_that_compute_overlaps_comes_before_nothing() -> None:
    run = always(WORK, Sent(start=400, end=500))
    ranks = {rank: beginning_earlier(each, np.where(each.collectives.step % 2 == rank, 0, 270 * US))
             for rank, each in run.ranks.items()}  # fmt: skip
    assert "late_rank" not in fired(replace(run, ranks=ranks))


def test_the_largest_loss_stands_first_whatever_is_known_of_its_gain() -> None:
    def one(name: str, loss: int | None, gain: int | None = None, **more: object) -> Recommendation:
        return Recommendation(
            id=name, title="", predicted_gain_ns=gain, gain_low_ns=gain, gain_high_ns=gain, confidence="mixed",
            memory_bytes=None, apply={}, verify="", loss_ns=loss,
            **{"verdict": "trial", "changes_numerics": False, **more},  # type: ignore[arg-type]
        )  # fmt: skip

    found = [
        one("keeps", 90, verdict="no_change"),
        one("loses_bits", 90, 80, changes_numerics=True),
        one("no_figure", None),
        one("small", 10, 10),
        one("large_and_gains_less", 70, 5),
        one("large", 70, 20),
        one("largest", 80),
    ]
    order = ["largest", "large", "large_and_gains_less", "loses_bits", "small", "no_figure", "keeps"]
    assert [each.id for each in ranked(found)] == order
    whole = [one("of_six_steps", 120, per="recording"), one("of_a_step", 30)]
    assert [each.id for each in ranked(whole, steps=6)] == ["of_a_step", "of_six_steps"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("kineto/a100_ddp_rank0of2_collective_args.json.gz", ["launch_bound", "communication_copies"]),
        ("kineto/a100_rank3of8_six_steps.json.gz", ["exposed_communication", "launch_bound", "fewer_channels"]),
        ("kineto/v100_rank1of2_2020_allreduces.json.gz", ["flatten_gradients", "launch_bound"]),
        ("kineto/sampled_pair", []),
        ("kineto/tracelens_mi300_resnet_act_checkpoint.json.gz", ["exposed_communication"]),
        ("kineto/tracelens_mi210_gpu_only.json.gz", ["device_copies", "launch_bound"]),
        ("kineto/kineto_tb_resnet50_nw0_pt1.8.pt.trace.json.gz", ["data_loading", "launch_bound"]),
        ("gloo_torch2.13", ["exposed_communication", "communication_copies"]),
        ("ascend/msinsight_text_level0", ["launch_bound", "little_compute"]),
        ("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log", []),
        ("horovod", []),
    ],
)
def test_real_recordings_get_what_was_judged_by_hand(path: str, expected: list[str]) -> None:
    assert list(fired(read_inputs([shared_file(path)]))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "regressed"])
def test_of_the_projects_own_runs_only_the_largest_loss_is_named(name: str) -> None:
    assert list(fired(read_inputs([ROOT / "traces" / name]))) == ["exposed_communication"]


def test_every_rule_stands_a_run_without_anything() -> None:
    empty = RuleInput.of(
        Run(world_size=1, ranks={}), analyze(Run(world_size=1, ranks={})), match_and_align(Run(world_size=1, ranks={}))
    )
    assert [rule(empty) for rule in RULES] == [None] * len(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_rule_raises_whatever_is_missing_or_wrong_in_the_tables(seed: int) -> None:
    drawn = random.Random(seed)
    sound = [
        slowed(1.4),
        last_gradient([100, 120, 900]),
        many(20, size_bytes=2000),
        queue(Sent(start=600, end=690, launch=105, op="all_gather")),
    ]
    for run in sound * 5:
        ranks = {rank: damaged(each, drawn) for rank, each in run.ranks.items()}
        broken = replace(run, ranks=ranks)
        together = match_and_align(broken)
        given = RuleInput.of(broken, analyze(broken, together), together)
        for each in [found for rule in RULES if (found := rule(given)) is not None]:
            assert each.gain_high_ns is None or each.gain_high_ns >= 0


def damaged(timeline: RankTimeline, drawn: random.Random) -> RankTimeline:
    """Lose or spoil some values of a column of names, numbers or launches."""
    name = drawn.choice(["spans", "collectives", "gradients"])
    table = getattr(timeline, name)
    columns = {"spans": "name step launch_ns collective host_op", "gradients": "step order elements dtype name"}
    column = drawn.choice(columns.get(name, "op group bytes elements step launch_ns dtype").split())
    values = getattr(table, column).copy()
    rows = [drawn.randrange(values.size) for _ in range(values.size // 3)] if values.size else []
    missing = -1 if column_kinds(table)[column] == "name" else NONE
    values[rows] = drawn.choice([missing, missing, 0 if column != "launch_ns" else missing])
    return replace(timeline, **{name: replace(table, **{column: values})})


def test_an_analysis_holds_them_and_its_text_shows_the_first_three_with_milliseconds() -> None:
    analysis = analyze_with_advice(
        always(Kernel(start=0, end=700), Sent(start=761, end=821, launch=760), Kernel(start=825, end=990, launch=762))
    )
    assert [each.id for each in analysis.recommendations] == ["launch_bound"]
    said = text.render(analysis)
    assert "What to change:\n1. Launch-bound" in said
    assert "(costs 0.069 ms a step, 3.3 GPU-hours a day)" in " ".join(said.split())
    assert "\nHow: overlapscope explain launch_bound\n" in said
    steps = next_steps(analysis)
    assert steps[0].command == "overlapscope explain launch_bound"
    assert "(costs 0.069 ms a step, 3.3 GPU-hours a day)" in steps[0].words
    shown = advice_text.render_brief(analysis.recommendations * 5)
    assert [line[:2] for line in shown.splitlines()[1:] if line[0] != " "][:4] == ["1.", "2.", "3.", "2 "]
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert "What to change" not in text.render(analyze(recorded(Made(ready=(9,), elements=(9,), buckets=((0,),)))))
