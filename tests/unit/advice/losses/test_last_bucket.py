"""A smaller last bucket is not advised where most of it is one gradient, which no cap makes smaller."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.last_bucket import last_is_one_gradient
from overlapscope.advice.losses import own_calls
from overlapscope.advice.losses.exposed_remedies import instead
from overlapscope.advice.losses.own_calls import FEWER_BYTES, LAST_BUCKET, ONE_GRADIENT
from tests.support.step_cases import Item, Kernel, Range, Ready, Sent, made
from tests.unit.advice.test_exposed_calls import MIB, looked_at

DDP = Range(name="DistributedDataParallel.forward", start=0, end=50)


def step_of(*sizes_mib: float) -> list[Item]:
    """Return a step that sends buckets of these sizes, the last after all compute."""
    *beside, last = [int(each * MIB) for each in sizes_mib]
    return [
        DDP,
        Kernel(start=0, end=600),
        *(
            Sent(start=300 + 50 * at, end=340 + 50 * at, phase="backward", size_bytes=each)
            for at, each in enumerate(beside)
        ),
        Sent(start=601, end=950, launch=590, phase="backward", size_bytes=last),
        Kernel(start=960, end=990),
    ]


@pytest.mark.parametrize(
    ("sizes", "one"),
    [
        pytest.param((1, 25, 27, 60), True, id="twice a usual bucket: what closed it is larger than the rest of it"),
        pytest.param((1, 25, 27, 53), False, id="less than twice"),
        pytest.param((1, 25, 26, 10), False, id="a rest"),
        pytest.param((25, 1, 60), False, id="too few buckets to know the cap"),
        pytest.param((1, 25, 0.1, 0.1, 0.1, 30), False, id="small calls are no buckets"),
    ],
)  # fmt: skip
def test_without_sizes_of_gradients_those_of_buckets_say_it(sizes: tuple[float, ...], *, one: bool) -> None:
    assert last_is_one_gradient(looked_at(made(lambda _: step_of(*sizes)))) == one


@pytest.mark.parametrize(("elements", "one"), [((100, 900), True), ((500, 500), False)])
def test_sizes_of_gradients_say_it(elements: tuple[int, int], *, one: bool) -> None:
    gradients = [
        Ready(name=f"g{at}", elements=each * MIB // 1000, at=300 + 10 * at) for at, each in enumerate(elements)
    ]
    sent = sum(each.elements for each in gradients)
    call = Sent(start=601, end=950, launch=590, phase="backward", size_bytes=4 * sent, elements=sent)
    run = made(lambda _: [Kernel(start=0, end=600), *gradients, call, Kernel(start=960, end=990)])
    assert last_is_one_gradient(looked_at(run)) == one


def test_sizes_of_gradients_that_make_no_bucket_say_nothing() -> None:
    """As those of two models, or with some that are not recorded."""
    given = looked_at(made(lambda _: [Ready(name="g", elements=7, at=300), *step_of(1, 25, 27, 60)]))
    assert not last_is_one_gradient(given)


@pytest.mark.parametrize("cause", ["dependency", "tail"])
@pytest.mark.parametrize(("sizes", "said"), [((1, 25, 27, 60), ONE_GRADIENT), ((1, 25, 27, 10), LAST_BUCKET)])
def test_a_smaller_last_bucket_is_not_advised_there(cause: str, sizes: tuple[float, ...], said: str) -> None:
    given = looked_at(made(lambda _: step_of(*sizes)))
    given = replace(given, figures=replace(given.figures, exposed_wait_ns=None))
    assert instead(given, cause).splitlines()[-1].endswith(f"already: {said}")


def test_it_is_not_offered_where_most_of_what_is_exposed_is_of_other_calls() -> None:
    exchange = Sent(start=601, end=800, launch=590, op="all_to_all", size_bytes=36 * MIB)
    last = Sent(start=800, end=900, launch=591, phase="backward", size_bytes=10 * MIB)
    beside = Sent(start=300, end=340, phase="backward", size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [DDP, Kernel(start=0, end=600), beside, exchange, last]))
    assert instead(given, "tail").splitlines()[-1].endswith(FEWER_BYTES)


def row_of(last_us: float, *, before: int = 6, computes: int = 400) -> list[Item]:
    """Return a step of which calls of 80 us each follow each other after compute, and a last one of so many us."""
    first = [
        Sent(
            start=computes + 80 * at, end=computes + 80 * (at + 1), launch=9 + at, phase="backward", size_bytes=40 * MIB
        )
        for at in range(before)
    ]
    begin = computes + 80 * before
    last = Sent(start=begin, end=begin + last_us, launch=100, phase="backward", size_bytes=10 * MIB)
    beside = Sent(start=100, end=130, launch=5, phase="backward", size_bytes=40 * MIB)
    return [
        DDP,
        Kernel(start=0, end=computes),
        beside,
        *first,
        last,
        Kernel(start=begin + last_us, end=begin + last_us + 9),
    ]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        pytest.param(row_of(35, before=1), LAST_BUCKET, id="30 % of what is exposed"),
        pytest.param(row_of(33, before=1), FEWER_BYTES, id="less"),
        pytest.param(row_of(40), "so the link is the limit", id="and communication takes longer than compute"),
    ],
)
def test_a_smaller_last_bucket_is_offered_where_the_last_call_is_much_of_it(step: list[Item], said: str) -> None:
    given = looked_at(made(lambda _: step))
    given = replace(given, figures=replace(given.figures, exposed_wait_ns=None))
    line = instead(given, "tail").splitlines()[-1]
    assert said in line
    assert ("smaller last bucket" in line) is (said == LAST_BUCKET)
    assert "limit" not in line or "communication (0.55 ms) takes longer than the compute" in line
    assert "limit" not in line or "GB/s on the bus over 2 ranks) with all_reduce_perf" in line


def busy_link(first_us: int) -> list[Item]:
    """Return a step whose calls follow each other from so many us on: with 200 no link is free until the last ends."""
    calls = [
        Sent(start=first_us, end=first_us + 100, launch=190, phase="backward", size_bytes=40 * MIB),
        Sent(start=300, end=600, launch=250, phase="backward", size_bytes=100 * MIB),
        Sent(start=600, end=900, launch=290, phase="backward", size_bytes=100 * MIB),
    ]
    return [DDP, Kernel(start=0, end=350), *calls, Kernel(start=900, end=990)]


@pytest.mark.parametrize("cause", ["dependency", "tail"])
@pytest.mark.parametrize(("first_us", "busy"), [(200, True), (180, False)])
def test_no_size_of_buckets_helps_a_link_that_is_busy_from_the_first_call_to_the_last(
    cause: str, first_us: int, *, busy: bool
) -> None:
    """The last call has 300 of the 550 us that are exposed."""
    given = looked_at(made(lambda _: busy_link(first_us)))
    given = replace(given, figures=replace(given.figures, exposed_wait_ns=None))
    line = instead(given, cause).splitlines()[-1]
    assert ("so the link is the limit" in line) == busy
    assert ("model.no_sync()" in line) == busy
    assert line.endswith(LAST_BUCKET) == (not busy)


@pytest.mark.parametrize(("op", "once"), [("all_reduce", True), ("reduce_scatter", False)])
def test_replicas_of_hybrid_sharding_may_reduce_once(op: str, monkeypatch: pytest.MonkeyPatch, *, once: bool) -> None:
    call = Sent(start=500, end=900, launch=490, phase="backward", op=op, size_bytes=100 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=500), call, Kernel(start=900, end=990)]))
    given = replace(given, job=replace(given.job, frameworks=("fsdp2",)))
    monkeypatch.setattr(own_calls, "one_bandwidth_gbs", lambda _: 10.0)
    first = instead(given, "tail").splitlines()[0]
    assert first.startswith("# transfer takes longer than compute, at 10 GB/s on the bus whatever the size: fewer byt")
    assert ("set_requires_all_reduce(False) for all micro-batches but the last" in first) == once
