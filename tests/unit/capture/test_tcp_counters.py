"""What a process's TCP connections carried, as the kernel counts it, and the rate of the interface they pass."""

import fcntl
import socket
import sys
import termios
import threading
import time

import pytest

from overlapscope.capture.host.tcp_counters import SocketWatch, by_address, rate_bytes_s
from overlapscope.capture.host.thread_times import QUEUED, RAN, ThreadTimes
from overlapscope.capture.records import StepRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counters are the Linux kernel's")
SENT = 8 << 20


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        return socket.create_connection(listening.getsockname()), listening.accept()[0]


def wait_until_acknowledged(sender: socket.socket) -> None:
    """Wait until the kernel has nothing left of what was sent: what was read is acknowledged a moment later."""
    until = time.monotonic() + 20
    while fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)) != bytes(4) and time.monotonic() < until:
        time.sleep(0.01)


def test_a_connection_is_reported_with_what_it_carried_meanwhile() -> None:
    here, there = connection()
    read = threading.Thread(target=lambda: [None for _ in iter(lambda: there.recv(1 << 20), b"")])
    with here, there:
        read.start()
        here.sendall(b"x" * 1000)
        watch = SocketWatch()
        watch.open()
        here.sendall(bytes(SENT))
        assert list(watch.sample()) == []
        here.shutdown(socket.SHUT_WR)
        read.join(20)
        wait_until_acknowledged(here)
        watch.close()
        rows = {each["local"]: each for each in watch.connections()}
        local, peer = (f"[{each[0]}]:{each[1]}" for each in (here.getsockname(), here.getpeername()))
    mine, theirs = rows[local], rows[peer]
    assert (mine["peer"], theirs["peer"], mine["interface"]) == (peer, local, "lo")
    assert SENT - 1000 <= mine["sent_bytes"] <= SENT + 2000  # the first thousand may have been on its way
    assert SENT - 1000 <= theirs["received_bytes"] <= SENT + 2000
    assert (mine["received_bytes"], theirs["sent_bytes"], mine["interface_bytes_s"]) == (0, 0, None)


def test_connections_that_carried_little_are_not_reported_and_live_on() -> None:
    here, there = connection()
    with here, there:
        watch = SocketWatch()
        watch.open()
        here.sendall(b"a few bytes")
        watch.close()
        assert f"[127.0.0.1]:{here.getsockname()[1]}" not in {each["local"] for each in watch.connections()}
        there.settimeout(10)
        assert there.recv(100) == b"a few bytes"


def test_the_loopback_has_an_address_and_states_no_rate() -> None:
    assert by_address()["127.0.0.1"] == "lo"
    assert rate_bytes_s("lo") is None
    assert rate_bytes_s("no such interface") is None


def test_a_thread_that_sleeps_gains_no_time_on_a_core() -> None:
    times = ThreadTimes()
    record = StepRecord(number=0, begin_ns=0, thread=threading.get_ident(), observed=True)
    times.note(record)
    time.sleep(0.2)
    times.note(record)
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    times.note(record)
    elsewhere = threading.Thread(target=times.note, args=[record])
    elsewhere.start()
    elsewhere.join()
    times.close()
    ran = [value for name, _, value in record.readings if name == RAN]
    queued = [value for name, _, value in record.readings if name == QUEUED]
    assert len(ran) == 3
    assert ran[1] - ran[0] < 0.1e9
    assert ran[2] - ran[1] >= 0.05e9
    assert queued == sorted(queued)


def test_young_readings_are_not_taken_again() -> None:
    times = ThreadTimes()
    record = StepRecord(number=0, begin_ns=0, thread=threading.get_ident(), observed=True)
    for _ in range(50):
        times.note_at_times(record)
    begun = record.readings[0][1]
    assert len({at for _, at, _ in record.readings}) <= 1 + (record.readings[-1][1] - begun) // 1_000_000
    times.close()
