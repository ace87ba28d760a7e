"""How to record: the settings that the caller of `overlapscope.profile` chooses."""

import re
from typing import Final, Literal

import msgspec

from overlapscope.errors import UsageError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `overlapscope.profile`."""

    mode: Literal["trace", "events"] = "trace"
    warmup: int = 3
    """Steps before recording starts: DDP rebuilds its buckets after the first step."""
    steps: int = 4
    """`trace` mode: steps of one recording."""
    repeat: int | None = None
    """`trace` mode: record again every `repeat` steps."""
    measure_overhead: bool = True
    events_every: int | None = None
    """`events` mode: record one step in so many; None: as many as its own measured cost allows."""
    flush_seconds: float = 30.0
    """`events` mode: how often what was recorded is written; a process that is killed loses no more than this."""
    keep: str | None = None
    """`events` mode: keep the last so long only, such as "10m"; None: keep all."""
    wait_seconds: float = 30.0
    """How long rank 0 waits for the other ranks at the end."""
    grace_seconds: float = 10.0
    """The same after SIGTERM, where ranks record on disks of their own; launchers kill 30 s after it."""

    @property
    def keep_ns(self) -> int | None:
        """How long what was recorded is kept, in nanoseconds; None for ever."""
        return None if self.keep is None else round(float(self.keep[:-1]) * _UNITS[self.keep[-1]] * 1e9)

    def check(self) -> None:
        """Raise UsageError for settings that are not possible."""
        if self.mode not in ("trace", "events"):
            raise UsageError(f"profile(mode={self.mode!r}): mode is 'trace' or 'events'")
        if self.warmup < 0 or self.steps < 1 or (self.repeat or self.steps + 2) <= self.steps + 1:
            raise UsageError(
                "profile(): needs warmup >= 0, steps >= 1, and repeat > steps + 1 (one warm-up step per recording)"
            )
        if self.keep is not None and not re.fullmatch(r"\d{1,6}(\.\d{1,3})?[smhd]", str(self.keep)):
            raise UsageError(f"profile(keep={self.keep!r}): give a time such as '10m' (s, m, h or d)")
        if (self.events_every is not None and self.events_every < 1) or not self.flush_seconds > 0:
            raise UsageError("profile(): needs events_every >= 1 and flush_seconds > 0")
        long = (self.keep, self.events_every) != (None, None)
        if self.mode == "trace" and long:
            raise UsageError("profile(): keep and events_every are of mode='events'; in a trace, repeat says how often")
