"""Flight-recorder dumps: both forms, all versions, what their numbers mean, and what is never taken for a time."""

import gzip
import json
import math
import pickle
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given

from overlapscope.analysis.analyze import analyze
from overlapscope.errors import InputError
from overlapscope.ingest.formats import flight_recorder, kineto
from overlapscope.ingest.formats.flight_recorder.reader import read_flight_recorder
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_file import read_file
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import NONE, column_kinds, enum_values, size
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import UNKNOWN_RANK, Group
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import ROOT, shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import mutations, odd_documents, reading_or_refusal, run_or_refusal
from tests.support.writers.flight_recorder import (
    BEGUN_NS,
    SECOND_NS,
    Entry,
    as_json,
    dump,
    old_dump,
    write_json,
    write_pickle,
)

PAIR = {"0": ("default_pg", [0, 1])}
CALLS = [
    Entry(),
    Entry(op="_all_gather_base", sizes=[[512]], out_sizes=[[1024]], dtype="BFloat16"),
    Entry(op="broadcast", state="started"),
    Entry(op="_reduce_scatter_base", sizes=[[1024]], out_sizes=[[512]], state="scheduled"),
]


def read(path: Path) -> Reading:
    return read_flight_recorder(path, ReadContext())


def read_dump(tmp_path: Path, content: Any, name: str = "nccl_trace_rank_0") -> Reading:
    return read(write_pickle(tmp_path / name, content))


def calls_of(reading: Reading) -> dict[str, list[Any]]:
    timeline = reading.timelines[0]
    table = spelled(timeline.collectives, timeline.names)
    table["state"] = [enum_values(type(timeline.collectives), "state")[code] for code in timeline.collectives.state]
    return table


def rows_of(reading: Reading, name: str) -> list[dict[str, Any]]:
    table = spelled(getattr(reading.facts, name), reading.facts.names)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def progress_of(reading: Reading) -> list[dict[str, Any]]:
    return rows_of(reading, "progress")


def messages_of(reading: Reading) -> list[str]:
    return [row["text"] for row in rows_of(reading, "messages")]


# --- both forms ------------------------------------------------------------------------------------------------------


def test_pickle_and_json_of_one_recording_give_the_same(tmp_path: Path) -> None:
    content = dump(CALLS, groups={**PAIR, "1": ("", [1, 0])})
    paths = [
        write_pickle(tmp_path / "a_rank_1", content),
        write_pickle(tmp_path / "b_rank_1", content, protocol=4),
        write_json(tmp_path / "c_rank_1.json", content),
    ]
    readings = [reading for path in paths for reading in read_file(path, ReadContext())]
    assert [reading.source.format for reading in readings] == ["flight_recorder"] * 3
    for reading in readings:
        assert calls_of(reading) == calls_of(readings[0])
        assert reading.groups == readings[0].groups
        assert reading.world_size == 2
        assert reading.fingerprint == {"backend": "nccl", "nccl_version": "2.21.5"}
    progress = [[{**row, "source": ""} for row in progress_of(reading)] for reading in readings]
    assert progress[0] == progress[1] == progress[2]


def test_calls_are_in_the_houses_words(tmp_path: Path) -> None:
    reading = read_dump(tmp_path, dump(CALLS, groups=PAIR))
    calls = calls_of(reading)
    assert calls["op"] == ["all_reduce", "all_gather", "broadcast", "reduce_scatter"]
    assert calls["elements"] == [1024, 1024, 1024, 1024]
    assert calls["bytes"] == [4096, 2048, 4096, 4096]
    assert calls["dtype"] == ["float32", "bfloat16", "float32", "float32"]
    assert calls["group"] == ["0"] * 4
    assert calls["group_size"] == [2] * 4
    assert calls["seq"] == [1, 2, 3, 4]
    assert calls["state"] == ["completed", "completed", "started", "scheduled"]
    assert calls["launch_ns"] == [BEGUN_NS + number * 1_000_000 for number in range(4)]
    assert reading.source.events == 4
    assert reading.timelines[0].basis == "log"


def test_times_of_discovery_are_never_taken_for_times_of_device_work(tmp_path: Path) -> None:
    content = dump([Entry()], groups=PAIR)
    assert content["entries"][0]["time_discovered_completed_ns"]
    content["entries"][0]["time_discovered_started_ns"] = BEGUN_NS
    timeline = read_dump(tmp_path, content).timelines[0]
    assert timeline.collectives.start_ns.tolist() == timeline.collectives.end_ns.tolist() == [NONE]
    assert size(timeline.spans) == size(timeline.steps) == 0
    assert timeline.recordings.start_ns.tolist() == timeline.recordings.end_ns.tolist() == [NONE]


def test_a_time_of_0_is_a_missing_time(tmp_path: Path) -> None:
    content = dump([Entry(at_ns=0), Entry()], groups=PAIR)
    assert calls_of(read(write_json(tmp_path / "rank0.json", content)))["launch_ns"] == [None, BEGUN_NS + 1_000_000]


def test_a_gzipped_dump_is_read_as_a_plain_one(tmp_path: Path) -> None:
    content, path = dump(CALLS, groups=PAIR), tmp_path / "dump_rank_0.gz"
    for plain in (pickle.dumps(content, 2), json.dumps(as_json(content)).encode()):
        path.write_bytes(gzip.compress(plain))
        assert find_reader(read_head(path)) is flight_recorder.READER
        assert calls_of(read(path))["seq"] == [1, 2, 3, 4]


def test_a_pickle_that_calls_is_refused_with_file_and_byte(tmp_path: Path) -> None:
    class Touches:
        def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
            return Path.touch, (tmp_path / "touched",)

    content = {**dump(CALLS, groups=PAIR), "pg_config": Touches()}
    path = write_pickle(tmp_path / "fr_rank_0", content)
    assert find_reader(read_head(path)) is flight_recorder.READER
    with pytest.raises(InputError, match=rf"^{path}: byte \d+: the pickle holds GLOBAL"):
        read(path)
    with pytest.raises(InputError, match=r"byte \d+: the pickle holds GLOBAL"):
        read_inputs([path])
    assert not (tmp_path / "touched").exists()


def test_bytes_after_the_pickle_are_left_out_and_reported(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "fr_rank_0", dump(CALLS, groups=PAIR))
    path.write_bytes(path.read_bytes() + b"\0" * 7)
    assert read(path).source.warnings == ("7 bytes after the pickle were left out",)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "sizes", "out_sizes", "elements"),
    [
        ("all_reduce", [[8]], [[8]], 8),
        ("all_reduce", [[]], [[]], 1),
        ("all_reduce", [[0, 7]], [[0, 7]], 0),
        ("allreduce_coalesced", [[8], [2, 3]], [[8], [2, 3]], 14),
        ("all_gather", [[8]], [[3, 8]], 24),
        ("_all_gather_base", [[8]], [], 24),
        ("all_gather_into_tensor_coalesced", [[8], [1]], [[24], [3]], 27),
        ("_reduce_scatter_base", [[24]], [[8]], 24),
        ("reduce_scatter", [], [[8]], 24),
        ("gather", [[8]], [], 24),
        ("scatter", [], [[8]], 24),
        ("broadcast", [[8]], [[8]], 8),
        ("_broadcast_oop", [[8]], [[8]], 8),
        ("all_to_all", [[6]], [[4]], 6),
        ("all_reduce_barrier", [[1]], [[1]], None),
        ("coalesced", [[1]], [[1]], None),
        ("all_reduce", [], [], None),
        ("all_reduce", [[-1]], [[8]], 8),
        ("all_reduce", [[2**62, 2**62]], [], None),
        ("all_reduce", [[2**40] * 100_000], [], None),
    ],
)
def test_elements_are_counted_as_design_counts_them(
    tmp_path: Path, op: str, sizes: list[list[int]], out_sizes: list[list[int]], elements: int | None
) -> None:
    content = dump([Entry(op=op, sizes=sizes, out_sizes=out_sizes)], groups={"0": ("default_pg", [0, 1, 2])})
    calls = calls_of(read_dump(tmp_path, content))
    assert calls["elements"] == [elements]
    assert calls["bytes"] == [None if elements is None else 4 * elements]


def test_types_that_differ_within_a_call_give_no_bytes(tmp_path: Path) -> None:
    content = dump([Entry(sizes=[[8], [8]])], groups=PAIR)
    content["entries"][0]["input_dtypes"] = ["Float", "Half"]
    calls = calls_of(read_dump(tmp_path, content))
    assert (calls["elements"], calls["dtype"], calls["bytes"]) == ([16], [None], [None])


# --- groups and ranks ------------------------------------------------------------------------------------------------


def test_groups_come_with_their_members(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", range(4)), "3": ("mesh_dp", [0, 2]), "": ("undefined", [0, 1])}
    calls = [Entry(), Entry(group="3"), Entry(group="")]
    reading = read_dump(tmp_path, dump(calls, groups=groups))
    assert {group.name: (group.description, group.ranks) for group in reading.groups} == {
        "0": ("default_pg", (0, 1, 2, 3)), "3": ("mesh_dp", (0, 2)), "": (None, (0, 1)),
    }  # fmt: skip
    assert calls_of(reading)["group"] == ["0", "3", ""]
    assert calls_of(reading)["group_size"] == [4, 2, 2]
    assert reading.world_size == 4


def test_gloos_nameless_group_is_believed_only_where_one_can_be_meant(tmp_path: Path) -> None:
    """gloo files the members of whichever group was made last under the name ''."""
    one = dump([Entry()], groups={"0": ("default_pg", None)}, backend="gloo")
    one["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    reading = read_dump(tmp_path, one)
    assert reading.groups == (Group(name="0", description="default_pg", size=3, ranks=(0, 1, 2)),)
    assert reading.world_size == 3
    groups = {"0": ("default_pg", None), "1": ("pair", None)}
    two = dump([Entry(), Entry(group="1")], groups=groups, backend="gloo") | {"pg_config": one["pg_config"]}
    reading = read_dump(tmp_path, two)
    assert {group.name: group.ranks for group in reading.groups} == {"0": None, "1": None}
    assert reading.world_size is None


@pytest.mark.parametrize(
    "ranks", ["[]", "[0, 0]", "[0, -1]", "[0, 9999999999]", "[0, 1", "0, 1", "[0, true]", "{}", 7, None]
)
def test_ranks_that_cannot_be_are_not_known(tmp_path: Path, ranks: object) -> None:
    content = dump([Entry()], groups=PAIR)
    content["pg_config"]["0"]["ranks"] = ranks
    reading = read_dump(tmp_path, content)
    assert [group.ranks for group in reading.groups] == [None]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_1", 1), ("comm_lib_trace_rank_1", 1), ("trace_1", 1), ("1", 1), ("ddp_fr_trace_1.json", 1),
        ("dump-1.pkl.gz", 1), ("dump", 0), ("dump_7", 0), ("dump_20241106", 0), ("dump_1_copy", 0),
    ],
)  # fmt: skip
def test_the_rank_is_the_number_behind_the_prefix(tmp_path: Path, name: str, rank: int) -> None:
    """0 where nothing is known: a single source is rank 0, and says so. Rank 7 is no member of the group."""
    path = tmp_path / "some" / name
    path.parent.mkdir()
    content = dump(CALLS, groups=PAIR)
    write_json(path, content) if ".json" in name else write_pickle(path, content)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    run = read_inputs([path])
    assert list(run.ranks) == [rank]
    assert run.facts.progress.rank.tolist() == [rank]
    assert bool(run.sources[0].warnings) == (name in ("dump", "dump_7", "dump_20241106", "dump_1_copy"))


def test_the_rank_that_the_user_gives_is_that_of_the_facts_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pickle(tmp_path / name, dump([Entry(state="scheduled", retired=True)], groups=PAIR))
    run = read_inputs([tmp_path / "a", tmp_path / "b"], ReadOptions(ranks={"a": 1, "b": 0}))
    assert run.facts.progress.rank.tolist() == [1, 0]
    assert run.facts.messages.rank.tolist() == [1, 0]


def test_ranks_without_a_trace_join_the_run_by_their_dump(tmp_path: Path) -> None:
    trace = min((ROOT / "traces" / "baseline").rglob("*.gz"))
    dumped = write_pickle(tmp_path / "fr_rank_7", dump(CALLS, groups={"0": ("default_pg", range(8))}))
    run = read_inputs([trace, dumped])
    assert 7 in run.ranks
    assert run.ranks[7].basis == "log"
    assert any(timeline.basis == "trace" for timeline in run.ranks.values())
    assert run.world_size == 8


def test_groups_of_one_name_and_other_members_are_distinguished_in_the_facts_too(tmp_path: Path) -> None:
    for rank, members in ((0, [0, 1]), (1, [0, 1]), (2, [2, 3])):
        groups = {"0": ("default_pg", range(4)), "1": ("mesh_tp", members)}
        write_pickle(tmp_path / f"fr_rank_{rank}", dump([Entry(), Entry(group="1")], groups=groups))
    run = read_inputs([tmp_path])
    assert {run.facts.name(code) for code in run.facts.progress.group} == {"0", "1 [0, 1]", "1 [2, 3]"}
    timeline = run.ranks[2]
    assert {timeline.names[code] for code in timeline.collectives.group} == {"0", "1 [2, 3]"}


# --- numbers, states, progress ---------------------------------------------------------------------------------------


def test_progress_is_what_the_status_says(tmp_path: Path) -> None:
    content = dump(CALLS, groups=PAIR, status={"0": (5, 3, 2)})
    assert progress_of(read_dump(tmp_path, content, "trace_0")) == [
        {
            "source": str(tmp_path / "trace_0"), "rank": 0, "group": "0", "backend": "nccl",
            "enqueued": 5, "started": 3, "completed": 2, "pending": 3, "op": "broadcast", "elements": 1024,
            "called_at": None, "stuck_at": None, "timeout_ns": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ((3, -1, 2), (3, None, 2)),
        ((1, -1, -1), (1, None, 0)),
        ((-1, -1, -1), (0, None, 0)),
        ((1, -1, 76280750235782912), (1, None, None)),
        (("x", None, 2**70), (None, None, None)),
        ((True, 1.5, []), (None, None, None)),
    ],
)
def test_status_numbers_that_mean_nothing_are_missing(tmp_path: Path, status: Any, expected: Any) -> None:
    row = progress_of(read_dump(tmp_path, dump([Entry()], groups=PAIR, status={"0": status})))[0]
    assert (row["enqueued"], row["started"], row["completed"]) == expected


def test_sends_have_their_own_number_and_the_status_of_their_group_is_not_believed(tmp_path: Path) -> None:
    calls = [
        Entry(),
        Entry(op="send 0->1", is_p2p=True, p2p_seq=7),
        Entry(),
        Entry(op="recv 0<-1", is_p2p=True, p2p_seq=8),
        Entry(op="coalesced", sizes=(), is_p2p=True, p2p_seq=8, state="scheduled"),
    ]
    content = dump(calls, groups=PAIR)
    assert content["pg_status"]["0"]["last_enqueued_collective"] == 8
    reading = read_dump(tmp_path, content)
    assert calls_of(reading)["seq"] == [1, 7, 2, 8, 8]
    assert calls_of(reading)["op"] == ["all_reduce", "send", "all_reduce", "recv", "coalesced"]
    assert calls_of(reading)["executed_op"] == [None, None, None, None, "send_recv"]
    row = progress_of(reading)[0]
    assert (row["enqueued"], row["completed"], row["pending"]) == (2, 2, None)


def test_gloos_status_is_translated_to_numbers_of_collectives(tmp_path: Path) -> None:
    """As measured: gloo's status counts a send that is not recorded, so two ranks that agree show 12 and 11."""
    content = dump([Entry(state="scheduled", retired=True)] * 3, groups=PAIR, backend="gloo", status={"0": (5, -1, 5)})
    for each, op_id in zip(content["entries"], (1, 2, 4), strict=True):
        each["op_id"] = op_id
    row = progress_of(read_dump(tmp_path, content))[0]
    assert (row["enqueued"], row["started"], row["completed"]) == (3, None, 3)
    content["pg_status"]["0"]["last_completed_collective"] = 3
    assert progress_of(read_dump(tmp_path, content))[0]["completed"] == 2


def test_gloo_says_scheduled_of_calls_that_ended(tmp_path: Path) -> None:
    calls = [Entry(state="scheduled", retired=True), Entry(state="scheduled", retired=False)]
    reading = read_dump(tmp_path, dump(calls, groups=PAIR, backend="gloo"))
    assert calls_of(reading)["state"] == ["unknown", "scheduled"]
    assert progress_of(reading)[0]["pending"] == 2
    assert not reading.timelines[0].has_device
    assert size(reading.facts.messages) == 0


def test_a_call_that_was_given_up_without_completing_timed_out(tmp_path: Path) -> None:
    frames = [
        {"name": "all_reduce", "filename": "/env/site-packages/torch/distributed/distributed_c10d.py", "line": 3174},
        {"name": "wrapper", "filename": "/env/site-packages/torch/distributed/c10d_logger.py", "line": 83},
        {"name": "step", "filename": "/home/me/train.py", "line": 120},
        {"name": "main", "filename": "/home/me/train.py", "line": 7},
    ]
    calls = [Entry(), Entry(state="started", retired=True, frames=frames), Entry(state="scheduled")]
    content = dump(calls, groups=PAIR, status={"0": (3, -1, 2)})  # torch counts what it gave up as completed
    reading = read_dump(tmp_path, content)
    row = progress_of(reading)[0]
    assert (row["pending"], row["stuck_at"], row["timeout_ns"]) == (2, 2, 600 * SECOND_NS)
    assert (row["completed"], row["called_at"]) == (None, "/home/me/train.py:120 (step)")
    text = "all_reduce #2 of group '0' timed out after 600 s, called at /home/me/train.py:120 (step)"
    assert messages_of(reading) == [text]


def test_the_calls_of_a_batch_are_not_pending_for_ever(tmp_path: Path) -> None:
    """Torch never updates the state of a batch's calls; the entry that closes the batch tells."""
    batch = [Entry(op="_all_gather_base", seq=1, state="scheduled", retired=False)] * 2
    done = [*batch, Entry(op="ALLGATHER_coalesced", seq=1, sizes=()), Entry(seq=2)]
    reading = read_dump(tmp_path, dump(done, groups=PAIR))
    assert progress_of(reading)[0]["pending"] is None
    assert calls_of(reading)["op"] == ["all_gather", "all_gather", "coalesced", "all_reduce"]
    assert calls_of(reading)["seq"] == [1, 1, 1, 2]
    running = [*batch, Entry(op="ALLGATHER_coalesced", seq=1, sizes=(), state="scheduled")]
    assert progress_of(read_dump(tmp_path, dump(running, groups=PAIR)))[0]["pending"] == 1
    active = dump([batch[0]], groups=PAIR, first_record=9, status={"0": (5, -1, 5)})  # TORCH_INCLUDE_ONLY_ACTIVE
    assert progress_of(read_dump(tmp_path, active))[0]["pending"] is None


def test_a_group_that_was_never_used_stands_at_0_if_no_call_was_overwritten(tmp_path: Path) -> None:
    groups = {**PAIR, "5": ("rare", [0, 1])}
    rows = progress_of(read_dump(tmp_path, dump([Entry()], groups=groups)))
    assert [(row["group"], row["enqueued"]) for row in rows] == [("0", 1), ("5", 0)]
    reading = read_dump(tmp_path, dump([Entry(seq=51)], groups=groups, first_record=50))
    assert [(row["group"], row["enqueued"]) for row in progress_of(reading)] == [("0", 51)]
    assert "the 50 calls before these were overwritten" in messages_of(reading)[0]


def test_a_status_without_calls_is_of_the_only_group_or_of_none(tmp_path: Path) -> None:
    alone = dump([], groups=PAIR, status={"0": (9, -1, 9)})
    for path in (write_pickle(tmp_path / "fr_rank_0", alone), write_json(tmp_path / "fr_rank_0.json", alone)):
        assert [(row["group"], row["enqueued"]) for row in progress_of(read(path))] == [("0", 9)]
    several = dump([], groups={**PAIR, "1": ("", [0, 1])}, status={"0": (9, -1, 9)})
    assert [(row["group"], row["enqueued"]) for row in progress_of(read_dump(tmp_path, several))] == [(None, 9)]


def test_durations_become_figures_not_as_times(tmp_path: Path) -> None:
    took = [3.5, 1.25, 2.0, math.nan, -1.0]
    reading = read_dump(tmp_path, dump([Entry(duration_ms=each) for each in took], groups=PAIR))
    figures = rows_of(reading, "figures")
    assert {row["subject"] for row in figures} == {"all_reduce 4096 B float32, group 0"}
    assert {row["name"]: row["value"] for row in figures} == {
        "call_ms_min": min(took[:3]), "call_ms_median": median(took[:3]), "calls_count": 3.0,
    }  # fmt: skip
    assert calls_of(reading)["end_ns"] == [None] * 5


# --- versions --------------------------------------------------------------------------------------------------------


def test_version_1_4_has_one_number_and_lists_of_ranks(tmp_path: Path) -> None:
    content = old_dump([Entry(), Entry(group="1"), Entry(state="scheduled")], ranks={0: [0, 1], 1: [0, 1]})
    reading = read_dump(tmp_path, content)
    assert calls_of(reading)["seq"] == [1, 1, 2]
    assert calls_of(reading)["group"] == ["0", "1", "0"]
    assert (calls_of(reading)["dtype"], calls_of(reading)["elements"]) == ([None] * 3, [1024] * 3)
    assert {group.name: group.ranks for group in reading.groups} == {"0": (0, 1), "1": (0, 1)}
    assert reading.world_size == 2
    rows = [(row["group"], row["enqueued"], row["completed"], row["pending"]) for row in progress_of(reading)]
    assert rows == [("0", 2, 1, 2), ("1", 1, 1, None)]


def test_version_1_4_gives_no_number_where_sends_are_counted_too(tmp_path: Path) -> None:
    calls = [Entry(), Entry(op="send 0->1", group="1"), Entry(group="1")]
    reading = read_dump(tmp_path, old_dump(calls, ranks={0: [0, 1], 1: [0, 1]}))
    assert calls_of(reading)["seq"] == [1, None, None]
    assert [row["group"] for row in progress_of(reading)] == ["0"]
    assert "counts sends and collectives together" in reading.source.warnings[0]


@pytest.mark.parametrize("version", ["2.0", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.10"])
def test_versions_that_lack_keys_are_read(tmp_path: Path, version: str) -> None:
    content = dump(CALLS, groups=PAIR, version=version)
    later = {"2.0": ("thread_id", "thread_name", "timeout_ms", "input_dtypes", "output_dtypes")}
    for each in content["entries"]:
        for key in later.get(version, ("thread_id", "thread_name")):
            each.pop(key, None)
    if version == "2.0":
        del content["pg_status"]
    content["nccl_version"] = content.pop("comm_lib_version")
    reading = read_dump(tmp_path, content)
    assert calls_of(reading)["seq"] == [1, 2, 3, 4]
    assert reading.fingerprint["nccl_version"] == "2.21.5"
    assert reading.source.warnings == ()
    assert progress_of(reading)[0]["enqueued"] == 4


def test_a_version_of_the_future_is_read_with_a_doubt(tmp_path: Path) -> None:
    reading = read_dump(tmp_path, dump(CALLS, groups=PAIR, version="3.0"))
    assert "newer than the known ones" in reading.source.warnings[0]
    assert size(reading.timelines[0].collectives) == 4


def test_forks_name_their_own_library(tmp_path: Path) -> None:
    content = dump(CALLS, groups=PAIR, backend="hccl")
    content["comm_lib_version"] = "1.2"
    content["hccl_comm_state"] = {"x": {}}
    assert read_dump(tmp_path, content).fingerprint == {"backend": "hccl", "comm_lib_version": "1.2"}


# --- what is a dump and what is not ----------------------------------------------------------------------------------


def test_dumps_are_recognised_by_their_content(tmp_path: Path) -> None:
    content = dump(CALLS, groups=PAIR)
    indented = tmp_path / "e"
    indented.write_text(json.dumps(as_json(content), indent=4), encoding="utf-8")
    for path in (
        write_pickle(tmp_path / "a", content),
        write_json(tmp_path / "b", content),
        write_pickle(tmp_path / "c", old_dump(CALLS, ranks={0: [0, 1]})),
        write_json(tmp_path / "d", dump([], groups=PAIR, status={"0": (1, 1, 1)})),
        indented,
    ):
        assert find_reader(read_head(path)) is flight_recorder.READER, path


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_dump_of_many_ranks_is_known_though_their_list_fills_the_head(tmp_path: Path, protocol: int) -> None:
    ranks = list(range(40_000))
    content = dump(CALLS, groups={"0": ("default_pg", ranks), "1": ("dp", ranks[::8])})
    path = write_pickle(tmp_path / "fr_rank_3", content, protocol=protocol)
    (tmp_path / "packed_rank_4.gz").write_bytes(gzip.compress(path.read_bytes()))
    run = read_inputs([path, tmp_path / "packed_rank_4.gz"])
    assert {source.format for source in run.sources} == {"flight_recorder"}
    assert list(run.ranks) == [3, 4]
    assert run.world_size == 40_000


def test_groups_of_a_trace_of_many_ranks_are_not_taken_for_a_dump(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(40_000))}]
    trace = {"distributedInfo": {"backend": "nccl", "pg_config": groups}, "traceEvents": []}
    (tmp_path / "trace").write_text(json.dumps(trace), encoding="utf-8")
    assert find_reader(read_head(tmp_path / "trace")) is kineto.READER


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    others = [path for path in sorted((ROOT / "traces").rglob("*")) if path.is_file()]
    assert others
    (tmp_path / "pickle").write_bytes(pickle.dumps({"model": [1.0], "entries": [], "version": 1}))
    trace = {"distributedInfo": {"pg_config": [], "nccl_version": "2"}, "traceEvents": [{"args": {"retired": 1}}]}
    (tmp_path / "trace").write_text(json.dumps(trace), encoding="utf-8")
    (tmp_path / "json").write_text('{"version": 1, "entries": [], "pg_config": {}}', encoding="utf-8")
    for path in [*others, *sorted(tmp_path.iterdir())]:
        assert not flight_recorder.READER.recognises(read_head(path)), path


def test_what_holds_no_dump_is_refused(tmp_path: Path) -> None:
    for content in ([], {}, {"version": "2.10"}, "text", 7):
        with pytest.raises(InputError, match="is not a flight-recorder dump"):
            read(write_pickle(tmp_path / "x", content))


# --- real data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_the_recorded_dumps_of_gloo_are_counted_as_by_hand(rank: int) -> None:
    path = shared_file(f"flight_recorder/gloo_ddp/ddp_fr_trace_{rank}.json")
    raw = json.loads(path.read_text(encoding="utf-8"))
    names = {"Long": "int64", "Float": "float32", "Int": "int32"}
    expected: Counter[tuple[str, int]] = Counter()
    for each in raw["entries"]:
        moved = each["output_sizes"][0] if each["profiling_name"] == "gloo:all_gather" else each["input_sizes"][0]
        expected[each["profiling_name"][5:], math.prod(moved) * ITEM_BYTES[names[each["input_dtypes"][0]]]] += 1
    reading = read(path)
    calls = calls_of(reading)
    assert Counter(zip(calls["op"], calls["bytes"], strict=True)) == expected
    assert calls["seq"] == list(range(1, 23))
    assert calls["launch_ns"] == [each["time_created_ns"] for each in raw["entries"]]
    assert reading.timelines[0].rank == rank
    assert reading.world_size == 2
    assert reading.groups == (Group(name="0", description="default_pg", size=2, ranks=(0, 1)),)
    row = progress_of(reading)[0]
    assert (row["enqueued"], row["started"], row["completed"]) == (22, None, 22 - rank)


def test_the_recorded_run_has_nothing_to_find(tmp_path: Path) -> None:
    folder = shared_file("flight_recorder/gloo_ddp/ddp_fr_trace_0.json").parent
    run = read_inputs([folder])
    assert {source.format for source in run.sources} == {"flight_recorder"}
    assert run.missing_ranks == ()
    assert analyze(run).findings == []
    save_run(run, tmp_path / "run", version="test")
    again = load_run(tmp_path / "run")
    assert spelled(again.facts.progress, again.facts.names) == spelled(run.facts.progress, run.facts.names)
    assert analyze(again).findings == []


# --- anything at all -------------------------------------------------------------------------------------------------

WHOLE = dump(
    [*CALLS, Entry(op="send 0->1", is_p2p=True, p2p_seq=1), Entry(state="started", retired=True, duration_ms=1.0,
     frames=[{"name": "f", "filename": "a.py", "line": 1}])], groups={**PAIR, "1": ("x", [0, 1])},
)  # fmt: skip


def check_any(content: bytes, name: str) -> None:
    reading = reading_or_refusal(flight_recorder.READER, content, name)
    if reading is None:
        return
    timeline = reading.timelines[0]
    for table in (timeline.collectives, reading.facts.progress, reading.facts.messages, reading.facts.figures):
        assert len({len(getattr(table, name)) for name in column_kinds(table)}) == 1
    assert (timeline.collectives.start_ns == NONE).all()
    assert timeline.rank in (UNKNOWN_RANK, 0)
    run = run_or_refusal(content, name)  # None where too little is left to recognise a dump
    if run is not None:
        analyze(run)


@pytest.mark.slow
@examples(150)
@given(content=odd_documents(WHOLE))
def test_junk_anywhere_in_a_dump_ends_in_a_reading_or_a_refusal(content: Any) -> None:
    check_any(pickle.dumps(content, 2), "fr_rank_0")
    check_any(json.dumps(content, default=str).encode(), "fr_rank_0.json")


@examples(200)
@given(content=mutations(json.dumps(as_json(WHOLE)).encode()))
def test_a_damaged_json_dump_ends_in_a_reading_or_a_refusal(content: bytes) -> None:
    check_any(content, "fr_rank_0.json")


def test_entries_that_are_none_are_counted(tmp_path: Path) -> None:
    content = dump(CALLS, groups=PAIR)
    content["entries"][1:1] = [None, 3, "x"]
    reading = read_dump(tmp_path, content)
    assert (reading.source.events, reading.source.dropped) == (4, 3)


def test_a_host_between_the_word_rank_and_the_number_is_no_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_pickle(tmp_path / f"nccl_trace_rank_container-node02_{rank}", dump(CALLS, groups=PAIR))
    assert list(read_inputs([tmp_path]).ranks) == [0, 1]


def one_count(rank: int) -> dict[str, Any]:
    """Return a dump as torchcomms writes it: one count from 0 over the calls of all groups; ranks 0 and 1 have two."""
    groups = {"0": ("world", [0, 1, 2, 3]), "1": ("tp", [0, 1])}
    names = [name for _ in range(6) for name in (("0", "1") if rank < 2 else ("0",))]
    calls = [Entry(group=name, seq=number, state="completed") for number, name in enumerate(names)]
    last = len(calls) - 1
    return dump(calls, groups=groups, backend="ncclx", status={"0": (last, last, last)})


def test_one_count_over_all_groups_is_no_number_within_a_group(tmp_path: Path) -> None:
    for rank in range(4):
        write_json(tmp_path / f"comm_lib_trace_rank_{rank}", one_count(rank))
    run = read_inputs([tmp_path])
    numbers = [set(timeline.collectives.seq.tolist()) for timeline in run.ranks.values()]
    assert numbers == [{NONE}, {NONE}, set(range(6)), set(range(6))]
    assert ["counts the calls of all groups together" in " ".join(each.warnings) for each in run.sources] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not [each for each in analyze(run).findings if each.id.startswith("desync")]


def test_sends_that_are_counted_as_collectives_leave_their_group_without_numbers(tmp_path: Path) -> None:
    calls = [Entry(seq=0), Entry(op="send", seq=1), Entry(seq=2)]
    reading = read_dump(tmp_path, dump(calls, groups=PAIR))
    assert calls_of(reading)["seq"] == [None] * 3
    assert progress_of(reading) == []
