"""Pauses that follow a gather of Python objects are found by what was launched before them."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.host_pauses import _remedies
from overlapscope.analysis.pauses.gathered_objects import follow_gathered_objects
from overlapscope.analysis.pauses.pause_reasons import _objects, _Traits, _why
from overlapscope.timeline.columns import COMPUTE, COPY
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline
from tests.unit.analysis.pauses.pausing import MS, US, pause

NAMES = {"to host": "Memcpy DtoH (Device -> Pageable)", "to device": "Memcpy HtoD (Pageable -> Device)",
         "within": "Memcpy DtoD (Device -> Device)", "fill": "fill", "gemm": "gemm"}  # fmt: skip
GATHER, SIZES = "all_gather", ["to device", "to device", "fill", "all_gather", "within", "to host", "to host"]


def launched(*work: str) -> RankTimeline:
    """Return a rank that launches this, each 10 us after the one before; a gemm takes 0.2 ms, all else 2 us."""
    rows: dict[bool, list[Row]] = {True: [], False: []}
    for number, what in enumerate(work):
        start = EPOCH_NS + number * 10 * US
        ends = start + (200 if what == "gemm" else 2) * US
        row: Row = {"launch_ns": start, "start_ns": start, "end_ns": ends}
        is_call = what not in NAMES
        copy = "to" in what or what == "within"
        rows[is_call].append(
            row | ({"op": what} if is_call else {"name": NAMES[what], "kind": COPY if copy else COMPUTE})
        )
    return rank_timeline(0, calls=rows[True], work=rows[False])


@pytest.mark.parametrize(
    ("work", "follows"),
    [
        pytest.param([*SIZES, GATHER, "to host", "to host"], True, id="two ranks"),
        pytest.param([*SIZES, GATHER, "within", *["to host", "fill"] * 6], True, id="with small work between"),
        pytest.param([*SIZES, GATHER, "to host"], False, id="one figure read"),
        pytest.param([*SIZES, GATHER, *["to host"] * 6, "to device"], False, id="copied back"),
        pytest.param([*SIZES, GATHER, *["to host"] * 6, "gemm"], False, id="computed after it"),
        pytest.param([*SIZES, "gemm", GATHER, *["to host"] * 6], False, id="computed between"),
        pytest.param(["gemm", *SIZES[3:], GATHER, *["to host"] * 6], False, id="metrics of the device"),
        pytest.param([*SIZES[:4], GATHER, *["to host"] * 6], False, id="no sizes read"),
        pytest.param([*SIZES, "all_reduce", *["to host"] * 6], False, id="another call"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_a_pause_follows_gathered_objects_where_all_was_launched_in_that_order(
    work: list[str], *, follows: bool
) -> None:
    timeline = launched("gemm", *work)
    ends = EPOCH_NS + 1 * MS
    assert follow_gathered_objects(timeline, np.array([ends])).tolist() == [follows]
    assert follow_gathered_objects(timeline, np.array([EPOCH_NS + 5 * US])).tolist() == [False], "before all that"


def paused(*at_ns: int) -> bool:
    timeline = launched(*SIZES, GATHER, "to host", "to host")
    found = [replace(pause("aten::to"), start_ns=each) for each in at_ns]
    return _objects(Run(world_size=1, ranks={0: timeline}, groups=()), {0: found})


def test_gathered_objects_are_named_where_most_of_several_pauses_follow_them() -> None:
    before, after = EPOCH_NS, EPOCH_NS + MS
    assert paused(after, after, after, before)
    assert not paused(after, after, before)
    assert not paused(after), "one may be chance"


def test_gathered_objects_come_first_in_words_and_remedies() -> None:
    why = _why([pause("aten::to")], range(2), _Traits(objects=True))
    assert why.startswith("what it does with Python objects that it probably gathered just before, as all_gather")
    assert why.endswith("; else garbage collection, a logger, a file, a lock or a lost core")
    for recurs in (False, True):
        torch = _remedies({"objects": True, "own_code": recurs, "may_compile": True}, None, 0)["torch"]
        assert torch.startswith(
            "# if torch.distributed.all_gather_object() comes just before:\n# is the exchange of objects needed"
        )
