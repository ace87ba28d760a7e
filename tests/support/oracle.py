"""An independent, slow answer to "where did the time go", written from the definitions alone.

Plain json and Decimal, Python lists, one event after another; shares no code with the package, and knows only what
a test tells it of kernel names.
"""

import gzip
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

Pieces = list[tuple[int, int]]
FIELDS = ("window", "compute", "comm", "copy", "overlapped", "exposed", "idle")


def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    decoded = json.loads(data.decode("utf-8", "replace"), strict=False, parse_float=Decimal)
    return decoded if isinstance(decoded, dict) else {"traceEvents": decoded}


def nanoseconds(value: object) -> int:
    return int((Decimal(str(value)) * 1000).to_integral_value())


def merged(pieces: Pieces) -> Pieces:
    out: list[list[int]] = []
    for start, end in sorted(piece for piece in pieces if piece[1] > piece[0]):
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return [(start, end) for start, end in out]


def total(pieces: Pieces) -> int:
    return sum(end - start for start, end in pieces)


def both(a: Pieces, b: Pieces) -> Pieces:
    out = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def without(a: Pieces, b: Pieces) -> Pieces:
    out = []
    for start, end in a:
        at = start
        for other_start, other_end in b:
            if other_end <= at:
                continue
            if other_start >= end:
                break
            if other_start > at:
                out.append((at, other_start))
            at = max(at, other_end)
        if at < end:
            out.append((at, end))
    return out


def split(comm: Pieces, compute: Pieces, copy: Pieces, window: tuple[int, int]) -> dict[str, int]:
    whole = [window] if window[1] > window[0] else []
    comm, compute, copy = (both(merged(each), whole) for each in (comm, compute, copy))
    overlapped = total(both(comm, compute))
    covered = total(merged(comm + compute + copy))
    length = window[1] - window[0]
    values = (length, total(compute), total(comm), total(copy), overlapped, total(comm) - overlapped, length - covered)
    return dict(zip(FIELDS, values, strict=True))


class Answer:
    """Whole breakdown and the breakdown of each step (None without a window) of one trace."""

    def __init__(self, whole: dict[str, int], steps: dict[int, dict[str, int] | None]) -> None:
        self.whole = whole
        self.steps = steps


def answer(path: Path, communicates: Callable[[str], bool]) -> Answer:
    """Answer for one trace; `communicates` tells kernels by name."""
    trace = load(path)
    base = int(trace.get("baseTimeNanoseconds") or 0)
    events = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            start = base + nanoseconds(event["ts"])
            end = start + nanoseconds(event.get("dur", 0))
            events.append((start, end, event.get("cat") or "", event))
    marks = _marks(events, "overlapscope.step") or _marks(events, "ProfilerStep")
    device = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
    if any(category in device for _, _, category, _ in events):
        return _device_answer(events, marks, communicates)
    return _host_answer(events, marks)


def _marks(events: list[Any], by: str) -> list[tuple[int, int, int]]:
    return sorted(
        (start, end, int(found[1]))
        for start, end, category, event in events
        if category in ("user_annotation", "cpu_op", "Operator")
        and (found := re.fullmatch(re.escape(by) + r"#(\d+)", str(event.get("name"))))
    )


def _device_answer(events: list[Any], marks: list[Any], communicates: Callable[[str], bool]) -> Answer:
    launches: dict[Any, int] = {}
    spans = []
    for start, end, category, event in sorted(events, key=lambda each: each[0]):
        correlation = (event.get("args") or {}).get("correlation")
        if category in ("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime"):
            launches.setdefault(correlation, start)
        elif category in ("kernel", "Kernel"):
            kind = "comm" if communicates(event["name"]) else "compute"
            spans.append((start, end, kind, (event["pid"], str(event["tid"])), correlation))
        elif category in ("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"):
            spans.append((start, end, "copy", (event["pid"], str(event["tid"])), correlation))
    comm, compute, copy = (
        [(start, end) for start, end, kind, _, _ in spans if kind == each] for each in ("comm", "compute", "copy")
    )
    whole = (min(span[0] for span in spans), max(span[1] for span in spans))
    busy: dict[Any, int] = {}
    for start, end, kind, lane, _ in spans:
        if kind == "compute":
            busy[lane] = busy.get(lane, 0) + end - start
    main = max(busy, key=lambda lane: busy[lane]) if busy else None
    opened: list[tuple[int, int | None, int]] = []
    for begin, finish, number in marks:
        own = [span for span in spans if span[4] in launches and begin <= launches[span[4]] < finish]
        starts = [span[0] for span in own if span[2] == "compute" and span[3] == main]
        opened.append((number, min(starts, default=None), max((span[1] for span in own), default=0)))
    steps: dict[int, dict[str, int] | None] = {}
    for at, (number, start, last) in enumerate(opened):
        following = opened[at + 1] if at + 1 < len(opened) else None
        end = following[1] if following and following[0] == number + 1 and following[1] is not None else last
        # Streams run in order; should a later step's first kernel precede, the window is empty.
        steps[number] = None if start is None else split(comm, compute, copy, (start, max(start, end)))
    return Answer(split(comm, compute, copy, whole), steps)


def _without_waits(operations: Pieces, flights: Pieces) -> Pieces:
    """Cut out of each operation that holds a whole flight, from call to end, what of it no other operation fills."""
    held = {each: [f for f in flights if each[0] <= f[0] and f[1] <= each[1]] for each in operations}
    plain = [each for each in operations if not held[each]]
    waited = merged([flight for flights in held.values() for flight in flights])
    return plain + without(merged([each for each in operations if held[each]]), waited)


def _host_answer(events: list[Any], marks: list[Any]) -> Answer:
    threads: dict[Any, list[Any]] = {}
    for start, end, category, event in events:
        threads.setdefault((event["pid"], event["tid"]), []).append((start, end, category, str(event["name"])))
    comm: Pieces = []
    compute: Pieces = []
    called = sorted((start, end) for start, end, _, event in events if str(event["name"]).startswith("c10d::"))
    ran = sorted((start, end) for start, end, _, event in events if str(event["name"]).startswith("gloo:"))
    # One group: its queue runs in order. Where calls are missing, none is known to have waited.
    flights = [(a[0], b[1]) for a, b in zip(called, ran, strict=True)] if len(called) == len(ran) else []
    for own in threads.values():
        gloo = [(start, end) for start, end, _, name in own if name.startswith("gloo:")]
        comm += gloo
        if not gloo:
            operations = [(start, end) for start, end, category, _ in own if category == "cpu_op"]
            calls = merged([(start, end) for start, end, _, name in own if name.startswith("c10d::")])
            compute += without(merged(_without_waits(operations, flights)), calls)
    edges = merged(comm) + merged(compute)
    whole = (min(start for start, _ in edges), max(end for _, end in edges))
    steps = {number: split(comm, compute, [], (start, end)) for start, end, number in marks}
    return Answer(split(comm, compute, [], whole), dict(steps))
