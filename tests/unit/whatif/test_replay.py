"""The replay against a slow simulator that knows no events, and against steps that can be worked out by hand."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.whatif.replay.replay import Gap, Instruction, Job, Launch, StuckError, Transfer, Wait, Work, replay
from overlapscope.whatif.workload.workload import Interference, without_interference
from tests.property.examples import examples


def one_rank(
    programme: list[Instruction], *alone: float, compute: float = 1.0, comm: float = 1.0, width: int = 1
) -> Job:
    return Job(
        programmes={0: programme},
        transfers=[Transfer(ranks=(0,), alone_ns=each) for each in alone],
        interference=Interference(compute=compute, comm=comm),
        width=width,
    )


def test_a_hidden_collective_costs_nothing_and_an_exposed_one_its_rest() -> None:
    done = replay(one_rank([Work(100), Launch(0), Work(50), Wait(0), Work(10)], 30))
    assert (done.step_ns, done.exposed_comm_ns[0], done.hidden_comm_ns[0]) == (160, 0, 30)
    done = replay(one_rank([Work(100), Launch(0), Work(50), Wait(0), Work(10)], 80))
    assert (done.step_ns, done.exposed_comm_ns[0], done.hidden_comm_ns[0]) == (190, 30, 50)


def test_a_collective_begins_after_those_of_other_streams_that_it_needs() -> None:
    first, other = Transfer(ranks=(0, 1), alone_ns=30, stream="a"), Transfer(ranks=(0, 1), alone_ns=5, stream="c")
    after = Transfer(ranks=(0, 1), alone_ns=20, stream="b", link="other", after=(0,))
    programme = [Launch(0), Launch(1), Launch(2), Wait(1), Wait(2)]
    found = replay(Job(programmes={0: programme, 1: [Work(10), *programme]}, transfers=[first, after, other]))
    assert found.transferring_ns[0] == (10, 45)  # it shares its link with the third until that ends
    assert found.transferring_ns[1] == (45, 65)
    alone = Transfer(ranks=(0, 1), alone_ns=20, stream="b", link="other")
    free = replay(Job(programmes={0: programme, 1: [Work(10), *programme]}, transfers=[first, alone, other]))
    assert free.transferring_ns[1] == (10, 30)


def test_compute_slows_beside_a_collective() -> None:
    # 30 ns of transfer hide 20 ns of compute; 30 more run alone.
    done = replay(one_rank([Launch(0), Work(50), Wait(0)], 30, compute=1.5))
    assert done.step_ns == pytest.approx(60)
    # The whole of the compute is beside it: 75, then 25 exposed.
    done = replay(one_rank([Launch(0), Work(50), Wait(0)], 100, compute=1.5))
    assert (done.step_ns, done.exposed_comm_ns[0]) == pytest.approx((100, 25))


def test_all_wait_for_the_late_rank() -> None:
    body: list[Instruction] = [Work(10), Launch(0), Wait(0), Work(5)]
    job = Job(programmes={0: body, 1: [Gap(7), *body]}, transfers=[Transfer(ranks=(0, 1), alone_ns=20)])
    done = replay(job)
    assert done.ended_ns == {0: 42, 1: 42}
    assert done.exposed_comm_ns == {0: 27, 1: 20}
    assert done.begun_ns[0] == {0: 10, 1: 17}
    assert done.transferring_ns == [(17, 37)]


def test_ranks_that_wait_for_each_other_are_named() -> None:
    transfers = [Transfer(ranks=(0, 1), alone_ns=1), Transfer(ranks=(0, 1), alone_ns=1)]
    crossed: Mapping[int, list[Instruction]] = {0: [Launch(0), Launch(1), Wait(1)], 1: [Launch(1), Launch(0), Wait(0)]}
    with pytest.raises(StuckError, match="rank 0 waits for collective 1"):
        replay(Job(programmes=crossed, transfers=transfers))


def test_a_rank_that_has_a_collective_early_goes_on_while_its_link_is_still_busy() -> None:
    """Rank 1 has the first after 0.6 of its 10; its next collective on the link shares what is left of it."""
    first = Transfer(ranks=(0, 1), alone_ns=10.0, early={1: 0.6})
    second = Transfer(ranks=(1,), alone_ns=3.0, stream="other")
    programmes: dict[int, list[Instruction]] = {
        0: [Launch(0), Wait(0), Work(1.0)],
        1: [Launch(0), Wait(0), Launch(1), Wait(1), Work(1.0)],
    }
    done = replay(Job(programmes=programmes, transfers=[first, second]))
    # From 6 on both share: the second ends after 6 more, the first has 1 left then.
    assert done.transferring_ns == [(0.0, 13.0), (6.0, 12.0)]
    assert done.ended_ns == {0: 14.0, 1: 13.0}
    assert done.exposed_comm_ns == {0: 13.0, 1: 12.0}


# --- against a simulator without events -----------------------------------------------------------------------------


def slowly(job: Job) -> tuple[dict[int, float], list[tuple[float, float]], dict[int, float]]:
    """Find all rates anew at every step, and go on by the least time in which anything ends."""
    now = 0.0
    at = dict.fromkeys(job.programmes, 0)
    left: dict[int, float] = {}
    ended: dict[int, float] = {}
    queues: dict[tuple[int, str], list[int]] = {}
    begun: dict[int, set[int]] = {number: set() for number in range(len(job.transfers))}
    rest = [each.alone_ns for each in job.transfers]
    times: list[list[float]] = [[-1.0, -1.0] for _ in job.transfers]

    def until(number: int, rank: int) -> float:
        """What is left of a transfer when a rank has it."""
        transfer = job.transfers[number]
        return transfer.alone_ns * (1 - transfer.early.get(rank, 1.0))

    def has(number: int, rank: int) -> bool:
        return times[number][1] >= 0 or (times[number][0] >= 0 and rest[number] <= until(number, rank) + 1e-9)

    exposed = dict.fromkeys(job.programmes, 0.0)
    while True:
        moved = True
        while moved:
            moved = False
            for rank, programme in job.programmes.items():
                while at[rank] < len(programme) and rank not in left:
                    step = programme[at[rank]]
                    if isinstance(step, Launch):
                        stream = job.transfers[step.collective].stream
                        queues.setdefault((rank, stream), []).append(step.collective)
                    elif isinstance(step, Wait):
                        if not has(step.collective, rank):
                            break
                    else:
                        left[rank] = step.ns
                        break
                    at[rank] += 1
                    moved = True
                if at[rank] == len(programme) and rank not in ended:
                    ended[rank] = now
            for (rank, _), queue in queues.items():
                open_ones = [each for each in queue if not has(each, rank)]
                for each in open_ones[: job.width]:
                    begun[each].add(rank)
            for number, transfer in enumerate(job.transfers):
                if times[number][0] < 0 and begun[number] == set(transfer.ranks):
                    times[number][0] = now
        going = [n for n, (start, end) in enumerate(times) if start >= 0 and end < 0]
        rates: dict[tuple[str, int], float] = {}
        computing = {rank for rank in left if isinstance(job.programmes[rank][at[rank]], Work)}
        for rank in left:
            beside = any(rank in job.transfers[each].ranks and not has(each, rank) for each in going)
            rates["rank", rank] = 1 / job.interference.compute if beside and rank in computing else 1
        for each in going:
            sharing = sum(job.transfers[other].link == job.transfers[each].link for other in going)
            inside = {rank for rank in job.transfers[each].ranks if not has(each, rank)}
            slow = job.interference.comm if computing & inside else 1
            rates["comm", each] = 1 / sharing / slow
        if not rates:
            return ended, [(start, end) for start, end in times], exposed
        spans = [(left[who] if kind == "rank" else rest[who]) / rate for (kind, who), rate in rates.items()]
        spans += [
            (rest[each] - until(each, rank)) / rates["comm", each]
            for each in going
            for rank in job.transfers[each].ranks
            if not has(each, rank)
        ]
        ahead = min(spans)
        for rank in job.programmes:
            in_comm = any(rank in begun[n] and not has(n, rank) for n in begun)
            exposed[rank] += ahead if in_comm and rank not in computing else 0
        now += ahead
        for (kind, who), rate in rates.items():
            if kind == "rank":
                left[who] -= ahead * rate
                if left[who] < 1e-9:
                    del left[who]
                    at[who] += 1
            else:
                rest[who] -= ahead * rate
                if rest[who] < 1e-9:
                    times[who][1] = now


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    ranks = draw(st.integers(1, 3))
    transfers = draw(
        st.lists(
            st.builds(
                lambda members, alone, stream, link, early: Transfer(
                    ranks=tuple(sorted(members)),
                    alone_ns=alone,
                    stream=stream,
                    link=link,
                    # All but one may have it early: whoever has it last has it at its end.
                    early={rank: share for rank, share in early.items() if rank in sorted(members)[1:]},
                ),
                st.sets(st.integers(0, ranks - 1), min_size=1),
                st.integers(1, 50).map(float),
                st.sampled_from("ab"),
                st.sampled_from("xy"),
                st.dictionaries(st.integers(0, ranks - 1), st.sampled_from((0.25, 0.5, 0.8)), max_size=2),
            ),
            max_size=6,
        )
    )
    programmes: dict[int, list[Instruction]] = {}
    for rank in range(ranks):
        mine: list[Instruction] = []
        pending: list[int] = []
        for number, transfer in enumerate(transfers):
            if rank not in transfer.ranks:
                continue
            mine += draw(
                st.lists(
                    st.builds(Work, st.integers(1, 40).map(float)) | st.builds(Gap, st.integers(1, 40).map(float)),
                    max_size=2,
                )
            )
            mine.append(Launch(number))
            pending.append(number)
            if draw(st.booleans()):
                mine += [Wait(each) for each in pending]
                pending = []
        mine.append(Work(draw(st.integers(1, 40).map(float))))
        programmes[rank] = [*mine, *(Wait(each) for each in pending)]
    rate = st.sampled_from((1.0, 1.25, 2.0))
    return Job(
        programmes=programmes,
        transfers=transfers,
        interference=Interference(compute=draw(rate), comm=draw(rate)),
        width=draw(st.integers(1, 2)),
    )


@examples(60)
@given(job=jobs())
def test_events_and_the_slow_simulator_agree(job: Job) -> None:
    ended, times, exposed = slowly(job)
    done = replay(job)
    assert done.ended_ns == pytest.approx(ended)
    for got, expected in zip(done.transferring_ns, times, strict=True):
        assert got == pytest.approx(expected)
    assert done.exposed_comm_ns == pytest.approx(exposed, abs=1e-6)


# --- interference taken out of what was recorded --------------------------------------------------------------------


@settings(max_examples=40)
@given(
    works=st.lists(st.integers(1, 60).map(float), min_size=1, max_size=8),
    alone=st.lists(st.integers(1, 80).map(float), min_size=8, max_size=8),
    slowdown=st.sampled_from((1.0, 1.3, 2.0)),
)
def test_recorded_times_freed_of_interference_are_those_of_a_quiet_device(
    works: list[float], alone: list[float], slowdown: float
) -> None:
    programme: list[Instruction] = []
    for number, work in enumerate(works):
        programme += [Work(work), Launch(number)]
    programme += [Work(500.0), *(Wait(number) for number in range(len(works)))]
    done = replay(one_rank(programme, *alone[: len(works)], compute=slowdown))
    recorded = [done.reached_ns[0][2 * number + 1] for number in range(len(works))]
    quiet = without_interference(np.array(recorded), np.array(done.transferring_ns), slowdown)
    assert quiet.tolist() == pytest.approx(np.cumsum(works).tolist())


def test_without_collectives_nothing_is_freed() -> None:
    assert without_interference(np.array([3.0, 5.0]), np.zeros((0, 2)), 1.5).tolist() == [3.0, 5.0]
