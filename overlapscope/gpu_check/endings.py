"""What is left of a recording when the device or the process fails, and of the user's own NVTX ranges beside ours."""

import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import overlapscope
from overlapscope.gpu_check.measurements import Measurements, NotRunError, Process
from overlapscope.gpu_check.recordings import on_device, steps_of
from overlapscope.gpu_check.spin import ILLEGAL_ADDRESS, Spin, device
from overlapscope.timeline.store.manifest import rank_folder

FAULT_STEP: Final = 8
STUCK_NS: Final = 60_000_000_000
WRITE_SECONDS: Final = 30.0
"""How long the run is waited for after SIGTERM; what is accepted is less."""
OWN_RANGES: Final = ("user.crossing", "user.around", "user.inner")


def faults(measured: Measurements) -> None:
    """End a recorded job by an illegal access, and another by SIGTERM while a kernel does not end."""
    device()
    path = measured.folder / "illegal"
    ended = Process(["-m", "overlapscope.gpu_check", f"{__name__}:illegal_access", str(path)]).wait(60)
    measured.figure("job_failed_by_itself", ended.code not in (0, None))
    measured.figure("steps_kept", kept_before(_steps_if_any(path / "run"), FAULT_STEP))
    path = measured.folder / "stuck"
    job = Process(["-m", "overlapscope.gpu_check", f"{__name__}:stuck_kernel", str(path)])
    try:
        until = time.monotonic() + 60
        while job.running and not (path / "stuck").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.0)
        if not job.running:
            raise RuntimeError(f"the job ended before its kernel was stuck: {job.output[-300:]}")
        job.terminate()
        begun = time.monotonic()
        while not _written(path / "run") and time.monotonic() < begun + WRITE_SECONDS:
            time.sleep(0.05)
        took = time.monotonic() - begun
    finally:
        job.stop()
    measured.figure("seconds_until_written", took)
    measured.figure("steps_kept_of_stuck", kept_before(_steps_if_any(path / "run"), FAULT_STEP))


def illegal_access(measured: Measurements) -> None:
    """Store to an address that is not there, in a recorded step."""
    torch = device()
    spin = Spin(torch)
    _train(torch, measured, lambda: spin(1_000, times=ILLEGAL_ADDRESS))


def stuck_kernel(measured: Measurements) -> None:
    """Launch a kernel that runs for a minute, in a recorded step, and wait for it."""
    torch = device()
    spin = Spin(torch)

    def stuck() -> None:
        spin(STUCK_NS)
        (measured.folder / "stuck").touch()
        while True:  # a loop of the host's, as of a job that polls: a signal's handler can run
            time.sleep(0.1)

    _train(torch, measured, stuck)


def _train(torch: Any, measured: Measurements, fault: Any) -> None:
    spin = Spin(torch)
    model = on_device(torch, lambda: spin(2_000_000))
    path = measured.folder / "run"
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for number in range(FAULT_STEP + 4):
            with scope.step():
                model()
                if number == FAULT_STEP:
                    fault()
            torch.cuda.synchronize()


def _written(path: Path) -> bool:
    return (path / rank_folder(0) / "rank.json").exists()


def _steps_if_any(path: Path) -> Sequence[tuple[int, bool]]:
    try:
        return [(each.step, each.complete) for each in steps_of(path)]
    except overlapscope.InputError:
        return []


def user_ranges(measured: Measurements) -> None:
    """Look by Nsight Systems at ranges of the user's own that cross ours."""
    device()
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NotRunError("nsys (Nsight Systems) is not installed")
    report = measured.folder / "report"
    # A launcher of our own keeps nsys in this check's session, with a limit.
    words = [nsys, "profile", "-t", "nvtx", "-s", "none", "--export", "sqlite", "-o", str(report)]
    words += [
        sys.executable,
        "-P",
        "-m",
        "overlapscope.gpu_check",
        f"{__name__}:ranged_job",
        str(measured.folder / "job"),
    ]
    ended = Process(["-c", f"import os; os.execv({nsys!r}, {words!r})"]).wait(90)
    database = report.with_suffix(".sqlite")
    if not database.exists():
        raise NotRunError(f"nsys cannot profile here: {ended.failure or ended.output[-200:]}")
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute(
            "SELECT COALESCE(e.text, s.value), e.end - e.start FROM NVTX_EVENTS e "
            "LEFT JOIN StringIds s ON e.textId = s.id"
        ).fetchall()
    timed = json.loads((measured.folder / "job" / "timed.json").read_text(encoding="utf-8"))
    for name, value in range_figures([(name, took) for name, took in rows if name], timed).items():
        measured.figure(name, value)


def ranged_job(measured: Measurements) -> None:
    """Push and pop ranges that begin before forward and end inside or after it, and time them by the host's clock."""
    torch = device()
    nvtx = torch.cuda.nvtx
    spin = Spin(torch)
    timed: dict[str, list[int]] = {name: [] for name in OWN_RANGES}

    def inner() -> None:
        begun = time.perf_counter_ns()
        nvtx.range_push("user.inner")
        time.sleep(0.003)
        spin(100_000)
        nvtx.range_pop()
        timed["user.inner"].append(time.perf_counter_ns() - begun)

    model = on_device(torch, inner)
    path = measured.folder / "run"
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for _ in range(10):
            around = time.perf_counter_ns()
            nvtx.range_push("user.around")
            with scope.step():
                crossing = time.perf_counter_ns()
                nvtx.range_push("user.crossing")
                time.sleep(0.002)
                model()  # begins the phase `forward`, which ends with the step
                nvtx.range_pop()
                timed["user.crossing"].append(time.perf_counter_ns() - crossing)
                time.sleep(0.005)
            nvtx.range_pop()
            timed["user.around"].append(time.perf_counter_ns() - around)
            torch.cuda.synchronize()
    (measured.folder / "timed.json").write_text(json.dumps(timed), encoding="utf-8")


# -- arithmetic ----------------------------------------------------------------------------------------------------


def kept_before(steps: Sequence[tuple[int, bool]], fault: int) -> int:
    """Return how many whole steps there are before the one that failed."""
    return sum(complete and step < fault for step, complete in steps)


def range_figures(
    ranges: Sequence[tuple[str, int | None]], timed: Mapping[str, Sequence[int]]
) -> dict[str, float | int]:
    """Compare the durations of the user's own ranges with the host's; count those of ours, and those left open.

    `ranges` are (name, nanoseconds), None for a range without an end; those of one name are in order of time.
    """
    worst = missing = 0.0
    for name, wanted in timed.items():
        found = [took for each, took in ranges if each == name and took is not None]
        missing += abs(len(wanted) - len(found))
        worst = max([worst, *(abs(a - b) / 1e6 for a, b in zip(found, wanted, strict=False))])
    ours = [took for name, took in ranges if name.startswith("overlapscope.")]
    return {
        "user_ranges_missing": int(missing),
        "user_ranges_error_ms": worst,
        "own_ranges": len(ours),
        "ranges_left_open": sum(took is None for _, took in ranges),
    }
