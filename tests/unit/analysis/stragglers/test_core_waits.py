"""Training threads that waited for a core: whose threads held it, from what capture recorded of cores and threads."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.stragglers.core_waits import waits_for_cores, waits_on_their_own
from overlapscope.analysis.stragglers.shared_cores import decide_who_is_late
from overlapscope.timeline.run import Run
from tests.unit.analysis.stragglers.test_host_cause import Reading, of_events, with_readings
from tests.unit.analysis.stragglers.test_stragglers import MS, RANKS, STEP_NS, STEPS, job

LASTED_MS = (STEPS - 1) * STEP_NS / MS


def found(
    waited: Sequence[float],
    beside: Sequence[float | None],
    cores: Mapping[int, object],
    hosts: Sequence[str] = (),
    missing: int = 0,
) -> list[Finding]:
    """Return the findings where each rank waited, and its other threads ran, for these shares of the time."""
    return waits_for_cores(recorded(waited, beside, cores, hosts, missing))


def recorded(
    waited: Sequence[float],
    beside: Sequence[float | None],
    cores: Mapping[int, object],
    hosts: Sequence[str] = (),
    missing: int = 0,
) -> Run:
    """Return that run."""
    run = of_events(job(fault=None))
    for rank in range(RANKS):
        readings: list[Reading] = []
        counters = {"thread_queue_ns": waited[rank], "thread_cpu_ns": 0.5}
        other = beside[rank]
        if other is not None:
            counters["process_cpu_ns"] = 0.5 + other
        for step in range(STEPS):
            readings += [(name, step * STEP_NS, step, share * step * STEP_NS) for name, share in counters.items()]
        host = hosts[rank] if hosts else "node1"
        run = with_readings(run, {rank: readings}, settings={"host": host, "cores": cores.get(rank)})
    return replace(run, world_size=RANKS + missing)


EACH_ITS_OWN = {rank: [rank] for rank in range(RANKS)}


def test_the_threads_of_a_rank_that_has_one_core_hold_each_other_up() -> None:
    (few,) = found([0.1] * RANKS, [0.12] * RANKS, EACH_ITS_OWN)
    assert few.id == "few_cores"
    assert f"{0.1 * LASTED_MS:.1f} ms on one rank (10.0 % of its time)" in few.title
    assert f"other threads of that rank ran for {0.12 * LASTED_MS:.1f} ms" in few.title
    assert "one core is too few" in few.title
    assert few.evidence["cores_of"] == {str(rank): [rank] for rank in range(RANKS)}


@pytest.mark.parametrize(
    ("beside", "cores", "bound"),
    [
        pytest.param(0.12, {rank: [0] for rank in range(RANKS)}, False, id="all on one core"),
        pytest.param(0.12, {rank: [rank, rank + 1] for rank in range(RANKS)}, False, id="one core in common"),
        pytest.param(0.12, {rank: [rank] for rank in range(1, RANKS)}, False, id="cores of one rank unknown"),
        pytest.param(0.12, {**EACH_ITS_OWN, 0: "0-3"}, False, id="cores that cannot be read"),
        pytest.param(0.12, {**EACH_ITS_OWN, 0: []}, False, id="no cores"),
        pytest.param(0.05, EACH_ITS_OWN, True, id="others ran on them"),
        pytest.param(0.12, {each: [2 * each, 2 * each + 1] for each in range(RANKS)}, True, id="too little for both"),
        pytest.param(None, EACH_ITS_OWN, True, id="threads beside it unknown"),
    ],
)
def test_else_ranks_or_other_programs_share_cores(
    beside: float | None, cores: Mapping[int, object], bound: bool
) -> None:
    (shared,) = found([0.1] * RANKS, [beside] * RANKS, cores)
    assert shared.id == "shared_cores"
    assert ("the cores to which each rank is bound" in shared.title) == bound


def test_cores_of_two_hosts_have_the_same_numbers() -> None:
    hosts = [f"node{rank}" for rank in range(RANKS)]
    (few,) = found([0.1] * RANKS, [0.12] * RANKS, {rank: [0] for rank in range(RANKS)}, hosts)
    assert few.id == "few_cores"


def test_one_rank_whose_cores_others_use_makes_it_theirs() -> None:
    (shared,) = found([0.1] * RANKS, [0.12] * (RANKS - 1) + [0.01], EACH_ITS_OWN)
    assert shared.id == "shared_cores"


def test_a_rank_that_alone_waits_is_named() -> None:
    (shared,) = found([0.5] + [0.01] * (RANKS - 1), [0.0] * RANKS, {})
    assert shared.id == "shared_cores"
    assert f"the training thread of rank 0 waited for a CPU core for up to {0.5 * LASTED_MS:.1f} ms" in shared.title
    assert "scheduler" not in shared.title
    assert shared.title.endswith("on the same cores, or a limit of CPU time stops it, which was not recorded")
    assert shared.evidence["limit_unknown"]
    assert shared.evidence["concentrated_on"] == [0]
    assert not decide_who_is_late([shared])
    spread = found([0.5] * RANKS, [0.0] * RANKS, {})
    assert "scheduler" in spread[0].title
    assert decide_who_is_late(spread)


EVERY = {rank: list(range(RANKS)) for rank in range(RANKS)}


@pytest.mark.parametrize(
    ("beside", "cores", "ran"),
    [
        pytest.param(0.02, EVERY, 0.08, id="their own threads ran a fifth of it"),
        pytest.param(0.06, EVERY, None, id="their own threads ran most of it"),
        pytest.param(0.02, {rank: list(range(RANKS - 1)) for rank in range(RANKS)}, None, id="fewer cores than ranks"),
        pytest.param(None, EVERY, None, id="other threads unknown"),
        pytest.param(0.02, {}, None, id="cores unknown"),
    ],
)
def test_what_the_threads_of_the_ranks_cannot_have_taken_others_took(
    beside: float | None, cores: Mapping[int, object], ran: float | None
) -> None:
    (shared,) = found([0.1] * RANKS, [beside] * RANKS, cores)
    taken = None if ran is None else f"ran there for at least {RANKS * ran * LASTED_MS:.1f} ms meanwhile"
    assert ("at least" in shared.title) == (taken is not None)
    assert taken is None or taken in shared.title
    assert ("others_ran_ns" in shared.evidence) == (taken is not None)


def test_of_ranks_whose_other_threads_fill_their_core_it_is_said_that_one_each_is_not_enough() -> None:
    (shared,) = found([0.1] * RANKS, [0.4] * RANKS, EVERY)
    assert shared.evidence["full_ranks"] == list(range(RANKS))
    assert "alone ran for 90.0 % of one core's time, so that a core for each rank is not enough" in shared.title
    assert "bind each rank" not in shared.title
    for beside in (0.3, 0.04):  # the core is not full; or nothing beside the thread that trains
        (other,) = found([0.1] * RANKS, [beside] * RANKS, EVERY)
        assert "full_ranks" not in other.evidence
        assert "bind each rank" in other.title
    wide = {rank: list(range(2 * RANKS)) for rank in range(RANKS)}
    assert "full_ranks" not in found([0.1] * RANKS, [0.4] * RANKS, wide)[0].evidence, "two cores a rank"


def test_where_a_control_group_stopped_threads_nothing_is_said_of_other_programs() -> None:
    run = recorded([0.1] * RANKS, [0.02] * RANKS, EVERY)
    assert "others_ran_ns" in waits_for_cores(run)[0].evidence
    throttled = [("cpu_throttled_us", step * STEP_NS, step, 5.0 * step) for step in range(STEPS)]
    assert "others_ran_ns" not in waits_for_cores(with_readings(run, {0: throttled}))[0].evidence


def test_a_limit_that_was_read_and_stopped_nothing_is_no_reason_to_wait() -> None:
    run = recorded([0.5] + [0.01] * (RANKS - 1), [0.0] * RANKS, {})
    shares = {"thread_queue_ns": 0.5, "thread_cpu_ns": 0.5, "process_cpu_ns": 0.5, "cpu_throttled_us": 0.0}
    readings = [(name, at * STEP_NS, at, share * at * STEP_NS) for name, share in shares.items() for at in range(STEPS)]
    (shared,) = waits_for_cores(with_readings(run, {0: readings}))
    assert shared.title.endswith("other threads or programs run on the same cores")
    assert not shared.evidence["limit_unknown"]


def test_of_ranks_that_were_not_recorded_it_is_not_said_that_others_ran() -> None:
    (shared,) = found([0.1] * RANKS, [0.0] * RANKS, EVERY, missing=1)
    assert "others_ran_ns" not in shared.evidence


def test_of_ranks_that_all_wait_much_the_one_that_waits_by_far_the_longest_is_named() -> None:
    (shared,) = found([0.8] + [0.06] * (RANKS - 1), [0.0] * RANKS, {})
    assert shared.evidence["concentrated_on"] == [0]
    assert f"those of the others for at most {0.06 * LASTED_MS:.1f} ms" in shared.title


def test_short_waits_are_no_finding() -> None:
    assert found([0.04] * RANKS, [0.12] * RANKS, EACH_ITS_OWN) == []


def test_who_has_few_cores_is_not_told_to_bind_ranks() -> None:
    run = of_events(job(fault=None))
    for rank in range(RANKS):
        readings: list[Reading] = [
            (name, step * STEP_NS, step, share * step * STEP_NS)
            for step in range(STEPS)
            for name, share in (("thread_queue_ns", 0.1), ("thread_cpu_ns", 0.5), ("process_cpu_ns", 0.7))
        ]
        run = with_readings(run, {rank: readings}, settings={"host": "node1", "cores": [rank]})
    analysis = analyze(run)
    assert "few_cores" in [each.id for each in analysis.findings]
    assert "shared_cores" not in [each.id for each in (*analysis.findings, *analysis.recommendations)]


def counted(counters: Mapping[str, Sequence[float]]) -> list[Finding]:
    """Return the findings where each rank, on one core of its own, has these readings, evenly over the recording."""
    run = of_events(job(fault=None))
    for rank in range(RANKS):
        readings = [
            (name, at * STEP_NS, at, value) for name, values in counters.items() for at, value in enumerate(values)
        ]
        run = with_readings(run, {rank: readings}, settings={"host": "node1", "cores": [rank]})
    return waits_for_cores(run)


@pytest.mark.parametrize(
    "waited",
    [
        pytest.param([-1.7e308, 0.0, 1.7e308], id="no number holds the difference"),
        pytest.param([0.0, 0.1 * STEP_NS, 1e300], id="longer than the recording"),
        pytest.param([0.0, 3.0 * STEP_NS, 0.5 * STEP_NS], id="falls: another thread's"),
        pytest.param([-1.0 * STEP_NS, -0.5 * STEP_NS, 0.0], id="negative"),
    ],
)
def test_a_damaged_account_says_of_no_thread_that_it_waited(waited: Sequence[float]) -> None:
    assert counted({"thread_queue_ns": waited}) == []


@pytest.mark.parametrize(
    ("ran", "all_ran"),
    [
        pytest.param([0.0, STEP_NS, 2 * STEP_NS], [-1.7e308, 0.0, 1.7e308], id="no number holds the difference"),
        pytest.param([STEP_NS, 2 * STEP_NS, 0.0], [0.0, STEP_NS, 2 * STEP_NS], id="falls: another thread's"),
        pytest.param([0.0, STEP_NS, 1e300], [0.0, STEP_NS, 1e301], id="longer than the recording"),
        pytest.param([0.0, STEP_NS, 2 * STEP_NS], [0.0, 2 * STEP_NS, 4 * STEP_NS], id="some ran on other cores"),
    ],
)
def test_threads_whose_account_is_damaged_or_of_other_cores_held_no_core(
    ran: Sequence[float], all_ran: Sequence[float]
) -> None:
    waited = [0.0, 0.1 * STEP_NS, 0.2 * STEP_NS]
    (shared,) = counted({"thread_queue_ns": waited, "thread_cpu_ns": ran, "process_cpu_ns": all_ran})
    assert shared.id == "shared_cores"
    assert ": other threads or programs run on the cores to which each rank is bound" in shared.title


def test_workers_that_load_data_may_hold_the_cores_of_a_rank() -> None:
    (shared,) = found([0.1] * RANKS, [0.05] * RANKS, EACH_ITS_OWN)
    assert ": other programs or data loader workers run on the cores to which each rank is bound" in shared.title


def test_what_cores_a_rank_used_that_was_not_recorded_is_not_known() -> None:
    (few,) = found([0.1] * RANKS, [0.12] * RANKS, EACH_ITS_OWN, missing=1)
    assert few.id == "few_cores"
    assert "no two recorded ranks share a core" in few.title
    (shared,) = found([0.1] * RANKS, [0.05] * RANKS, EACH_ITS_OWN, missing=1)
    assert ": other threads or programs run on the cores" in shared.title


@pytest.mark.parametrize(
    ("waited", "beside", "own"),
    [
        pytest.param([0.3, 0.5, 0.32, 0.52], [0.01, 0.2, 0.01, 0.01], [1, 3], id="one core is busier"),
        pytest.param([0.45, 0.5, 0.47, 0.52], [0.01] * RANKS, [], id="both are about as busy"),
    ],
)
def test_who_shares_which_core_is_said_and_who_waits_far_longer_on_it(
    waited: list[float], beside: list[float], own: list[int]
) -> None:
    cores = {rank: [rank % 2] for rank in range(RANKS)}
    (shared,) = found(waited, beside, cores)
    words = f"ranks 1, 3 share core 1 ({100 * waited[1]:.1f} to {100 * waited[3]:.1f} %), ranks 0, 2 share core 0"
    assert words in shared.title
    assert ("other threads of rank 1 ran for" in shared.title) is bool(own)
    assert "scheduler" not in shared.title
    assert waits_on_their_own(recorded(waited, beside, cores)) == own


@pytest.mark.parametrize(
    ("cores", "words"),
    [
        ({rank: [0] for rank in range(RANKS)}, f"{RANKS} ranks may use 1 core in all (0)"),
        ({rank: [rank % 2, 2] for rank in range(RANKS)}, f"{RANKS} ranks may use 3 cores in all (0, 1, 2)"),
        ({rank: list(range(64)) for rank in range(RANKS)}, "there are more threads than cores"),
        ({rank: [0] for rank in range(1, RANKS)}, "there are more threads than cores"),
    ],
)
def test_how_many_cores_ranks_share_is_said_where_that_is_known_and_few(
    cores: Mapping[int, object], words: str
) -> None:
    (shared,) = found([0.3] * RANKS, [0.1] * RANKS, cores)
    assert shared.id == "shared_cores"
    assert f"{words}, and the scheduler can" in shared.title


def test_of_many_groups_of_ranks_by_cores_those_that_wait_longest_are_said() -> None:
    run = recorded([0.5] * RANKS, [0.01] * RANKS, {})
    cores = [0, 0, 1, 2, 3, 4]
    ranks = {
        rank: replace(run.ranks[0], rank=rank, recorded={"settings": {"host": "node1", "cores": [core]}})
        for rank, core in enumerate(cores)
    }
    (shared,) = waits_for_cores(replace(run, world_size=len(cores), ranks=ranks))
    assert "ranks 0, 1 share core 0 (50.0 %)" in shared.title
    assert "rank 4 has core 3 (50.0 %), 1 more group of ranks, which waits less or as long, has others" in shared.title


FEWER, BIND = "; more cores are needed, or fewer ranks", "; set OMP_NUM_THREADS and bind each rank to its own cores"


@pytest.mark.parametrize(
    ("cores", "hosts", "missing", "said"),
    [
        pytest.param({rank: [0] for rank in range(RANKS)}, (), 0, FEWER, id="one core for all"),
        pytest.param({rank: list(range(RANKS - 1)) for rank in range(RANKS)}, (), 0, FEWER, id="one less than ranks"),
        pytest.param(EVERY, (), 0, BIND, id="as many as ranks"),
        pytest.param({rank: [rank % 2, 2] for rank in range(RANKS)}, (), 0, BIND, id="other cores for each"),
        pytest.param({}, (), 0, BIND, id="cores unknown"),
        pytest.param({rank: [] for rank in range(RANKS)}, (), 0, BIND, id="no cores"),
        pytest.param({rank: [0] for rank in range(RANKS)}, (), 1, BIND, id="a rank was not recorded"),
        pytest.param(
            {rank: [0] for rank in range(RANKS)}, [f"node{rank % 2}" for rank in range(RANKS)], 0, BIND, id="two hosts"
        ),
    ],
)
def test_who_has_fewer_cores_than_ranks_is_not_told_to_bind_them(
    cores: Mapping[int, object], hosts: Sequence[str], missing: int, said: str
) -> None:
    (shared,) = found([0.3] * RANKS, [0.1] * RANKS, cores, hosts, missing)
    assert shared.id == "shared_cores"
    assert shared.title.endswith(said)
    assert (FEWER in shared.title, BIND in shared.title) == (said == FEWER, said == BIND)


def test_of_ranks_that_compute_on_one_thread_binding_alone_is_said_and_nothing_of_threads_where_cores_are_few() -> None:
    for cores, said in ((EVERY, "; bind each rank to its own cores"), ({rank: [0] for rank in range(RANKS)}, FEWER)):
        run = recorded([0.3] * RANKS, [0.29] * RANKS, cores)
        ranks = {
            rank: replace(each, recorded={"settings": {
                "host": "node1", "cores": cores[rank], "environment": {"OMP_NUM_THREADS": "1"}
            }})
            for rank, each in run.ranks.items()
        }  # fmt: skip
        (shared,) = waits_for_cores(replace(run, ranks=ranks))
        assert shared.title.endswith(said)
        assert "OMP_NUM_THREADS" not in shared.title


def test_where_a_control_group_stopped_threads_more_cores_are_not_said_to_help() -> None:
    run = recorded([0.3] * RANKS, [0.1] * RANKS, {rank: [0] for rank in range(RANKS)})
    throttled = [("cpu_throttled_us", step * STEP_NS, step, 5.0 * step) for step in range(STEPS)]
    kept = [("thread_queue_ns", step * STEP_NS, step, 0.3 * step * STEP_NS) for step in range(STEPS)]
    stopped = with_readings(run, {0: [*kept, *throttled]}, settings={"host": "node1", "cores": [0]})
    assert waits_for_cores(run)[0].title.endswith(FEWER)
    assert waits_for_cores(stopped)[0].title.endswith(BIND)
