"""Lines of c10d's watchdog, in all shapes since torch 1.13, wherever they stand in a log."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.errors import InputError
from overlapscope.ingest.formats import watchdog
from overlapscope.ingest.formats.watchdog import FORMAT
from overlapscope.ingest.formats.watchdog.lines import watchdog_lines
from overlapscope.ingest.formats.watchdog.reader import Watchdog, read_watchdog
from overlapscope.ingest.read_file import read_file
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import NONE, enum_values, size
from overlapscope.timeline.facts import Facts, Messages
from tests.conftest import ROOT
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import read_or_refuse, recognises

HEAD = "[rank{rank}]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607]"
NO_RANK = "[E ProcessGroupNCCL.cpp:737]"
DEFAULT_GROUP = "PG ID 0 PG GUID 0(default_pg)"


SIZES = "NumelIn=64, NumelOut=64, "


def caught(
    seq: int, op: str = "ALLREDUCE", *, rank: int = 0, member: int | None = None, sizes: str = SIZES, head: str = HEAD
) -> str:
    return (
        f"{head.format(rank=rank)} [Rank {rank if member is None else member}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, {sizes}Timeout(ms)=600000) ran for 600061 milliseconds before "
        "timing out."
    )


def failed(rank: int, seq: int, enqueued: int, completed: int, group: str = DEFAULT_GROUP) -> str:
    return (
        f"[rank{rank}]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:2271] [{group} Rank {rank}]  failure detected by "
        f"watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, "
        f"last completed work: {completed}"
    )


def notified(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E626 06:24:45.1 ProcessGroupNCCL.cpp:1746] [{DEFAULT_GROUP} Rank {rank}] Received a dump "
        "signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. "
        f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is most likely caused by "
        "incorrect usages of collectives"
    )


def facts_of(*text: str | bytes) -> Facts:
    watchdog = Watchdog()
    for number, line in enumerate(text, 1):
        watchdog.take(number, line if isinstance(line, bytes) else line.encode())
    return watchdog.facts("job.log")


def progress_of(facts: Facts) -> list[dict[str, Any]]:
    table = spelled(facts.progress, facts.names)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def kinds(facts: Facts) -> list[str]:
    return [enum_values(Messages, "kind")[code] for code in facts.messages.kind]


def findings_of(tmp_path: Path, *text: str) -> list[Finding]:
    path = tmp_path / "job.log"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return analyze(read_inputs([path])).findings


# --- shapes ----------------------------------------------------------------------------------------------------------


OLD = "last enqueued NCCL work: 8, last completed NCCL work:"
EXCEPTION = "Exception (either an error or timeout) detected by watchdog at work: 5"
FAILURE = " failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 8,"


@pytest.mark.parametrize(
    ("stamp", "who", "message", "group", "numbers"),
    [
        ("E ProcessGroupNCCL.cpp:1537", "PG 0 Rank 3", f"Timeout at NCCL work: 5, {OLD} 4.", "0", (8, None, 4)),
        ("E ProcessGroupNCCL.cpp:1537", "PG 2 Rank 1", f"Timeout at NCCL work: 5, {OLD} 4.", "PG 2", (8, None, 4)),
        ("E ProcessGroupNCCL.cpp:1537", "PG 0 Rank 3", f"Timeout at NCCL work: 5, {OLD} 76280750235782912.", "0",
         (8, None, None)),
        ("E1003 18:37:01.833575187 ProcessGroupNCCL.cpp:1664", "PG 0 (default_pg) Rank 3", f"{EXCEPTION}, {OLD} 4.",
         "0", (8, None, 4)),
        ("E219 08:58:32.606667496 ProcessGroupNCCL.cpp:1785", "PG ID 2 PG GUID 37(TENSOR_MODEL_PARALLEL_GROUP) Rank 1",
         f"{EXCEPTION}, {OLD} 4.", "37", (8, None, 4)),
        ("E911 01:02:03.4 ProcessGroupNCCL.cpp:2271", f"{DEFAULT_GROUP} Rank 3", f"{FAILURE} last completed work: -1",
         "0", (8, None, 0)),
        ("E911 01:02:03.4 ProcessGroupNCCL.cpp:2395", f"{DEFAULT_GROUP} Rank 3",
         f"{FAILURE} last started work: 6 (_ALLGATHER_BASE), last completed work: 4", "0", (8, 6, 4)),
        ("E911 01:02:03.4 ProcessGroupNCCL.cpp:2395", f"{DEFAULT_GROUP} Rank 3",
         f"{FAILURE} last started work: -1, last completed work: 4", "0", (8, None, 4)),
        ("E911 01:02:03.4 ProcessGroupXCCL.cpp:95", f"{DEFAULT_GROUP} Rank 3", f"{FAILURE} last completed work: 4", "0",
         (8, None, 4)),
    ],
)  # fmt: skip
def test_the_state_of_a_group_is_read_in_every_shape(
    stamp: str, who: str, message: str, group: str, numbers: tuple[int | None, ...]
) -> None:
    (row,) = progress_of(facts_of("Epoch 1", f"[rank3]:[{stamp}] [{who}] {message}"))
    assert (row["rank"], row["group"], row["pending"]) == (3, group, 5)
    assert (row["enqueued"], row["started"], row["completed"]) == numbers
    assert row["backend"] == ("xccl" if "XCCL" in stamp else "nccl")


@pytest.mark.parametrize(
    "line",
    [
        caught(5, rank=3),
        caught(5, rank=3, head="[rank{rank}]:[E ProcessGroupNCCL.cpp:523]"),
        caught(5, rank=3, head=NO_RANK),
        "  3%|###  | 12/400 [00:31<12:01,  1.37it/s, loss=[2.6]]" + caught(5, rank=3),
        "[80746] " + caught(5, rank=3),
        "[default1]:" + caught(5, rank=3),
        "\x1b[36m(RayWorkerWrapper pid=4009, ip=10.0.0.1)\x1b[0m " + caught(5, rank=3),
        "2024-12-06T18:44:12Z stderr F " + caught(5, rank=3) + "\r",
    ],
)
def test_a_timeout_is_found_anywhere_in_a_line(line: str) -> None:
    facts = facts_of("", line)
    (row,) = progress_of(facts)
    assert (row["rank"], row["stuck_at"], row["op"], row["elements"]) == (3, 5, "all_reduce", 64)
    assert row["timeout_ns"] == 600_000_000_000
    assert (facts.messages.line.tolist(), kinds(facts)) == ([2], ["timeout"])
    assert spelled(facts.messages, facts.names)["text"][0].startswith(
        "[Rank 3] Watchdog caught collective operation timeout"
    )


def test_messages_of_several_ranks_on_one_line_are_apart() -> None:
    """As a launcher writes them that loses line ends."""
    line = " ".join((caught(5), failed(0, 5, 6, 4), caught(9, rank=1), failed(1, 9, 9, 8)))
    found = [(row["rank"], row["stuck_at"], row["enqueued"]) for row in progress_of(facts_of(line))]
    assert found == [(0, 5, 6), (1, 9, 9)]


def test_the_time_of_a_line_is_left_missing() -> None:
    """E1206 18:44:12 has no year, and E111 may be 11 January or 1 November."""
    assert facts_of(caught(5)).messages.time_ns.tolist() == [NONE]


def test_the_collective_is_joined_to_its_group_by_rank_and_number() -> None:
    call = caught(7, "_REDUCE_SCATTER_BASE", sizes="NumelIn=80, NumelOut=10, ")
    (row,) = progress_of(facts_of(call, failed(0, 7, 9, 6)))
    assert (row["group"], row["op"], row["elements"], row["stuck_at"]) == ("0", "reduce_scatter", 80, 7)
    (row,) = progress_of(facts_of(caught(7), caught(7, "BROADCAST"), failed(0, 7, 9, 6)))
    assert (row["group"], row["op"], row["stuck_at"]) == ("0", None, 7)


def test_the_rank_before_a_timeout_is_that_of_the_process_not_of_the_group() -> None:
    """`[Rank 1]` is the rank in whatever group the process used first; `[rank13]:` is its rank in the world."""
    (row,) = progress_of(facts_of(caught(5, rank=13, member=1)))
    assert row["rank"] == 13


def test_what_is_repeated_when_the_process_dies_is_not_counted_again() -> None:
    line = caught(5)
    end = "Process group watchdog thread terminated with exception: " + line.partition("] ")[2]
    repeated = f"[rank0]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 0] {end}"
    facts = facts_of(line, line, repeated, f"  what():  [PG 3 Rank 5] {end}")
    assert [row["rank"] for row in progress_of(facts)] == [0]
    assert size(facts.messages) == 1


def test_sends_and_batches_have_no_number_that_can_be_compared() -> None:
    for op in ("SEND", "RECV", "COALESCED"):
        (row,) = progress_of(facts_of(caught(17, op), failed(0, 17, 17, 16)))
        assert (row["group"], row["pending"], row["stuck_at"], row["enqueued"]) == ("0", None, None, None)


def test_a_watchdog_that_stands_still_is_reported() -> None:
    lines = (
        f"[rank2]:[E1229 20:29:13.09 ProcessGroupNCCL.cpp:1484] [{DEFAULT_GROUP} Rank 2] ProcessGroupNCCL's watchdog "
        "got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
        "[rank3]:[E ProcessGroupNCCL.cpp:1182] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be terminated "
        "after dumping debug info. workMetaList_.size()=1",
    )
    facts = facts_of(*lines)
    assert kinds(facts) == ["warning", "warning"]
    assert facts.messages.rank.tolist() == [2, 3]
    assert size(facts.progress) == 0


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_log_is_recognised_by_its_beginning_or_its_end(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    quiet = "iteration 12 of 400, loss 2.6\n"
    for text in (caught(5) + "\n", quiet + caught(5), quiet * 20_000 + caught(5) + "\n" + quiet * 100):
        path.write_text(text, encoding="utf-8")
        assert find_reader(read_head(path)) is watchdog.READER
        (reading,) = read_file(path, ReadContext())
        assert (reading.source.format, reading.source.ranks, reading.source.events) == (FORMAT, (0,), 1)
        assert reading.timelines == ()
        assert reading.facts.messages.line.tolist() == [text[: text.index("Watchdog")].count("\n") + 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "iteration 12\n",
        '{"traceEvents": [{"name": "' + caught(5) + '"}]}',
        '[{"name": "' + caught(5) + '"}]',
        "\x00\x01" + caught(5),
        'LOG(ERROR) << "Watchdog caught collective operation timeout: " << work;  // ProcessGroupNCCL.cpp:607',
    ],
)
def test_other_files_are_left_to_others(tmp_path: Path, text: str) -> None:
    assert not recognises(watchdog.READER, tmp_path, text)


def test_a_log_of_several_formats_gives_what_each_reader_finds(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    timers = "(min, max) time across ranks (ms):\n    forward-compute ...: (1.00, 2.00)\n"
    for text in (caught(5) + "\n" + timers, timers + "step\n" * 20_000 + caught(5) + "\n"):
        path.write_text(" iteration  1/ 5 | elapsed time per iteration (ms): 50.0 |\n" + text, encoding="utf-8")
        analysis = analyze(read_inputs([path]))
        assert {source.format for source in analysis.sources} == {FORMAT, "megatron_timers"}
        assert {"progress", "figures"} <= set(analysis.told)


def test_no_shipped_file_is_taken_for_a_log() -> None:
    paths = [path for path in sorted((ROOT / "traces").rglob("*")) if path.is_file()]
    assert paths
    assert not any(watchdog.READER.recognises(read_head(path)) for path in paths)


def test_a_file_without_a_message_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.log: holds no message of torch's c10d watchdog"):
        read_watchdog(tmp_path / "x.log", ReadContext())


# --- what follows from a log alone -----------------------------------------------------------------------------------


def test_ranks_that_timed_out_at_different_numbers_are_found(tmp_path: Path) -> None:
    text = [caught(9, rank=0), failed(0, 9, 9, 8), caught(7, rank=1), failed(1, 7, 9, 6)]
    (finding,) = findings_of(tmp_path, *text)
    assert (finding.id, finding.severity) == ("desync:apart:0", "warning")
    assert finding.title == (
        "ranks of group '0' (all ranks) timed out in different collectives: "
        "rank 1 in all_reduce #7; rank 0 in all_reduce #9"
    )
    assert finding.evidence["waiting_in"] == {"0": 9, "1": 7}


def test_before_groups_were_named_the_same_is_reported_with_a_doubt(tmp_path: Path) -> None:
    head = "[E ProcessGroupNCCL.cpp:458]"
    text = [caught(seq, rank=0, head=head, sizes="") for seq in (96120, 96117, 96125)]
    (finding,) = findings_of(tmp_path, *text, caught(64088, rank=7, head=head))
    assert (finding.id, finding.severity) == ("desync:apart:?", "info")
    assert finding.evidence["waiting_in"] == {"0": 96117, "7": 64088}
    assert "if they are of one group" in finding.title


def test_the_rank_that_was_notified_of_the_timeout_and_had_not_come_so_far_is_named(tmp_path: Path) -> None:
    text = [caught(11, rank=0), failed(0, 11, 13, 10), caught(11, rank=1), failed(1, 11, 13, 10), notified(2, 10, 10)]
    (finding,) = findings_of(tmp_path, *text)
    assert (finding.id, finding.severity) == ("desync:missing:0:11", "warning")
    expected = "rank 2 had not enqueued all_reduce #11 of group '0' (all ranks), in which ranks 0, 1"
    assert finding.title.startswith(expected)
    assert finding.evidence["stuck_because"] == "timed out after 600 s"


def test_the_same_number_with_other_sizes_or_operations_is_found(tmp_path: Path) -> None:
    sizes = "NumelIn=1, NumelOut=1, "
    text = [caught(3, rank=0), failed(0, 3, 3, 2), *(line for rank in (1, 2) for line in (
        caught(3, rank=rank, sizes=sizes), failed(rank, 3, 3, 2)))]  # fmt: skip
    (finding,) = findings_of(tmp_path, *text)
    assert finding.id == "desync:mismatch:0:3"
    assert finding.title.endswith("ranks 1, 2 called all_reduce of 1; rank 0 called all_reduce of 64")
    text[0] = caught(3, "BROADCAST", rank=0, sizes=sizes)
    (finding,) = findings_of(tmp_path, *text)
    assert finding.title.endswith("ranks 1, 2 called all_reduce of 1; rank 0 called broadcast of 1")


def test_a_collective_that_all_entered_and_none_left_is_no_desync(tmp_path: Path) -> None:
    text = [line for rank in range(4) for line in (caught(8, rank=rank), failed(rank, 8, 9 + rank, 7))]
    (finding,) = findings_of(tmp_path, *text)
    assert (finding.id, finding.severity) == ("desync:stuck:0:8", "warning")
    assert finding.title.endswith("did not end on ranks 0, 1, 2, 3; other ranks may be missing in it")


def test_one_ranks_log_does_not_say_that_it_was_alone(tmp_path: Path) -> None:
    """Ray prints one rank's message for all: nothing says that the others had entered."""
    (finding,) = findings_of(tmp_path, caught(8), failed(0, 8, 9, 7))
    assert finding.title.endswith("did not end on rank 0; other ranks may be missing in it")


def test_the_message_with_which_a_watchdog_ends_tells_group_and_collective() -> None:
    """It may be all that is left of a log."""
    what = "Process group watchdog thread terminated with exception: [Rank 1] " + caught(5).split("] ")[-1]
    (row,) = progress_of(facts_of(f"(Worker pid=66) [rank9]:[E ProcessGroupNCCL.cpp:1414] [PG 7 (tp) Rank 1] {what}"))
    assert (row["rank"], row["group"], row["pending"], row["op"], row["stuck_at"]) == (9, "7", 5, "all_reduce", 5)
    old = what.replace("Process group", "NCCL").replace("[Rank 1]", "[Rank 9]")
    (row,) = progress_of(facts_of(f"[E ProcessGroupNCCL.cpp:915] [Rank 9] {old}"))
    assert (row["rank"], row["group"], row["pending"], row["op"]) == (9, None, 5, "all_reduce")


@pytest.mark.parametrize(
    "ending", ["SeqNum=5", "NumelOut=6", "OpType=ALLREDUCE", "work: 1580", "enqueued NCCL work: 1582"]
)
def test_what_a_line_ends_in_may_be_half_of_it(ending: str) -> None:
    """Terminals break lines wherever they are full."""
    status = "Timeout at NCCL work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579."
    lines = [caught(5, sizes="NumelIn=64, NumelOut=64, "), f"{HEAD.format(rank=0)} [{DEFAULT_GROUP} Rank 0] {status}"]
    (line,) = [each for each in lines if ending in each]
    whole, cut = (
        next(iter(watchdog_lines(each.encode())), None) for each in (line, line[: line.index(ending) + len(ending) - 1])
    )
    assert whole is not None
    for name in ("seq", "op", "elements", "enqueued"):
        assert cut is None or getattr(cut, name) in (None, getattr(whole, name))


def test_groups_whose_members_are_unknown_are_not_compared(tmp_path: Path) -> None:
    """Two tensor-parallel groups may hang for reasons of their own."""
    for group in ("PG ID 2 PG GUID 5(tp)", "PG 3"):
        text = [caught(9, rank=0), failed(0, 9, 9, 8, group), caught(7, rank=1), failed(1, 7, 7, 6, group)]
        assert findings_of(tmp_path, *text) == []


def test_ranks_that_stand_apart_without_waiting_are_no_finding(tmp_path: Path) -> None:
    text = [notified(0, 593, 593), notified(1, 590, 590), caught(5, rank=2), failed(2, 5, 5, 4, "PG ID 1 PG GUID 1")]
    assert findings_of(tmp_path, *text) == []


# --- anything at all -------------------------------------------------------------------------------------------------

HOSTILE = ["[rank0]:[E", "[PG ID 0 PG GUID 0("]
SAMPLES = [caught(5), failed(0, 5, 6, 4), notified(1, 4, 4), caught(2**70, rank=9_999_999), *HOSTILE]


@examples(300)
@given(
    parts=st.lists(st.sampled_from(SAMPLES) | st.text(max_size=8), max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8),
)
def test_any_line_gives_facts(parts: list[str], changes: list[tuple[int, int]]) -> None:
    line = bytearray("".join(parts).encode())
    for place, value in changes:
        if line:
            line[place % len(line)] = value
    facts = facts_of(bytes(line))
    for number in (*facts.progress.rank.tolist(), *facts.messages.rank.tolist()):
        assert number == NONE or 0 <= number <= 1 << 20


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.sampled_from(SAMPLES) | st.text(max_size=20), min_size=1, max_size=10))
def test_any_log_is_read_or_refused(tmp_path: Path, content: list[str]) -> None:
    path = tmp_path / "job.log"
    path.write_bytes("\n".join(content).encode("utf-8", "surrogatepass"))
    reading = read_or_refuse(watchdog.READER, path)
    assert reading is None or reading.source.events > 0


def test_a_long_hostile_line_takes_no_time() -> None:
    for part in (*HOSTILE, "ProcessGroupNCCL.cpp:", "[E ProcessGroupNCCL.cpp:1] [Rank 0] "):
        facts_of("ProcessGroup" + part * 40_000)
