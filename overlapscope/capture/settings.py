"""How to record: what the caller of `overlapscope.profile` chooses."""

from typing import Literal

import msgspec

from overlapscope.errors import UsageError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to record."""

    mode: Literal["trace", "events"] = "trace"
    warmup: int = 3
    """Steps before recording: DDP rebuilds its buckets after the first."""
    steps: int = 4
    """`trace`: steps of one recording."""
    repeat: int | None = None
    """`trace`: record again every so many steps."""
    measure_overhead: bool = True
    wait_seconds: float = 30.0
    """How long rank 0 waits for the others at the end."""

    def check(self) -> None:
        """Raise UsageError for what cannot be asked for."""
        if self.mode not in ("trace", "events"):
            raise UsageError(f"profile(mode={self.mode!r}): there is 'trace' and 'events'")
        if self.warmup < 0 or self.steps < 1 or (self.repeat or self.steps + 2) <= self.steps + 1:
            raise UsageError("profile(): warmup >= 0, steps >= 1 and repeat > steps + 1, for a step of warm-up between")
