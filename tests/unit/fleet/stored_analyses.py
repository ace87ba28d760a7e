"""Instead of stored analyses, what goes wrong in a worker: it imports this module, and none that tests alone need."""

import os
import signal
from pathlib import Path


def dying(run: Path) -> bytes | None:
    if run.name == "job-04":
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def without_memory(run: Path) -> bytes | None:
    if run.name == "job-04":
        raise MemoryError
    return None
