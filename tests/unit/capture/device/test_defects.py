"""What recording a GPU once got wrong, each on the virtual device; the tag in a test's name is that of the defect.

| tag | what went wrong |
|---|---|
| g1 | a callback on a future took a pool stream, made it wait, and kept outputs from being freed (test_schedules) |
| g2 | marks went to the current device, not to the model's: "no communication", and a context on GPU 0 in every rank |
| g3 | transfers of the host, in a job on devices, were timed by events behind all queued computation |
| g4 | what the device had not reached at the end was dropped, and its step counted as complete without communication |
| g5 | transfers sent in a batch ended where they were waited for: as long as the computation before, all overlapped |
| g6 | sends and receives of two pairs were taken to run one after the other |
| g7 | all marks of 16 steps were read at once, inside a step; events were made and destroyed (test_device_clock) |
| g8 | the cost of capture was measured on the host, where a device's cost never arrives |
| g9 | the clocks of host and device were tied once, and parted by milliseconds in minutes (test_device_clock) |
| g10 | a device that became current later had no times for ever (test_device_clock) |
| g11 | an error of the device lost also the steps that had been read (test_device_clock) |
| g12 | a device that was first used inside the profile was not recorded |
| g13 | pushed and popped NVTX ranges ended the user's own (test_nvtx) |
| g14 | every replayed CUDA graph cut its step, also those without communication (test_graph_watch) |
| g15 | a host without NVML, or a MIG instance, made the recording incomplete (test_device_links) |
| g16 | NVLinks that are inactive on every device counted as down (test_device_links) |
| g17 | a torch without NCCL lost the run |
| g18 | waits of the compute stream were marked on whichever stream was current, or not seen |
| g19 | an event that ran before its anchor was not tried (test_device_clock) |
| g20 | a model that runs in a stream of its own had its waits lost (test_device_clock) |
| g21 | some 20 steps of events were alive at once |
| g22 | the allocator's lock was taken twice a step |
| g23 | events were asked while another thread captured a CUDA graph, which breaks the capture (test_device_clock) |
| g24 | process groups written in Python were missing without a word (test_capture_kinds) |
| r3 | computation outside forward, backward and optimizer was idle, and communication under it exposed |
| r4 | each call of a communication hook was taken for a bucket of DDP |
"""

import gc
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overlapscope
from overlapscope.capture.device_clock import DeviceClock
from overlapscope.capture.hooks.held_works import HELD_BYTES, HeldWorks
from overlapscope.capture.host import environment, host_pauses
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.overhead import overhead
from overlapscope.capture.records import CollectiveCall, MarkedRange, StepRecord, Transfer
from overlapscope.capture.settings import Settings
from overlapscope.capture.steps import Steps
from overlapscope.capture.timeline import timeline_of
from overlapscope.capture.timestamps import HostClock
from tests.support.virtual.device import GlooGroup, NcclGroup, Tensor, VirtualCuda
from tests.support.virtual.job import MS, VirtualJob, agree, steps_of


def compute(job: VirtualJob, name: str = "forward", duration_ns: int = 10 * MS) -> None:
    with job.phase(name):
        job.cuda.launch(name, duration_ns)


def test_g2_a_job_that_never_sets_its_device_is_recorded_on_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda(devices=2)
    job = VirtualJob(cuda, monkeypatch, device=1)
    group = NcclGroup(cuda, device=1)
    for _ in range(4):
        with job.step():
            with job.phase("forward"), cuda.device(1):
                cuda.launch("forward", 10 * MS)
                job.call(group, "all_reduce", 5 * MS, Tensor(index=1)).wait()
            with cuda.device(1):
                compute(job, "optimizer", MS)
    with cuda.device(1):
        job.settle()
    assert cuda.touched == {1}
    assert agree(job, [group]) == dict.fromkeys((1, 2, 3), "exact")
    assert all(step.comm_ns for step in steps_of(job.timeline()).values())


@pytest.mark.parametrize(
    ("model_on", "allocated", "expected"),
    [(1, [5, 0], (1, True)), (None, [5, 9], (1, True)), (None, [5, 5], (0, False)), (None, [0, 0], (0, False))],
)
def test_g2_the_device_is_the_models_or_the_one_that_holds_most(
    model_on: int | None, allocated: list[int], expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    for name, value in {
        "is_available": lambda: True, "is_initialized": lambda: True, "current_device": lambda: 0,
        "device_count": lambda: 2, "memory_allocated": allocated.__getitem__,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    parameters = [torch.device("cpu"), *([torch.device("cuda", model_on)] if model_on is not None else [])]
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=each) for each in parameters])
    assert environment.device_of(model) == expected


def test_g3_a_transfer_of_the_host_is_timed_by_the_host_and_touches_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda(devices=2)
    job = VirtualJob(cuda, monkeypatch, device=1)
    metrics = GlooGroup(cuda, "metrics", device=1)
    metrics.backend = "nccl"  # for tensors on devices, as that of a default group, `cpu:gloo,cuda:nccl`
    for _ in range(4):
        with job.step():
            with cuda.device(1):
                compute(job, duration_ns=40 * MS)  # queued behind what was queued before
            job.call(metrics, "all_reduce", 3 * MS, Tensor(10, device="cpu")).wait()
    with cuda.device(1):
        job.settle()
    timeline = job.timeline()
    calls, offset = timeline.collectives, job.clock._offset
    truth = [(start + offset, end + offset) for _, start, end in metrics.transfers]
    # A call begins where it is made: the thread of the backend begins 20 us later.
    assert [end for _, end in truth] == pytest.approx(calls.end_ns.tolist(), abs=1_000)
    assert [start for start, _ in truth] == pytest.approx(calls.start_ns.tolist(), abs=25_000)
    assert cuda.touched == {1}
    assert not timeline.steps.cut.any()


def test_g3_a_device_tensor_over_gloo_ends_where_the_host_has_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    gloo = GlooGroup(cuda)
    for _ in range(3):
        with job.step():
            compute(job, duration_ns=40 * MS)
            job.call(gloo, "all_reduce", 3 * MS, Tensor(10)).wait()
    job.settle()
    timeline = job.timeline()
    offset = job.clock._offset
    assert timeline.collectives.end_ns.tolist() == [end + offset for _, _, end in gloo.transfers]
    assert cuda.devices[0].taken == 0


@pytest.mark.parametrize("communicates", [True, False])
@pytest.mark.parametrize(("seconds", "whole"), [(30.0, 6), (0.0, 0)])
def test_g4_steps_that_the_device_has_not_reached_are_cut(
    seconds: float, whole: int, communicates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    group = NcclGroup(cuda)
    for _ in range(6):
        with job.step():
            compute(job, duration_ns=100 * MS)
            with job.phase("backward"):
                work = job.call(group, "all_reduce", 5 * MS) if communicates else None
                cuda.launch("backward", MS)
                if work is not None:
                    work.wait()
    job.settle(seconds)
    timeline = job.timeline()
    complete = steps_of(timeline)
    assert len(complete) == whole
    assert all(bool(step.comm_ns) == communicates for step in complete.values())
    assert sum(timeline.recorded["cut_steps"].values()) == 6 - whole


@pytest.mark.parametrize("can_time", [True, False])
def test_g5_a_batch_under_computation_has_its_own_length_or_none(
    can_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch, connections=32)
    group = NcclGroup(cuda, can_time=can_time)
    for _ in range(4):
        with job.step(), job.phase("forward"):
            group.start_coalescing()
            job.call(group, "send", 2 * MS, peer=1)
            job.call(group, "recv", 2 * MS, peer=1)
            work = group.end_coalescing()
            cuda.launch("forward", 20 * MS)
            work.wait()
            cuda.launch("forward", MS)
    job.settle()
    if can_time:
        assert set(agree(job, [group]).values()) == {"exact"}
    else:  # that it was done by the wait says not since when
        timeline = job.timeline()
        assert steps_of(timeline) == {}
        assert timeline.recorded["cut_steps"] == {"the end of a collective is not known": 4}


def test_g5_a_batch_that_is_waited_for_has_an_end_without_the_backends_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch, connections=32)
    group = NcclGroup(cuda, can_time=False)
    for _ in range(4):
        with job.step(), job.phase("forward"):
            cuda.launch("forward", 5 * MS)
            group.start_coalescing()
            job.call(group, "recv", 2 * MS, peer=1)
            group.end_coalescing().wait()
            cuda.launch("forward", MS)
    job.settle()
    assert set(agree(job, [group]).values()) == {"exact"}


def test_g6_two_pairs_that_send_at_once_have_their_own_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch, connections=32)
    group = NcclGroup(cuda, size=3)
    for _ in range(3):
        with job.step(), job.phase("forward"):
            cuda.launch("forward", 2 * MS)
            works = [job.call(group, "send", 10 * MS, peer=1), job.call(group, "send", 10 * MS, peer=2)]
            cuda.launch("forward", 30 * MS)
            for work in works:
                work.wait()
            cuda.launch("forward", MS)
    job.settle()
    calls = job.timeline().collectives
    assert (calls.end_ns - calls.start_ns).tolist() == pytest.approx([10 * MS] * 6, abs=1_000)
    assert set(agree(job, [group]).values()) == {"exact"}


def test_g8_the_cost_of_capture_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    hooks: Any = SimpleNamespace(
        clock=job.clock,
        anchor=job.clock.anchor,
        look_for_device=lambda: None,
        traces=None,
        ranges=None,
        aside=False,
        record=None,
        step_aside=lambda: False,
        come_back=lambda: False,
        excuse=lambda _: None,
        after_step=lambda _: job.clock.read(64),
    )
    hooks.step_begins = lambda record: setattr(hooks, "record", record)
    hooks.step_ends = lambda _: setattr(hooks, "record", None)
    hooks.step_aside = lambda: True
    steps = Steps(Settings(mode="events", warmup=0), hooks, Guard())
    for _ in range(80):
        begun = steps.begin()
        if hooks.record is not None:
            cuda.launch("what capture costs", MS)
        cuda.launch("step", 50 * MS)
        steps.end(begun)
    cuda.synchronize()
    job.clock.read(1_000)
    found = overhead(*zip(*steps.durations(), strict=True))
    assert found is not None
    assert found.mean_ns == pytest.approx(MS, abs=10_000)
    assert found.step_ns == pytest.approx(50 * MS, abs=10_000)
    blind = overhead(*zip(*steps.lasted, strict=True))
    assert blind is not None
    assert blind.step_ns < MS  # the host only launches


def record_on(cuda: VirtualCuda, patch: pytest.MonkeyPatch) -> None:
    """Let `overlapscope.profile` record the virtual device, in virtual time."""
    from overlapscope.capture.hooks import hook_set

    patch.setattr(time, "monotonic_ns", cuda.monotonic_ns)
    patch.setattr(hook_set, "monotonic_ns", cuda.monotonic_ns)
    patch.setattr(hook_set, "monotonic", lambda: cuda.now_ns / 1e9)
    patch.setattr(hook_set, "sleep", lambda seconds: cuda.host(round(seconds * 1e9)))
    patch.setattr(hook_set, "_device_clock", lambda device: DeviceClock(cuda, device))
    patch.setattr(environment, "device_of", lambda _: (0, True))
    patch.setattr(environment, "device", lambda _: (None, None))
    patch.setattr(environment, "peak_memory_bytes", lambda _: 1)
    patch.setattr(environment, "fingerprint", lambda _: {})


@pytest.mark.parametrize(("wait_seconds", "whole"), [(30, 6), (1, 2)])
def test_g4_the_end_of_a_recording_waits_for_a_device_that_is_behind(
    wait_seconds: float, whole: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    cuda = VirtualCuda()
    record_on(cuda, monkeypatch)
    model, run = torch.nn.Linear(2, 2), tmp_path / "run"
    options: dict[str, Any] = {"mode": "events", "warmup": 0, "measure_overhead": False}
    with overlapscope.profile(run, model=model, wait_seconds=wait_seconds, **options) as scope:
        for _ in range(6):
            with scope.step():
                model(torch.ones(2)).sum().backward()
                cuda.launch("step", 400 * MS)
                with scope.region("own"):
                    pass
    cut = overlapscope.load(run).run.ranks[0].steps.cut.tolist()
    assert cut == [False] * whole + [True] * (6 - whole)


def test_g12_a_device_that_is_first_used_inside_the_profile_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    cuda = VirtualCuda()
    used: list[int] = []
    record_on(cuda, monkeypatch)
    monkeypatch.setattr(environment, "device_of", lambda _: (0, True) if used else (None, False))
    model = torch.nn.Linear(2, 2)
    with overlapscope.profile(
        tmp_path / "run", model=model, mode="events", warmup=2, measure_overhead=False, wait_seconds=1
    ) as scope:
        for _ in range(6):
            with scope.step():
                used.append(1)  # as `model.to("cuda")` in the first step
                model(torch.ones(2)).sum().backward()
                cuda.launch("step", 10 * MS)
        cuda.synchronize()
    assert scope.guard.failures == []
    timeline = overlapscope.load(tmp_path / "run").run.ranks[0]
    assert timeline.has_device
    assert timeline.steps.step.tolist() == [2, 3, 4, 5]
    assert not timeline.steps.cut.any()


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_a_recording_in_parts_on_a_device_has_every_step_whole(
    every: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    from overlapscope.capture.sampling import Sampling

    cuda = VirtualCuda()
    record_on(cuda, monkeypatch)
    monkeypatch.setattr("overlapscope.capture.steps.FLUSH_NOTES", 20)
    monkeypatch.setattr("overlapscope.capture.parts.PART_BYTES", 3_000)

    class Model(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def forward(self, batch: Any) -> Any:
            cuda.launch("forward", 10 * MS)
            return super().forward(batch)

    model = Model(2, 2)
    with overlapscope.profile(
        tmp_path / "run", model=model, mode="events", warmup=0, events_every=every, wait_seconds=1
    ) as scope:
        for number in range(60):
            with scope.step():
                model(torch.ones(2)).sum().backward()
            cuda.host(30 * MS if number % 4 == 3 else 3 * MS)  # the device is some steps behind
            if scope.parts._writing is not None:
                scope.parts._writing.join()
        cuda.synchronize()
    assert scope.guard.failures == []
    assert scope.parts.several
    chosen = Sampling(since_step=0, every=every)
    loaded = overlapscope.load(tmp_path / "run")
    timeline = loaded.run.ranks[0]
    assert timeline.steps.step.tolist() == [step for step in range(60) if chosen.records(step)]
    assert not timeline.steps.cut.any()
    telemetry = loaded.table("telemetry", 0)
    times = telemetry[telemetry.name == "step_time_ns"]
    assert times.step.tolist() == list(range(59))  # of the last one the device's end is not marked
    assert sum(times.value) == pytest.approx(590 * MS, abs=MS)  # the device is never idle
    windows = [step.window_ns for step in steps_of(timeline).values()]
    assert len(windows) == len(timeline.steps.step)
    assert windows[1:] == pytest.approx([10 * MS] * (len(windows) - 1), abs=10_000)


def test_g14_a_collective_of_a_captured_graph_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    group = NcclGroup(cuda)
    noted: list[int] = []
    job.watch._captured = lambda: noted.append(1)
    with job.step():
        compute(job)
        with cuda.capture():
            job.call(group, "all_reduce", MS)
    with job.step():
        compute(job)
    job.settle()
    assert noted == [1]
    assert cuda.captures_broken == 0
    assert job.guard.failures == []
    assert job.timeline().steps.cut.tolist() == [True, False]


@pytest.mark.parametrize("how", ["wait_event", "wait_stream", "event.wait"])
def test_g18_what_the_compute_stream_waits_for_is_seen_from_any_other_stream(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch, connections=32)
    group = NcclGroup(cuda)
    side = cuda.new_stream()
    main = cuda.current_stream()
    for _ in range(4):
        with job.step(), job.phase("forward"):
            cuda.launch("forward", 2 * MS)
            side.wait_stream(main)
            with cuda.stream(side):
                job.call(group, "all_gather", 8 * MS, inline=True)
                event = cuda.Event()
                event.record()
                if how == "wait_event":
                    main.wait_event(event)
                elif how == "wait_stream":
                    main.wait_stream(side)
                else:
                    event.wait(main)
            cuda.launch("forward", 2 * MS)
    job.settle()
    assert all(len(record.waits) == 1 for record in job.records)
    assert set(agree(job, [group]).values()) == {"exact"}


def test_g20_a_model_in_a_stream_of_its_own_keeps_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    group, own = NcclGroup(cuda), cuda.new_stream()
    job.computes_on = own.number
    for _ in range(4):
        with job.step(), cuda.stream(own):
            compute(job)
            with job.phase("backward"):
                work = job.call(group, "all_reduce", 5 * MS)
                cuda.launch("backward", 2 * MS)
                work.wait()
                cuda.launch("backward", MS)
    job.settle()
    assert agree(job, [group]) == dict.fromkeys((1, 2, 3), "exact")


@pytest.mark.slow
def test_g21_few_events_live_at_once_however_long_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    group = NcclGroup(cuda)
    works = []
    for number in range(60):
        with job.step(), job.phase("forward"):
            for _ in range(50):
                cuda.launch("forward", MS)
                work = job.call(group, "all_reduce", 500_000)
                works.append(weakref.ref(work))
                work.wait()
                del work
        cuda.reach(max(cuda.now_ns, cuda.current_stream().end_ns - 10 * MS))
        if number == 30:
            before = cuda.events
    gc.collect()
    own = 30 * 50 * 3  # NCCL's three for each call
    assert cuda.events - before - own < 100
    assert sum(each() is not None for each in works) <= 60  # of 3 000


def test_works_whose_outputs_the_job_may_free_are_given_up_before_they_cost_memory() -> None:
    held = HeldWorks()
    works = [SimpleNamespace() for _ in range(10)]
    transfers = [Transfer(lane="0", ready=None, on_host=False) for _ in works]
    for work, transfer in zip(works, transfers, strict=True):
        held.hold(work, transfer, HELD_BYTES // 4)
    assert [held.transfer(id(work)) is not None for work in works] == [False] * 6 + [True] * 4
    own = SimpleNamespace()
    held.hold(own, transfers[0], 0)
    assert held.transfer(id(own)) is transfers[0]


def test_a_functional_collective_is_given_up_once_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = VirtualCuda()
    job = VirtualJob(cuda, monkeypatch)
    group = NcclGroup(cuda)
    with job.step():
        cuda.launch("forward", 10 * MS)
        tensor = Tensor()
        work = job.call(group, "all_reduce", 5 * MS, tensor)
        job.wait_tensor(work, tensor)
        assert job.watch.works.transfer(id(work)) is None


def test_g17_a_torch_without_nccl_names_its_device_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"device {index}")
    monkeypatch.delattr(torch.cuda.nccl, "version")
    known = environment.fingerprint(1)
    assert (known["device"], known["nccl_version"]) == ("device 1", None)
    assert environment.fingerprint(None)["device"] == "cpu"  # and no device is initialised to ask its name


def test_g22_the_allocator_is_asked_every_16th_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def retries() -> float:
        asked.append(float(len(asked)))
        return asked[-1]

    monkeypatch.setattr(host_pauses, "_allocator_retries", retries)
    watch = host_pauses.HostPauseWatch(lambda: None)
    found = []
    for number in range(64):
        record = StepRecord(number=number, begin_ns=number, thread=0, observed=True)
        watch.step_begins(record)
        watch.step_ends(record)
        found += [(number, value) for name, _, value in record.readings if name == "allocator_retries"]
    assert found == [(0, 0.0), (16, 1.0), (32, 1.0), (48, 1.0)]


# -- without a device --------------------------------------------------------------------------------------------------


def host_step(*, ran: list[tuple[int, float]], gradients: list[int] | None = None) -> StepRecord:
    """A step of 100 ms: forward 0..20, backward 20..50, optimizer 90..100; a transfer 30..85 ms, called at backward."""
    record = StepRecord(number=0, begin_ns=0, thread=0, observed=True, end_ns=100 * MS)
    for name, begin, end in (("forward", 0, 20), ("backward", 20, 50), ("optimizer", 90, 100)):
        record.phases.append(MarkedRange(name, begin * MS, begin * MS, end * MS))
    transfer = Transfer(lane="0", ready=30 * MS, done=85 * MS)
    record.calls.append(CollectiveCall("all_reduce", "0", 2, "float32", 1, 30 * MS, transfer, returned_ns=30 * MS))
    record.readings += [("thread_cpu_ns", at * MS, value * MS) for at, value in ran]
    record.gradients += [(0, at * MS) for at in gradients or []]
    return record


@pytest.mark.parametrize(
    ("ran", "exposed", "stated"),
    [
        ([(0, 0.0), (50, 50.0), (90, 90.0), (100, 100.0)], 0, None),  # it computed all the time
        ([(0, 0.0), (50, 50.0), (90, 50.5), (100, 60.0)], 35, None),  # it slept between backward and optimizer
        ([(0, 0.0), (50, 50.0), (90, 78.0), (100, 88.0)], 0, [0, 35]),  # 28 of 40 ms: where is not determined
    ],
)
def test_r3_what_the_thread_computes_outside_the_phases_is_computation(
    ran: list[tuple[int, float]], exposed: int, stated: list[int] | None
) -> None:
    timeline = timeline_of(0, [host_step(ran=ran)], HostClock(), [], {}, buckets=None)
    (step,) = steps_of(timeline).values()
    assert step.exposed_comm_ns == exposed * MS
    between = timeline.recorded["exposed_between_ns"].get("0")
    assert between == (None if stated is None else [each * MS for each in stated])


def test_r4_the_tail_behind_a_hook_of_the_users_own_is_waiting() -> None:
    ran = [(0, 0.0), (100, 0.0)]
    record = host_step(ran=ran, gradients=[25, 32])
    (step,) = steps_of(timeline_of(0, [record], HostClock(), [], {}, buckets="hooked")).values()
    assert step.overlapped_ns == 2 * MS  # from the call at 30 to the last gradient at 32
    assert step.exposed_comm_ns == 53 * MS


def test_a_bucket_ends_where_backward_has_waited_for_it_however_late_its_callback_ran() -> None:
    record = host_step(ran=[(0, 0.0), (50, 50.0), (100, 100.0)])
    (step,) = steps_of(timeline_of(0, [record], HostClock(), [], {}, buckets="viewed")).values()
    # Called at 30, and backward ended at 50: nothing is under way while the thread computes from 50 to 85.
    assert (step.exposed_comm_ns, step.overlapped_ns) == (20 * MS, 0)
    (step,) = steps_of(timeline_of(0, [record], HostClock(), [], {}, buckets=None)).values()
    assert (step.exposed_comm_ns, step.overlapped_ns) == (0, 55 * MS)
