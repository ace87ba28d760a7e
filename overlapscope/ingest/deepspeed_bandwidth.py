"""From the bandwidths that DeepSpeed prints to those that nccl-tests would print for the same call.

DeepSpeed (calc_bw_log of deepspeed/utils/comms_logging.py) prints Gbit/s, and an "algbw" with a factor of its own:

| operation | size it logs | algbw it prints, times time over size |
|---|---|---|
| all_reduce | the buffer | 2 |
| all_gather | one rank's part | n |
| reduce_scatter | the whole buffer | n; 1 since 2026 |
| all_to_all and all others | the buffer | 1 |

where n is the size of the world, whatever the group. Its busbw is that algbw times (n - 1) / n for these four. The
first version of 2022 used 2 throughout; what it logged of all-gathers and reduce-scatters is not known. The version
does not stand in the log, but the factor and n do: in the printed figures, within their rounding.
"""

import math
from typing import Final

import msgspec

from overlapscope.timeline.run import MAX_RANKS

_HALF: Final = 0.005
"""Every figure is rounded to two decimals."""
_SPREAD: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Operations whose busbw depends on the number of ranks."""


class Range(msgspec.Struct):
    """Where a number that several rounded figures agree on must lie."""

    low: float = 0.0
    high: float = math.inf

    def narrow(self, low: float, high: float) -> None:
        """Take what one more figure allows."""
        self.low, self.high = max(self.low, low), min(self.high, high)

    def whole(self, *likely: int) -> int | None:
        """Give the one whole number from 1 on inside; of several, the one that is among the likely; None without."""
        first = max(math.ceil(self.low), 1)
        if not math.isfinite(self.high) or first > self.high:
            return None
        last = math.floor(self.high)
        inside = [number for number in {*likely, first} if first <= number <= last] if last > first else [first]
        chosen = inside if last == first else [number for number in inside if number in likely]
        return chosen[0] if len(chosen) == 1 else None


class Convention(msgspec.Struct):
    """Takes the printed figures of all calls, gives the factors they were made with."""

    world: Range = msgspec.field(default_factory=Range)
    factor: dict[str, Range] = {}

    def add(self, op: str, size_bytes: int, off_by: float, time_ms: float, algbw: float, busbw: float) -> None:
        """Take one call; bandwidths in Gbit/s as printed."""
        if not (algbw > _HALF and time_ms > _HALF and size_bytes > 0):
            return
        size_gbit_ms = 8 / 1e6
        low = (algbw - _HALF) * (time_ms - _HALF) / ((size_bytes + off_by) * size_gbit_ms)
        high = (algbw + _HALF) * (time_ms + _HALF) / ((size_bytes - off_by) * size_gbit_ms)
        self.factor.setdefault(op, Range()).narrow(low, high)
        if op in _SPREAD and 0 <= busbw < algbw + _HALF:
            least = max(busbw - _HALF, 0.0) / (algbw + _HALF)
            most = (busbw + _HALF) / (algbw - _HALF)
            self.world.narrow(1 / (1 - least), 1 / (1 - most) if most < 1 else math.inf)

    def ranks(self) -> int | None:
        """Give the size of the world; None where the figures leave several, or none, possible."""
        ranks = self.world.whole()
        return ranks if ranks is not None and ranks <= MAX_RANKS else None

    def parts_and_factor(self, op: str) -> tuple[int | None, int | None]:
        """Give whole size over logged size, and printed algbw times time over logged size; None where not told."""
        ranks = self.ranks()
        found = self.factor.get(op)
        factor = found.whole(*{1, 2, ranks or 1}) if found is not None else None
        if op == "all_gather":
            return (ranks, factor) if factor is not None and factor == ranks else (None, None)
        if op == "reduce_scatter" and factor not in (None, 1, ranks):
            return None, None
        return 1, factor
