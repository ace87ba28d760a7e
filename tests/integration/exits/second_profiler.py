"""A job with a profiler of its own beside ours, in one of four orders.

    python -m tests.integration.exits.second_profiler ORDER RUN

Two nested profilers of torch end the process by SIGSEGV.
"""

import sys
from contextlib import nullcontext

import torch

import overlapscope

ORDERS = ("schedule inside", "schedule outside", "around one step", "always")


def train(order: str, run: str) -> None:
    """Take ten steps."""
    model = torch.nn.Linear(8, 8)
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=3, repeat=1)
    traces: list[int] = []

    def scheduled() -> torch.profiler.profile:
        return torch.profiler.profile(schedule=schedule, on_trace_ready=lambda each: traces.append(len(each.events())))

    outer = scheduled() if order == "schedule outside" else torch.profiler.profile() if order == "always" else None
    with outer or nullcontext(), overlapscope.profile(run, model=model, mode="trace") as scope:
        inner = scheduled() if order == "schedule inside" else None
        with inner or nullcontext():
            for number in range(10):
                plain = torch.profiler.profile() if order == "around one step" and number == 5 else None
                with scope.step(), plain or nullcontext():
                    model(torch.ones(4, 8)).sum().backward()
                if plain is not None:
                    traces.append(len(plain.events()))
                for each in (inner, outer):
                    if each is not None:
                        each.step()
    if order == "always":
        assert outer is not None
        traces.append(len(outer.events()))
    sys.stdout.write(f"theirs {traces}\n")


if __name__ == "__main__":
    train(*sys.argv[1:])
