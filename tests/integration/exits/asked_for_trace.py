"""A job of one process that trains until a trace was asked for and recorded.

python -m tests.integration.exits.asked_for_trace RUN signal|http

Once it trains, RUN.training holds the port where it listens, if it does.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import overlapscope

RUN, HOW = sys.argv[1:3]
LIMIT_SECONDS = 60


def handled(*_: Any) -> None:
    sys.stdout.write("handled before\n")
    sys.stdout.flush()


def main() -> None:
    signal.signal(signal.SIGUSR2, handled)
    how = {"signal": signal.SIGUSR2} if HOW == "signal" else {"http": "127.0.0.1:0"}
    model = torch.nn.Linear(64, 64)
    trigger = overlapscope.Trigger(for_seconds=0.4, steps=2, **how)
    with overlapscope.profile(RUN, model=model, mode="events", warmup=1, trigger=trigger) as scope:
        end = time.monotonic() + LIMIT_SECONDS
        for number in range(100_000):
            with scope.step():
                model(torch.randn(8, 64)).square().mean().backward()
                time.sleep(0.005)
            if number == 10:
                assert scope.trigger
                (request,) = scope.trigger._requests
                written = Path(f"{RUN}.written")
                written.write_text(str(getattr(request, "port", "")), encoding="utf-8")
                written.rename(f"{RUN}.training")
            if time.monotonic() > end or (scope.trigger and scope.trigger.written):
                break
    assert signal.getsignal(signal.SIGUSR2) is handled


if __name__ == "__main__":
    main()
