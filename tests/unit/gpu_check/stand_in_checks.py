"""Measuring functions that stand for checks of a device: each ends in its own way."""

import os
import signal
import sys
import time

from overlapscope.gpu_check.measurements import Measurements, NotRunError, Process


def machine(measured: Measurements) -> None:
    measured.figure("device", "a stand-in")
    measured.figure("devices", 1)


def no_machine(measured: Measurements) -> None:
    del measured
    raise NotRunError("torch finds no CUDA device")


def good(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    measured.figure("same", True)


def beyond_its_limit(measured: Measurements) -> None:
    measured.figure("error_us", 30.5)
    measured.figure("same", True)


def not_a_number(measured: Measurements) -> None:
    measured.figure("error_us", float("nan"))
    measured.figure("same", True)


def half(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    measured.missing("same", "nothing to compare with")


def hangs_and_starts_others(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    other = Process(["-c", code])
    while "pid" not in other.output or not other.output.endswith("\n"):
        time.sleep(0.01)
    measured.figure("pid", int(other.output.split()[1]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def raises(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    raise RuntimeError("the driver returned error 700")


def crashes(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves_early(measured: Measurements) -> None:
    measured.figure("error_us", 3.5)
    measured.figure("same", True)
    os._exit(0)


def prints_much(measured: Measurements) -> None:
    for _ in range(2_000):
        sys.stdout.write("x" * 50_000)
    sys.stdout.write("\nthe last line\n")
    sys.stdout.flush()
    good(measured)
    raise RuntimeError("after its output")


def writes_strange_lines(measured: Measurements) -> None:
    good(measured)
    with open(measured.folder / "figures.jsonl", "ab") as file:
        file.write(b'{"figure": "error_us", "value": [1]}\n\xff\xfe\n[]\nnull\n{"figure": "cut')
        file.write(b"\n")


def keeps(measured: Measurements) -> None:
    good(measured)
    measured.keep("small.json").write_text('{"host_name": "node-of-mine", "traceEvents": []}', encoding="utf-8")
    measured.keep("large.bin").write_bytes(os.urandom(4_000_000))
