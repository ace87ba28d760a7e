"""One pipeline stage: the time to which each rank's host and lanes have come, and how each instruction moves it."""

from collections import defaultdict, deque

import msgspec
import numpy as np
import numpy.typing as npt

from tests.property.synthetic.cores import Cores
from tests.property.synthetic.devices import Devices
from tests.property.synthetic.hosts import Hosts
from tests.property.synthetic.job import Job, Ranks
from tests.property.synthetic.links import Links
from tests.property.synthetic.program import (
    TO_DEVICE,
    Collective,
    Compute,
    Copy,
    Exchange,
    Instruction,
    Mark,
    WaitFor,
    program,
)
from tests.property.synthetic.record import BACKWARD, COMM, COMPUTE, COPY, MAIN, Call, Pieces, Record

Reals = npt.NDArray[np.float64]
ACROSS_STAGES = ("mp", "world")
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#FusedAdamW.step"
RETURNS_NS = 2_000.0
"""A call that has nothing to wait for returns after this."""
COPY_NS = 60_000.0
"""The batch's way to the device."""
CALL_NS = 600.0
"""What a launching call takes; launches cost more, before it."""
POLL_NS = 10_000.0
"""A host that polls looks so often."""
ALLOCATING = 0.5
"""Allocating costs this part of freeing."""


class Launch(msgspec.Struct, frozen=True):
    """Launches of all ranks: [rank, launch]."""

    begun: Reals
    returned: Reals

    @property
    def submitted(self) -> Reals:
        """When the device is given the work: later than usual where the host lost its core within the call."""
        return np.maximum(self.begun, self.returned - CALL_NS)


class Shared(msgspec.Struct, kw_only=True):
    """What the stages of a job share: links, sends under way, and who has come to calls that span stages."""

    links: Links
    sends: dict[tuple[int, int], deque[tuple["Stage", Exchange, Launch, Reals]]] = msgspec.field(
        default_factory=lambda: defaultdict(deque)
    )
    come: dict[tuple[str, int], dict[int, Reals]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    over: dict[tuple[str, int], tuple[Reals, Reals]] = {}


class Stage:
    """All ranks of one stage, as vectors; times are true, in nanoseconds from the job's start."""

    def __init__(self, job: Job, index: int, shared: Shared, *, keep: bool) -> None:
        size = job.layout.stage_ranks
        self.job, self.index, self.shared, self.keep = job, index, shared, keep
        self.ranks: Ranks = np.arange(size) + size * index
        recorded = job.ranks()
        rows = recorded[np.isin(recorded, self.ranks)] - self.ranks[0]
        self.record = Record(rows=rows, ranks=self.ranks[rows])
        self.hosts, self.devices = Hosts(job, self.ranks), Devices(job, self.ranks)
        self.rng = np.random.default_rng([job.seed, 1, index])
        self.cores = Cores(job, self.ranks) if job.fault.cores else None
        self.faulty_rng = np.random.default_rng([job.seed, 14, index])
        apart = np.random.default_rng([job.seed, 15]).random(job.layout.world)[self.ranks]
        self.host = self.rng.uniform(0, 100_000.0, size) + apart * job.fault.start_spread_ns
        self.busy: dict[str, Reals] = defaultdict(lambda: np.zeros(size))
        """To when each lane has work."""
        self.numbers: dict[str, int] = defaultdict(int)
        self.computed, self.launched = np.zeros(size), np.zeros(size)
        self.step_ends: list[float] = []
        self.finished = False
        self._groups = {name: self._local(job.layout.groups(name)) for name in ("tp", "dp", "ep")}
        self._step = -1
        self._instructions: list[Instruction] = []
        self._at = self._part = self._parts = 0
        self._marks: dict[str, Reals] = {}
        self._arrived: dict[tuple[str, int], tuple[Launch, Reals]] = {}
        self._device_steps: list[Reals] = []

    def _local(self, groups: Ranks) -> Ranks:
        return groups[(groups[:, 0] >= self.ranks[0]) & (groups[:, 0] <= self.ranks[-1])] - self.ranks[0]

    def run(self) -> bool:
        """Go on until another stage must come first, or to the end; return whether anything moved."""
        moved = False
        while not self.finished:
            if self._at == len(self._instructions) and not self._next_step():
                break
            if not self._execute(self._instructions[self._at]):
                break
            self._at += 1
            moved = True
        return moved

    def _next_step(self) -> bool:
        self._step += 1
        self._at = self._part = 0
        if self._step == self.job.steps:
            self.finished = True
            return False
        self._instructions = list(program(self.job, self.index))
        self._parts = sum(isinstance(each, Compute) for each in self._instructions)
        self.devices.next_batch(self._step)
        return True

    def _execute(self, each: Instruction) -> bool:
        match each:
            case Compute():
                self._compute(each)
            case Collective():
                return self._across(each) if each.dimension in ACROSS_STAGES else self._collective(each)
            case Exchange():
                return self._send(each) if each.sends else self._receive(each)
            case WaitFor():
                self.busy["compute"] = np.maximum(self.busy["compute"], self.busy[each.lane])
            case Copy():
                self._copy(each.name, each.length_ns, BACKWARD if each.backward else MAIN)
            case Mark():
                self._mark(each.what)
        return True

    # --- the host ----------------------------------------------------------------------------------------------------

    def _launch(self, count: int) -> Launch:
        cost = self.hosts.launches(count)
        begun = self._after(np.cumsum(cost, axis=1))
        returned = begun + CALL_NS if self.cores is None else self._after(np.cumsum(cost, axis=1) + CALL_NS)
        self.host = begun[:, -1].copy()
        self.launched += cost.sum(axis=1)
        return Launch(begun, returned)

    def _after(self, work: Reals) -> Reals:
        """Return when each host has done so much more work: [rank, any]."""
        if self.cores is None:
            return self.host[:, None] + work
        return self.cores.wall(self.cores.ran(self.host)[:, None] + work)

    def _work(self, work: Reals | float) -> None:
        self.host = self._after(np.broadcast_to(work, self.host.shape)[:, None])[:, 0]

    def _resume(self, at: Reals) -> None:
        """Let each host go on at a time, or when it next has a core."""
        self.host = at if self.cores is None else self.cores.wall(self.cores.ran(at)[:, None])[:, 0]

    def _mark(self, what: str) -> None:
        if what == "step":
            self._marks["step"] = self.host.copy()
        elif what == "load":
            begun = self.host
            self._work(self.hosts.loading())
            if self.job.fault.load_marked:
                self._annotate(LOADER, begun, self.host)
            if self._step >= 2 and not self.job.sync_steps:  # the queue of launches is not endless
                self._wait("cudaEventSynchronize", self._device_steps[self._step - 2])
            self._copy(TO_DEVICE, COPY_NS, MAIN)
        elif what == "sync":
            self._wait("cudaStreamSynchronize", self.busy["compute"])
        elif what == "read":
            late = self.faulty_rng.uniform(0, POLL_NS, self.host.size)
            if self.job.fault.polling:
                self._resume(np.maximum(self.host, self.busy["compute"] + late))
            self._work(self.job.fault.read_work_ns * np.exp(self.faulty_rng.normal(0, self.job.host_jitter, late.size)))
        elif what == "reduce":
            self._work(
                self.job.fault.tensor_ns * np.exp(self.faulty_rng.normal(0, self.job.host_jitter, self.host.size))
            )
        elif what in ("allocate", "free"):
            self._allocate(free=what == "free")
        elif what == "optimizer":
            self._marks["optimizer"] = self.host.copy()
        elif what == "optimized":
            self._annotate(OPTIMIZER, self._marks["optimizer"], self.host)
        else:
            self._work(self.job.launch_ns)
            self._device_steps.append(self.busy["compute"].copy())
            self.step_ends.append(float(np.maximum(self.host, self.busy["compute"]).max()))
            if self.keep:
                rows = self.record.rows
                self.record.steps.append((self.job.first_step + self._step, self._marks["step"][rows], self.host[rows]))

    def _wait(self, call: str, done: Reals) -> None:
        begun = self.host
        self._resume(np.maximum(begun + RETURNS_NS, done))
        if self.keep:
            rows = self.record.rows
            self.record.waits.append((call, begun[rows], self.host[rows]))

    def _allocate(self, *, free: bool) -> None:
        """Call the allocator; to free waits for all that the device was given."""
        begun = self.host
        cost = self.job.fault.churn_ns * np.exp(self.faulty_rng.normal(0, self.job.host_jitter, begun.size))
        if free:
            self._resume(np.maximum(begun, np.max(list(self.busy.values()), axis=0)))
        self._work(cost if free else ALLOCATING * cost)
        self._call("cudaFree" if free else "cudaMalloc", begun, self.host)

    def _call(self, name: str, begun: Reals, returned: Reals) -> None:
        if self.keep:
            rows = self.record.rows
            self.record.calls.append((name, begun[rows], returned[rows]))

    def _annotate(self, name: str, start: Reals, end: Reals) -> None:
        if self.keep:
            rows = self.record.rows
            self.record.marks.append((name, MAIN, start[rows], end[rows]))

    # --- the device --------------------------------------------------------------------------------------------------

    def _copy(self, name: str, length_ns: float, thread: int) -> None:
        launch = self._launch(1)
        start = np.maximum(launch.submitted + self.job.latency_ns, self.busy["compute"][:, None])
        self.busy["compute"] = start[:, 0] + length_ns
        self._keep(
            kind=COPY, lane="compute", thread=thread, names=(name,), ops=("aten::copy_",), launch=launch.begun,
            returned=launch.returned, start=start, end=start + length_ns, blocks=np.zeros(start.shape),
        )  # fmt: skip

    def _compute(self, each: Compute) -> None:
        if not each.repeated:
            stall = self.hosts.stall(self._step, self._part, self._parts)
            self._part += 1
            if stall is not None:
                self._work(stall)
                if self.keep and self.job.fault.stall_noted:
                    self.record.pauses.append((self.host[self.record.rows], stall[self.record.rows]))
        chosen = self.hosts.guilty if each.repeated else None
        count = len(each.kernels)
        before, launched = self.host, self.launched.copy()
        launched_by = self._launch(1 if each.graph else count)
        launch, returned, submitted = (
            np.repeat(times, count, axis=1) if each.graph else times
            for times in (launched_by.begun, launched_by.returned, launched_by.submitted)
        )
        duration, blocks = self.devices.kernels(each.kernels, each.scale)
        over = self.busy["compute"]
        meets = (self.busy["dp"] > np.maximum(over, launch[:, 0]))[:, None]
        duration = np.where(meets, duration * self.job.interference, duration)
        if chosen is not None:
            self.host = np.where(chosen, self.host, before)
            self.launched = np.where(chosen, self.launched, launched)
            duration = np.where(chosen[:, None], duration, 0.0)
            submitted = np.where(chosen[:, None], submitted, 0.0)
        # Each kernel starts when it is launched and the one before has ended: a running maximum.
        done = np.cumsum(duration, axis=1)
        waits = np.maximum.accumulate(submitted + self.job.latency_ns - (done - duration), axis=1)
        end = np.maximum(waits, over[:, None]) + done
        self.busy["compute"] = end[:, -1] if chosen is None else np.where(chosen, end[:, -1], over)
        self.computed += duration.sum(axis=1)
        if each.graph and self.job.fault.unrecorded:
            self._call("cudaGraphLaunch", launch[:, 0], returned[:, 0])
            return
        self._keep(
            kind=COMPUTE, lane="compute", thread=BACKWARD if each.backward else MAIN,
            names=tuple(kernel.name for kernel in each.kernels), ops=tuple(kernel.op for kernel in each.kernels),
            launch=launch, returned=returned, start=end - duration, end=end, blocks=blocks, graph=each.graph,
            present=None if chosen is None else np.repeat(chosen[:, None], count, axis=1),
        )  # fmt: skip

    # --- what goes between devices -----------------------------------------------------------------------------------

    def _arrive(self, each: Collective | Exchange, lane: str, *, ready: bool) -> tuple[Launch, Reals]:
        """Launch a call; return when, and when each rank comes to it."""
        launch = self._launch(1)
        come = np.maximum(launch.submitted[:, 0] + self.job.latency_ns, self.busy[lane])
        return launch, np.maximum(come, self.busy["compute"]) if ready else come

    def _collective(self, each: Collective) -> bool:
        groups = self._groups[each.dimension]
        if groups.shape[1] == 1:
            return True
        lane = each.lane or each.dimension
        sent = got = np.full(self.ranks.size, float(each.bytes))
        if each.uneven:
            sent, got = self._routed(each.bytes)
        launch, come = self._arrive(each, lane, ready=each.ready)
        moved = np.maximum(sent, got)[groups].max(axis=1)
        if each.op == "all_gather":
            sent = sent / groups.shape[1]
        elif each.op == "reduce_scatter":
            got = got / groups.shape[1]
        transfer = self.shared.links.transfer_ns(each.op, groups + self.ranks[0], moved)
        over = come[groups].max(axis=1) + transfer
        ends, transfers = np.empty(self.ranks.size), np.empty(self.ranks.size)
        ends[groups], transfers[groups] = over[:, None], transfer[:, None]
        self._end(each, lane, groups.shape[1], launch, come, ends, transfers, (sent, got))
        return True

    def _routed(self, even: int) -> tuple[Reals, Reals]:
        """Return what each rank sends and gets: first its tokens go to their experts, then they come back."""
        comes_back = self.numbers["routed"] % 2 == 1
        self.numbers["routed"] += 1
        if not comes_back:
            self.devices.route()
        own, routed = even * self.devices.tokens, even * self.devices.tokens * self.devices.routed
        return (routed, own) if comes_back else (own, routed)

    def _across(self, each: Collective) -> bool:
        """Take part in a call whose members are of several stages; False while some stage has not come."""
        groups = self.job.layout.groups(each.dimension)
        if groups.shape[1] == 1:
            return True
        key = (each.dimension, self.numbers[each.dimension])
        if key not in self._arrived:
            self._arrived[key] = self._arrive(each, each.dimension, ready=True)
            self.shared.come[key][self.index] = self._arrived[key][1]
        if len(self.shared.come[key]) < self.job.layout.pp:
            return False
        if key not in self.shared.over:
            come = np.concatenate([self.shared.come[key][stage] for stage in range(self.job.layout.pp)])
            transfer = self.shared.links.transfer_ns(each.op, groups, float(each.bytes))
            ends, transfers = np.empty(come.size), np.empty(come.size)
            ends[groups], transfers[groups] = (come[groups].max(axis=1) + transfer)[:, None], transfer[:, None]
            self.shared.over[key] = (ends, transfers)
        ends, transfers = (every[self.ranks] for every in self.shared.over[key])
        launch, come = self._arrived.pop(key)
        moved = np.full(come.size, float(each.bytes))
        self._end(each, each.dimension, groups.shape[1], launch, come, ends, transfers, (moved, moved))
        return True

    def _end(
        self, each: Collective, lane: str, size: int, launch: Launch, come: Reals, ends: Reals, transfers: Reals,
        moved: tuple[Reals, Reals],
    ) -> None:  # fmt: skip
        ends = ends + self.rng.exponential(self.job.end_jitter_ns, ends.size)
        self.busy[lane] = ends
        if each.blocks:
            self.busy["compute"] = np.maximum(self.busy["compute"], ends)
        number = self.numbers[each.dimension]
        self.numbers[each.dimension] += 1
        call = Call(
            op=each.op, dtype=each.dtype, dimension=each.dimension, group_size=size, number=number,
            sent=moved[0][self.record.rows], got=moved[1][self.record.rows], kernel=each.kernel,
        )  # fmt: skip
        self._keep_call(call, lane, BACKWARD if each.backward else MAIN, launch, come, ends, transfers)

    def _send(self, each: Exchange) -> bool:
        launch, come = self._arrive(each, "none", ready=True)
        self.shared.sends[self.index, self.index + each.to].append((self, each, launch, come))
        return True

    def _receive(self, each: Exchange) -> bool:
        """Take the next send of the stage it comes from; False while that has not come to it."""
        under_way = self.shared.sends[self.index + each.to, self.index]
        if not under_way:
            return False
        sender, sent, sent_launch, sent_come = under_way.popleft()
        lane, other = f"receive{each.to:+d}", f"send{sent.to:+d}"
        launch, come = self._arrive(each, lane, ready=False)
        sent_come = np.maximum(sent_come, sender.busy[other])
        pairs = np.stack([sender.ranks, self.ranks], axis=1)
        transfer = self.shared.links.transfer_ns("send_recv", pairs, float(each.bytes))
        over = np.maximum(come, sent_come) + transfer
        for stage, instruction, lane_, begun, came in (
            (sender, sent, other, sent_launch, sent_come), (self, each, lane, launch, come)
        ):  # fmt: skip
            ends = over + stage.rng.exponential(self.job.end_jitter_ns, over.size)
            stage.busy[lane_] = ends
            stage.numbers[lane_] += 1
            peers = (self if stage is sender else sender).ranks
            call = Call(
                op="send" if instruction.sends else "recv", dtype="BFloat16", dimension="pp",
                group_size=self.job.layout.pp, number=stage.numbers[lane_] - 1,
                sent=np.full(stage.record.rows.size, float(each.bytes)),
                got=np.full(stage.record.rows.size, float(each.bytes)), peer=peers[stage.record.rows],
            )  # fmt: skip
            thread = BACKWARD if instruction.backward else MAIN
            stage._keep_call(call, lane_, thread, begun, came, ends, transfer)
        self.busy["compute"] = np.maximum(self.busy["compute"], self.busy[lane])
        return True

    # --- what is kept ------------------------------------------------------------------------------------------------

    def _keep_call(
        self, call: Call, lane: str, thread: int, launch: Launch, come: Reals, ends: Reals, transfer: Reals
    ) -> None:
        if self.keep:
            self._keep(
                kind=COMM, lane=lane, thread=thread, names=(call.kernel or call.op,), ops=("record_param_comms",),
                launch=launch.begun, returned=launch.returned, start=come[:, None], end=ends[:, None],
                blocks=np.full((come.size, 1), 24.0), call=call, transfer=transfer,
            )  # fmt: skip

    def _keep(self, **piece: object) -> None:
        if not self.keep:
            return
        rows = self.record.rows
        arrays = ("launch", "returned", "start", "end", "blocks", "present", "transfer")
        kept = {name: value[rows] if name in arrays and value is not None else value for name, value in piece.items()}
        self.record.pieces.append(Pieces(**kept))
