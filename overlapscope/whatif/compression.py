"""Gradients sent compressed: what is sent is counted, what compressing costs is assumed, accuracy is never promised.

PowerSGD (Vogels et al., arXiv 1905.13727) as torch's `powerSGD_hook` does it: a gradient is seen as a matrix of its
first dimension n by all others m; of rank r = min(n, m, rank) it sends r (n + m) numbers where these, twice over
(`min_compression_rate`), are fewer than n m, and else itself. A bucket makes three all-reduces, one after another: what
is not compressed, all P (r n), all Q (r m).

Top-k (Lin et al., arXiv 1712.01887): of each bucket the largest share of numbers, with their places as int32, is
gathered from every rank. A ring's all-gather takes half of what its all-reduce of that buffer takes.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.whatif.curves import Curve

LEAST_RATE: Final = 2
"""torch's `min_compression_rate`."""
INDEX_BYTES: Final = 4
PASSES: Final = {"powersgd": (3.0, 5.5, 20.0), "topk": (5.0, 10.0, 50.0)}
"""How often compressing reads and writes all gradients: low, usual, high; assumed. PowerSGD with error feedback adds
the error, keeps a copy, multiplies by Q and by P, multiplies back and takes the difference: 11 reads or writes of a
number where one pass is two. Top-k selects, which no two libraries do alike."""
MAX_RANK: Final = 1024


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients are compressed."""

    method: Literal["powersgd", "topk"]
    amount: float
    """Rank of PowerSGD; share of the numbers that top-k sends."""
    passes: float
    """What it costs in compute: reading and writing all gradients so often."""

    @property
    def words(self) -> str:
        """As a setting is shown."""
        return f"PowerSGD rank {self.amount:.0f}" if self.method == "powersgd" else f"top-k {self.amount:g}"

    def range(self) -> "list[Compression]":
        """Return it with the least, the usual and the greatest cost."""
        return [replace(self, passes=each) for each in PASSES[self.method]]


class Sent(msgspec.Struct, frozen=True):
    """A collective that a compressed bucket makes."""

    op: Literal["all_reduce", "all_gather"]
    bytes: int
    """The whole buffer."""


def sent(compression: Compression, shapes: Sequence[Sequence[int]], item_bytes: int, ranks: int) -> list[Sent]:
    """Return what a bucket of gradients of these shapes sends, in order."""
    if compression.method == "topk":
        kept = max(ceil(compression.amount * sum(map(prod, shapes))), 1) * ranks
        return [Sent("all_gather", kept * item_bytes), Sent("all_gather", kept * INDEX_BYTES)]
    plain = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        rank = min(rows, columns, int(compression.amount))
        if (rows + columns) * rank * LEAST_RATE < rows * columns:
            left, right = left + rows * rank, right + columns * rank
        else:
            plain += rows * columns
    return [Sent("all_reduce", each * item_bytes) for each in (plain, left, right)]


def sent_ns(collectives: Sequence[Sent], all_reduce: Curve) -> float:
    """Return what they take behind each other. An empty one is called all the same, and takes what its latency is."""
    return sum(
        float(all_reduce.at(max(each.bytes, 1))) * (0.5 if each.op == "all_gather" else 1.0) for each in collectives
    )


def compressions_of(text: str) -> list[Compression]:
    """Return the compressions that an argument lists, e.g. `powersgd:1,topk:0.01`. Raises UsageError for others."""
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
