"""The usual range of a job's step time and of its waiting, learned from the job itself."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

SUSTAINED_BLOCKS = 5
"""Blocks in a row that must lie outside the usual range."""
LEARNED_BLOCKS = 15
"""Blocks before the usual range is known."""
KEPT_BLOCKS = 300
LEAST_KNOWN = 3
"""Fewest usual blocks of which the waiting is known, to tell it from the rank's own work."""
SPREADS = 6.0
"""How many standard deviations, estimated by the median absolute deviation, a block may lie above the median."""
DEVIATIONS_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""

Kind = Literal["own", "waiting", "step", "asked"]


class Excursion(msgspec.Struct, frozen=True, kw_only=True):
    """A step time, or a waiting time, that left its usual range and stayed outside."""

    kind: Kind
    """Whether the rank's own work grew, its waiting, either (not told apart), or somebody asked."""
    usual_ns: int
    observed_ns: int
    """Mean over the blocks outside."""
    seconds: float
    """How long it has been outside."""

    def sentence(self) -> str:
        """Return what happened, in one sentence without a full stop."""
        what = {"own": "own work a step", "waiting": "waiting a step"}.get(self.kind, "a step")
        took, usual = (f"{each / 1e6:.1f} ms" for each in (self.observed_ns, self.usual_ns))
        return f"{what} took {took} for {self.seconds:.0f} s, usually {usual}"


class _Block(msgspec.Struct):
    """Means over some consecutive steps."""

    step_ns: float
    waited_ns: float | None
    """None where the waiting of no step is known."""
    seconds: float

    @property
    def own_ns(self) -> float:
        return self.step_ns - (self.waited_ns or 0.0)


class UsualRange:
    """Learns the usual range of blocks of steps, and says when it was left for `for_seconds` or longer.

    A block lies outside when its mean step, or its mean waiting, exceeds the median of the blocks before by the share
    `slower` - 1 of the median step, and by six standard deviations; or when its own work does, and its mean step
    exceeds the median by half of that share. Outside for five blocks in a row, of a fifth of
    `for_seconds` each, it is an excursion; the usual range is then learned anew, so that one change is said once.
    """

    def __init__(self, slower: float, for_seconds: float) -> None:
        self._slower, self._block_ns = slower, for_seconds * 1e9 / SUSTAINED_BLOCKS
        self._usual: deque[_Block] = deque(maxlen=KEPT_BLOCKS)
        self._outside: list[_Block] = []
        self._reset_block()

    def _reset_block(self) -> None:
        self._sum_ns, self._steps, self._waited_ns, self._known = 0, 0, 0, 0

    def observe(self, step_ns: int, waited_ns: int | None) -> Excursion | None:
        """Add a step; return the excursion that it completes. `waited_ns` is None where its waiting is not known."""
        self._sum_ns += step_ns
        self._steps += 1
        if waited_ns is not None:
            self._waited_ns += waited_ns
            self._known += 1
        if self._sum_ns < self._block_ns:
            return None
        block = _Block(
            self._sum_ns / self._steps, self._waited_ns / self._known if self._known else None, self._sum_ns / 1e9
        )
        self._reset_block()
        return self._add(block)

    def restart(self) -> None:
        """Leave out the steps of the current block: something of ours ran beside them."""
        self._usual.extend(self._outside)
        self._outside.clear()
        self._reset_block()

    def _add(self, block: _Block) -> Excursion | None:
        if len(self._usual) < LEARNED_BLOCKS or not self._is_outside(block):
            self._usual.extend([*self._outside, block])
            self._outside.clear()
            return None
        self._outside.append(block)
        if len(self._outside) < SUSTAINED_BLOCKS:
            return None
        found = self._excursion()
        self._usual.clear()
        self._outside.clear()
        return found

    def _is_outside(self, block: _Block) -> bool:
        usual_step = [each.step_ns for each in self._usual]
        more_ns = (self._slower - 1) * median(usual_step)
        if _above(usual_step, block.step_ns, more_ns):
            return True
        known = [each for each in self._usual if each.waited_ns is not None]
        if block.waited_ns is None or len(known) < LEARNED_BLOCKS:
            return False
        if _above([each.waited_ns or 0.0 for each in known], block.waited_ns, more_ns):
            return True
        # A step grows less than the work of the rank that the others wait for, by what that rank waited before.
        is_slower = block.step_ns > median(usual_step) + more_ns / 2
        return is_slower and _above([each.own_ns for each in known], block.own_ns, more_ns)

    def _excursion(self) -> Excursion:
        step, usual_step = _mean_and_usual(self._outside, self._usual, "step_ns")
        kind: Kind = "step"
        own = usual_own = waited = usual_waited = 0.0
        outside, usual = (
            [each for each in blocks if each.waited_ns is not None] for blocks in (self._outside, self._usual)
        )
        if outside and len(usual) >= LEAST_KNOWN:
            own, usual_own = _mean_and_usual(outside, usual, "own_ns")
            waited, usual_waited = _mean_and_usual(outside, usual, "waited_ns")
            grown = max(step - usual_step, waited - usual_waited)
            kind = (
                "own" if own - usual_own >= grown / 2 else "waiting" if waited - usual_waited >= grown / 2 else "step"
            )
        pairs = {"own": (usual_own, own), "waiting": (usual_waited, waited), "step": (usual_step, step)}
        usual_ns, observed_ns = pairs[kind]
        return Excursion(
            kind=kind,
            usual_ns=round(usual_ns),
            observed_ns=round(observed_ns),
            seconds=sum(each.seconds for each in self._outside),
        )


def _above(usual: list[float], value: float, more: float) -> bool:
    """Return whether a value exceeds the median by `more`, and by more than the usual values scatter."""
    middle = median(usual)
    deviation = median(abs(each - middle) for each in usual)
    return value > middle + max(more, SPREADS * DEVIATIONS_TO_SIGMA * deviation)


def _mean_and_usual(outside: Sequence[_Block], usual: Sequence[_Block], field: str) -> tuple[float, float]:
    values = [getattr(each, field) for each in outside]
    return sum(values) / len(values), median(getattr(each, field) for each in usual)
