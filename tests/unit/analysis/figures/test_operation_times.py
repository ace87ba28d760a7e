"""What operations cost a step, and the curves of their bandwidth, held against sums and formulas of their own."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.operation_times import op_times
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.recorded_curves import recorded_curves
from tests.conftest import ROOT, shared_file


def _read(place: Path) -> Run:
    return read_inputs([place], ReadOptions())


def test_transfer_and_waiting_of_a_step_are_sums_over_its_calls() -> None:
    """By hand: of each call the shortest member's duration is transfer; what the others took longer is waiting."""
    run = _read(ROOT / "traces" / "baseline")
    (found,) = op_times(run, match_and_align(run))
    lasted = []
    for timeline in run.ranks.values():
        calls = timeline.collectives
        by_step: dict[int, list[int]] = {}
        for step, start, end in zip(calls.step.tolist(), calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True):
            by_step.setdefault(step, []).append(end - start)
        lasted.append([by_step[step] for step in sorted(by_step) if step >= 0])
    steps = len(lasted[0])
    assert [[len(each) for each in own] for own in lasted] == [[4] * steps] * 2
    pairs = [pair for a, b in zip(*lasted, strict=True) for pair in zip(a, b, strict=True)]
    transfer = sum(map(min, pairs)) / steps
    waiting = sum(max(pair) - min(pair) for pair in pairs) / steps / 2
    assert (found.op, found.group_size, found.ranks, found.calls) == ("all_reduce", 2, 2, 4)
    assert found.transfer_ns == pytest.approx(transfer)
    assert found.wait_ns == pytest.approx(waiting)
    assert found.unsplit_ns == 0


def test_one_rank_alone_tells_no_waiting() -> None:
    run = _read(ROOT / "traces" / "baseline")
    alone = replace(run, ranks={0: run.ranks[0]})
    (both,), (one,) = op_times(run, match_and_align(run)), op_times(alone, match_and_align(alone))
    assert (one.transfer_ns, one.wait_ns) == (0, 0)
    assert one.unsplit_ns > both.transfer_ns


def test_a_recording_without_calls_has_no_rows() -> None:
    run = _read(ROOT / "traces" / "baseline")
    none = replace(run, ranks={})
    assert op_times(none, match_and_align(none)) == []


@pytest.mark.slow
def test_a_curve_goes_through_the_bandwidths_that_were_measured() -> None:
    run = _read(shared_file("kineto/megatron_tp8"))
    rows = analyze(run).collectives
    (found,) = recorded_curves(rows)
    assert found.curve is not None
    assert (found.op, found.ranks) == ("all_reduce", 8)
    sizes = np.array([row.bytes for row in found.rows], np.float64)
    assert found.busbw_gbs(sizes) == pytest.approx([row.busbw_gbs for row in found.rows])
    # 64 MiB in the median of 603 us, twice seven eighths of it over the bus.
    assert found.busbw_gbs(np.array([64.0 * 2**20]))[0] == pytest.approx(67_108_864 / 603_000 * 2 * 7 / 8)


def test_one_size_makes_no_curve() -> None:
    (found,) = recorded_curves(analyze(_read(ROOT / "traces" / "baseline")).collectives)
    assert found.curve is None
    assert [row.bytes for row in found.rows] == [4_724_736]
