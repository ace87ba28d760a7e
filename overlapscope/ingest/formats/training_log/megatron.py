"""Parse Megatron's timers in a training log: the duration of each part of an iteration, as Megatron measured it.

Written by megatron/core/timers.py (before 2024 megatron/timers.py) and training_log of megatron/training/training.py:

     iteration       20/     100 | consumed samples: ... | elapsed time per iteration (ms): 281.4 | ...
    (min, max) time across ranks (ms):
        all-grads-sync .................................: (10.52, 12.13)

`--timing-log-option max` gives one number (under the same heading in 2022, under `max time across ranks` since), `all`
one for each rank. Before September 2022 one line is printed, by the last rank: `time (ms) | forward-compute: 152.33 |
...`; DeepSpeed's wall clock breakdown prints the same line without an iteration. Since 2025 the iteration's line begins
with the time, since 2026 the heading comes from a logger. Argonne's Megatron-DeepSpeed spells the iteration's line
`iteration=       1/  635782 | ... | elapsed_time_per_iteration_ms=29570.0 | ...`. Times are means over the logging
interval.

What an iteration processes is the growth of `consumed samples:` and `consumed tokens:` (Megatron-DeepSpeed) from line
to line, stated where it is the same throughout. `throughput per GPU (TFLOP/s/GPU):` (`--log-throughput`) counts model
FLOPs: `num_floating_point_operations` of megatron/training/training.py, without recomputed activations. Other forks
print figures that include those, under other names; they are not read.
"""

import math
import re
from array import array
from statistics import median
from typing import Final

from overlapscope.ingest.formats.training_log.line_format import FoundLines, LogFormat
from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import MAX_RANKS

ITERATION: Final = "iteration"
_NUMBER: Final = r"-?(?:[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[eE][+-]?[0-9]{1,3})?|nan|inf)"
_ITERATION: Final = re.compile(r"\biteration(?: +|= *)([0-9]{1,15})/ *[0-9]{1,15} \|")
_ELAPSED: Final = re.compile(
    rf"\belapsed(?: time per iteration \((ms|s)\): *|_time_per_iteration_(ms|s)=)({_NUMBER})(?![0-9.])"
)
_CONSUMED: Final = re.compile(r"\bconsumed[ _](samples|tokens)(?:: *|=) *([0-9]{1,18}) *\|")
_TFLOPS: Final = re.compile(r"\bthroughput per GPU \(TFLOP/s/GPU\): *([0-9]{1,9}(?:\.[0-9]{1,9})?) *\|")
_HEADING: Final = re.compile(r"(\(min, max\) |max )?times? across ranks \(ms\): *$")
_TIMER: Final = re.compile(rf"\s*(\S(?:[^:()]{{0,200}}[^\s.])?) \.*: *(?:\(({_NUMBER}), ({_NUMBER})\)|({_NUMBER}))\s*$")
_RANKS_TIMER: Final = re.compile(r"\s*(\S[^:]{0,200}):\s*$")
_RANK_TIME: Final = re.compile(rf"\s*rank +([0-9]{{1,7}}): +({_NUMBER})\s*$")
_ONE_LINE: Final = re.compile(r"\btime \(ms\)((?: \| [^|:]{1,200}: [^|:\s]{1,40})+)")
_RANK_BEFORE: Final = re.compile(r"(?:\[Rank |\brank=)([0-9]{1,7})(?![0-9])")
_COMMUNICATES: Final = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]scatter|all[-_]?to[-_]?all|broadcast|grads[-_]sync"
    r"|reduce[-_]model[-_]grads|gather[-_]model[-_]params|(?:^|[-_])(?:send|recv)(?:$|[-_])"
)
_MAX_LINE: Final = 4000
_GAP_LINES: Final = 8
"""Lines of other ranks may stand between those of a block; after this many of them the block has ended."""


def communicates(timer: str) -> bool:
    """Return whether a timer measures communication, judging by its name."""
    return _COMMUNICATES.search(timer) is not None


class TimerLines:
    """Collects the lines of Megatron's timers and of DeepSpeed's wall clock breakdown."""

    def __init__(self) -> None:
        self._rows = FigureRows()
        self._lines = self._dropped = 0
        self._step = NONE
        self._elapsed_ms: float | None = None
        """Of the iteration that the next block belongs to; None where that is not sure or it is a first one."""
        self._block: str | None = None
        """`one` line or several lines (`ranks`) for each timer, while inside a block."""
        self._others = 0
        self._timer = ""
        self._slowest_ms = math.nan
        self._shares: dict[str, array[float]] = {}
        self._consumed: dict[str, int] = {}
        """What all iterations to the last one processed."""
        self._per_step: dict[str, set[float]] = {"samples": set(), "tokens": set()}
        self._tflop = array("d")

    def wants(self, line: bytes) -> bool:
        """Return whether the line may be of a timer."""
        return (
            self._block is not None
            or b"elapsed time per iteration (" in line
            or b"elapsed_time_per_iteration_" in line
            or b" across ranks (ms):" in line
            or b"time (ms) | " in line
        )

    def take(self, line: str) -> None:
        """Parse a wanted line."""
        if len(line) > _MAX_LINE:
            self._other_line()
        elif "elapsed time per iteration (" in line or "elapsed_time_per_iteration_" in line:
            self._end_block()
            self._take_iteration(line)
        elif " across ranks (ms):" in line and (heading := _HEADING.search(line)):
            self._end_block()
            self._block, self._others = "one" if heading[1] else "ranks", 0
            self._lines += 1
        elif "time (ms) | " in line and (found := _ONE_LINE.search(line)):
            self._end_block()
            self._take_one_line(line[: found.start()], found[1])
        elif not (self._block and self._take_in_block(line)):
            self._other_line()

    def found(self, source: str) -> FoundLines:
        """Return all figures, and each communication timer's median share of the iteration."""
        self._end_block()
        for timer, shares in self._shares.items():
            self._rows.add(timer, "median_share_of_iteration", median(shares))
        for name, each in self._per_step.items():
            if len(each) == 1:
                self._rows.add(ITERATION, f"{name}_per_step", *each)
        if self._tflop and len(self._per_step["samples"]) < 2:
            self._rows.add(ITERATION, "tflop_per_gpu", median(self._tflop))
        warnings = [f"{self._rows.left_out} further timer figures were left out"] if self._rows.left_out else []
        return FoundLines(
            facts=self._rows.facts(source), lines=self._lines, dropped=self._dropped, warnings=tuple(warnings)
        )

    def _take_iteration(self, line: str) -> None:
        iteration, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
        if iteration is None or elapsed is None or not _is_time(float(elapsed[3])):
            self._dropped += 1
            self._step, self._elapsed_ms = NONE, None
            return
        self._lines += 1
        step, elapsed_ms = int(iteration[1]), float(elapsed[3]) * (1000 if "s" in elapsed.group(1, 2) else 1)
        # The first iteration includes the warm-up, and newer versions divide its timers by the whole logging interval.
        goes_on = self._step != NONE and step > self._step
        consumed = {found[1]: int(found[2]) for found in reversed(list(_CONSUMED.finditer(line)))}
        if goes_on:
            for name in consumed.keys() & self._consumed.keys():
                if len(self._per_step[name]) < 2:
                    self._per_step[name].add((consumed[name] - self._consumed[name]) / (step - self._step))
            if tflops := _TFLOPS.search(line):
                self._tflop.append(float(tflops[1]) * elapsed_ms / 1000)
        self._consumed = consumed
        self._step, self._elapsed_ms = step, elapsed_ms if goes_on else None
        self._rows.add(ITERATION, "elapsed_ms", elapsed_ms, step=step)

    def _take_in_block(self, line: str) -> bool:
        if self._block == "ranks":
            if found := _RANK_TIME.fullmatch(line):
                return self._take_rank(int(found[1]), float(found[2]))
            if found := _RANKS_TIMER.fullmatch(line):
                self._end_timer()
                self._timer = found[1]
                return True
            return False
        found = _TIMER.fullmatch(line)
        if found is None:
            return False
        timer, low, high, alone = found.groups()
        times = [("min_ms", float(low)), ("max_ms", float(high))] if alone is None else [("max_ms", float(alone))]
        if not all(_is_time(value) for _, value in times) or times[0][1] > times[-1][1]:
            self._dropped += 1
            return True
        self._lines += 1
        self._others = 0
        for name, value in times:
            self._rows.add(timer, name, value, step=self._step)
        self._add_share(timer, times[-1][1])
        return True

    def _take_rank(self, rank: int, value_ms: float) -> bool:
        if not self._timer or rank > MAX_RANKS or not _is_time(value_ms):
            self._dropped += 1
            return True
        self._lines += 1
        self._others = 0
        self._rows.add(self._timer, "ms", value_ms, rank=rank, step=self._step)
        self._slowest_ms = max(value_ms, self._slowest_ms) if self._slowest_ms == self._slowest_ms else value_ms
        return True

    def _take_one_line(self, before: str, timers: str) -> None:
        ranks = _RANK_BEFORE.findall(before)
        rank = int(ranks[-1]) if ranks and int(ranks[-1]) <= MAX_RANKS else NONE
        self._lines += 1
        for each in timers.split(" | ")[1:]:
            timer, _, value = each.rpartition(": ")
            if not re.fullmatch(_NUMBER, value) or not _is_time(float(value)):
                self._dropped += 1
                continue
            # DeepSpeed's lines name the rank and precede the iteration's line; not every iteration has one.
            self._rows.add(timer.strip(), "ms", float(value), rank=rank, step=NONE if ranks else self._step)
            if not ranks:
                self._add_share(timer.strip(), float(value))

    def _add_share(self, timer: str, value_ms: float) -> None:
        if self._elapsed_ms and self._block != "ranks" and communicates(timer):
            self._shares.setdefault(timer, array("d")).append(value_ms / self._elapsed_ms)

    def _end_timer(self) -> None:
        """Close the timer whose ranks were listed: its share is that of the slowest rank."""
        if self._timer and self._slowest_ms == self._slowest_ms and self._elapsed_ms and communicates(self._timer):
            self._shares.setdefault(self._timer, array("d")).append(self._slowest_ms / self._elapsed_ms)
        self._timer, self._slowest_ms = "", math.nan

    def _end_block(self) -> None:
        self._end_timer()
        self._block = None

    def _other_line(self) -> None:
        self._others += 1
        if self._block is not None and self._others > _GAP_LINES:
            self._end_block()


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value >= 0


_IN_TEXT: Final = (
    (b"elapsed time per iteration (", re.compile(rb"\biteration +[0-9]+/ *[0-9]+ \|[^\n]{0,2000}elapsed time per it")),
    (b"elapsed_time_per_iteration_", re.compile(rb"\biteration= *[0-9]+/ *[0-9]+ \|[^\n]{0,2000}elapsed_time_per_it")),
    (
        b" across ranks (ms):",
        re.compile(
            rb" across ranks \(ms\):[ \r]{0,9}\n(?:[^\n]{0,300}\n){0,3}?"
            rb"[^\n]{0,300}(?: \.*: \(?[0-9]|rank +[0-9]{1,7}: [0-9])"
        ),
    ),
    (b"time (ms) | ", re.compile(rb"time \(ms\) \| [\w/-]{1,100}: [0-9]+\.[0-9]")),
)


def in_text(text: bytes) -> bool:
    """Return whether a part of a log holds an iteration's line or a block of timers."""
    return any(literal in text and pattern.search(text) is not None for literal, pattern in _IN_TEXT)


LINES = LogFormat(name="megatron_timers", in_text=in_text, lines=TimerLines)
