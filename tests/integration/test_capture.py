"""`overlapscope.profile` in real processes: it records what happened, changes nothing, and is never in the way."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import overlapscope
from overlapscope.capture.session import HOOK_SEEN_LAST, HOOK_SEEN_LATE
from overlapscope.cli.main import main
from tests.support.fork_server import start
from tests.support.old_torch import needs_fsdp2_without_cuda

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
TIMEOUT_SECONDS = 300
WHOLE_ENDS = ("ddp", "decorated", "failing", "handles_its_end", "sampled")
"""Jobs whose interpreters take all modules apart at their end, as those of users do."""


class Trained(msgspec.Struct):
    """What came of one job."""

    results: list[dict[str, Any] | None]
    codes: list[int]
    stdout: list[str]
    output: list[str]


def train(
    scenario: str,
    folder: Path,
    *,
    world: int = 2,
    mode: str = "events",
    runs: list[Path] | None = None,
    terminate: int | None = None,
    module: str = "tests.integration.jobs.training",
    whole_end: bool = False,
) -> Trained:
    """Run one scenario of training.py (or another module) on `world` processes, each with its run directory.

    The rank `terminate` is sent SIGTERM once it says, by a file beside its answer, that it waits.
    """
    store = folder / f"store-{scenario}-{mode}"
    outs = [folder / f"out-{scenario}-{mode}-{rank}.json" for rank in range(world)]
    job = start(
        [
            ["-m", module, scenario, str(rank), str(world), str(store), str(runs[rank] if runs else folder / "run"),
             mode, str(out)]
            for rank, out in enumerate(outs)
        ],
        whole_end=whole_end or scenario in WHOLE_ENDS,
    )  # fmt: skip
    if terminate is not None:
        job.wait_for(outs[terminate].with_suffix(".waiting"), TIMEOUT_SECONDS)
        time.sleep(1)
        with suppress(ProcessLookupError):  # it ended: its exit code is not that of the signal
            os.kill(job.pids[terminate], signal.SIGTERM)
    ended = job.wait(TIMEOUT_SECONDS)
    results = [json.loads(out.read_text(encoding="utf-8")) if out.exists() else None for out in outs]
    return Trained(
        results=results,
        codes=[each.code for each in ended],
        stdout=[each.stdout for each in ended],
        output=[each.output for each in ended],
    )


def passed(trained: Trained) -> Trained:
    assert trained.codes == [0] * len(trained.codes), trained.output
    return trained


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Trained]]:
    """Return the run of the DDP job on two ranks in a mode, and what the processes said; each trained once."""

    @cache
    def job(mode: str) -> tuple[Path, Trained]:
        folder = tmp_path_factory.mktemp(mode)
        return folder / "run", passed(train("ddp", folder, mode=mode))

    return job


def test_three_ranks_end_with_the_same_bits_with_and_without_us(tmp_path: Path) -> None:
    trained = passed(train("bits", tmp_path, world=3))
    assert trained.results[0]
    for kind, digests in trained.results[0].items():
        assert set(digests) == {"without", "trace", "events"}
        assert len(set(digests.values())) == 1, kind
    assert trained.results[1] == trained.results[2] == trained.results[0]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["events", "trace"])
@pytest.mark.parametrize(
    "scenario",
    ["amounts", "bits", "ddp_hook", "fsdp", "hidden", "late_buffers", "late_groups", "own_transport", "plain",
     "store_timeout", "uneven_pairs"],
)  # fmt: skip
def test_jobs_end_without_an_error_where_their_interpreters_take_all_modules_apart(
    scenario: str, mode: str, tmp_path: Path
) -> None:
    if scenario == "fsdp":
        needs_fsdp2_without_cuda()
    trained = train(scenario, tmp_path, world=3 if scenario == "uneven_pairs" else 2, mode=mode, whole_end=True)
    assert not any("Exception ignored" in each for each in passed(trained).output)


@pytest.mark.parametrize("mode", ["events", "trace"])
def test_every_buckets_size_is_what_ddp_itself_says(mode: str, recorded: Callable[[str], Any]) -> None:
    path, trained = recorded(mode)
    assert trained.results[0]
    run = overlapscope.load(path)
    assert run.ranks == [0, 1]
    said = trained.results[0]["bucket_bytes"]
    for rank in run.ranks:
        assert run.run.ranks[rank].recorded["ddp"]["bucket_bytes"] == said
        calls = run.table("collectives", rank)
        steps = [step.step for step in run.analysis().ranks[rank].steps if step.complete]
        assert len(steps) >= 4
        for step in steps:
            chosen = calls[(calls.step == step) & (calls.op == "all_reduce")].sort_values("launch_ns")
            assert chosen.bytes.tolist() == said


def test_trace_mode_keeps_the_trace_and_the_gradients_in_the_order_they_came(recorded: Callable[[str], Any]) -> None:
    path, _ = recorded("trace")
    run = overlapscope.load(path)
    gradients = run.table("gradients", 0)
    first = gradients[gradients.step == gradients.step.min()].sort_values("order")
    assert first.ready_ns.is_monotonic_increasing
    assert first.name.tolist()[-1] == "module.0.weight"
    assert set(first.elements) == {64, 64 * 64}
    assert len(list((path / "rank_00000").glob("*.pt.trace.json.gz"))) == 1


def test_events_mode_has_phases_collectives_and_a_breakdown_that_adds_up(recorded: Callable[[str], Any]) -> None:
    path, _ = recorded("events")
    run = overlapscope.load(path)
    spans = run.table("spans", 0)
    assert {"forward", "backward", "optimizer"} <= set(spans[spans.kind == "compute"].name)
    assert run.run.ranks[0].basis == "events"
    calls = run.table("collectives", 0)
    assert set(calls.phase) == {"backward"}
    assert (calls.end_ns > calls.start_ns).all()
    for rank in run.analysis().ranks:
        for step in rank.steps:
            parts = (step.overlapped_ns, step.exposed_comm_ns, step.compute_only_ns, step.copy_only_ns, step.idle_ns)
            assert sum(part or 0 for part in parts) == step.window_ns
            assert step.compute_ns


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_tokens_a_second_and_goodput_agree_with_the_jobs_own_timers(mode: str, tmp_path: Path) -> None:
    """Each step took at most the time from before to after its block, and at least the time inside it."""
    trained = passed(train("amounts", tmp_path, mode=mode))
    analysis = overlapscope.load(tmp_path / "run").analysis()
    steps = {each.step for each in analysis.ranks[0].steps if each.complete}
    assert len(steps) >= 3
    assert steps == set(range(min(steps), max(steps) + 1))
    timed = [[each for each in (result or {})["timed"] if each[0] in steps] for result in trained.results]
    tokens = sum(each[1] for rank in timed for each in rank)
    most, least = (
        [sum(each[end] - each[begin] for each in rank) / 1e9 for rank in timed] for begin, end in ((2, 5), (3, 4))
    )
    its = analysis.throughput
    assert its is not None
    assert its.tokens is not None
    assert its.samples is not None
    assert its.flops_per_device is not None
    assert its.tokens.per_step == tokens / len(steps)
    assert 0.999 * tokens / max(most) <= (its.tokens.per_second or 0) <= 1.001 * tokens / max(least)
    assert its.samples.per_step == 32
    assert its.flops_per_device.per_step == 2.5e9
    longest, shortest = (sum(rank[-1][end] - rank[0][begin] for rank in timed) / 1e9 for begin, end in ((2, 5), (3, 4)))
    assert 0.999 * sum(least) / longest <= (its.goodput or 0) <= 1.001 * sum(most) / shortest
    assert its.exposed_gpu_hours_a_day is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_amounts_that_are_none_are_warnings_and_never_reach_training(mode: str, tmp_path: Path) -> None:
    trained = passed(train("bad_amounts", tmp_path, world=1, mode=mode))
    assert trained.results[0]
    failures = [each for each in trained.results[0]["failures"] if "tokens" in each]
    assert {each.rpartition("this ")[2] for each in failures} >= {"int", "float", "str", "bool", "Tensor", "list"}
    its = overlapscope.load(tmp_path / "run").analysis().throughput
    assert its is not None
    assert its.tokens is None
    assert its.samples is not None
    assert its.samples.per_step == 4


def test_the_users_own_communication_hook_keeps_working(tmp_path: Path) -> None:
    trained = passed(train("ddp_hook", tmp_path))
    without = passed(train("ddp_hook", tmp_path, mode="without"))
    assert trained.results == without.results
    assert len(overlapscope.load(tmp_path / "run").table("collectives", 0)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_transfers_of_a_hook_are_recorded_in_both_modes(mode: str, tmp_path: Path) -> None:
    trained = passed(train("ddp_hook", tmp_path, mode=mode))
    assert trained.results[0]
    run = overlapscope.load(tmp_path / "run")
    for rank in run.run.ranks.values():
        assert rank.recorded["failures"] == []
    calls, steps = run.table("collectives", 0), run.table("steps", 0).step
    for step in steps:
        sent = calls[(calls.step == step) & (calls.op == "all_reduce")].sort_values("launch_ns").bytes.tolist()
        assert sent == [each for each in trained.results[0]["bucket_bytes"] for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "said"),
    [
        pytest.param("ddp_hook_at_once", HOOK_SEEN_LATE, marks=pytest.mark.long),
        ("ddp_hook_of_one_step", HOOK_SEEN_LAST),
    ],
)
def test_a_trace_that_began_before_the_hook_was_known_says_so(job: str, said: str, tmp_path: Path) -> None:
    passed(train(job, tmp_path, mode="trace"))
    for rank in overlapscope.load(tmp_path / "run").run.ranks.values():
        assert rank.recorded["failures"] == [said]


@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_fsdp2_gathers_and_scatters_are_recorded(mode: str, tmp_path: Path) -> None:
    needs_fsdp2_without_cuda()
    passed(train("fsdp", tmp_path, mode=mode))
    run = overlapscope.load(tmp_path / "run")
    calls = run.table("collectives", 0)
    assert {"all_gather", "reduce_scatter"} <= set(calls.op)
    layer = 64 * 64 + 64
    assert layer * 4 in set(calls[calls.op == "all_gather"].bytes)
    if mode == "events":
        assert {"0", "2"} <= set(calls.module.dropna())


@pytest.mark.slow
def test_plain_collectives_of_two_groups_are_kept_apart(tmp_path: Path) -> None:
    passed(train("plain", tmp_path))
    run = overlapscope.load(tmp_path / "run")
    calls = run.table("collectives", 0)
    step = calls[calls.step == calls.step.max()]
    assert step.op.tolist() == ["all_reduce", "all_reduce", "all_gather", "broadcast"]
    assert step.bytes.tolist() == [4000, 4000, 80, 4000]
    assert step.group.nunique() == 2
    described = {group.name: group.description for group in run.run.groups}
    assert "pair" in described.values()
    notes = run.table("annotations", 0)
    assert {"data", "comm:own transport"} <= set(notes.name)


@pytest.mark.slow
def test_calls_are_numbered_alike_on_every_rank_unless_members_exchange_in_pairs(tmp_path: Path) -> None:
    passed(train("uneven_pairs", tmp_path, world=3))
    run = overlapscope.load(tmp_path / "run")
    described = {group.name: group.description for group in run.run.groups}
    tables = [run.table("collectives", rank) for rank in run.ranks]
    of_all = [calls[[described[name] not in ("pairs", "last") for name in calls.group]] for calls in tables]
    assert of_all[0].seq.tolist() == of_all[1].seq.tolist() == of_all[2].seq.tolist()
    assert of_all[0].seq.notna().all()
    assert all(calls[calls.op == "all_reduce"].seq.isna().any() for calls in tables[:2])
    # Rank 2 has seen no pair, but its numbers can't be those of the others: nothing is paired by them.
    of_world = [row for row in run.analysis().collectives if described[row.group or ""] not in ("pairs", "last")]
    assert all(row.estimate == "matched" for row in of_world)


@pytest.mark.slow
def test_a_message_is_recorded_with_the_rank_of_the_world_that_it_goes_to_or_comes_from(tmp_path: Path) -> None:
    passed(train("uneven_pairs", tmp_path, world=3))
    run = overlapscope.load(tmp_path / "run")
    described = {group.name: group.description for group in run.run.groups}
    found = set()
    for rank in run.ranks:
        calls = run.table("collectives", rank)
        calls = calls[calls.op.isin(("send", "recv"))]
        peers = [None if missing else int(peer) for peer, missing in zip(calls.peer, calls.peer.isna(), strict=True)]
        found |= set(zip([rank] * len(calls), calls.op, [described[name] for name in calls.group], peers, strict=True))
    assert found == {
        (0, "send", "pairs", 1), (1, "recv", "pairs", 0), (1, "send", "last", 2), (2, "recv", "last", None),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_a_wait_for_the_buffers_of_ddp_is_no_compute(mode: str, tmp_path: Path) -> None:
    passed(train("late_buffers", tmp_path, mode=mode))
    analysis = overlapscope.load(tmp_path / "run").analysis()
    steps = [step for step in analysis.ranks[1].steps if step.complete]
    assert len(steps) >= 2
    for step in steps[1:]:  # the first may have been waited for before all recorded
        assert (step.exposed_comm_ns or 0) >= 0.7 * 60_000_000
        assert (step.compute_ns or 0) <= 0.3 * (step.window_ns or 0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_communication_that_torch_does_not_know_of_counts_alike_in_both_modes(mode: str, tmp_path: Path) -> None:
    passed(train("own_transport", tmp_path, world=1, mode=mode))
    run = overlapscope.load(tmp_path / "run")
    spans = run.table("spans", 0)
    marked = spans[spans.kind == "comm"]
    assert set(marked.name) == {"own transport"}
    steps = [step for step in run.analysis().ranks[0].steps if step.complete]
    assert len(steps) >= 2
    for step in steps:
        own = marked[marked.step == step.step]
        assert (own.end_ns - own.start_ns).sum() == step.comm_ns == step.exposed_comm_ns
        assert step.comm_ns > 50_000_000  # what the region slept
        assert step.compute_ns


@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_a_users_exception_passes_through_unchanged_and_the_run_is_kept(mode: str, tmp_path: Path) -> None:
    trained = passed(train("failing", tmp_path, world=1, mode=mode))
    assert trained.results == [{"error": "the user's own", "notes": 0}]
    run = overlapscope.load(tmp_path / "run")
    assert run.run.ranks[0].recorded["complete"] is False
    assert any("ZeroDivisionError" in warning for source in run.sources for warning in source.warnings)


def test_a_killed_rank_leaves_the_others_readable_and_is_named_missing(tmp_path: Path) -> None:
    trained = train("killed", tmp_path, world=3)
    assert trained.codes[2] == -9
    run = overlapscope.load(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.run.missing_ranks == (2,)
    assert "missing  1 rank: 2" in trained.stdout[0], trained.output
    assert len(run.table("steps", 0)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_termination_writes_the_run_and_ends_the_process_all_the_same(mode: str, tmp_path: Path) -> None:
    trained = train("terminated", tmp_path, world=1, mode=mode)
    assert trained.codes == [-15]
    run = overlapscope.load(tmp_path / "run")
    assert len(run.table("steps", 0)) >= 4
    assert "terminated" in str(run.run.ranks[0].recorded["failures"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_a_job_that_handles_termination_itself_goes_on_to_its_own_end(mode: str, tmp_path: Path) -> None:
    trained = passed(train("handles_its_end", tmp_path, world=1, mode=mode))
    assert trained.results == [{"signals": [15], "after": 3}]
    assert "Traceback" not in trained.output[0]
    assert len(overlapscope.load(tmp_path / "run").table("steps", 0)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_termination_ends_a_rank_that_hangs_in_a_collective_and_keeps_its_run(mode: str, tmp_path: Path) -> None:
    trained = train("hanging", tmp_path, mode=mode, terminate=0)
    assert trained.codes[0] == -15, trained.output
    run = overlapscope.load(tmp_path / "run")
    assert len(run.table("steps", 0)) >= 2
    assert "terminated" in str(run.run.ranks[0].recorded["failures"])


@pytest.mark.slow
def test_the_jobs_own_store_keeps_its_timeout(tmp_path: Path) -> None:
    for result in passed(train("store_timeout", tmp_path)).results:
        assert result
        assert result["after"] == result["before"]


@pytest.mark.slow
def test_an_older_run_in_the_same_place_leaves_no_rank_behind(tmp_path: Path) -> None:
    passed(train("ddp", tmp_path, world=2))
    older = tmp_path / "run" / "rank_00001"
    assert older.is_dir()
    mine = tmp_path / "run" / "rank_notes" / "mine.txt"
    for file in (mine, tmp_path / "run" / "facts" / "links.parquet", tmp_path / "run" / "predictions.json"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}", encoding="utf-8")
    passed(train("decorated", tmp_path, world=1))
    assert overlapscope.load(tmp_path / "run").ranks == [0]
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == ["rank_00000", "rank_notes", "run.json"]
    assert mine.is_file()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_ranks_are_known_though_the_job_makes_its_groups_inside_the_profile(mode: str, tmp_path: Path) -> None:
    trained = passed(train("late_groups", tmp_path, mode=mode))
    run = overlapscope.load(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.run.world_size == 2
    assert "2 of 2 ranks" in trained.output[0]
    assert all(len(run.table("collectives", rank)) >= 2 for rank in run.ranks)


@pytest.mark.slow
def test_ranks_agree_which_steps_are_recorded(tmp_path: Path) -> None:
    first, second = passed(train("sampled", tmp_path)).results
    assert first == second
    (_, every), (measured, until_agreed), (since, agreed) = first["sampled"]
    assert (every, measured, until_agreed, agreed) == (
        1,
        67,
        16,
        7,
    )  # after one step of warm-up; what the rank needs that needs most
    run = overlapscope.load(tmp_path / "run")
    steps = [run.table("steps", rank).step.tolist() for rank in run.ranks]
    assert steps[0] == steps[1]
    assert len([step for step in steps[0] if step >= since]) == pytest.approx((501 - since) / 7, abs=1)
    assert run.analysis().skew.matched == len(steps[0])


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(overlapscope.UsageError, match="neither empty nor a run"):
        overlapscope.profile(tmp_path, mode="events").__enter__()


@pytest.mark.slow
def test_collectives_that_do_not_block_are_hidden_not_exposed(tmp_path: Path) -> None:
    trained = passed(train("hidden", tmp_path))
    for rank in overlapscope.load(tmp_path / "run").analysis().ranks:
        result = trained.results[rank.rank]
        assert result
        steps = [step for step in rank.steps if step.comm_ns]
        assert steps
        for step in steps:
            # What is exposed, the training thread stood still for, or had no core: never longer.
            assert step.exposed_comm_ns is not None
            assert step.exposed_comm_ns <= result["stood_ns"][step.step]
        assert any(step.overlapped_ns for step in steps)


@pytest.mark.slow
def test_a_full_disk_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here: no right to mount")
    try:
        trained = passed(train("ddp", tmp_path, mode="trace", runs=[small / "run"] * 2))
        assert all(result and result["digest"] for result in trained.results)
        assert "CaptureWarning" in trained.output[0]
        assert "Traceback" not in "".join(trained.output)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_unwritable_place_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    trained = passed(train("ddp", tmp_path, runs=[blocked / "run"] * 2))
    assert "CaptureWarning" in trained.output[0]
    assert "Traceback" not in "".join(trained.output)


@pytest.mark.slow
def test_without_a_shared_file_system_rank_0_has_every_ranks_columns(tmp_path: Path) -> None:
    places = [tmp_path / "host0" / "run", tmp_path / "host1" / "run"]
    trained = passed(train("ddp", tmp_path, runs=places))
    assert "events of 2 of 2 ranks" in trained.output[0]
    assert overlapscope.load(places[0]).ranks == [0, 1]


@pytest.mark.slow
def test_as_a_decorator_each_call_is_a_step_and_the_exit_writes_the_run(tmp_path: Path) -> None:
    trained = passed(train("decorated", tmp_path, world=1))
    assert trained.results[0]
    assert len(trained.results[0]["losses"]) == 6
    assert overlapscope.load(tmp_path / "run").table("steps", 0).step.tolist() == [1, 2, 3, 4, 5]


def test_the_summary_is_short_puts_exposed_time_first_and_names_the_next_command(
    recorded: Callable[[str], Any], tmp_path: Path
) -> None:
    path, trained = recorded("events")
    lines = [line for line in trained.stdout[0].splitlines() if line]
    assert len(lines) <= 15
    figures = [line for line in lines if not line.startswith("    ")]  # without remarks on one of them
    assert figures[1].startswith("  step")
    assert figures[2].startswith("  exposed")
    assert figures[3].startswith("  waiting")
    assert lines[-1].startswith("next: overlapscope analyze ")
    assert main(["analyze", str(path), "-o", str(tmp_path / "table")]) == 0


def test_a_step_inside_a_step_says_what_was_meant(tmp_path: Path) -> None:
    with overlapscope.profile(tmp_path / "run", mode="events", warmup=0) as scope, scope.step():  # noqa: SIM117
        with pytest.raises(overlapscope.UsageError, match="step inside a step"):
            scope.step().__enter__()


def test_a_profile_entered_twice_says_what_was_meant(tmp_path: Path) -> None:
    scope = overlapscope.profile(tmp_path / "run", mode="events", warmup=0)
    with scope:
        with pytest.raises(overlapscope.UsageError, match=r"did you mean `with scope\.step\(\):`"):
            scope.__enter__()
        with pytest.raises(overlapscope.UsageError, match="leave it first"):
            overlapscope.profile(tmp_path / "other", mode="events").__enter__()
        with scope.step():
            pass
    with pytest.raises(overlapscope.UsageError, match="make a new one"):
        scope.__enter__()


def test_no_step_at_all_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    from overlapscope.capture.lifecycle.guard import CaptureWarning

    with (
        pytest.warns(CaptureWarning, match=r"with scope\.step\(\)"),
        overlapscope.profile(tmp_path / "run", mode="events"),
    ):
        pass


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(overlapscope.UsageError, match="'trace' or 'events'"):
        overlapscope.profile(tmp_path / "run", mode="both")  # type: ignore[arg-type]
    with pytest.raises(overlapscope.UsageError, match="repeat > steps"):
        overlapscope.profile(tmp_path / "run", steps=4, repeat=4)


def test_when_the_profile_is_closed_torch_is_as_it_was(tmp_path: Path) -> None:
    import torch
    from torch import distributed

    def everything() -> list[object]:
        return [
            torch.autograd.backward,
            distributed.destroy_process_group,
            distributed.distributed_c10d.destroy_process_group,
            distributed.Work.wait,
            torch.autograd.profiler.record_function.__enter__,
            torch.autograd.profiler.record_function.__exit__,
        ]

    before = everything()
    model = torch.nn.Linear(2, 2)
    with overlapscope.profile(tmp_path / "run", model=model, mode="events", warmup=0) as scope, scope.step():
        model(torch.ones(2)).sum().backward()
    assert everything() == before
    assert not model._forward_pre_hooks
