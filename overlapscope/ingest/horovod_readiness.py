"""Which rank is ready last, from the ticks that rank 0 writes as ranks report a tensor ready.

Rank 0 takes the reports cycle by cycle, and within a cycle rank by rank: the order of ticks of one cycle is the order
of rank numbers, not of time. A rank was last only where it came alone in a later cycle than all others. Negotiations
that are answered from the response cache have no ticks (horovod#2370).
"""

from collections import Counter
from typing import Final

import msgspec

CYCLE_GAP_US: Final = 500
"""Reports of one cycle are taken in a loop, microseconds apart; between cycles rank 0 sleeps about a millisecond."""
LATE_US: Final = 1000
"""A smaller lead says nothing: reports wait for the next cycle."""


class Ticks(msgspec.Struct):
    """The ticks of one negotiation."""

    count: int = 0
    rank: int = -1
    at_us: int = 0
    cycle: int = -1
    in_cycle: int = 0
    """Ticks in the cycle of the last one."""
    before_us: int = 0
    """Time of the last tick of an earlier cycle."""

    def add(self, rank: int, at_us: int, cycle: int) -> None:
        """Take the next tick."""
        if cycle != self.cycle:
            self.before_us, self.in_cycle = self.at_us, 0
        self.count += 1
        self.in_cycle += 1
        self.rank, self.at_us, self.cycle = rank, at_us, cycle


class Readiness(msgspec.Struct):
    """Takes the ticks of all tensors in the order of the file, and each negotiation when it is over."""

    ranks: set[int] = set()
    _judged: Counter[int] = msgspec.field(default_factory=Counter)
    _late: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)
    _late_us: Counter[tuple[int, int]] = msgspec.field(default_factory=Counter)
    _cycle: int = 0
    _rank: int = -1
    _at_us: int = 0

    def cycle_start(self) -> None:
        """Take a mark that Horovod's next cycle begins."""
        self._cycle += 1

    def cycle_of(self, rank: int, at_us: int) -> int:
        """Give the number of the cycle that a tick belongs to, which is the next one of the file."""
        if rank < self._rank or at_us - self._at_us > CYCLE_GAP_US:
            self._cycle += 1
        self._rank, self._at_us = rank, at_us
        self.ranks.add(rank)
        return self._cycle

    def judge(self, ticks: Ticks) -> None:
        """Take the ticks of a negotiation that is over."""
        self._judged[ticks.count] += 1
        lead = ticks.at_us - ticks.before_us
        if ticks.count > 1 and ticks.in_cycle == 1 and lead >= LATE_US:
            self._late[ticks.count, ticks.rank] += 1
            self._late_us[ticks.count, ticks.rank] += lead

    @property
    def judged(self) -> int:
        """Negotiations with a tick of every rank; the others have lost some."""
        return self._judged[len(self.ranks)] if self.ranks else 0

    def late(self) -> list[tuple[int, int, int]]:
        """Give (rank, times it was last, its lead in sum) for the negotiations with all ticks, the most often first."""
        of_all = [(rank, times) for (count, rank), times in self._late.items() if count == len(self.ranks)]
        return [(rank, times, self._late_us[len(self.ranks), rank]) for rank, times in sorted(of_all, key=_most)]


def _most(row: tuple[int, int]) -> tuple[int, int]:
    return -row[1], row[0]
