"""How to record: the settings that the caller of `overlapscope.profile` chooses."""

import re
import signal
from typing import Final, Literal

import msgspec

from overlapscope.errors import UsageError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """When a recording by `events` records a trace of a few steps: where the job becomes slower, or somebody asks.

    All ranks state the same. Ranks agree by the job's key-value store on the step, and on which of them record.
    """

    slower: float = 1.2
    """How many times as long as usual a step takes, or by which share of a step its waiting grows."""
    for_seconds: float = 10.0
    """How long it must last. The usual range is learned in three times that, and kept over its last minutes."""
    steps: int = 3
    """Steps of one recording."""
    ranks: int = 8
    """Most ranks that record."""
    every_seconds: float = 600.0
    """Least time between two recordings, unless somebody asks."""
    signal: int | None = None
    """A signal that asks for a recording, such as `signal.SIGUSR2`; a handler that was there is called too."""
    http: str | None = None
    """`host:port` at which rank 0 takes `POST /record`, such as `127.0.0.1:9400`."""

    def check(self) -> None:
        """Raise UsageError for values that are not possible."""
        if not (self.slower > 1 and self.for_seconds > 0 and self.every_seconds >= 0):
            raise UsageError("Trigger(): needs slower > 1, for_seconds > 0 and every_seconds >= 0")
        if self.steps < 1 or self.ranks < 1:
            raise UsageError("Trigger(): needs steps >= 1 and ranks >= 1")
        if self.signal is not None and self.signal not in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            raise UsageError(f"Trigger(signal={self.signal}): this signal cannot be handled; take signal.SIGUSR2")
        if self.http is not None:
            host, _, port = self.http.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise UsageError(f"Trigger(http={self.http!r}): needs host:port, such as '127.0.0.1:9400'")


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
    expect: str | None = None
    """Dry run that the recorded steps are held against at the end."""
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
    trigger: Trigger | None = None
    """`events` mode: when to record a trace of a few steps."""

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
        if self.trigger is not None:
            if self.mode != "events":
                raise UsageError("profile(trigger=...): needs mode='events'; `trace` mode has its own schedule")
            self.trigger.check()
