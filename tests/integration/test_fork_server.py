"""What is forked from the nursery is a process like any other."""

import signal
from pathlib import Path

import pytest

from tests.support.fork_server import start

pytest.importorskip("torch", reason="torch is not installed: nothing is trained")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]


THREAD = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('last'))).start()"
DESTROYED = "import torch; torch.ours = type('', (), {'__del__': lambda self: print('destroyed', flush=True)})()"


@pytest.mark.slow
@pytest.mark.parametrize("whole_end", [False, True])
def test_processes_end_as_those_of_python_do_and_all_that_they_wrote_is_there(whole_end: bool) -> None:
    ends = {
        "import atexit, sys; atexit.register(print, 'at exit'); print(*sys.argv); sys.exit(3)": 3,
        "print('out', flush=True); 1 / 0": 1,
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
        "import sys; print(__name__, 'torch' in sys.modules, 'overlapscope' in sys.modules)": 0,
        f"{THREAD}; print('first')": 0,
        "import sys; sys.exit('why')": 1,
        DESTROYED: 0,
    }
    ended = start([["-c", code, "one", "two"] for code in ends], whole_end=whole_end).wait(60)
    assert [each.code for each in ended] == list(ends.values())
    assert ended[0].output == "-c one two\nat exit\n"
    assert ended[1].stdout == "out\n"
    assert ended[1].stderr.startswith("Traceback")
    assert "ZeroDivisionError" in ended[1].stderr
    assert ended[1].output == ended[1].stdout + ended[1].stderr
    assert ended[2].output == ""
    assert ended[3].output == "__main__ True False\n"  # what is ours is imported by each
    assert ended[4].output == "first\nlast\n"
    assert ended[5].output == "why\n"
    assert ended[6].output == "destroyed\n" * whole_end


@pytest.mark.slow
def test_what_never_ends_is_killed_and_the_next_job_runs() -> None:
    with pytest.raises(TimeoutError, match="before"):
        start([["-c", "import time; print('before', flush=True); time.sleep(600)"]]).wait(3)
    assert start([["-c", "print('next')"]]).wait(60)[0].output == "next\n"


@pytest.mark.slow
@pytest.mark.parametrize("then", ["1 / 0", "import time; time.sleep(600)"])
def test_a_file_that_is_never_written_fails_with_what_the_job_wrote_and_the_next_job_runs(
    then: str, tmp_path: Path
) -> None:
    job = start([["-c", f"print('before', flush=True); {then}"]])
    with pytest.raises(AssertionError, match=r"never was not written: .*before"):
        job.wait_for(tmp_path / "never", 3)
    assert start([["-c", "print('next')"]]).wait(60)[0].output == "next\n"


def test_a_job_that_was_not_waited_for_is_said_and_leaves_no_results_to_the_next_one(tmp_path: Path) -> None:
    code = "import pathlib, sys; print('first'); pathlib.Path(sys.argv[1]).touch()"
    start([["-c", code, str(tmp_path / "it")]]).wait_for(tmp_path / "it", 60)
    with pytest.raises(AssertionError, match="not waited for"):
        start([["-c", "print('never')"]])
    assert start([["-c", "print('next')"]]).wait(60)[0].output == "next\n"
