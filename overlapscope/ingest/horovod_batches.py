"""Which tensors Horovod put into one transfer.

Rank 0 stamps the tensors of a fused batch one after the other, a few microseconds apart, both when their transfer
begins and when it ends; the file does not name batches. Tensors whose transfer begins together and ends together are
one batch.
"""

from typing import Final

import msgspec

TOGETHER_US: Final = 100
"""Stamps of one batch follow each other within this time."""
TINY_BYTES: Final = 1 << 20
FUSABLE: Final = frozenset({"ALLREDUCE", "ADASUM", "ALLGATHER", "REDUCESCATTER"})
"""Operations of which Horovod puts several tensors into one transfer."""


class Batch(msgspec.Struct):
    """Tensors whose transfer began together."""

    activity: str
    start_us: int
    last_start_us: int
    bytes: int | None
    tensors: int = 1
    open: int = 1
    """Tensors whose transfer has not ended."""
    end_us: int | None = None
    unclear: bool = False


class Batches(msgspec.Struct):
    """Takes beginnings and ends of transfers in the order of the file; the sums stand in its fields."""

    transfers: int = 0
    tensors: int = 0
    single: int = 0
    """Transfers of one tensor."""
    duration_us: int = 0
    unclear: int = 0
    """Begun together, but not ended together: not in the other sums."""
    sized: int = 0
    """Transfers whose bytes are known, and those of them below TINY_BYTES."""
    tiny: int = 0
    _latest: Batch | None = None

    def begin(self, activity: str, at_us: int, size: int | None) -> Batch:
        """Give the batch that a transfer beginning now belongs to; `size` is the tensor's bytes, if known."""
        batch = self._latest
        if (
            batch is None
            or batch.end_us is not None
            or batch.activity != activity
            or not 0 <= at_us - batch.last_start_us <= TOGETHER_US
        ):
            self._latest = Batch(activity, at_us, at_us, size)
            return self._latest
        batch.last_start_us = at_us
        batch.tensors += 1
        batch.open += 1
        batch.bytes = None if batch.bytes is None or size is None else batch.bytes + size
        return batch

    def end(self, batch: Batch, at_us: int | None) -> None:
        """Take the end of one tensor's transfer; None where it is not recorded."""
        before = batch.end_us
        if at_us is None or at_us < batch.start_us or (before is not None and not 0 <= at_us - before <= TOGETHER_US):
            batch.unclear = True
        batch.end_us = at_us if at_us is not None else batch.last_start_us
        batch.open -= 1
        if batch.open:
            return
        if batch.unclear:
            self.unclear += 1
            return
        self.transfers += 1
        self.tensors += batch.tensors
        self.single += batch.tensors == 1
        self.duration_us += batch.end_us - batch.start_us
        if batch.bytes is not None:
            self.sized += 1
            self.tiny += batch.bytes < TINY_BYTES
