"""Replay a job of programmes and collectives: a discrete-event simulation of compute and communication of all ranks.

The compute of a rank follows its programme. A collective is launched when the programme reaches its launch, begins on a
rank when its stream has room, transfers once it has begun on all members, and ends on all at the same time. Rates
change at events only: compute is slower while a collective transfers on its rank, a collective is slower while a member
computes, and collectives that run at the same time on one link share it equally.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from overlapscope.whatif.workload.workload import Interference


class Work(msgspec.Struct, frozen=True):
    """Compute that takes `ns` without interference."""

    ns: float
    slows: bool = True
    """Whether a collective beside it slows it."""


class Gap(msgspec.Struct, frozen=True):
    """Time in which the device has nothing to do because its host is busy or late."""

    ns: float


class Launch(msgspec.Struct, frozen=True):
    """Put a collective on its stream, after the compute before it has ended."""

    collective: int


class Wait(msgspec.Struct, frozen=True):
    """Wait until a collective has ended."""

    collective: int


Instruction = Work | Gap | Launch | Wait
Programme = Sequence[Instruction]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a job."""

    ranks: tuple[int, ...]
    alone_ns: float
    """Its time with the link alone and without compute beside it."""
    stream: str = "comm"
    link: str = "link"
    after: tuple[int, ...] = ()
    """Collectives that a rank must have the result of before it begins this one."""
    early: Mapping[int, float] = {}
    """Ranks that have the result before the transfer ends, with the share of the transfer after which: between 0 and
    1."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The programmes of the ranks and their collectives. Ranks that do the same as another have no own programme."""

    programmes: Mapping[int, Programme]
    transfers: Sequence[Transfer]
    interference: Interference = msgspec.field(default_factory=Interference)
    width: int = 1
    """Number of collectives that a stream runs at once."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay, in ns from the start of the first rank; one entry a rank or a collective."""

    step_ns: float
    ended_ns: Mapping[int, float]
    exposed_comm_ns: Mapping[int, float]
    """Exposed time: the rank was in a collective, waiting or transferring, and did not compute."""
    hidden_comm_ns: Mapping[int, float]
    begun_ns: Sequence[Mapping[int, float]]
    """When each collective began on each of its ranks."""
    transferring_ns: Sequence[tuple[float, float]]
    reached_ns: Mapping[int, Sequence[float]]
    """When each rank's programme reached each of its instructions, and its end."""


class StuckError(ValueError):
    """A job deadlocks: ranks wait for each other. The message names a rank and the collective that it waits for."""


def replay(job: Job) -> Replay:
    """Run a job. Raises StuckError where it deadlocks because the launches of its ranks do not match."""
    return _Machine(job).run()


class _Rank:
    __slots__ = ("at", "computing", "exposed", "hidden", "in_comm", "left", "programme", "rate", "reached", "seen",
                 "since", "slows", "streams", "transferring", "version", "waits_for")  # fmt: skip

    def __init__(self, programme: Programme) -> None:
        self.programme = programme
        self.at = 0
        self.computing = False
        self.left = self.since = 0.0
        self.rate = 1.0
        self.slows = False
        self.version = 0
        self.waits_for = -1
        self.transferring = self.in_comm = 0
        self.streams: dict[str, _Stream] = {}
        self.exposed = self.hidden = self.seen = 0.0
        self.reached: list[float] = []

    def count(self, now: float) -> None:
        """Add the time since the last change to exposed or overlapped time."""
        if self.in_comm:
            if self.computing:
                self.hidden += now - self.seen
            else:
                self.exposed += now - self.seen
        self.seen = now


class _Stream:
    __slots__ = ("queue", "running")

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.running = 0


class _Moving:
    __slots__ = ("begun", "computing", "early", "ended", "has", "left", "rate", "since", "started", "version")

    def __init__(self) -> None:
        self.has: set[int] = set()
        self.early: list[tuple[float, int]] = []
        """(time left, rank) for each rank that has the result early, the next one last."""
        self.begun: dict[int, float] = {}
        self.started = self.ended = -1.0
        self.left = self.since = 0.0
        self.rate = 1.0
        self.version = 0
        self.computing = 0


class _Machine:
    """The state of a replay; one is used once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks = {rank: _Rank(programme) for rank, programme in job.programmes.items()}
        self.moving = [_Moving() for _ in job.transfers]
        self.on_link: dict[str, list[int]] = {}
        self.on_rank: dict[int, list[int]] = {rank: [] for rank in self.ranks}
        self.events: list[tuple[float, int, int, int]] = []
        """Heap of (time, rank or -1 - collective, version, 0): sorted by rank at equal times."""

    def run(self) -> Replay:
        for rank in self.ranks:
            self._advance(rank, 0.0)
        events = self.events
        while events:
            now, who, version, _ = heappop(events)
            if who >= 0:
                state = self.ranks[who]
                if state.version == version:
                    self._stop_computing(who, state, now)
                    self._advance(who, now)
            elif self.moving[-1 - who].version == version:
                self._reached(-1 - who, now)
        for rank, state in self.ranks.items():
            if state.at < len(state.programme):
                raise StuckError(f"rank {rank} waits for collective {state.waits_for}, which not all its ranks reach")
        ended = {rank: state.reached[-1] for rank, state in self.ranks.items()}
        return Replay(
            step_ns=max(ended.values(), default=0.0),
            ended_ns=ended,
            exposed_comm_ns={rank: state.exposed for rank, state in self.ranks.items()},
            hidden_comm_ns={rank: state.hidden for rank, state in self.ranks.items()},
            begun_ns=[each.begun for each in self.moving],
            transferring_ns=[(each.started, each.ended) for each in self.moving],
            reached_ns={rank: state.reached for rank, state in self.ranks.items()},
        )

    def _advance(self, rank: int, now: float) -> None:
        """Follow a rank's programme until it computes, waits, or ends; the end is recorded as a last instruction."""
        state = self.ranks[rank]
        while state.at < len(state.programme):
            step = state.programme[state.at]
            if state.waits_for < 0:
                state.reached.append(now)
            if isinstance(step, Launch):
                stream = state.streams.setdefault(self.job.transfers[step.collective].stream, _Stream())
                stream.queue.append(step.collective)
                state.at += 1
                self._feed(rank, stream, now)
            elif isinstance(step, Wait):
                if rank not in self.moving[step.collective].has:
                    state.waits_for = step.collective
                    return
                state.waits_for = -1
                state.at += 1
            else:
                state.at += 1
                self._start_computing(rank, state, step, now)
                return
        state.reached.append(now)

    def _start_computing(self, rank: int, state: _Rank, step: Work | Gap, now: float) -> None:
        state.left, state.since = step.ns, now
        state.slows = isinstance(step, Work) and step.slows
        if isinstance(step, Work):
            state.count(now)
            state.computing = True
            if self.job.interference.comm != 1.0:
                for collective in self.on_rank[rank]:
                    self.moving[collective].computing += 1
                    if self.moving[collective].computing == 1:
                        self._repace_transfer(collective, now)
        self._schedule(rank, state, now)

    def _stop_computing(self, rank: int, state: _Rank, now: float) -> None:
        state.count(now)
        was, state.computing = state.computing, False
        if was and self.job.interference.comm != 1.0:
            for collective in self.on_rank[rank]:
                self.moving[collective].computing -= 1
                if not self.moving[collective].computing:
                    self._repace_transfer(collective, now)

    def _schedule(self, rank: int, state: _Rank, now: float) -> None:
        """Set the rate of a rank's compute, and schedule its end."""
        slowed = state.slows and state.transferring
        state.rate = 1.0 / self.job.interference.compute if slowed else 1.0
        state.version += 1
        heappush(self.events, (now + state.left / state.rate, rank, state.version, 0))

    def _repace_compute(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        if state.computing and self.job.interference.compute != 1.0:
            state.left = max(state.left - (now - state.since) * state.rate, 0.0)
            state.since = now
            self._schedule(rank, state, now)

    def _feed(self, rank: int, stream: _Stream, now: float) -> None:
        """Begin collectives on a rank while its stream has room."""
        while stream.queue and stream.running < self.job.width:
            collective = stream.queue[0]
            if any(rank not in self.moving[each].has for each in self.job.transfers[collective].after):
                return
            stream.queue.popleft()
            stream.running += 1
            state, moving = self.ranks[rank], self.moving[collective]
            state.count(now)
            state.in_comm += 1
            moving.begun[rank] = now
            if len(moving.begun) == len(self.job.transfers[collective].ranks):
                self._start(collective, now)

    def _start(self, collective: int, now: float) -> None:
        transfer, moving = self.job.transfers[collective], self.moving[collective]
        moving.started = moving.since = now
        moving.left = transfer.alone_ns
        moving.early = sorted((transfer.alone_ns * (1 - share), rank) for rank, share in transfer.early.items())
        moving.computing = sum(self.ranks[rank].computing for rank in transfer.ranks)
        sharing = self.on_link.setdefault(transfer.link, [])
        sharing.append(collective)
        for each in sharing:
            self._repace_transfer(each, now)
        for rank in transfer.ranks:
            self.on_rank[rank].append(collective)
            self.ranks[rank].transferring += 1
            if self.ranks[rank].transferring == 1:
                self._repace_compute(rank, now)

    def _repace_transfer(self, collective: int, now: float) -> None:
        moving = self.moving[collective]
        moving.left = max(moving.left - (now - moving.since) * moving.rate, 0.0) if moving.version else moving.left
        moving.since = now
        slowed = self.job.interference.comm if moving.computing else 1.0
        moving.rate = 1.0 / (len(self.on_link[self.job.transfers[collective].link]) * slowed)
        moving.version += 1
        until = moving.early[-1][0] if moving.early else 0.0
        after = max(moving.left - until, 0.0) / moving.rate
        heappush(self.events, (now + after, -1 - collective, moving.version, 0))

    def _reached(self, collective: int, now: float) -> None:
        """Handle the next event of a transfer: a rank has the result early, or the transfer ends."""
        moving = self.moving[collective]
        if not moving.early:
            self._end(collective, now)
            return
        left, rank = moving.early.pop()
        moving.left, moving.since = left, now
        self._leave(collective, (rank,), now)
        self._repace_transfer(collective, now)

    def _end(self, collective: int, now: float) -> None:
        transfer, moving = self.job.transfers[collective], self.moving[collective]
        moving.ended = now
        moving.version += 1
        sharing = self.on_link[transfer.link]
        sharing.remove(collective)
        for each in sharing:
            self._repace_transfer(each, now)
        self._leave(collective, tuple(rank for rank in transfer.ranks if rank not in moving.has), now)

    def _leave(self, collective: int, ranks: Sequence[int], now: float) -> None:
        """Let ranks continue that have the result of a collective."""
        self.moving[collective].has.update(ranks)
        for rank in ranks:
            state = self.ranks[rank]
            state.count(now)
            state.in_comm -= 1
            self.on_rank[rank].remove(collective)
            self.moving[collective].computing -= state.computing
            state.transferring -= 1
            if not state.transferring:
                self._repace_compute(rank, now)
        for rank in ranks:
            streams = self.ranks[rank].streams
            streams[self.job.transfers[collective].stream].running -= 1
            for stream in streams.values():
                self._feed(rank, stream, now)
        for rank in ranks:
            if self.ranks[rank].waits_for == collective:
                self._advance(rank, now)
