"""What is recommended of NCCL and its links: by log, by version, and only where the source tells."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.nccl_settings import Library, fewer_channels, tuner_lines, version_of, without_algorithm
from overlapscope.advice.network import asking_for_network
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reference_bandwidth import reference_bandwidths
from overlapscope.timeline.columns import NONE, make
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.run import Run
from tests.support.step_cases import Kernel, Sent, made
from tests.unit.analysis.checks.links.test_possible_bandwidth import MIB, running_at
from tests.unit.analysis.checks.links.test_slow_link import connected
from tests.unit.analysis.checks.logs.test_nccl_findings import IB, job, net

NEW = Library(version=(2, 27, 7), torch=(2, 8, 0))


def of_log(tmp_path: Path, *lines: str) -> dict[str, Recommendation]:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return of_run(read_inputs([path]))


def of_run(run: Run, bandwidth: Facts | None = None) -> dict[str, Recommendation]:
    together = match_and_align(run)
    return {each.id: each for each in by_rules(run, analyze(run, together, bandwidth), together)}


# --- the network ----------------------------------------------------------------------------------------------------


def test_sockets_beside_infiniband_come_with_what_to_set_and_how_to_see_it(tmp_path: Path) -> None:
    chosen = {rank: ["Using network Socket"] for rank in range(3)}
    found = of_log(tmp_path, *job(before={**chosen, 0: [IB, "Using network Socket"]}))
    assert list(found) == ["use_infiniband"]
    assert "NCCL_IB_DISABLE" in found["use_infiniband"].apply["nccl_variables"]
    assert "NCCL_DEBUG=INFO" in found["use_infiniband"].verify
    assert found["use_infiniband"].gain_high_ns is None  # a log holds no times
    assert of_log(tmp_path, *job(before={0: [IB, "Using network IB"]})) == {}


def test_missing_gpu_direct_comes_with_the_driver_to_load(tmp_path: Path) -> None:
    found = of_log(tmp_path, *job(before={0: [net(0, 1, "IB/0")]}))
    assert list(found) == ["use_gpu_direct"]
    assert "nvidia-peermem" in found["use_gpu_direct"].apply["driver"]
    assert of_log(tmp_path, *job(before={0: [net(0, 1, "IB/0/GDRDMA")]})) == {}
    # That cards of other fabrics can do it is not known.
    assert of_log(tmp_path, *job(before={0: [net(0, 1, "AWS Libfabric/0")]})) == {}


def test_a_slow_link_is_named_and_no_setting_is_offered_for_it() -> None:
    found = of_run(connected({(0, 1): 20, (1, 2): 18, (2, 0): 600}))["repair_link"]
    assert "rank 1" in found.title
    assert (found.verdict, found.gain_high_ns) == ("look", None)
    assert "repair_link" not in of_run(connected({(0, 1): 600, (1, 2): 900, (2, 0): 500}))


def on_hosts(
    devices: Sequence[str], *, finding: str | None = None, backend: str = "nccl", unsplit: float = 0, **row: object
) -> dict[str, Recommendation]:
    """Return what is recommended for ranks, by the number of the device that each uses, whose reductions of 64 MiB
    over all take 400 us of a step of 1 ms beside nothing; `row` is what their rows are changed to, and the share
    `unsplit` of what they are exposed is of calls that were not matched."""
    call = Sent(start=500, end=900, launch=90, size_bytes=64 * MIB)
    run = made(lambda _: [Kernel(start=0, end=500), call, Kernel(start=900, end=990)], ranks=len(devices))
    ranks = {}
    for rank, each in run.ranks.items():
        process = np.full_like(each.lanes.process, len(each.names))
        ranks[rank] = replace(each, names=(*each.names, devices[rank]), lanes=replace(each.lanes, process=process))
    run = replace(run, ranks=ranks, fingerprint={**run.fingerprint, "backend": backend})
    together = match_and_align(run)
    analysis = analyze(run, together)
    found = by_rules(run, analysis, together)
    rows = [replace(each, **row) for each in analysis.collectives]
    if unsplit:
        parts = ((1 - unsplit, {}), (unsplit, {"estimate": "upper_bound"}))
        rows = [
            replace(each, exposed_ns=round(share * (each.exposed_ns or 0)), **more)
            for each in rows
            for share, more in parts
        ]
    analysis = replace(analysis, collectives=rows)
    if finding is not None:
        analysis.findings.append(Finding(id=finding, severity="warning", title="", evidence={}, known_from="trace"))
    return {
        each.id: each
        for each in asking_for_network(
            [replace(each, apply={}) for each in found], RuleInput.of(run, analysis, together)
        )
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "more", "asks"),
    [
        pytest.param("0101", {}, True, id="each host numbers its devices"),
        pytest.param("0123", {}, False, id="one host"),
        pytest.param("0000", {}, False, id="each rank may see one device alone"),
        pytest.param("0101", {"finding": "slow_link:rank1"}, False, id="a link is named"),
        pytest.param("0101", {"backend": "hccl"}, False, id="another library"),
    ],
)
def test_what_is_exposed_across_hosts_asks_for_the_network(devices: str, more: dict[str, str], *, asks: bool) -> None:
    found = on_hosts(devices, **more)
    assert ("network" in found["exposed_communication"].apply) == asks
    if asks:
        words = "calls across hosts take 0.4 ms of a step beside which nothing is computed, at 252 GB/s on the bus: is"
        assert words in found["exposed_communication"].apply["network"]
    assert sum("network" in each.apply for each in found.values()) == asks, "once"


def test_bounds_are_no_rate_and_hold_waiting() -> None:
    asked = on_hosts("0101", estimate="upper_bound")["exposed_communication"].apply["network"]
    assert "calls across hosts take 0.4 ms, waiting included, of a step beside which nothing is computed: is" in asked


@pytest.mark.parametrize(("share", "waits"), [(0.04, False), (0.06, True)])
def test_waiting_counts_where_calls_that_are_not_split_are_much_of_them(share: float, *, waits: bool) -> None:
    asked = on_hosts("0101", unsplit=share)["exposed_communication"].apply["network"]
    assert (", waiting included," in asked) == waits


def test_calls_that_name_no_group_are_not_said_to_be_across_hosts() -> None:
    assert "network" not in on_hosts("0101", group=None)["exposed_communication"].apply


# --- the algorithm --------------------------------------------------------------------------------------------------


def chosen(run: Run, algorithm: str | None, *, channels: int = 16, version: str = "2.27.7") -> Run:
    """Return the run as NCCL's log would have it beside the trace."""
    ranks = {}
    for rank, each in run.ranks.items():
        names = (*each.names, "the algorithm" if algorithm is None else algorithm)
        code = -1 if algorithm is None else len(names) - 1
        calls = replace(each.collectives, algorithm=np.full(each.collectives.op.size, code, np.int32))
        ranks[rank] = replace(each, names=names, collectives=calls)
    members = make(Members, 1, collective_channels=channels)
    return replace(run, ranks=ranks, facts=Facts(names=("x",), members=members),
                   fingerprint={"backend": "nccl", "nccl_version": version})  # fmt: skip


def test_slow_all_reduces_whose_algorithm_is_known_give_a_trial_without_a_figure() -> None:
    table = reference_bandwidths("8xh100-nvswitch")
    found = of_run(chosen(running_at(100), "TREE"), table)["algorithm_trial"]
    assert (found.verdict, found.predicted_gain_ns, found.gain_high_ns) == ("trial", None, None)
    assert "without TREE" in found.title
    assert found.evidence["busbw_gbs"] == pytest.approx(100, rel=1e-3)
    assert found.apply["nccl_variables"] == 'NCCL_ALGO="allreduce:^tree"'
    assert "allreduce,65536,18446744073709551615,ring,simple,16,-1,-1" in found.apply["nccl_tuner"]


def test_channels_of_calls_serve_where_no_communicator_tells_its_own() -> None:
    run = chosen(running_at(100), "TREE", channels=NONE)
    ranks = {
        rank: replace(each, collectives=replace(each.collectives, channels=np.full_like(each.collectives.channels, 24)))
        for rank, each in run.ranks.items()
    }
    table = reference_bandwidths("8xh100-nvswitch")
    assert "nccl_tuner" not in of_run(run, table)["algorithm_trial"].apply  # one channel, were it left open
    tuner = of_run(replace(run, ranks=ranks), table)["algorithm_trial"].apply["nccl_tuner"]
    assert "allreduce,65536,18446744073709551615,ring,simple,24,-1,-1" in tuner


def test_what_is_fast_or_not_known_or_has_no_other_algorithm_gets_no_trial() -> None:
    table = reference_bandwidths("8xh100-nvswitch")
    assert "algorithm_trial" not in of_run(chosen(running_at(300), "TREE"), table)
    assert "algorithm_trial" not in of_run(chosen(running_at(100), None), table)
    assert "algorithm_trial" not in of_run(chosen(running_at(100), "TREE"))
    assert "algorithm_trial" not in of_run(chosen(running_at(100, op="all_gather"), "RING"), table)
    other = replace(chosen(running_at(100), "TREE"), fingerprint={"backend": "hccl"})
    assert "algorithm_trial" not in of_run(other, table)


def test_where_waiting_dominates_no_algorithm_is_suggested() -> None:
    run = chosen(running_at(100, volume=64 * MIB), "TREE")
    first = run.ranks[0].collectives
    spent = int(first.end_ns[0] - first.start_ns[0])
    waits = {  # all but rank 7 are there ten transfers earlier
        rank: each if rank == 7 else replace(
            each, collectives=replace(each.collectives, start_ns=each.collectives.start_ns - 10 * spent)
        )
        for rank, each in run.ranks.items()
    }  # fmt: skip
    found = of_run(replace(run, ranks=waits), reference_bandwidths("8xh100-nvswitch"))
    assert list(found) == ["late_rank"]
    assert found["late_rank"].evidence["rank"] == 7


# --- settings by version --------------------------------------------------------------------------------------------


def test_channels_are_set_per_communicator_before_the_whole_process() -> None:
    found = fewer_channels(NEW, 8)
    assert list(found) == ["nccl_communicator", "megatron", "nccl_variables"]
    assert "options.config.max_ctas = 8" in found["nccl_communicator"]
    assert found["nccl_variables"].startswith("NCCL_MAX_CTAS=8 ")
    assert "NCCL_MAX_NCHANNELS" in fewer_channels(Library(), 8)["nccl_variables"]


def test_libraries_without_a_setting_get_the_older_one() -> None:
    old = fewer_channels(Library(version=(2, 14, 3), torch=(1, 13, 1)), 8)
    assert list(old) == ["nccl_variables"]
    assert old["nccl_variables"].startswith("NCCL_MAX_NCHANNELS=8 ")
    assert "nccl_communicator" not in fewer_channels(Library(version=(2, 18, 3), torch=(2, 0, 1)), 8)
    rccl = fewer_channels(Library(version=(2, 22, 3), is_rccl=True), 8)
    assert rccl["nccl_variables"].startswith("NCCL_MAX_NCHANNELS=8 ")


def test_one_operation_is_selected_only_since_2_24() -> None:
    before = without_algorithm(Library(version=(2, 21, 5)), "all_reduce", "RING", 16)
    assert before["nccl_variables"].startswith("NCCL_ALGO=^ring ")
    assert "allreduce:^nvlstree" in without_algorithm(NEW, "all_reduce", "NVLS_TREE", 16)["nccl_variables"]
    assert "nccl_tuner" not in before
    assert "nccl_tuner" not in without_algorithm(NEW, "all_reduce", "RING", None)  # one channel, were it left open


@pytest.mark.parametrize("function", ["allreduce", "reducescatter"])
def test_a_tuners_file_covers_every_size_of_every_operation_with_its_channels(function: str) -> None:
    """The example plugin reads it so: the first line that matches counts, and none at all means one channel."""
    rows = [line.split(",") for line in tuner_lines(function, "tree", 12) if not line.startswith("#")]
    for name in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce"):
        own = [row for row in rows if row[0] == name]
        for size in (0, 1, 65_535, 65_536, 2**32, 2**33 + 1, 2**64 - 1):
            first = next(row for row in own if int(row[1]) <= size <= int(row[2]))
            assert int(first[5]) == 12
            assert first[3] == ("tree" if name == function else "ring")
            assert first[4] in ("ll", "simple")  # never LL128
    assert all(len(line) < 256 for line in tuner_lines(function, "tree", 12))


def test_the_library_is_known_from_the_log_or_the_trace() -> None:
    run = Run(world_size=1, ranks={}, fingerprint={"backend": "nccl", "nccl_version": "2.22.3"})
    assert Library.of(run) == Library(version=(2, 22, 3))
    rocm = Library.of(replace(run, fingerprint={**run.fingerprint, "hip_runtime_version": 60443483}))
    assert rocm is not None
    assert rocm.is_rccl
    members = make(Members, 1, library=0)
    logged = replace(run, fingerprint={}, facts=Facts(names=("NCCL 2.21.5+cuda12.4",), members=members))
    assert Library.of(logged) == Library(version=(2, 21, 5))
    assert Library.of(Run(world_size=1, ranks={}, fingerprint={"backend": "gloo"})) is None
    assert version_of("2.13.0+cpu") == (2, 13, 0)
    assert version_of("unknown") == ()
