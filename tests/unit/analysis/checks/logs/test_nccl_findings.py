"""Findings in an NCCL log that a user should act on: each where it belongs, and nowhere else."""

from pathlib import Path

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.ingest.read_run import read_inputs
from tests.conftest import shared_file
from tests.support.writers.nccl_log import VERSIONS, Communicator, Process, call, choice, initialised

NEW = VERSIONS[7]
COMM = Communicator()
TRIO = [Process(rank=rank, device=rank) for rank in range(3)]
IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"


def findings(tmp_path: Path, *lines: str) -> dict[str, Finding]:
    """Return the findings on NCCL of one log, by the part of their id that does not name the case."""
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = analyze(read_inputs([path])).findings
    return {each.id.split(":")[0]: each for each in found if each.id.startswith("nccl_")}


def job(*extra: str, before: dict[int, list[str]] | None = None) -> list[str]:
    """Initialise three processes; `before` holds what each tells while it does."""
    lines = []
    for process in TRIO:
        begin, *rest = initialised(NEW, process, process.rank, 3, COMM)
        lines += [begin, *map(process.line, (before or {}).get(process.rank, [])), *rest]
    return [*lines, *extra]


def made(rank: int, op: str, seq: int, count: int = 64, dtype: int = 7) -> str:
    return TRIO[rank].line(call(op, seq, count, comm=COMM.pointer(rank), nranks=3, dtype=dtype))


def everyone(*seqs: int) -> list[str]:
    return [made(rank, "AllReduce", seq) for seq in seqs for rank in range(3)]


def test_a_sound_job_has_no_findings(tmp_path: Path) -> None:
    lines = [TRIO[0].line(choice("AllReduce", 256))]
    assert findings(tmp_path, *job(*everyone(1, 2, 3), *lines)) == {}


def test_the_real_log_has_no_findings() -> None:
    run = read_inputs([shared_file("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log")])
    assert analyze(run).findings == []


# --- calls that differ ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (made(2, "AllGather", 2), "all_gather of 192 float32 on rank 2"),
        (made(2, "AllReduce", 2, count=65), "all_reduce of 65 float32 on rank 2"),
        (made(2, "AllReduce", 2, dtype=9), "all_reduce of 64 bfloat16 on rank 2"),
    ],
)
def test_calls_that_differ_between_ranks_are_a_finding(odd: str, said: str, tmp_path: Path) -> None:
    lines = [*everyone(1), made(0, "AllReduce", 2), made(1, "AllReduce", 2), odd, *everyone(3)]
    found = findings(tmp_path, *job(*lines))
    assert set(found) == {"nccl_desync"}
    assert said in found["nccl_desync"].title
    assert "all_reduce of 64 float32 on ranks 0, 1" in found["nccl_desync"].title
    assert found["nccl_desync"].evidence["seq"] == 2
    assert found["nccl_desync"].evidence["differing_calls"] == 1
    assert found["nccl_desync"].severity == "warning"


def test_the_first_difference_of_all_ranks_is_named(tmp_path: Path) -> None:
    lines = [
        made(rank, "AllReduce", seq, count=64 + (rank == 1 and seq >= 5) + 2 * (rank == 2 and seq >= 3))
        for seq in range(8)
        for rank in range(3)
    ]
    found = findings(tmp_path, *job(*lines))["nccl_desync"]
    assert found.evidence["seq"] == 3
    assert found.evidence["differing_calls"] == 3 + 5


def test_calls_of_one_number_are_compared_in_their_order(tmp_path: Path) -> None:
    """Before 2.24 the calls of a group share their number."""
    group = [made(rank, "AllReduce", 1, count=count) for rank in range(3) for count in (10, 20, 30)]
    assert findings(tmp_path, *job(*group)) == {}
    counts = {0: (10, 20), 1: (20, 10), 2: (10, 20)}
    swapped = [made(rank, "AllReduce", 1, count=count) for rank, own in counts.items() for count in own]
    assert findings(tmp_path, *job(*swapped))["nccl_desync"].evidence["differing_calls"] == 2


def test_sends_and_receives_may_differ(tmp_path: Path) -> None:
    lines = [made(0, "Send", 1), made(1, "Recv", 1), *(made(at, "AllReduce", seq) for at, seq in enumerate((2, 3, 1)))]
    assert findings(tmp_path, *job(*lines)) == {}


def test_communicators_of_one_name_in_two_logs_are_not_compared(tmp_path: Path) -> None:
    old = VERSIONS[3]
    for name, host in (("a", "node-0"), ("b", "node-1")):
        process = Process(rank=0, host=host)
        lines = [
            *initialised(old, process, 0, 2, COMM),
            process.line(call(f"All{'Reduce' if name == 'a' else 'Gather'}", 1, 5, comm=COMM.pointer(0), nranks=2)),
        ]
        (tmp_path / f"rank{'01'[name == 'b']}.log").write_text("\n".join(lines) + "\n")
    assert [each.id for each in analyze(read_inputs([tmp_path])).findings if each.id.startswith("nccl_")] == []


def test_ranks_of_several_files_are_compared(tmp_path: Path) -> None:
    for process in TRIO:
        lines = [
            *initialised(NEW, process, process.rank, 3, COMM),
            made(process.rank, "AllReduce", 1, count=9 + process.rank // 2),
        ]
        (tmp_path / f"nccl.{process.rank}.log").write_text("\n".join(lines) + "\n")
    found = [each for each in analyze(read_inputs([tmp_path])).findings if each.id.startswith("nccl_desync")]
    assert [each.evidence["calls"] for each in found] == [
        {"all_reduce of 9 float32": [0, 1], "all_reduce of 10 float32": [2]}
    ]


# --- ranks that stop ------------------------------------------------------------------------------------------------


def test_a_rank_that_stops_while_the_others_wait_is_a_warning(tmp_path: Path) -> None:
    found = findings(tmp_path, *job(*everyone(1, 2, 0x1A), made(0, "AllReduce", 0x1B), made(1, "AllReduce", 0x1B)))
    assert set(found) == {"nccl_behind"}
    assert "rank 2 after 1a" in found["nccl_behind"].title
    assert found["nccl_behind"].evidence["last_of"] == {"2": 0x1A}
    assert found["nccl_behind"].severity == "warning"


def test_ranks_that_all_stand_elsewhere_are_a_log_that_ends_in_mid_run(tmp_path: Path) -> None:
    found = findings(
        tmp_path, *job(*everyone(1, 2), made(0, "AllReduce", 3), made(1, "AllReduce", 3), made(0, "AllReduce", 4))
    )
    assert found["nccl_behind"].severity == "info"


def test_a_rank_that_never_calls_is_behind(tmp_path: Path) -> None:
    other = Communicator(id="0x77", pointers={rank: f"0x7{rank}" for rank in range(3)})
    lines = [
        *job(*everyone(1)),
        *(line for process in TRIO for line in initialised(NEW, process, process.rank, 3, other)),
    ]
    lines += [TRIO[rank].line(call("AllReduce", 0, 4, comm=f"0x7{rank}", nranks=3)) for rank in (0, 2)]
    found = findings(tmp_path, *lines)
    assert "rank 1 before the first" in found["nccl_behind"].title


# --- paths ----------------------------------------------------------------------------------------------------------


def net(sender: int, receiver: int, via: str) -> str:
    return f"Channel 00/0 : {sender}[{sender}] -> {receiver}[{receiver}] [send] via NET/{via}"


def test_network_through_host_memory_is_a_finding_for_cards_that_could_do_better(tmp_path: Path) -> None:
    lines = job(before={0: [net(0, 1, "IB/0")], 1: [net(1, 2, "IB/1/GDRDMA")], 2: [net(2, 0, "IBext_v8/0/Shared")]})
    found = findings(tmp_path, *lines)
    assert set(found) == {"nccl_no_gpu_direct"}
    assert found["nccl_no_gpu_direct"].evidence["connections"] == 2
    assert found["nccl_no_gpu_direct"].evidence["network_connections"] == 3
    assert found["nccl_no_gpu_direct"].severity == "warning"
    assert findings(tmp_path, *job(before={0: [net(0, 1, "Socket/0")]})) == {}
    assert findings(tmp_path, *job(before={0: [net(0, 1, "IB/0/GDRDMA")]})) == {}
    fabric = findings(tmp_path, *job(before={0: [net(0, 1, "AWS Libfabric/0")]}))
    assert fabric["nccl_no_gpu_direct"].severity == "info"


def test_devices_that_go_through_host_memory_are_a_finding(tmp_path: Path) -> None:
    shared = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
    found = findings(tmp_path, *job(before={0: [shared, shared.replace("00/0", "01/0")]}))
    assert (set(found), found["nccl_shared_memory"].severity) == ({"nccl_shared_memory"}, "warning")
    assert found["nccl_shared_memory"].evidence["pairs"] == [[0, 1]]
    alone = [line.replace("P2P/IPC", "SHM/direct/direct") for line in job()]
    assert findings(tmp_path, *alone)["nccl_shared_memory"].severity == "info"


def test_sockets_beside_infiniband_are_a_finding(tmp_path: Path) -> None:
    chosen = {rank: ["Using network Socket"] for rank in range(3)}
    found = findings(tmp_path, *job(before={**chosen, 0: [IB, "Using network Socket"]}))
    assert set(found) == {"nccl_socket"}
    assert found["nccl_socket"].evidence["hosts"] == ["node-0.cluster.local"]
    assert findings(tmp_path, *job(before={**chosen, 0: ["NET/IB : No device found.", "Using network Socket"]})) == {}
    assert findings(tmp_path, *job(before={0: [IB, "Using network IB"]})) == {}


def test_mixed_versions_are_a_finding(tmp_path: Path) -> None:
    versions = {rank: [f"NCCL version 2.2{rank // 2}.5+cuda12.4"] for rank in range(3)}
    found = findings(tmp_path, *job(before=versions))
    assert set(found) == {"nccl_mixed_versions"}
    assert set(found["nccl_mixed_versions"].evidence) == {"NCCL 2.20.5+cuda12.4", "NCCL 2.21.5+cuda12.4"}
    assert findings(tmp_path, *job(before={rank: ["NCCL version 2.21.5+cuda12.4"] for rank in range(3)})) == {}


# --- messages -------------------------------------------------------------------------------------------------------


def test_warnings_and_timeouts_are_counted_and_quoted(tmp_path: Path) -> None:
    warned = [
        TRIO[1].warn("Call to connect failed"),
        TRIO[1].warn("Call to connect failed"),
        TRIO[2].warn("Connection timed out"),
    ]
    found = findings(tmp_path, *job(*warned))
    assert set(found) == {"nccl_warnings", "nccl_timeouts"}
    warnings = found["nccl_warnings"]
    assert (warnings.evidence["warnings"], warnings.evidence["different"]) == (2, 1)
    assert (warnings.evidence["first"][0]["rank"], warnings.evidence["first"][0]["times"]) == (1, 2)
    assert "Connection timed out" in found["nccl_timeouts"].title
