"""How long the end of a DDP backward waits, told apart from the copying that goes on between the waits.

After its last gradient, DistributedDataParallel goes through its buckets in order: it waits for each, then copies it
out to the gradients (Reducer::finalize_backward in torch/csrc/distributed/c10d/reducer.cpp). Only the ends of the
transfers and of backward are known without a profiler. If copying takes the same time for each byte, one unknown is
left, the time for a byte, and the end of backward determines it.
"""

from collections.abc import Sequence

HALVINGS = 60
"""Steps of the bisection: from the whole tail down to less than a nanosecond in all."""


def bucket_waits(
    begin_ns: int, end_ns: int, done_ns: Sequence[int], size_bytes: Sequence[int], *, copies: bool
) -> list[tuple[int, int]]:
    """Return the stretches of [begin, end) spent waiting for buckets, given in the order of the waits.

    `begin_ns` is when the last bucket was handed over, `end_ns` the end of backward. With `copies` false
    (`gradient_as_bucket_view`) nothing is copied out.
    """
    done = [min(each, end_ns) for each in done_ns]
    if not copies:
        return _waits(begin_ns, done, size_bytes, 0.0)[0]
    fast, slow = 0.0, (end_ns - begin_ns) / max(1, min(size_bytes, default=1))
    for _ in range(HALVINGS):
        middle = (fast + slow) / 2
        if _waits(begin_ns, done, size_bytes, middle)[1] > end_ns:
            slow = middle
        else:
            fast = middle
    return _waits(begin_ns, done, size_bytes, fast)[0]


def _waits(
    begin_ns: int, done: Sequence[int], size_bytes: Sequence[int], ns_per_byte: float
) -> tuple[list[tuple[int, int]], float]:
    """Return the waits under a speed of copying, and when the last bucket is copied."""
    now = float(begin_ns)
    waits = []
    for at, size in zip(done, size_bytes, strict=True):
        if at > now:
            waits.append((round(now), at))
            now = float(at)
        now += size * ns_per_byte
    return waits, now
