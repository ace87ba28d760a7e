"""Compressed gradients: bytes sent are counted, the cost of compressing is assumed, accuracy is not predicted.

PowerSGD (Vogels et al., arXiv 1905.13727) as torch's `powerSGD_hook` does it: a gradient is taken as a matrix of its
first dimension n by all others m; with r = min(n, m, rank) it sends r (n + m) numbers where twice that
(`min_compression_rate`) is less than n m, else the gradient itself. A bucket makes three all-reduces, one after
another: the uncompressed gradients, all P (r n), all Q (r m).

Top-k (Lin et al., arXiv 1712.01887): the largest numbers of each bucket, with their indices as int32, are gathered from
every rank. A ring's all-gather takes half of what its all-reduce of that buffer takes.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.whatif.cost.curves import Curve

LEAST_RATE: Final = 2
"""torch's `min_compression_rate`."""
INDEX_BYTES: Final = 4
PASSES: Final = {"powersgd": (3.0, 5.5, 20.0), "topk": (5.0, 10.0, 50.0)}
"""How often compressing reads and writes all gradients: low, usual, high; assumed. PowerSGD with error feedback adds
the error, keeps a copy, multiplies by Q and by P, multiplies back and takes the difference: 11 reads or writes of a
number, where one pass is two. Top-k selects, and every library does that differently."""
MAX_RANK: Final = 1024


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients are compressed."""

    method: Literal["powersgd", "topk"]
    amount: float
    """Rank of PowerSGD; share of the numbers that top-k sends."""
    passes: float
    """Cost in compute, as the number of times that all gradients are read and written."""

    @property
    def words(self) -> str:
        """Name of the setting for people."""
        return f"PowerSGD rank {self.amount:.0f}" if self.method == "powersgd" else f"top-k {self.amount:g}"

    def range(self) -> "list[Compression]":
        """Return the compression with low, usual and high cost."""
        return [replace(self, passes=each) for each in PASSES[self.method]]


class CompressedCollective(msgspec.Struct, frozen=True):
    """A collective that sends a part of a compressed bucket."""

    op: Literal["all_reduce", "all_gather"]
    bytes: int
    """Size of the whole buffer."""


def compressed_collectives(
    compression: Compression, shapes: Sequence[Sequence[int]], item_bytes: int, ranks: int
) -> list[CompressedCollective]:
    """Return the collectives of a bucket of gradients with these shapes, in order."""
    if compression.method == "topk":
        kept = max(ceil(compression.amount * sum(map(prod, shapes))), 1) * ranks
        return [
            CompressedCollective("all_gather", kept * item_bytes),
            CompressedCollective("all_gather", kept * INDEX_BYTES),
        ]
    plain = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        rank = min(rows, columns, int(compression.amount))
        if (rows + columns) * rank * LEAST_RATE < rows * columns:
            left, right = left + rows * rank, right + columns * rank
        else:
            plain += rows * columns
    return [CompressedCollective("all_reduce", each * item_bytes) for each in (plain, left, right)]


def collectives_ns(collectives: Sequence[CompressedCollective], all_reduce: Curve) -> float:
    """Return the time in ns of the collectives one after the other.

    An empty one is called too, and takes its latency.
    """
    return sum(
        float(all_reduce.at(max(each.bytes, 1))) * (0.5 if each.op == "all_gather" else 1.0) for each in collectives
    )


def parse_compressions(text: str) -> list[Compression]:
    """Parse a list of compressions, e.g. `powersgd:1,topk:0.01`. Raises UsageError for others."""
    found = []
    for each in text.split(","):
        method, _, amount = each.strip().partition(":")
        try:
            number = float(amount)
        except ValueError:
            number = 0.0
        if method == "powersgd" and number == int(number) and 1 <= number <= MAX_RANK:
            found.append(Compression(method="powersgd", amount=number, passes=PASSES["powersgd"][1]))
        elif method == "topk" and 0 < number <= 1:
            found.append(Compression(method="topk", amount=number, passes=PASSES["topk"][1]))
        else:
            raise UsageError(
                f"--compress {each.strip()!r}: give powersgd:RANK with a rank from 1 to {MAX_RANK}, or topk:SHARE with "
                "a share of the numbers above 0 and up to 1, e.g. powersgd:1,topk:0.01"
            )
    return found
