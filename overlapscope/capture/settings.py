"""How to record: the settings that the caller of `overlapscope.profile` chooses."""

from typing import Literal

import msgspec

from overlapscope.errors import UsageError


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
    wait_seconds: float = 30.0
    """How long rank 0 waits for the other ranks at the end."""
    grace_seconds: float = 10.0
    """The same after SIGTERM, where ranks record on disks of their own; launchers kill 30 s after it."""

    def check(self) -> None:
        """Raise UsageError for settings that are not possible."""
        if self.mode not in ("trace", "events"):
            raise UsageError(f"profile(mode={self.mode!r}): mode is 'trace' or 'events'")
        if self.warmup < 0 or self.steps < 1 or (self.repeat or self.steps + 2) <= self.steps + 1:
            raise UsageError(
                "profile(): needs warmup >= 0, steps >= 1, and repeat > steps + 1 (one warm-up step per recording)"
            )
