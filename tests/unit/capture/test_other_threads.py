"""Waiting for the other threads of the process before a recording is written."""

import hashlib
import threading
import time

from overlapscope.capture.host.thread_times import let_other_threads_rest


def test_it_waits_until_the_other_threads_rest() -> None:
    done = threading.Event()

    def work() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)  # runs without the interpreter's lock
        done.set()
        time.sleep(60)

    threading.Thread(target=work, daemon=True).start()
    let_other_threads_rest(30.0)
    assert done.is_set()


def test_it_waits_no_longer_than_it_may() -> None:
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)

    busy = threading.Thread(target=work, daemon=True)
    busy.start()
    begun = time.monotonic()
    let_other_threads_rest(0.1)
    assert 0.05 < time.monotonic() - begun < 10
    end.set()
    busy.join()
