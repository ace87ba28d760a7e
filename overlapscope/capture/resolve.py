"""Marks of past steps to times, in batches: events are few, and a long run would hold them all."""

from collections import deque

from overlapscope.capture.points import Points
from overlapscope.capture.records import StepRecord

BATCH_STEPS = 16
KEPT_STEPS = 4
"""The latest steps are left: the device may still work on them."""


class Resolver:
    """Takes each observed step, and resolves them BATCH_STEPS at a time, from the training thread, between steps."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._waiting: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        """Take a step that has ended; resolves older ones when enough wait."""
        self._waiting.append(record)
        if len(self._waiting) >= BATCH_STEPS + KEPT_STEPS:
            while len(self._waiting) > KEPT_STEPS:
                self._resolve(self._waiting.popleft())

    def _resolve(self, record: StepRecord) -> None:
        for stretches in (record.phases, record.waits, record.regions):
            for stretch in stretches:
                stretch.begin, stretch.end = self._points.resolve(stretch.begin), self._points.resolve(stretch.end)
        for call in record.calls:
            call.ready, call.done = self._points.resolve(call.ready), self._points.resolve(call.done)
