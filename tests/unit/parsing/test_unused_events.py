"""Damage in unused events does not affect the other events, whichever way times are read."""

import pytest

from overlapscope.ingest.build.kernel_names import may_describe_collective
from overlapscope.ingest.formats.kineto.events import EventCollector

COARSE_US = 1_700_000_000_000_000
"""So many microseconds that a double has lost decimals: such times are read from their text."""


@pytest.mark.parametrize("unused", ['"ph":"s","name":1e999', '"ph":"M","cat":1e999', '"ph":"i","cat":1e999'])
@pytest.mark.parametrize("whole_us", [1, COARSE_US])
def test_a_number_that_no_double_holds_is_no_matter_where_it_is_not_used(unused: str, whole_us: int) -> None:
    kernel = f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{whole_us}.125,"dur":2}}'
    collector = EventCollector(may_describe_collective)
    assert collector.take(f"[{kernel},{{{unused}}}]".encode())
    columns = collector.columns()
    assert columns.device_start_ns.tolist() == [whole_us * 1000 + 125]
    assert (columns.events, columns.dropped) == (2, 0)
