"""Which gradients an all-reduce carried: named by DDP, proven by times and sizes, or not known."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Gradients, make
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.store.load_save import load_run
from overlapscope.whatif.ddp.recorded_buckets import recorded_bucket
from tests.conftest import ROOT
from tests.support.rank_rows import Row, rank_timeline


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients in the order in which they become ready, `elements` of each, and what each bucket holds of them."""

    elements: Sequence[int]
    buckets: Sequence[Sequence[int]]
    begin_ns: int = 0


GAP_NS = 100
"""Between gradients that become ready."""


def recorded(*passes: Pass, ddp: Any = None, more: Sequence[tuple[int, int]] = ()) -> RankTimeline:
    """Play DDP: a bucket is launched when its last gradient is ready and the bucket before it is launched.

    `more` are further all-reduces of the step: (launch, elements).
    """
    ready: list[Row] = []
    calls: list[tuple[int, int]] = list(more)
    for each in passes:
        times = [each.begin_ns + GAP_NS * (at + 1) for at in range(len(each.elements))]
        ready += [
            {"step": 7, "name": f"module.p{at}", "elements": size, "dtype": "float32", "ready_ns": times[at]}
            for at, size in enumerate(each.elements)
        ]
        launched = 0
        for bucket in each.buckets:
            launched = max(launched, *(times[at] for at in bucket)) + 5
            calls.append((launched, sum(each.elements[at] for at in bucket)))
    return rank_timeline(
        has_device=False,
        recorded={} if ddp is None else {"ddp": ddp},
        recordings=[{"start_ns": 0, "end_ns": 10_000}],
        steps=[{"step": 7, "start_ns": 0, "end_ns": 9_000}],
        gradients=[{**row, "order": at} for at, row in enumerate(ready)],
        spans=(),
        collectives=[
            {
                "step": 7, "group": "0", "op": "all_reduce", "dtype": "float32", "elements": size, "bytes": 4 * size,
                "launch_ns": launch, "start_ns": launch + 1, "end_ns": launch + 50,
            }
            for launch, size in sorted(calls)
        ],
    )  # fmt: skip


def carried(run: RankTimeline) -> list[list[int] | None]:
    """Return the gradients of each all-reduce, in the order of launch."""
    found = (recorded_bucket(run, row) for row in range(run.collectives.step.size))
    return [None if each is None else each.gradients.tolist() for each in found]


def test_gradients_are_in_the_bucket_that_was_launched_when_they_were_ready() -> None:
    run = recorded(Pass(elements=[5, 1, 2, 2], buckets=[[0], [1, 2], [3]]))
    assert carried(run) == [[0], [1, 2], [3]]
    found = recorded_bucket(run, 1)
    assert found is not None
    assert (found.number, found.of, found.named) == (1, 3, False)
    assert (found.ready_ns, found.launch_ns) == (300, 305)


def test_another_all_reduce_of_the_step_carries_no_gradients() -> None:
    run = recorded(Pass(elements=[5, 1], buckets=[[0], [1]]), more=[(150, 3), (900, 1)])
    assert carried(run) == [None] * 4  # it came between the buckets: which ones they are is open
    run = recorded(Pass(elements=[5, 1], buckets=[[0], [1]]), more=[(20, 3), (900, 9)])
    assert carried(run) == [None, [0], [1], None]


def test_the_same_sizes_in_two_places_prove_nothing() -> None:
    run = recorded(Pass(elements=[4, 4], buckets=[[0], [1]]), more=[(900, 4)])
    assert carried(run) == [None, None, None]


def test_each_pass_of_a_step_has_its_own_buckets() -> None:
    first, second = (Pass(elements=[3, 4], buckets=[[0], [1]], begin_ns=at) for at in (0, 1_000))
    assert carried(recorded(first, second)) == [[0], [1], [2], [3]]
    unsynced = replace(first, buckets=[])
    assert carried(recorded(unsynced, second)) == [[2], [3]]


def test_the_names_that_ddp_gives_are_taken_where_they_make_these_buckets() -> None:
    mixed = Pass(elements=[4, 4, 4, 4], buckets=[[0, 2], [1, 3]])
    assert carried(recorded(mixed)) == [None, None]
    named = [["p0", "p2"], ["p1", "module.p3"]]
    run = recorded(mixed, ddp={"bucket_parameters": named})
    assert carried(run) == [[0, 2], [1, 3]]
    found = recorded_bucket(run, 0)
    assert found is not None
    assert found.named


@pytest.mark.parametrize(
    "ddp", [7, [], {"bucket_parameters": 3}, {"bucket_parameters": [["p0"]]}, {"bucket_parameters": [["p0"], [3]]},
            {"bucket_parameters": [["p0"], ["p0"]]}, {"bucket_parameters": [["p0"], ["p9"]]},
            {"bucket_parameters": [[], ["p0", "p1"]]}, {"bucket_parameters": [["p1"], ["p0"]]}],
)  # fmt: skip
def test_names_that_do_not_make_these_buckets_are_not_taken(ddp: Any) -> None:
    run = recorded(Pass(elements=[2, 3], buckets=[[0], [1]]), ddp=ddp)
    assert carried(run) == [[0], [1]]
    found = recorded_bucket(run, 0)
    assert found is not None
    assert not found.named


def test_without_gradients_sizes_or_a_step_nothing_is_known() -> None:
    run = recorded(Pass(elements=[2, 3], buckets=[[0], [1]]))
    for changed in (
        replace(run, gradients=make(Gradients, 0)),
        replace(run, gradients=replace(run.gradients, elements=np.full(2, NONE))),
        replace(run, gradients=replace(run.gradients, ready_ns=np.full(2, NONE))),
        replace(run, collectives=replace(run.collectives, step=np.full(2, NONE))),
        replace(run, collectives=replace(run.collectives, elements=np.full(2, NONE))),
        replace(run, collectives=replace(run.collectives, op=np.full(2, -1, np.int32))),
        replace(run, collectives=replace(run.collectives, launch_ns=np.full(2, 1), start_ns=np.full(2, 1))),
    ):
        assert carried(changed) == [None, None]


@st.composite
def jobs(draw: st.DrawFn) -> Pass:
    elements = draw(st.lists(st.integers(1, 3), min_size=1, max_size=7))
    order = draw(st.permutations(range(len(elements)))) if draw(st.booleans()) else range(len(elements))
    cuts = sorted(draw(st.sets(st.integers(1, len(elements) - 1)))) if len(elements) > 1 else []
    edges = [0, *cuts, len(elements)]
    return Pass(elements=elements, buckets=[sorted(order[a:b]) for a, b in pairwise(edges)])


@given(jobs(), st.lists(st.tuples(st.integers(1, 900), st.integers(1, 4)), max_size=1))
def test_what_is_said_is_true_whatever_the_buckets_hold(job: Pass, more: list[tuple[int, int]]) -> None:
    run = recorded(job, more=more)
    truth = {tuple(each) for each in job.buckets}
    found = carried(run)
    assert {tuple(each) for each in found if each is not None} <= truth
    in_order = [at for bucket in job.buckets for at in bucket] == list(range(len(job.elements)))
    if in_order and not more:
        assert found == [list(each) for each in job.buckets]


@pytest.mark.parametrize("name", ["baseline", "regressed"])
def test_times_and_sizes_prove_the_buckets_that_ddp_tells_of_a_real_run(name: str) -> None:
    run = load_run(ROOT / "traces" / name)
    checked = 0
    for own in run.ranks.values():
        bare = replace(own.at_hand(), recorded={})
        for row in range(own.collectives.step.size):
            named, proven = recorded_bucket(own, row), recorded_bucket(bare, row)
            assert (named is None) == (proven is None)
            if named is not None and proven is not None:
                assert (named.named, proven.named) == (True, False)
                assert named.gradients.tolist() == proven.gradients.tolist()
                sizes = own.gradients.elements[named.gradients]
                assert int(sizes.sum()) == int(own.collectives.elements[row])
                checked += 1
    assert checked == {"baseline": 48, "regressed": 12}[name]
