"""Waits, work and overlapped pauses are no pauses that leave a device idle."""

import numpy as np
import pytest

from tests.unit.analysis.pauses.pausing import MS, US, Pauses, in_turn, named, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pauses", "during", "lead"),
    [
        pytest.param(lambda *_: {3: 1.9}, None, 0, id="short"),
        pytest.param(lambda step, rank: {3: 2.5} if (step, rank) == (0, 0) else {}, None, 0, id="costs little"),
        pytest.param(in_turn, "aten::randperm", 0, id="in an operation"),
        pytest.param(in_turn, "cudaStreamSynchronize", 0, id="in a synchronisation"),
        pytest.param(in_turn, "cudaModuleLoadData", 0, id="in a call of the driver"),
        pytest.param(in_turn, "## gc ##", 0, id="recorded as garbage collection"),
        pytest.param(in_turn, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, id="loads data"),
        pytest.param(lambda *_: {20: 10.0}, None, 18, id="overlapped by work of the device"),
    ],
)
def test_what_is_short_or_known_or_costs_nothing_is_not_named(pauses: Pauses, during: str | None, lead: int) -> None:
    assert named(run(pauses, during=during, lead=lead)) == []


def test_what_idles_a_device_is_no_pause_once_its_next_work_is_launched() -> None:
    """The kernel after the pause of rank 1 was launched before it, as one that waits for another device."""
    job = run(lambda step, rank: {12: 20.0} if rank and step == 1 else {})
    (found,) = named(job)
    (each,) = found.evidence["pauses"]
    spans = job.ranks[1].spans
    after = np.flatnonzero(spans.start_ns >= each["start_ns"] + each["paused_ns"])
    first = after[spans.start_ns[after].argmin()]
    spans.launch_ns[first] = each["start_ns"] + 8 * MS
    (less,) = named(job)
    assert less.evidence["pauses"][0]["idle_ns"] == pytest.approx(each["idle_ns"] - 13 * MS, abs=MS)
    spans.launch_ns[first] = each["start_ns"] - US
    assert not named(job)
