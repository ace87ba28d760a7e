"""Know the matrix of links that `nvidia-smi topo -m` and `rocm-smi --showtopo` print."""

from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "topo-matrix"


def recognises(head: Head) -> bool:
    """Whether the text is such a matrix more than anything else, with a row that fits its header."""
    if b"GPU0" not in head.content and b"TABLE:" not in head.content:
        return False
    from overlapscope.ingest.topo_matrix import MatrixLines  # noqa: PLC0415 - loaded for what may be a matrix

    collector = MatrixLines()
    told = [collector.take(line) for line in head.text.splitlines() if line.strip()]
    return collector.rows > 0 and 2 * sum(told) >= len(told)


def holds_some(head: Head) -> bool:
    """Whether a text holds a matrix, with a row that fits its header, among whatever else."""
    if b"GPU0" not in head.content:
        return False
    from overlapscope.ingest.topo_matrix import MatrixLines  # noqa: PLC0415 - loaded for what may hold a matrix

    collector = MatrixLines()
    for line in head.text.splitlines():
        collector.take(line)
    return collector.rows > 0


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy("overlapscope.ingest.topo_matrix:read_topo_matrix"),
    holds_some=holds_some,
)
