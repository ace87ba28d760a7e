"""Separate waiting for buckets from copying them at the end of a DDP backward.

After its last gradient, DistributedDataParallel goes through its buckets in order: it waits for each one, then copies
it out to the gradients (Reducer::finalize_backward in torch/csrc/distributed/c10d/reducer.cpp). Without a profiler only
the ends of the transfers and the end of backward are known. If copying takes the same time for every byte, one unknown
remains (the time per byte), and the end of backward determines it.
"""

from collections.abc import Sequence

HALVINGS = 60
"""Bisection steps: enough to narrow the whole end of backward to less than one nanosecond."""


def bucket_waits(
    begin_ns: int, end_ns: int, done_ns: Sequence[int], size_bytes: Sequence[int], *, copies: bool
) -> list[tuple[int, int]]:
    """Return the parts of [begin_ns, end_ns) spent waiting for buckets, as (start, end) pairs in nanoseconds.

    `begin_ns` is when the last bucket was handed to the backend, `end_ns` the end of backward. `done_ns` and
    `size_bytes` list the buckets in the order in which DDP waits for them. With `copies` false
    (`gradient_as_bucket_view`) nothing is copied out.
    """
    # Times since the epoch have no exact nanoseconds as floats.
    done, end = [min(each, end_ns) - begin_ns for each in done_ns], end_ns - begin_ns
    fast, slow = 0.0, end / max(1, min(size_bytes, default=1))
    for _ in range(HALVINGS if copies else 0):
        middle = (fast + slow) / 2
        if _waits(done, size_bytes, middle)[1] > end:
            slow = middle
        else:
            fast = middle
    return [(begin_ns + start, begin_ns + stop) for start, stop in _waits(done, size_bytes, fast)[0]]


def _waits(done: Sequence[int], size_bytes: Sequence[int], ns_per_byte: float) -> tuple[list[tuple[int, int]], float]:
    """Return the waits for an assumed copy time per byte, and when the last bucket is copied, from 0 on."""
    now = 0.0
    waits = []
    for at, size in zip(done, size_bytes, strict=True):
        if at > now:
            waits.append((round(now), at))
            now = float(at)
        now += size * ns_per_byte
    return waits, now
