"""One recording of a training loop: what `overlapscope.profile` returns."""

import atexit
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from functools import wraps
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import msgspec
from msgspec.structs import replace

from overlapscope.capture.hooks.compiled import leave_untraced
from overlapscope.capture.hooks.hook_set import HookSet
from overlapscope.capture.host import environment
from overlapscope.capture.lifecycle import exchange
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.lifecycle.output import OutputFolder
from overlapscope.capture.lifecycle.process_exit import GroupDestructionHook, Termination, stop_in_forked_children
from overlapscope.capture.overhead import Overhead, overhead
from overlapscope.capture.parts import OVERDUE, Batch, PartWriter
from overlapscope.capture.records import COMM_REGION, StepRecord
from overlapscope.capture.sampling import AHEAD_SECONDS, AHEAD_STEPS, agree, needed_every
from overlapscope.capture.settings import Settings
from overlapscope.capture.steps import MEASURED_STEPS, Steps
from overlapscope.capture.timeline import BUILT_IN_HOOKS, BucketCopies, Carried, timeline_of
from overlapscope.capture.trigger.watch import TriggerWatch
from overlapscope.errors import UsageError
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, join_recorded
from overlapscope.timeline.store.rank_writer import save_job
from overlapscope.version import __version__

P = ParamSpec("P")
R = TypeVar("R")
COMM_MARK = "overlapscope.comm:"
"""Prefix of the name of a communicating region in a trace; the trace reader counts such a range as communication."""
HOOK_SEEN_LATE = (
    "DDP's communication hook was not known when the trace began, so communication is not right in its first steps; "
    "record with warmup=2 or more"
)
"""What a hook sends is recorded beside a trace over gloo, which lacks it (`TraceRecorder.transfer_clock`)."""
HOOK_SEEN_LAST = (
    "DDP's communication hook was not known before the recording ended, so communication is not right in the "
    "steps that used it; register it before training, and record with warmup=2 or more"
)
REBUILT_STEPS = 2
"""Steps after which DDP has its final buckets: it rebuilds them in the first or second one."""
_session_numbers = iter(range(1_000_000))
_open_sessions: list["Session"] = []


Finish = Callable[["Session"], None]


class _Step(ContextDecorator, AbstractContextManager[None]):
    """One training step. Every step pays for what is done here, recorded or not, so it is little."""

    def __init__(self, session: "Session", amounts: tuple[float | None, float | None, float | None]) -> None:
        self._session, self._amounts = session, amounts
        self._begun_ns: int | None = None
        self._entered = False
        self._mark: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        session = self._session
        if session.closed_early:
            return
        self._begun_ns = session.begin_step()
        self._entered = True
        try:
            if self._amounts != (None, None, None):
                tokens, samples, flops = self._amounts
                session.count(tokens=tokens, samples=samples, flops=flops)
            mark = session.steps.mark()
            if mark is not None:
                mark.__enter__()
                self._mark = mark
        except BaseException:  # KeyboardInterrupt, for one: nothing else ends the step then
            self._end(cut=True)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entered:
            return
        cut = True  # whatever ends the step early, the mark's own end too: it is not whole
        mark, self._mark = self._mark, None
        try:
            if mark is not None:
                mark.__exit__(kind, error, trace)
            cut = kind is not None
        finally:
            self._end(cut=cut)

    def _end(self, *, cut: bool) -> None:
        self._entered = False
        if cut:
            self._session.steps.cut()
        self._session.end_step(self._begun_ns)


class Session:
    """Records steps; a context manager, and a decorator for a function that does one step.

    All our own code runs behind a guard: a failure is a warning, and the run is marked as incomplete. Only a misuse
    raises, immediately: UsageError.
    """

    def __init__(self, path: Path, model: Any, settings: Settings, finish: Finish) -> None:
        settings.check()
        if model is not None and not hasattr(model, "named_parameters"):
            raise UsageError(f"profile(model=...): {type(model).__name__} is not a torch module")
        self.path, self.model, self.settings, self._finish = path, model, settings, finish
        self.guard = Guard()
        self.output = OutputFolder(path, self.guard)
        self.number = next(_session_numbers)
        self.rank, self.world_size = 0, 1
        self.hooks = HookSet(model, self.guard)
        self.steps = Steps(settings, self.hooks, self.guard)
        self.parts = PartWriter(path, settings, self.guard, self._columns, self._begin_run)
        self.hooks.beside = self._beside
        self._agreeing = threading.Event()
        self._agree_after = settings.warmup + MEASURED_STEPS if self.steps.measures else -1
        """After so many steps ranks agree (anew) on which ones are recorded."""
        self.trigger: TriggerWatch | None = None
        self.begin_ns = 0
        self._state = "new"
        self._left = False
        """Whether the user has left the `with` block; a profile closed by anything else was closed early."""
        self._in_step = False
        self._ddp: dict[str, Any] = {}
        self._hook_unseen = ""
        """A note, if steps of a trace over gloo were recorded before DDP's communication hook was known."""
        self._fingerprint: dict[str, str | int | None] = {}
        self._group_destruction = GroupDestructionHook(self.close)
        self._termination = Termination(self.guard, lambda: self.close(wait=False))
        self._unregister_fork_stop: Callable[[], None] = lambda: None

    # -- entering and leaving --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._state != "new":
            raise UsageError(
                "this profile was entered before; make a new one with overlapscope.profile(...)"
                if self._state == "closed"
                else "this profile is open already; did you mean `with scope.step():`?"
            )
        if _open_sessions:
            raise UsageError("another overlapscope.profile is open in this process; leave it first")
        self.output.refuse_foreign()
        self._state = "open"
        _open_sessions.append(self)
        self.guard("opening", self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if error is not None:
            self.guard.failures.append(f"training ended with {type(error).__name__}")
        self.close()

    def _open(self) -> None:
        self.guard("choosing a clock", self.hooks.choose_clock, self.settings)
        self.begin_ns = time.monotonic_ns()
        self.hooks.create(self.settings, self.path, lambda: self.rank)
        self._join_the_others()
        self.guard("opening", self._group_destruction.open)
        self.hooks.open()
        leave_untraced()
        atexit.register(self.close)
        self._unregister_fork_stop = stop_in_forked_children(self)
        self._termination.open()

    def _join_the_others(self) -> None:
        """Find this process's rank and the world size, and whether it shares a file system with rank 0."""
        self.rank, self.world_size = environment.rank_and_world()
        if self.rank == 0:
            self.output.warn_of_replacing()
        self.output.agree(self.number, self.rank, self.world_size, self.settings.wait_seconds)

    def close(self, *, wait: bool = True) -> None:
        """Stop recording, write the run, and on rank 0 print the summary; do nothing the second time."""
        if self._state != "open":
            self._termination.wait_for_stuck_writer()
            return
        self._termination.hold()
        try:
            self._write_run(wait=wait)
        finally:  # also after KeyboardInterrupt: the process must not stay deaf to SIGTERM
            try:
                self.output.leave()
            finally:
                self._termination.close()  # unguarded: a signal that was held may raise, as the job's handler would

    def _write_run(self, *, wait: bool) -> None:
        self._stop()
        if wait and not self._in_step:
            self._read_ddp()
        self._unregister_fork_stop()
        if self.trigger is not None:
            self.guard("closing the trigger", self.trigger.close)
        self.hooks.close()
        self.guard("closing", self._group_destruction.close)
        self.wait_seconds = self.settings.wait_seconds if wait else 0.0
        if wait:  # after SIGTERM, those of a step that was cut short never end
            self.guard("waiting for collectives", self._settle)
        if self.hooks.traces is not None:
            self.guard("closing the profiler", self.hooks.traces.close)
            if self._hook_unseen:
                self.guard.note(self._hook_unseen)
        self.steps.note_missing()
        self.terminated = not wait and self._termination.ends_process
        """Whether SIGTERM ends the process now; a job that handles it itself is not kept waiting."""
        self.guard.ending = True
        self.guard("writing the run", self._finish, self)

    def _settle(self) -> None:
        self.hooks.settle(self.steps.records, self.wait_seconds, self.hurried)

    def hurried(self) -> bool:
        """Return whether the process is to end: then nothing is waited for any more."""
        return self._termination.pending

    def forked(self) -> None:
        """Stop in a forked child: the recording, its files and its end belong to the parent."""
        self._stop()
        self.guard("restoring signals", self._termination.forked)

    def _stop(self) -> None:
        """Stop recording."""
        self._state = "closed"
        self._agreeing.set()
        self.steps.stop()
        if self in _open_sessions:
            _open_sessions.remove(self)
        atexit.unregister(self.close)

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(
        self, *, tokens: float | None = None, samples: float | None = None, flops: float | None = None
    ) -> AbstractContextManager[None]:
        """Record the block as one training step; record nothing once the profile was closed early.

        `tokens`, `samples` and `flops` (model FLOPs) are what this rank processes in the step: they are summed over
        ranks. A value that is no finite number of 0 or more is a warning, and not recorded.
        """
        return _Step(self, (tokens, samples, flops))

    @property
    def closed_early(self) -> bool:
        """Whether SIGTERM, or the end of the process groups, closed the profile; the job goes on to its own end."""
        return self._state == "closed" and not self._left

    def begin_step(self) -> int | None:
        """Begin a step; return the time from which it counts, None where it could not be begun."""
        if self._state != "open":
            raise UsageError("scope.step() outside of its profile: did you leave out `with overlapscope.profile(...)`?")
        if self._in_step:
            raise UsageError(
                "a step inside a step: close the first one; for parts of a step there is scope.region(name)"
            )
        self._in_step = True
        if self.steps.count in (0, REBUILT_STEPS):
            self.guard("looking at the process groups", self._note_unseen_groups)
        return self.guard("beginning a step", self._step_begins)

    def end_step(self, begun_ns: int | None) -> None:
        """End the step that began at `begun_ns`."""
        self._in_step = False
        self.guard("ending a step", self._step_ends, begun_ns)

    def _step_ends(self, begun_ns: int | None) -> None:
        steps = self.steps
        try:
            steps.end(begun_ns)
        finally:
            if self.parts.due() or steps.full or steps.count == self._agree_after:
                self._between_steps()

    def _between_steps(self) -> None:
        """Write what is due, and measure whether every step may be recorded; none of it counts as the job's time."""
        if self._state != "open" or self.settings.mode != "events":
            return
        steps, begun_ns = self.steps, time.monotonic_ns()
        self._read_software()
        self._read_ddp()
        self._flush()
        if steps.count == self._agree_after:
            self._agree_after += 3 * (self._agree_after - self.settings.warmup)
            key = f"session{self.number}/sampled{steps.count}"
            threading.Thread(
                target=self.guard, args=("choosing the steps to record", self._agree, key), daemon=True,
                name="overlapscope-sampling",
            ).start()  # fmt: skip
        self.hooks.excuse(time.monotonic_ns() - begun_ns)

    def _beside(self) -> Iterator[tuple[str, float]]:
        """Write, from the telemetry thread, what is overdue: the training thread may hang in a step. Yield nothing."""
        if self._state == "open" and self.settings.mode == "events" and self.parts.due(OVERDUE):
            self.guard("writing parts", self._flush)
        return iter(())

    def _flush(self) -> None:
        batch = self.parts.flush(lambda: self.steps.take(ending=False))
        if batch is not None:
            self.steps.forget(batch)

    def _agree(self, key: str) -> None:
        """Choose with the other ranks, on a thread of its own, which steps are recorded from now on."""
        cost = self._overhead()
        if cost is None:
            return
        toggling_ns = 2 * median(self.steps.toggles) if self.steps.toggles else 0
        each_ns = max(cost.mean_high_ns, 0) + toggling_ns + self.parts.columns_ns
        every = needed_every(each_ns, cost.step_ns)
        lasted = [each for each, _ in self.steps.durations()]
        ahead = AHEAD_STEPS + math.ceil(AHEAD_SECONDS * 1e9 * len(lasted) / max(1, sum(lasted)))
        agreed = agree(key, self.rank, self.world_size, every, lambda: self.steps.count + ahead, self._agreeing)
        if agreed is not None and agreed.every != self.steps.sampled[-1].every:
            self.steps.choose(agreed)

    def _overhead(self) -> Overhead | None:
        lasted = self.steps.durations()
        return overhead(*zip(*lasted, strict=True)) if lasted else None

    def count(self, *, tokens: float | None = None, samples: float | None = None, flops: float | None = None) -> None:
        """Add to what this rank processes in the current step, as `step` takes it; do nothing outside of a step."""
        for name, amount in (("tokens", tokens), ("samples", samples), ("flops", flops)):
            if amount is not None:
                self.guard(f"recording {name} of a step", self.steps.note_amount, name, amount)

    def _step_begins(self) -> int:
        if 0 < self.steps.count <= REBUILT_STEPS:
            self._read_ddp()
        if self.settings.trigger is not None and self.trigger is None and self.steps.count >= self.settings.warmup:
            self.guard("opening the trigger", self._open_trigger)  # by now the job has created its groups
        if self.steps.count == 0 and environment.rank_and_world() != (self.rank, self.world_size):
            self.guard("joining the other ranks", self._join_the_others)  # the job created its groups only now
        return self.steps.begin()

    def _open_trigger(self) -> None:
        assert self.settings.trigger is not None
        store = exchange.store() if self.world_size > 1 else None
        self.trigger = TriggerWatch(
            self.settings.trigger, self.path, store, self.rank, self.world_size, self.guard,
            lambda: self.hooks.clock if self._hides_transfers else None,
        )  # fmt: skip
        self.trigger.open()
        self.hooks.range_beside = self.trigger.mark
        self.steps.listeners.append(self.trigger.step_ended)
        self.steps.traced = self.trigger.needs_calls

    def _note_unseen_groups(self) -> None:
        """Note the groups whose communication is missing in the recording, whatever the mode."""
        for kind in environment.groups_outside_the_dispatcher():
            self.guard.note(
                f"communication of process groups of the class {kind} is written in Python: what it does not send "
                "through torch's own groups is not recorded; mark it with scope.comm(name)"
            )

    def _read_ddp(self) -> None:
        """Read DDP's buckets, outside of steps alone: inside its hooks, where SIGTERM may find the main thread, DDP
        holds the lock that it would wait for."""
        model = self.hooks.ddp_wrapper.found
        self._ddp = self.guard("reading DDP's buckets", environment.ddp_buckets, model) or {}
        if self._hides_transfers and not self.hooks.watches_calls:
            recording = self._state == "open"
            if self.steps.records:
                self._hook_unseen = HOOK_SEEN_LATE if recording else HOOK_SEEN_LAST
            if recording:
                self.guard("recording transfers", self.hooks.watch_transfers)

    @property
    def _hides_transfers(self) -> bool:
        """Return whether traces of this job lack transfers (`TraceRecorder.transfer_clock`), as far as it is known."""
        return bool(self._ddp) and self._ddp["comm_hook"] not in BUILT_IN_HOOKS and self.hooks.device is None

    def region(self, name: str) -> AbstractContextManager[None]:
        """Record the block as a named part of a step, such as `data`."""
        return self.steps.part(name, name)

    def comm(self, name: str) -> AbstractContextManager[None]:
        """Record the block as a part of a step that communicates by means torch does not know, and waits for it."""
        return self.steps.part(f"{COMM_REGION}{name}", f"{COMM_MARK}{name}")

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function that does one training step; the profile opens at the first call and closes at exit."""

        @wraps(function)
        def one_step(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._state == "new":
                self.__enter__()
            if self._state == "closed":
                return function(*args, **kwargs)
            with self.step():
                return function(*args, **kwargs)

        return one_step

    # -- results ---------------------------------------------------------------------------------------------------

    def timeline(self) -> RankTimeline | None:
        """Return the timeline of `events` mode, or its last part if there are several; None where no step was recorded.

        Nothing is recorded after that.
        """
        last = self.parts.close(lambda: self.steps.take(ending=True))
        return None if last is None else replace(last, recorded=join_recorded([last.recorded]) | self.recorded())

    def _columns(self, batch: Batch, carried: Carried) -> RankTimeline:
        recorded = self._how()
        ddp = recorded["ddp"]
        buckets: BucketCopies | None = None
        if ddp:
            buckets = "viewed" if ddp["gradient_as_bucket_view"] else "copied"
            buckets = buckets if ddp["comm_hook"] in BUILT_IN_HOOKS else "hooked"
        hooks = self.hooks
        made = timeline_of(
            self.rank, batch.records, hooks.clock, batch.readings, recorded,
            buckets=buckets, step_times=batch.step_times, carried=carried, following=batch.following,
        )  # fmt: skip
        return self.with_gradients(made, batch.records)

    def with_gradients(self, timeline: RankTimeline, records: Sequence[StepRecord]) -> RankTimeline:
        """Add the gradients of the recorded steps, if they were recorded."""
        hooks = self.hooks
        if hooks.gradients is None:
            return timeline
        names = NameTable(timeline.names)
        table = hooks.gradients.table(records, hooks.clock, names)
        return replace(timeline, gradients=table, names=tuple(names.to_list()))

    def _read_software(self) -> None:
        """Read which software runs, once: it takes some tenths of a second."""
        if not self._fingerprint:
            self._fingerprint = self.guard("reading the software", environment.fingerprint, self.hooks.device) or {}

    def _begin_run(self) -> None:
        """Prepare the run directory for the first part of this rank."""
        self.save_job(tell_ranks=False)
        if self.rank == 0:
            self.output.remove_older_run(self.hooks.clock.epoch_ns(self.begin_ns))

    def save_job(self, *, tell_ranks: bool) -> None:
        """Write `run.json`; with `tell_ranks` it lists the ranks that are there. Raises OSError."""
        self._read_software()
        save_job(
            self.path,
            version=__version__,
            world_size=self.world_size,
            groups=self.guard("reading the groups", environment.groups) or (),
            fingerprint=self._fingerprint,
            tell_ranks=tell_ranks,
        )

    def recorded(self) -> dict[str, Any]:
        """Return how this rank was recorded, as plain values for `rank.json`."""
        cost = self._overhead()
        return self._how() | {"overhead": cost.as_json() if cost else None}

    def _how(self) -> dict[str, Any]:
        """Return the same without the cost."""
        return {
            "mode": self.settings.mode,
            "complete": not self.guard.failures,
            "failures": list(self.guard.failures),
            "overhead": None,
            "sampled": [msgspec.to_builtins(each) for each in self.steps.reached],
            "triggered": list(self.trigger.recorded) if self.trigger is not None else [],
            "ddp": self._ddp,
            "settings": self.guard("reading the settings", environment.settings) or {},
            "peak_memory_bytes": self.guard("reading memory", environment.peak_memory_bytes, self.hooks.device),
            "telemetry_unsupported": [*self.hooks.unsupported, *self.hooks.sampler.unsupported],
            "links": self.hooks.links,
            "sockets": self.hooks.sockets.connections(),
            "groups": self.guard("reading the groups", environment.groups_led_by, self.rank) or [],
        }
