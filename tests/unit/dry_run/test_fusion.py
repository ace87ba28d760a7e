"""Bytes of joined runs, against sums by hand."""

from overlapscope.dry_run.fusion import Traffic, fused_bytes
from overlapscope.timeline.columns import MATMUL, MEMORY, WAIT


def row(read: list[tuple[int, int]], written: list[tuple[int, int]], kind: int = MEMORY, stream: int = 0) -> Traffic:
    return Traffic(kind, stream, read, written)


def test_what_a_run_makes_and_uses_itself_moves_nothing() -> None:
    rows = [row([(1, 100)], [(2, 100)]), row([(2, 100)], [(3, 100)]), row([(3, 100)], [], MATMUL)]
    assert fused_bytes(rows, frozenset()) == [100, 100, 100]


def test_what_outlasts_the_step_is_written_once() -> None:
    rows = [row([(1, 100)], [(1, 100)]), row([(1, 100)], [(1, 100)])]
    assert fused_bytes(rows, frozenset({1})) == [100, 100]
    assert fused_bytes(rows, frozenset()) == [100, 0]


def test_a_matmul_ends_a_run_and_a_row_of_another_stream_does_not() -> None:
    first, second = row([(1, 8)], [(2, 8)]), row([(2, 8)], [(3, 8)])
    assert fused_bytes([first, row([], [], MATMUL), second], frozenset({3})) == [16 - 0, 0, 16]
    assert fused_bytes([first, row([], [], WAIT, stream=1), second], frozenset({3})) == [8, 0, 8]


def test_a_storage_that_is_read_twice_counts_once() -> None:
    rows = [row([(1, 40)], [(2, 40)]), row([(1, 40), (2, 40)], [(3, 40)])]
    assert fused_bytes(rows, frozenset({3})) == [40, 40]
