"""Ranks out of step: found where they are, and never where dumps merely differ in their moments."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.ingest.read_run import read_inputs
from tests.property.examples import examples
from tests.support.writers.flight_recorder import BEGUN_NS, SECOND_NS, Entry, dump, write_pickle
from tests.unit.formats.test_watchdog import caught, failed, notified

Groups = Mapping[str, tuple[str, Sequence[int] | None]]


def all_of(world: int) -> Groups:
    return {"0": ("default_pg", range(world))}


def findings(
    folder: Path,
    calls: Mapping[int, Sequence[Entry]],
    groups: Groups | Mapping[int, Groups],
    *,
    first: Mapping[int, int] | None = None,
    backend: str = "nccl",
    log: Sequence[str] = (),
) -> list[Finding]:
    """Return what is found in the dumps of these ranks (`first` is the number of a rank's oldest record) and a log."""
    for path in folder.iterdir():
        path.unlink()
    for rank, made in calls.items():
        own = groups.get(rank, groups)  # type: ignore[call-overload]
        content = dump(made, groups=own, first_record=(first or {}).get(rank, 0), backend=backend)
        write_pickle(folder / f"fr_rank_{rank}", content)
    if log:
        (folder / "job.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    return [each for each in analyze(read_inputs([folder])).findings if each.id.startswith(("desync", "no_dump"))]


DONE = Entry()
PENDING = Entry(state="scheduled")
TIMED_OUT = Entry(state="scheduled", retired=True)

# --- a rank is missing -----------------------------------------------------------------------------------------------


def test_the_rank_that_did_not_enter_is_named(tmp_path: Path) -> None:
    calls = {0: [DONE, DONE, TIMED_OUT], 1: [DONE, DONE], 2: [DONE, DONE, TIMED_OUT]}
    (finding,) = findings(tmp_path, calls, all_of(3))
    assert (finding.id, finding.severity) == ("desync:missing:0:3", "warning")
    assert finding.title == "rank 1 had not entered all_reduce #3 of group '0' (all ranks), in which ranks 0, 2 waited"
    assert finding.evidence == {
        "group": "0", "seq": 3, "missing_ranks": [1], "missing": 1, "waiting_ranks": [0, 2],
        "last_entered": {"0": "all_reduce #3", "1": "all_reduce #2", "2": "all_reduce #3"},
        "stuck_because": "timed out after 600 s",
    }  # fmt: skip


def test_without_a_sign_that_it_hung_it_is_only_information(tmp_path: Path) -> None:
    calls = {0: [DONE, DONE, PENDING], 1: [DONE, DONE]}
    (finding,) = findings(tmp_path, calls, all_of(2))
    assert (finding.id, finding.severity) == ("desync:missing:0:3", "info")
    assert finding.title.endswith("; dumps taken at different moments can also look like this")


def test_a_collective_pending_while_others_went_on_for_long_is_a_sign(tmp_path: Path) -> None:
    groups = {**all_of(2), "1": ("side", [0, 1])}
    later = Entry(group="1", at_ns=BEGUN_NS + 40 * SECOND_NS)
    calls = {0: [DONE, PENDING, later], 1: [DONE, later]}
    (finding,) = findings(tmp_path, calls, groups)
    assert (finding.id, finding.severity) == ("desync:missing:0:2", "warning")
    assert finding.evidence["stuck_because"] == "pending while other calls went on for 40 s"


def test_the_line_of_the_users_code_is_in_the_title(tmp_path: Path) -> None:
    frames = [{"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 1},
              {"name": "step", "filename": "/home/me/train.py", "line": 12}]  # fmt: skip
    waits = Entry(state="scheduled", retired=True, frames=frames)
    (finding,) = findings(tmp_path, {0: [DONE, waits], 1: [DONE]}, all_of(2))
    assert finding.title.endswith("in which rank 0 waited (called at /home/me/train.py:12 (step))")


def test_a_rank_that_never_used_the_group_is_missing_too(tmp_path: Path) -> None:
    groups = {**all_of(2), "1": ("side", [0, 1])}
    (finding,) = findings(tmp_path, {0: [DONE, Entry(group="1", state="started", retired=True)], 1: [DONE]}, groups)
    assert finding.title.startswith("rank 1 had not entered all_reduce #1 of group '1' (side), in which rank 0 waited")


def test_a_rank_that_never_called_anything_is_missing_too(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {0: [TIMED_OUT], 1: []}, all_of(2))
    assert finding.title.startswith(
        "rank 1 had not entered all_reduce #1 of group '0' (all ranks), in which rank 0 waited"
    )
    assert finding.evidence["last_entered"] == {"1": "#0", "0": "all_reduce #1"}


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    calls = {rank: [DONE, TIMED_OUT] if rank < 24 else [DONE] for rank in range(48)}
    (finding,) = findings(tmp_path, calls, all_of(48))
    assert finding.title.startswith("ranks 24, 25, 26, 27, 28, 29, 30, 31 and 16 more had not entered all_reduce #2")
    assert finding.evidence["missing"] == 24
    assert len(finding.evidence["missing_ranks"]) == len(finding.evidence["last_entered"]) == 16


def test_only_members_of_the_group_are_missed(tmp_path: Path) -> None:
    groups = {**all_of(4), "1": ("pair", [0, 1])}
    calls = {0: [DONE, Entry(group="1", state="scheduled", retired=True)], 1: [DONE], 2: [DONE], 3: [DONE]}
    own: dict[int, Groups] = {rank: groups if rank < 2 else all_of(4) for rank in range(4)}
    (finding,) = findings(tmp_path, calls, own)
    assert finding.evidence["missing_ranks"] == [1]


# --- nothing is wrong ------------------------------------------------------------------------------------------------


KINDS = [Entry(op=op, seq=seq) for seq, op in enumerate(["broadcast", "all_reduce", "_all_gather_base"] * 4, 1)]
SENDS = [Entry(op="send 0->1", is_p2p=True, p2p_seq=number) for number in range(1, 10)]
RECEIVES = Entry(op="recv 1<-0", is_p2p=True, p2p_seq=3, state="scheduled")


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        pytest.param([[DONE] * 5] * 4, {}, id="all finished"),
        pytest.param([[DONE] * 3 + [PENDING] * 2] * 4, {}, id="calls are under way on all ranks"),
        pytest.param([[DONE] * 5 + [PENDING]] * 2 + [[DONE] * 3], {}, id="an older dump"),
        # A rank with more groups has overwritten more of each.
        pytest.param([KINDS, KINDS[7:], KINDS[11:]], {1: 20, 2: 30}, id="a buffer that holds fewer calls"),
        pytest.param([[DONE, *SENDS], [DONE, *SENDS[:2], RECEIVES]], {}, id="sends that differ in number"),
    ],
)
def test_what_is_no_finding(calls: list[list[Entry]], first: dict[int, int], tmp_path: Path) -> None:
    assert findings(tmp_path, dict(enumerate(calls)), all_of(len(calls)), first=first) == []


def test_groups_without_known_members_are_not_compared(tmp_path: Path) -> None:
    groups = {**all_of(2), "7": ("mesh", None)}
    calls = {
        0: [DONE, *[Entry(group="7")] * 5, Entry(group="7", state="scheduled", retired=True)],
        1: [DONE, Entry(group="7")],
    }
    assert findings(tmp_path, calls, groups) == []


def test_groups_of_one_name_and_other_members_are_not_compared(tmp_path: Path) -> None:
    own: dict[int, Groups] = {
        rank: {**all_of(4), "1": ("mesh_tp", [0, 1] if rank < 2 else [2, 3])} for rank in range(4)
    }
    calls = {
        rank: [DONE] + [Entry(group="1", op="broadcast" if rank < 2 else "all_reduce")] * (3 + rank // 2)
        for rank in own
    }
    assert findings(tmp_path, calls, own) == []


def test_batches_are_compared_call_by_call(tmp_path: Path) -> None:
    def batch(*ops: str) -> list[Entry]:
        inner = [Entry(op=op, seq=2, state="scheduled", retired=False) for op in ops]
        return [DONE, *inner, Entry(op="ALLGATHER_coalesced", seq=2, sizes=())]

    same = batch("_all_gather_base", "broadcast")
    assert findings(tmp_path, {0: same, 1: same}, all_of(2)) == []
    (finding,) = findings(tmp_path, {0: same, 1: batch("_all_gather_base", "all_reduce")}, all_of(2))
    assert finding.id == "desync:mismatch:0:2"
    cut = [Entry(op="broadcast", seq=2, state="scheduled", retired=False), same[-1], Entry(seq=3)]
    assert findings(tmp_path, {0: [*same, Entry(seq=3)], 1: cut}, all_of(2), first={1: 2}) == []


def test_uneven_exchanges_are_nothing(tmp_path: Path) -> None:
    calls = {
        rank: [
            Entry(op="all_to_all", sizes=[[rank + 1]], out_sizes=[[5 - rank]]),
            Entry(op="gather", out_sizes=[[2, 1024]] if rank == 0 else []),
            Entry(op="scatter", sizes=[[2, 1024]] if rank == 0 else [], out_sizes=[[1024]]),
            Entry(op="all_gather", sizes=[[rank + 1]], out_sizes=[[3]]),
        ]
        for rank in range(2)
    }
    assert findings(tmp_path, calls, all_of(2)) == []


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_a_healthy_job_dumped_at_any_moments_gives_no_warning(tmp_path: Path, seed: int) -> None:
    """Ranks run one program, each as far as the others let it, and are dumped at moments of their own."""
    chance = random.Random(seed)
    world, length = chance.randint(2, 5), chance.randint(1, 12)
    groups = {**all_of(world), "1": ("side", range(world))}
    program = [
        Entry(op=chance.choice(["all_reduce", "broadcast", "_all_gather_base"]), group=chance.choice("01"),
              sizes=[[chance.choice([8, 64])]], out_sizes=[[64]])
        for _ in range(length)
    ]  # fmt: skip
    moments = {rank: chance.randint(0, length) for rank in range(world)}
    calls, first = {}, {}
    for rank in range(world):
        entered = moments[rank]
        # what all had entered when this rank was dumped may have completed: nothing beyond is
        done = chance.randint(0, min(moments.values())) if entered else 0
        made = [Entry(op=each.op, group=each.group, sizes=each.sizes, out_sizes=each.out_sizes,
                      state="completed" if place < done else "scheduled",
                      seq=1 + sum(before.group == each.group for before in program[:place]))
                for place, each in enumerate(program[:entered])]  # fmt: skip
        cut = chance.randint(0, len(made) // 2)
        calls[rank], first[rank] = made[cut:], cut
    for finding in findings(tmp_path, calls, groups, first=first):
        assert finding.severity == "info"
        assert finding.id.startswith("desync:missing")
        behind = {rank for rank, moment in moments.items() if moment < max(moments.values())}
        assert set(finding.evidence["missing_ranks"]) <= behind


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_whoever_skips_a_collective_is_named_and_nobody_else(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world, length = chance.randint(2, 6), chance.randint(0, 8)
    skipping = set(chance.sample(range(world), chance.randint(1, world - 1)))
    ahead = chance.randint(1, 3)
    before = [Entry(seq=place) for place in range(1, length + 1)]
    after = [Entry(seq=length + place, state="scheduled", retired=place == 1) for place in range(1, ahead + 1)]
    calls = {rank: before + ([] if rank in skipping else after) for rank in range(world)}
    found = findings(tmp_path, calls, all_of(world))
    assert [each.id for each in found] == [f"desync:missing:0:{length + 1}"]
    assert set(found[0].evidence["missing_ranks"]) == skipping
    assert set(found[0].evidence["waiting_ranks"]) == set(range(world)) - skipping


# --- ranks call different things -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Entry(op="broadcast"), "broadcast of 1024 float32"),
        (Entry(sizes=[[512]]), "all_reduce of 512 float32"),
        (Entry(dtype="Half"), "all_reduce of 1024 float16"),
    ],
)
def test_who_called_what_is_in_the_title(tmp_path: Path, other: Entry, said: str) -> None:
    calls = {0: [DONE] * 4, 1: [DONE] * 4, 2: [DONE, DONE, other, DONE]}
    (finding,) = findings(tmp_path, calls, all_of(3))
    assert (finding.id, finding.severity) == ("desync:mismatch:0:3", "warning")
    assert finding.title == (
        f"collective #3 of group '0' (all ranks) differs between ranks: ranks 0, 1 called all_reduce of 1024 "
        f"float32; rank 2 called {said}"
    )
    assert finding.evidence["called"]["2"] == said


def test_after_one_skipped_call_the_first_difference_is_named_and_the_others_counted(tmp_path: Path) -> None:
    program = [Entry(sizes=[[size]]) for size in range(10, 20)]
    (finding,) = findings(tmp_path, {0: program, 1: program[:4] + program[5:] + program[:1]}, all_of(2))
    assert finding.id == "desync:mismatch:0:5"
    assert finding.title.endswith("; 5 later calls differ too")


# --- all are there ---------------------------------------------------------------------------------------------------


def test_a_collective_that_all_entered_and_that_timed_out_is_stuck(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {rank: [DONE, TIMED_OUT] for rank in range(3)}, all_of(3))
    assert (finding.id, finding.severity) == ("desync:stuck:0:2", "warning")
    assert "though all 3 ranks had entered it" in finding.title


def test_ranks_that_timed_out_in_different_collectives_are_apart(tmp_path: Path) -> None:
    calls = {0: [DONE, TIMED_OUT, PENDING], 1: [DONE, DONE, TIMED_OUT]}
    (finding,) = findings(tmp_path, calls, all_of(2))
    assert finding.id == "desync:apart:0"
    assert finding.evidence["waiting_in"] == {"0": 2, "1": 3}


# --- a dump is missing -----------------------------------------------------------------------------------------------


def test_ranks_without_a_dump_are_named(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {0: [DONE], 2: [DONE]}, all_of(4))
    assert (finding.id, finding.severity) == ("no_dump", "info")
    assert finding.title == "no dump of ranks 1, 3: their progress is not known"
    stuck, silent = findings(tmp_path, {0: [DONE, TIMED_OUT], 1: [DONE, TIMED_OUT]}, all_of(3))
    assert stuck.title.endswith("did not end on ranks 0, 1; nothing is known of rank 2")
    assert (silent.id, silent.severity) == ("no_dump", "warning")
    assert silent.title.startswith("no dump of rank 2:")


def test_a_thousand_missing_dumps_are_one_short_line(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {5: [DONE]}, all_of(1024))
    assert finding.title == "no dump of ranks 0, 1, 2, 3, 4, 6, 7, 8 and 1015 more: their progress is not known"
    assert (finding.evidence["missing"], finding.evidence["dumped"]) == (1023, 1)
    assert len(finding.evidence["ranks"]) == 16


# --- dumps and logs --------------------------------------------------------------------------------------------------


def test_a_log_of_the_same_job_tells_that_it_hung(tmp_path: Path) -> None:
    calls = {0: [DONE] * 6 + [PENDING], 1: [DONE] * 6}
    log = [caught(7, rank=0), failed(0, 7, 7, 6), notified(1, 6, 6)]
    (finding,) = findings(tmp_path, calls, all_of(2), log=log)
    assert (finding.id, finding.severity) == ("desync:missing:0:7", "warning")
    assert finding.evidence["stuck_because"] == "timed out after 600 s"


def test_two_libraries_of_one_group_have_counts_of_their_own(tmp_path: Path) -> None:
    """With backend cpu:gloo,cuda:nccl one group counts gloo's calls and NCCL's apart."""
    calls = {rank: [Entry(state="scheduled", retired=True)] * 4 for rank in range(2)}
    log = [notified(0, 900, 900), notified(1, 900, 900)]
    assert findings(tmp_path, calls, all_of(2), backend="gloo", log=log) == []
    log = [line for rank in range(2) for line in (caught(901, rank=rank), failed(rank, 901, 901, 900))]
    (finding,) = findings(tmp_path, calls, all_of(2), backend="gloo", log=log)
    assert finding.id == "desync:stuck:0:901"
