"""Collectives that run on the hosts of devices are no figure of communication, and no pause: they are named as such."""

from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.pauses.host_collectives import times_in_host_collectives
from overlapscope.report.text.analysis import render
from overlapscope.timeline.columns import COPY, HOST, RUNTIME, HostSpans, make
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.pauses.pausing import MS, US, advice

STEPS, STEP = 3, 10 * MS
TRAINING, WORKER = 2, 3


def reducing(
    *, lane: int = TRAINING, name: str = "gloo:all_reduce", took_ns: int = 5 * MS, copies: bool = True,
    on_device: bool = False,
) -> Run:  # fmt: skip
    """Return two ranks that compute 2 ms of each 10 ms step, then are in a collective on a thread of their hosts; in
    its begin that thread copies to the host for 0.5 ms, at its end back; with `on_device` a collective of the device is
    launched in it as well."""
    ranks = {rank: _rank(rank, lane, name, took_ns, copies=copies, on_device=on_device) for rank in (0, 1)}
    return Run(world_size=2, ranks=ranks, fingerprint={"backend": "nccl"})


def _rank(rank: int, lane: int, name: str, took_ns: int, *, copies: bool, on_device: bool) -> RankTimeline:
    host: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    notes = []

    def launched(
        at: int, call: str = "cudaLaunchKernel", takes: int = 5 * US, thread: int = TRAINING
    ) -> dict[str, Any]:  # fmt: skip
        host.append({"lane": thread, "kind": RUNTIME, "name": call, "start_ns": at, "end_ns": at + takes,
                     "correlation": len(host)})  # fmt: skip
        return {"launch_ns": at, "correlation": len(host) - 1}

    for step in range(STEPS):
        begin = EPOCH_NS + step * STEP
        number = {"step": step}
        work.append({**launched(begin + 10 * US), **number, "name": "gemm", "start_ns": begin + 14 * US,
                     "end_ns": begin + 2 * MS})  # fmt: skip
        launched(begin + 30 * US, "cudaStreamSynchronize", 2 * MS - 30 * US)
        start, end = begin + 2 * MS + 50 * US, begin + 2 * MS + 50 * US + took_ns
        notes.append({"lane": lane, "name": name, "start_ns": start, "end_ns": end})
        if copies:
            work.append({**launched(start + 5 * US, "cudaMemcpyAsync", thread=lane), **number, "kind": COPY,
                         "name": "Memcpy DtoH (Device -> Pinned)", "start_ns": start + 9 * US,
                         "end_ns": start + 509 * US})  # fmt: skip
            launched(start + 12 * US, "cudaStreamSynchronize", 500 * US, lane)
            back = launched(end - 8 * US, "cudaMemcpyAsync", thread=lane)
            work.append({**back, **number, "kind": COPY, "name": "Memcpy HtoD (Pinned -> Device)", "start_ns": end,
                         "end_ns": end + 500 * US})  # fmt: skip
        if on_device:
            calls.append({**launched(start + 20 * US), **number, "op": "all_reduce", "group": "g", "group_size": 2,
                          "seq": step, "bytes": 1 << 20, "start_ns": start + 30 * US, "end_ns": end})  # fmt: skip
        ready = end + (501 if copies else 24) * US
        work.append({**launched(end + 20 * US), **number, "name": "adam", "start_ns": ready,
                     "end_ns": begin + STEP - MS})  # fmt: skip
    return rank_timeline(
        rank, calls=calls, work=work, host=sorted(host, key=lambda each: (each["lane"], each["start_ns"])),
        recordings=[{"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + STEPS * STEP, "host_events": True,
                     "last_launch_ns": max(each["start_ns"] for each in host)}],
        steps=[{"step": n, "start_ns": EPOCH_NS + n * STEP, "end_ns": EPOCH_NS + (n + 1) * STEP} for n in range(STEPS)],
        lanes=[{"label": "7"}, {"label": "20"}, {"kind": HOST, "label": "training"}, {"kind": HOST, "label": "gloo"}],
        annotations=notes,
    )  # fmt: skip


def found(run: Run) -> dict[str, Finding]:
    return {each.id: each for each in analyze(run).findings}


@pytest.mark.parametrize("lane", [TRAINING, WORKER])
def test_a_host_in_a_collective_does_not_pause_and_devices_that_wait_for_it_are_said_to_communicate(lane: int) -> None:
    """The collective lasts 5 ms of a 10 ms step, beside no kernel; the device idles for 4.48 ms of it, between the end
    of the copy to the host and the launch of the one back."""
    job = reducing(lane=lane)
    named = found(job)
    assert "host_pauses" not in named
    evidence = named["host_collectives"].evidence
    assert (evidence["took_ns"], evidence["alone_ns"], evidence["calls"]) == (5 * MS, 5 * MS, 1)
    assert (evidence["operations"], evidence["copies"], evidence["on_devices"]) == (["gloo:all_reduce"], True, False)
    assert named["host_collectives"].severity == "warning"
    text = render(analyze(job))
    assert "No communication of devices, but 5.000 ms of gloo:all_reduce on hosts, was recorded in a 10.000 ms" in text
    assert "those on hosts (gloo) are not paired" in text
    advised = advice(job)
    operation = advised["host_operation"]
    assert operation.title.startswith("Let the devices communicate by themselves, over NCCL or RCCL: hosts are in gloo")
    assert operation.loss_ns == pytest.approx(4_480 * US, rel=0.02)
    assert not {"host_pauses", "launch_bound", "copies_on_compute_stream"} & advised.keys()
    assert "gc" not in " ".join(operation.apply.values())


def test_a_thread_that_waits_for_the_end_of_a_collective_elsewhere_does_not_pause() -> None:
    """It launches nothing until the collective of another thread has ended, and then at once."""
    job = reducing(lane=WORKER, copies=False)
    assert "host_pauses" not in found(job)
    assert advice(job)["host_operation"].loss_ns == pytest.approx(5 * MS, rel=0.02)


def test_what_carries_nothing_from_the_device_is_not_sent_to_it() -> None:
    operation = advice(reducing(copies=False, name="gloo:barrier"))["host_operation"]
    assert operation.title.startswith(
        "Begin communication of the host earlier, or do less of it: hosts are in gloo:bar"
    )


def test_small_messages_between_hosts_are_no_warning_and_no_figure_of_communication() -> None:
    """0.1 ms of a 10 ms step."""
    named = found(reducing(took_ns=100 * US, copies=False, name="gloo:all_gather"))
    assert named["host_collectives"].severity == "info"


def test_a_range_in_which_the_device_communicates_is_none_of_the_host() -> None:
    """MPI and UCC launch kernels."""
    assert "host_collectives" not in found(reducing(name="ucc:all_reduce", on_device=True))
    assert "host_collectives" in found(reducing(name="ucc:all_reduce"))


def test_a_thread_that_goes_on_long_after_a_collective_elsewhere_had_not_waited_for_it() -> None:
    """The collective of another thread ends 2.5 ms in; the training thread launches next at 7 ms: it pauses."""
    job = reducing(lane=WORKER, copies=False)
    for timeline in job.ranks.values():
        timeline.annotations.end_ns[:] -= 4_500 * US
    assert "host_pauses" in found(job)


@pytest.mark.parametrize(("took_us", "number"), [(200, STEPS), (199, 0)])
def test_where_no_thread_is_known_to_make_the_step_only_long_collectives_hold_the_host(
    took_us: int, number: int
) -> None:
    timeline = reducing(took_ns=took_us * US, copies=False).ranks[0]
    assert times_in_host_collectives(timeline, make(HostSpans, 0)).start_ns.size == number
