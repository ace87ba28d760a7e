"""Without a record of the host, idle time is told by how it is divided into gaps."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.timeline.columns import NONE, Syncs, make
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.graph_programs import Launch, Operation, Work, simulate
from tests.support.step_cases import STEP, STEPS, Kernel, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_exposed_calls import looked_at

MS, US = 1_000_000, 1_000


def of_the_device(program: Sequence[Operation]) -> Run:
    """Return the run of one rank of which the device alone was recorded."""
    run = simulate({0: list(program)}).run
    bare = {
        rank: replace(
            each, host=make(type(each.host), 0), syncs=make(Syncs, 0),
            recordings=replace(each.recordings, host_events=each.recordings.host_events & False),
            spans=replace(each.spans, launch_ns=np.full_like(each.spans.launch_ns, NONE)),
        )
        for rank, each in run.ranks.items()
    }  # fmt: skip
    return replace(run, ranks=bare)


def kernels(number: int) -> list[Operation]:
    """Return kernels of 100 us, each launched 110 us after the one before."""
    return [each for _ in range(number) for each in (Launch(0, 100 * US), Work(110 * US))]


def test_a_few_long_gaps_are_named_with_the_kernels_around_them() -> None:
    program = [*kernels(60), Work(5 * MS), Launch(0, 100 * US, name="after"), Work(110 * US), Work(3 * MS), *kernels(9)]
    found = fired(of_the_device(program))["idle_device"]
    long = found.evidence["long_gaps_ns"]
    assert len(long) == 2
    assert long == sorted(long, reverse=True)
    assert long[0] > 5 * MS > long[1] > 3 * MS
    assert f"2 of {found.evidence['gaps']} gaps hold 9" in found.title
    assert "between gemm and after (at 0:" in found.title
    assert "the host may have stopped" in found.title
    assert "of it unknown" not in found.title
    assert found.title.count(f"{found.evidence['idle_ns'] / 1e6:.3g} ms") == 1


def test_a_few_long_gaps_are_named_where_shorter_ones_follow_in_all_lengths() -> None:
    """The longest five hold six tenths; so many gaps of a shorter order hold four fifths that these were no few."""
    lengths = [40, 20, 15, 10, 8, 8, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]
    program = [each for ms in lengths for each in (*kernels(10), Work(ms * MS))]
    found = fired(of_the_device([*program, *kernels(1)]))["idle_device"]
    assert [round(ns / MS) for ns in found.evidence["long_gaps_ns"]] == lengths[:5]
    gaps = found.evidence["gaps"]
    assert f"5 of {gaps} gaps hold 61 %, 40, 20, 15, 10, 8.01 ms: the longest 40 ms between gemm" in found.title
    assert "; the median of the rest is 13.0 us" in found.title


def test_gaps_of_seconds_have_no_exponent() -> None:
    program = [*kernels(60), Work(1_830 * MS), Launch(0, 100 * US, name="after"), Work(1_200 * MS), *kernels(9)]
    assert ", 1830, 1200 ms: the longest 1830 ms" in fired(of_the_device(program))["idle_device"].title


def test_many_gaps_alike_are_an_average() -> None:
    found = fired(of_the_device(kernels(60)))["idle_device"]
    assert found.evidence["long_gaps_ns"] == []
    assert "59 gaps, " in found.title
    assert "on average" in found.title


def test_short_gaps_are_no_stops_of_the_host() -> None:
    # One gap of 0.16 ms among many of nothing: too short to say that the host stopped.
    program = [*[Launch(0, 100 * US) for _ in range(30)], Work(3 * MS + 100 * US), Launch(0, 100 * US)]
    found = fired(of_the_device(program))["idle_device"]
    assert "one of 30 gaps holds" in found.title
    assert "may have stopped" not in found.title


def test_a_single_gap_is_no_one_of_one() -> None:
    found = fired(of_the_device([Launch(0, MS), Work(5 * MS), Launch(0, MS, name="after")]))["idle_device"]
    assert "one gap of 4" in found.title
    assert "gaps" not in found.title


@pytest.mark.parametrize(("host_us", "shown"), [(100, False), (300, True)])
def test_idle_time_is_shown_by_what_a_host_did_only_where_hosts_decided_much_of_it(
    host_us: int, *, shown: bool
) -> None:
    """The device idles for 500 us of each step; of the rest it is known that it waits for its own work."""
    given = looked_at(made(lambda _: [Kernel(start=0, end=500)]))
    begins = np.arange(EPOCH_NS, EPOCH_NS + (STEPS - 1) * STEP * US, STEP * US) + 500 * US
    paused = Intervals(starts=begins, ends=begins + host_us * US)
    loss = HostLoss(kind="pause", when=paused, longest=(int(paused.starts[0]), int(paused.ends[0])))
    found = largest_loss(replace(given, host_losses=dict.fromkeys(given.windows, (loss,))), [])
    assert found is not None
    assert (found.id, found.shown_by is not None) == ("idle_device", shown)
