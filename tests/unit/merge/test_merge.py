"""Several sources of one rank become one timeline: certain values are joined, others are reported."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.merge.call_sequences import WILD, find_run
from overlapscope.ingest.merge.sources import Merged, merge_sources
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMPLETED, SCHEDULED, STARTED
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Group, RankTimeline
from tests.conftest import shared_file
from tests.support.call_logs import Call, calls_in, communicator_groups, log, members_facts, trace

WORLD = Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3))
MAIN = "0x5d01"
OTHER = "0x5d02"
INIT = [Call("broadcast", 30, "uint8"), Call("broadcast", 1000), Call("all_gather", 4, "int64")]
BUCKETS = [1000, 2000, 3000]


def chosen(call: Call, seq: int | None, communicator: str = MAIN, **changes: object) -> Call:
    """The call as the library's log has it: algorithm and channels by its size."""
    size = call.elements or 0
    values = {"algorithm": "TREE" if size < 1500 else "RING", "protocol": "LL", "channels": size // 1000 + 2}
    return replace(call, group=communicator, seq=seq, record=None, **{**values, **changes})


def step(number: int = 0) -> list[Call]:
    return [*(Call("all_reduce", size) for size in BUCKETS), Call("all_reduce", 7 + number)]


def logged(calls: Sequence[Call], communicator: str = MAIN, first: int = 0, **changes: object) -> list[Call]:
    return [chosen(call, first + at, communicator, **changes) for at, call in enumerate(calls)]


def merged(
    *parts: RankTimeline, groups: Sequence[Group] = (WORLD,), facts: Facts | None = None, **ranks: Sequence[int]
) -> Merged:
    """Merge timelines, with communicators named by keyword as `c0x5d01=(0, 1)`."""
    communicators = {name[1:]: members for name, members in ranks.items()} or {MAIN: (0, 1, 2, 3)}
    by_rank: dict[int, list[RankTimeline]] = {}
    for part in parts:
        by_rank.setdefault(part.rank, []).append(part)
    facts = members_facts(communicators) if facts is None else facts
    return merge_sources(by_rank, (*groups, *communicator_groups(communicators)), facts)


def notes_text(result: Merged) -> str:
    return "\n".join(result.notes)


# --- one group, one communicator ------------------------------------------------------------------------------------


def test_a_trace_in_mid_run_gains_what_the_log_from_the_start_knows() -> None:
    run = [*INIT, *(call for number in range(9) for call in step(number))]
    part = run[11:19]
    result = merged(trace(part), log(logged(run)))
    assert calls_in(result.ranks[0]) == [replace(chosen(c, 11 + at), group="0", size=None) for at, c in enumerate(part)]
    assert result.ranks[0].basis == "trace"
    assert result.notes == ()


def test_calls_are_compared_in_the_order_of_their_launches() -> None:
    run = [*INIT, *step(1), *step(2)]
    part = [replace(call, launch=at) for at, call in enumerate(run[3:])]
    shuffled = [part[at] for at in (3, 0, 7, 1, 2, 6, 5, 4)]
    result = merged(trace(shuffled), log(logged(run)))
    assert [call.seq for call in calls_in(result.ranks[0])] == [6, 3, 10, 4, 5, 9, 8, 7]


def test_steps_that_repeat_are_not_joined_and_say_so() -> None:
    run = [*INIT, *step() * 10]
    result = merged(trace(step() * 2), log(logged(run)))
    assert calls_in(result.ranks[0]) == step() * 2
    assert result.groups == (WORLD,)
    assert result.notes == (
        "rank 0, group '0': not joined with its log: its 8 calls fit the log at several places, because steps repeat; "
        "record the job's start too, or a step that is unlike the others",
    )


@pytest.mark.parametrize("lost", ["call of the trace", "line of the log"])
def test_a_kernel_that_was_not_recorded_or_a_lost_line_leaves_the_calls_unjoined(lost: str) -> None:
    run = [*INIT, *(call for number in range(12) for call in step(number))]
    part, lines = run[11:35], logged(run)
    del (part if lost == "call of the trace" else lines)[16]
    result = merged(trace(part), log(lines))
    assert calls_in(result.ranks[0]) == part
    assert "calls are not a contiguous part of the log's" in notes_text(result)


def test_a_call_that_contradicts_the_log_leaves_all_unjoined() -> None:
    run = [*INIT, *(call for number in range(3) for call in step(number))]
    part = run[5:10]
    part[3] = replace(part[3], elements=999)
    result = merged(trace(part), log(logged(run)))
    assert {call.algorithm for call in calls_in(result.ranks[0])} == {None}
    assert result.notes == (
        "rank 0, group '0': not joined with its log: its 5 calls are not a contiguous part of the log's 15 calls: are "
        "both of one run, and is the log complete (NCCL_DEBUG_SUBSYS with COLL from the start)?",
    )


def test_a_size_that_few_calls_tell_must_not_contradict_the_log() -> None:
    """Where most sizes are not known, operations alone find the place."""
    part = [replace(call, elements=None, dtype=None) for call in [*INIT, *step(1)]]
    part[4] = replace(part[4], elements=2001)
    result = merged(trace(part), log(logged([*INIT, *step(1)])))
    assert calls_in(result.ranks[0]) == part
    assert result.notes == (
        "rank 0, group '0': call 5 of 7 is all_reduce in the trace and all_reduce of 8000 bytes float32 in the log: "
        "not joined; are both of one run?",
    )


def test_the_traces_own_values_stay_and_the_difference_is_reported() -> None:
    part = [replace(call, algorithm="NVLS") for call in step(1)]
    result = merged(trace(part), log(logged([*INIT, *step(1)])))
    assert {call.algorithm for call in calls_in(result.ranks[0])} == {"NVLS"}
    assert {call.protocol for call in calls_in(result.ranks[0])} == {"LL"}
    assert "for some calls the log and the trace name a different algorithm: the trace's value is kept" in notes_text(
        result
    )


def test_a_log_without_calls_adds_nothing_and_is_no_reason_to_warn() -> None:
    result = merged(trace(step()), log([]))
    assert calls_in(result.ranks[0]) == step()
    assert result.notes == ()


# --- calls that a library names differently from torch ----------------------------------------------------------------


def test_a_barrier_is_an_all_reduce_of_one_element() -> None:
    run = [*INIT, *step(1), Call("all_reduce", 1, "uint8"), *step(2), Call("all_reduce", 1), *step(3)]
    part = [*step(1), Call("barrier", None, None), *step(2), Call("barrier", None, None), *step(3)]
    joined = calls_in(merged(trace(part), log(logged(run))).ranks[0])
    assert [call.seq for call in joined] == list(range(3, 17))
    assert (joined[4].algorithm, joined[4].elements) == ("TREE", None)


def test_bytes_flags_and_complex_numbers_are_known_by_other_names() -> None:
    part = [Call("broadcast", 30, "bool"), Call("broadcast", 30, "uint8"), Call("all_reduce", 50, "complex64")]
    run = [Call("broadcast", 30, "int8"), Call("broadcast", 30, "uint8"), Call("all_reduce", 100)]
    result = merged(trace(part), log(logged([*INIT, *run])))
    assert [(call.seq, call.dtype) for call in calls_in(result.ranks[0])] == [
        (3, "bool"),
        (4, "uint8"),
        (5, "complex64"),
    ]
    assert result.notes == ()


@pytest.mark.parametrize("counts_groups", [True, False])
def test_an_all_to_all_is_a_group_of_sends_and_receives(counts_groups: bool) -> None:
    """Newer libraries do not count calls that need no network."""
    exchange = [Call("send", 25), Call("recv", 25)] * 4
    lines = []
    for number, group in enumerate([*([c] for c in [*INIT, *step(1)]), exchange, exchange, *([c] for c in step(2))]):
        lines += [chosen(call, number if counts_groups else 0, protocol="SIMPLE", channels=2) for call in group]
    part = [*step(1), Call("all_to_all", 100), Call("all_to_all", 100), *step(2)]
    joined = calls_in(merged(trace(part), log(lines)).ranks[0])
    assert {call.protocol for call in joined} == {"SIMPLE"}
    assert [call.seq for call in joined] == (list(range(3, 13)) if counts_groups else [None] * 10)


def test_calls_given_at_once_are_one_kernel() -> None:
    together = [Call("all_gather", 40), Call("all_gather", 60)]
    lines = [chosen(call, number) for number, call in enumerate([*INIT, *step(1)])]
    lines += [chosen(call, 7, channels=9) for call in together]
    lines += [chosen(call, 8 + number) for number, call in enumerate(step(2))]
    part = [*step(1), Call("coalesced", None, None), *step(2)]
    joined = calls_in(merged(trace(part), log(lines)).ranks[0])
    assert [call.seq for call in joined] == list(range(3, 12))
    assert (joined[4].channels, joined[4].elements) == (9, None)


def test_an_all_gather_of_unequal_parts_is_a_group_of_broadcasts() -> None:
    parts = [Call("broadcast", size) for size in (10, 20, 30, 40)]
    lines = logged([*INIT, *step(1)]) + [chosen(call, 7) for call in parts] + logged(step(2), first=8)
    part = [*step(1), Call("all_gather", 100), *step(2)]
    assert [call.seq for call in calls_in(merged(trace(part), log(lines)).ranks[0])] == list(range(3, 12))


def test_what_only_the_log_knows_of_sizes_is_filled_in() -> None:
    part = [replace(call, elements=None, dtype=None) for call in [*INIT, *step(1)]]
    joined = calls_in(merged(trace(part), log(logged([*INIT, *step(1)], size=4))).ranks[0])
    assert joined == [replace(chosen(call, at), group="0", size=4) for at, call in enumerate([*INIT, *step(1)])]


def test_a_few_calls_of_unknown_size_do_not_hinder_the_others() -> None:
    part = [*INIT, *(call for number in range(4) for call in step(number))]
    part[8] = replace(part[8], elements=None, dtype=None)
    joined = calls_in(merged(trace(part), log(logged([Call("reduce", 3), *part[:8], step(1)[1], *part[9:]]))).ranks[0])
    assert [call.seq for call in joined] == list(range(1, 20))


# --- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_and_the_communicator_of_its_ranks_are_one() -> None:
    result = merged(trace(step(1)), log(logged([*INIT, *step(1)])))
    assert result.groups == (WORLD,)
    table, facts = result.facts.members, result.facts
    assert [facts.name(code) for code in table.communicator.tolist()] == [MAIN] * 4
    assert [facts.name(code) for code in table.group.tolist()] == ["0"] * 4


def test_a_communicator_that_no_group_is_known_for_stays_a_group() -> None:
    result = merged(trace(step(1)), log(logged([*INIT, *step(1)])), **{f"c{MAIN}": (0, 1, 2, 3), f"c{OTHER}": (0, 2)})
    assert [group.name for group in result.groups] == ["0", OTHER]


TWIN = Group(name="7", description="data parallel", size=4, ranks=(0, 1, 2, 3))
TWINS = {f"c{MAIN}": (0, 1, 2, 3), f"c{OTHER}": (0, 1, 2, 3)}


def test_two_communicators_of_the_same_ranks_differ_by_their_calls() -> None:
    on_other = [Call("reduce_scatter", 5000 + at, group="7") for at in range(4)]
    mixed = [call for pair in zip(step(1), on_other, strict=True) for call in pair]
    lines = [chosen(call, at, OTHER if call.group == "7" else MAIN) for at, call in enumerate([*INIT, *mixed])]
    result = merged(trace(mixed), log(lines), groups=(WORLD, TWIN), **TWINS)
    assert [call.seq for call in calls_in(result.ranks[0])] == list(range(3, 11))
    assert result.groups == (WORLD, TWIN)
    assert result.notes == ()


def test_a_group_that_fits_two_communicators_takes_the_one_that_the_other_group_leaves() -> None:
    first = step(1)
    second = [replace(call, group="7") for call in step(1)[:3]]
    lines = [*logged([*INIT, *first], MAIN), *logged(second, OTHER, algorithm="NVLS")]
    result = merged(trace([*first, *second]), log(lines), groups=(WORLD, TWIN), **TWINS)
    assert [call.algorithm for call in calls_in(result.ranks[0])][4:] == ["NVLS"] * 3


def test_communicators_that_fit_alike_are_refused_by_name() -> None:
    part = [replace(call, group=group) for group in "07" for call in step(1)]
    lines = [*logged(step(1), MAIN), *logged(step(1), OTHER, algorithm="NVLS")]
    result = merged(trace(part), log(lines), groups=(WORLD, TWIN), **TWINS)
    assert {call.algorithm for call in calls_in(result.ranks[0])} == {None}
    assert f"rank 0, group '0': its calls fit the communicators {MAIN}, {OTHER} equally" in notes_text(result)
    assert [group.name for group in result.groups] == ["0", "7", MAIN, OTHER]


def test_two_groups_that_fit_one_communicator_are_both_refused() -> None:
    part = [replace(call, group=group) for group in "07" for call in step(1)]
    result = merged(trace(part), log(logged(step(1), MAIN)), groups=(WORLD, TWIN), **TWINS)
    assert {call.algorithm for call in calls_in(result.ranks[0])} == {None}
    assert "its calls and those of group '7' fit communicator 0x5d01 equally" in notes_text(result)


@pytest.mark.parametrize("known", [Group(name="0", size=4), Group(name="0")])
def test_a_group_of_which_only_the_size_or_the_name_is_known_is_found_by_its_calls(known: Group) -> None:
    ranks = {f"c{MAIN}": (0, 1, 2, 3), f"c{OTHER}": (0, 1)}
    lines = [*logged([*INIT, *step(1)]), *logged([Call("all_reduce", 77)], OTHER)]
    result = merged(trace(step(1)), log(lines), groups=(known,), **ranks)
    assert [call.seq for call in calls_in(result.ranks[0])] == [3, 4, 5, 6]
    assert [group.name for group in result.groups] == ["0", OTHER]


def test_a_log_of_one_rank_alone_knows_enough_of_a_communicator() -> None:
    facts = members_facts({MAIN: (0, 1, 2, 3)}, only=[0])
    result = merge_sources({0: [trace(step(1)), log(logged([*INIT, *step(1)]))]}, (WORLD,), facts)
    assert [call.seq for call in calls_in(result.ranks[0])] == [3, 4, 5, 6]


def test_sends_on_communicators_of_pairs_belong_to_the_group_of_all() -> None:
    """torch makes a communicator for each pair of ranks that sends outside of a batch."""
    moves = [Call("recv", 500), Call("send", 500), Call("recv", 501), Call("send", 502)]
    part = [*step(1), *moves, *step(2)]
    pair_of = {"recv": "0xaa", "send": "0xbb"}
    lines = logged([*INIT, *step(1)])
    lines += [chosen(call, at // 2, pair_of[call.op or ""]) for at, call in enumerate(moves)]
    lines += logged(step(2), first=7)
    pairs = {f"c{MAIN}": (0, 1, 2, 3), "c0xaa": (0, 1), "c0xbb": (1, 2)}
    result = merged(trace(part, rank=1), log(lines, rank=1), **pairs)
    joined = calls_in(result.ranks[1])
    assert None not in [call.algorithm for call in joined]
    assert {call.group for call in joined} == {"0"}
    facts = result.facts
    assert {facts.name(code) for code in facts.members.group.tolist()} == {"0"}


def test_calls_without_a_group_are_found_among_all_calls_of_the_rank() -> None:
    run = [*logged(INIT), *logged([Call("all_reduce", 5)], OTHER), *logged(step(1), first=3)]
    part = [Call(call.op, call.elements, call.dtype, group=None) for call in run[2:]]
    joined = calls_in(merged(trace(part), log(run), **{f"c{MAIN}": (0, 1, 2, 3), f"c{OTHER}": (0, 1)}).ranks[0])
    assert [call.group for call in joined] == ["0", OTHER, "0", "0", "0", "0"]
    assert [call.algorithm for call in joined] == [call.algorithm for call in run[2:]]


def test_a_group_without_a_communicator_in_the_log_is_named() -> None:
    part = [Call("all_reduce", 5, group="tp")]
    groups = (WORLD, Group(name="tp", size=2, ranks=(0, 1)))
    result = merged(trace(part), log(logged(step(1))), groups=groups)
    assert notes_text(result).startswith("rank 0, group 'tp': no communicator of the log fits its ranks")


def test_communicators_that_a_log_without_calls_lists_are_named_after_their_groups() -> None:
    result = merged(trace(step(1)), log([]))
    assert result.groups == (WORLD,)
    assert {result.facts.name(code) for code in result.facts.members.group.tolist()} == {"0"}


def test_a_communicator_that_only_calls_name_is_named_too() -> None:
    result = merge_sources({0: [trace(step(1)), log(logged(step(1), size=4))]}, (WORLD,), Facts())
    table, facts = result.facts.members, result.facts
    assert [(facts.name(int(table.communicator[0])), facts.name(int(table.group[0])))] == [(MAIN, "0")]
    assert table.rank.tolist() == [0]


# --- several ranks --------------------------------------------------------------------------------------------------


def test_a_rank_with_a_log_alone_joins_the_run_under_the_groups_own_name() -> None:
    lines = logged([*INIT, *step(1)])
    result = merged(trace(step(1)), log(lines), log(lines, rank=1))
    assert sorted(result.ranks) == [0, 1]
    assert result.ranks[1].basis == "log"
    assert calls_in(result.ranks[1]) == [replace(call, group="0") for call in lines]
    assert result.notes == ()


def test_the_librarys_numbers_are_not_mixed_with_torchs() -> None:
    part = [replace(call, seq=900 + at) for at, call in enumerate(step(1))]
    lines = logged([*INIT, *step(1)])
    result = merged(trace(part), log(lines), log(lines, rank=1))
    assert [call.seq for call in calls_in(result.ranks[0])] == [900, 901, 902, 903]
    assert {call.algorithm for call in calls_in(result.ranks[0])} == {"TREE", "RING"}
    assert {call.seq for call in calls_in(result.ranks[1])} == {None}
    assert "rank 1, group '0': its log numbers calls differently from torch" in notes_text(result)


def test_numbers_are_not_mixed_where_torchs_are_of_an_unknown_group() -> None:
    part = [replace(call, seq=900 + at, group=None, size=4) for at, call in enumerate(step(1))]
    lines = logged([*INIT, *step(1)])
    bare = [replace(call, group=None) for call in step(1)]
    result = merged(trace(part), log(lines), log(lines, rank=1), trace(bare, rank=2), log(lines, rank=2))
    assert [call.seq for call in calls_in(result.ranks[0])] == [900, 901, 902, 903]
    for rank in (1, 2):
        assert {call.seq for call in calls_in(result.ranks[rank])} == {None}
        assert {call.group for call in calls_in(result.ranks[rank])} == {"0"}


def test_calls_of_a_known_size_without_a_group_are_not_looked_for_on_other_sizes() -> None:
    part = [replace(call, group=None, size=4) for call in step(1)]
    between = logged([Call("all_reduce", 5)] * 6, OTHER)
    lines = [line for pair in zip(logged([*INIT, *step(1)]), [*between, between[0]], strict=True) for line in pair]
    result = merged(trace(part), log(lines), **{f"c{MAIN}": (0, 1, 2, 3), f"c{OTHER}": (0, 1)})
    assert [call.algorithm for call in calls_in(result.ranks[0])] == ["TREE", "RING", "RING", "TREE"]


def test_one_reason_of_many_ranks_is_reported_once() -> None:
    ranks = range(4)
    parts = [trace([Call("all_reduce", 123)], rank=rank) for rank in ranks]
    result = merged(*parts, *(log(logged(step(1)), rank=rank) for rank in ranks))
    assert len(result.notes) == 1
    assert result.notes[0].endswith("(likewise ranks 1, 2, 3)")


# --- flight recorders -----------------------------------------------------------------------------------------------


def dumped(calls: Sequence[Call], first: int, stuck: int | None = None) -> list[Call]:
    return [
        replace(call, seq=first + at, launch=1000 * at, state=SCHEDULED if first + at == stuck else COMPLETED)
        for at, call in enumerate(calls)
    ]


def test_a_dump_is_joined_by_torchs_numbers() -> None:
    part = [replace(call, seq=20 + at) for at, call in enumerate(step(1))]
    result = merged(trace(part), log(dumped(step(1)[2:] + step(2), 22, stuck=23)))
    joined = calls_in(result.ranks[0])
    assert [call.state for call in joined] == [0, 0, COMPLETED, SCHEDULED]
    assert [call.seq for call in joined] == [20, 21, 22, 23]
    assert result.notes == ()


def test_a_dump_is_joined_by_the_order_of_calls_where_the_trace_has_no_numbers() -> None:
    result = merged(trace(step(1)), log(dumped([*step(0), *step(1), *step(2)], 40)))
    assert [(call.seq, call.state) for call in calls_in(result.ranks[0])] == [
        (number, COMPLETED) for number in (44, 45, 46, 47)
    ]


def test_a_dump_of_other_calls_says_what_to_do() -> None:
    part = [replace(call, seq=20 + at) for at, call in enumerate(step(1))]
    result = merged(trace(part), log(dumped(step(1), 5000)))
    assert notes_text(result) == (
        "rank 0, group '0': the flight recorder's dump holds calls 5000 to 5003, the trace 20 to 23: nothing to join; "
        "raise TORCH_FR_BUFFER_SIZE to keep more"
    )


def test_a_dump_that_contradicts_the_trace_is_refused_for_that_call() -> None:
    part = [replace(call, seq=20 + at) for at, call in enumerate(step(1))]
    other = step(1)
    other[1] = replace(other[1], op="broadcast")
    result = merged(trace(part), log(dumped(other, 20)))
    assert [call.state for call in calls_in(result.ranks[0])] == [COMPLETED, 0, COMPLETED, COMPLETED]
    assert "call number 21 is all_reduce of 8000 bytes float32 in the trace and broadcast of 8000" in notes_text(result)


def test_without_a_trace_the_dump_is_the_base_and_gains_what_the_library_chose() -> None:
    recorded = dumped([*step(1), *step(2)], 50, stuck=57)
    result = merged(log(recorded, source="dump"), log(logged([*INIT, *step(1), *step(2)])))
    joined = calls_in(result.ranks[0])
    assert [call.seq for call in joined] == list(range(50, 58))
    assert [call.algorithm for call in joined] == ["TREE", "RING", "RING", "TREE"] * 2
    assert joined[-1].state == SCHEDULED
    assert result.ranks[0].basis == "log"


def test_trace_dump_and_log_become_one() -> None:
    run = [*INIT, *step(1), *step(2)]
    result = merged(trace(step(1)), log(dumped(run, 100), source="dump"), log(logged(run)))
    assert calls_in(result.ranks[0]) == [
        replace(chosen(call, 103 + at), group="0", state=COMPLETED) for at, call in enumerate(step(1))
    ]
    assert result.notes == ()


# --- several logs of one kind ---------------------------------------------------------------------------------------


def of_group(calls: Sequence[Call]) -> list[Call]:
    return [replace(call, group="0") for call in calls]


def test_rotated_logs_are_put_in_order_by_their_numbers() -> None:
    run = logged([*INIT, *step(1), *step(2)])
    result = merged(log(run[6:], source="log.2"), log(run[:6], source="log.1"))
    assert calls_in(result.ranks[0]) == of_group(run)
    assert result.notes == ()


def test_a_later_dump_goes_on_where_the_earlier_one_ended_and_knows_more_of_its_calls() -> None:
    early = [replace(call, state=STARTED) for call in dumped(step(1) + step(2), 10)]
    late = dumped(step(2) + step(3), 14)
    calls = calls_in(merged(log(early), log(late)).ranks[0])
    assert [call.seq for call in calls] == list(range(10, 22))
    assert [call.state for call in calls] == [STARTED] * 4 + [COMPLETED] * 8


def test_the_same_log_twice_counts_once() -> None:
    run = logged([*INIT, *step(1)])
    result = merged(log(run), log(run, source="copy"))
    assert calls_in(result.ranks[0]) == of_group(run)
    unnumbered = [replace(call, seq=None) for call in run]
    assert calls_in(merged(log(unnumbered), log(unnumbered)).ranks[0]) == of_group(unnumbered)


def test_a_log_within_another_adds_nothing() -> None:
    run = logged([*INIT, *step(1), *step(2)])
    assert calls_in(merged(log(run[3:7]), log(run)).ranks[0]) == of_group(run)


def test_logs_of_unknown_order_cost_the_shorter_with_a_note() -> None:
    first = [replace(call, seq=None) for call in logged(step(1))]
    second = [replace(call, seq=None) for call in logged([*INIT, *step(2)])]
    result = merged(log(first, source="a.log"), log(second, source="b.log"))
    assert calls_in(result.ranks[0]) == of_group(second)
    assert notes_text(result) == (
        "rank 0: a.log and b.log are logs of one kind, and it is not known which calls came first: a.log is left out; "
        "pass only one of them, or one that holds all calls"
    )


def test_logs_that_contradict_each_other_are_not_put_together() -> None:
    run = logged([*INIT, *step(1)])
    other = [replace(call, op="reduce") if at == 4 else call for at, call in enumerate(run)][2:]
    result = merged(log(run), log(other, source="other.log"))
    assert calls_in(result.ranks[0]) == of_group(run)
    assert "other.log is left out" in notes_text(result)


def test_an_execution_trace_fills_what_the_trace_lacks() -> None:
    bare = [replace(call, elements=None, record=at) for at, call in enumerate(step(1))]
    full = [replace(call, seq=7 + at, record=at) for at, call in enumerate(step(1))]
    result = merged(trace(bare), log(full))
    assert [(call.elements, call.seq) for call in calls_in(result.ranks[0])] == [(c.elements, c.seq) for c in full]
    assert result.notes == ()


def test_an_execution_trace_of_another_recording_is_left_out_and_named() -> None:
    ours = [replace(call, record=at) for at, call in enumerate(step(1))]
    other = [replace(call, elements=1, record=at) for at, call in enumerate(step(1))]
    result = merged(trace(ours), log(other))
    assert calls_in(result.ranks[0]) == ours
    assert "its execution trace is left out: the execution trace is not of this recording" in notes_text(result)


def test_two_recordings_of_one_time_are_still_refused() -> None:
    with pytest.raises(InputError, match="recorded twice"):
        merged(trace(step(1), source="a"), trace(step(1), source="b"), log([]))


# --- real traces, with the log that their calls would have given ------------------------------------------------------


def in_launch_order(timeline: RankTimeline) -> list[Call]:
    order = timeline.collectives.launch_ns.argsort(kind="stable")
    calls = calls_in(timeline)
    return [calls[row] for row in order.tolist()]


def as_library(call: Call, members: int) -> list[Call]:
    if call.op != "all_to_all":
        return [call]
    part, rest = divmod(call.elements or 0, members)
    sizes = [part] * (members - 1) + [part + rest]
    return [Call(op, elements, call.dtype) for elements in sizes for op in ("send", "recv")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "members"),
    [
        ("kineto/a100_ddp_rank0of2_collective_args.json.gz", 2),
        ("kineto/a100_rank3of8_six_steps.json.gz", 8),
        ("kineto/megatron_tp8/megatron_kineto_3.json.gz", 8),
    ],
)
def test_a_real_trace_is_found_in_the_log_of_a_longer_run(file: str, members: int) -> None:
    run = read_inputs([shared_file(file)])
    ((rank, timeline),) = run.ranks.items()
    recorded = in_launch_order(timeline)
    lines: list[Call] = []
    for number, call in enumerate([*INIT, *recorded, *recorded, Call("reduce", 1), *recorded[: len(recorded) // 2]]):
        by_size = "TREE" if (call.elements or 0) < 1500 else "RING"
        lines += [chosen(c, number, channels=number, algorithm=by_size) for c in as_library(call, members)]
    ranks = tuple(range(members))
    result = merged(timeline, log(lines, rank=rank), groups=run.groups, **{f"c{MAIN}": ranks})
    joined = in_launch_order(result.ranks[rank])
    assert {(call.algorithm, call.channels) for call in joined} == {(None, None)}  # both copies fit
    assert "fit the log at several places" in notes_text(result)
    once = merged(timeline, log(lines[: len(INIT)] + [
        line for line in lines[len(INIT):] if (line.seq or 0) < len(INIT) + len(recorded)
    ], rank=rank), groups=run.groups, **{f"c{MAIN}": ranks})  # fmt: skip
    assert [call.channels for call in in_launch_order(once.ranks[rank])] == [
        number + len(INIT) for number in range(len(recorded))
    ]
    assert once.notes == ()


# --- anything at all ------------------------------------------------------------------------------------------------

any_call = st.builds(
    Call,
    st.sampled_from(["all_reduce", "send", "recv", "barrier", "coalesced", "all_to_all", "unknown", None]),
    st.sampled_from([None, 1, 1000, 2000]),
    st.sampled_from([None, "float32", "uint8"]),
    st.sampled_from([None, "0", "7", MAIN, OTHER]),
    st.sampled_from([None, 2, 4]),
    st.one_of(st.none(), st.integers(0, 9)),
    st.sampled_from([None, "RING", "TREE"]),
    state=st.integers(0, 3),
    record=st.sampled_from([None, None, None, 4]),
    launch=st.sampled_from([None, 1, 2]),
)


@given(
    st.lists(any_call, max_size=9),
    st.lists(st.tuples(st.integers(0, 1), st.lists(any_call, max_size=9)), max_size=4),
    st.booleans(),
)
def test_any_sources_merge_and_the_traces_own_values_stay(
    calls: list[Call], logs: list[tuple[int, list[Call]]], timed: bool
) -> None:
    first = trace(calls) if timed else log(calls)
    result = merged(first, *(log(each, rank=rank) for rank, each in logs), groups=(WORLD, TWIN), **TWINS)
    if not timed:
        return
    for before, after in zip(calls, calls_in(result.ranks[0]), strict=True):
        for column in ("op", "elements", "dtype", "size", "seq", "algorithm"):
            assert getattr(before, column) in (None, "unknown", getattr(after, column))  # an unknown op may be filled
        assert before.state in (0, after.state)


@given(
    st.lists(st.tuples(st.sampled_from("07"), st.sampled_from([1, 2, 1000])), min_size=1, max_size=14),
    st.data(),
)
def test_a_group_never_gains_what_the_library_did_on_another_ones_communicator(
    run: list[tuple[str, int]], data: st.DataObject
) -> None:
    calls = [Call("all_reduce", size, group=group) for group, size in run]
    algorithm = {"0": "RING", "7": "TREE"}
    own = {"0": MAIN, "7": OTHER}
    lines = [chosen(c, at, own[c.group or ""], algorithm=algorithm[c.group or ""]) for at, c in enumerate(calls)]
    first = data.draw(st.integers(0, len(calls) - 1))
    part = calls[first : data.draw(st.integers(first + 1, len(calls)))]
    for call in calls_in(merged(trace(part), log(lines), groups=(WORLD, TWIN), **TWINS).ranks[0]):
        assert call.algorithm in (None, algorithm[call.group or ""])


steps = st.lists(st.sampled_from([1, 2, 1000, 2000]), min_size=1, max_size=5)


@given(st.lists(steps, min_size=2, max_size=6), st.data())
def test_what_is_joined_is_what_the_library_did(run: list[list[int]], data: st.DataObject) -> None:
    """A part that occurs once in the run gets the library's choices; a repeated part gets nothing."""
    sizes = [size for each in run for size in each]
    calls = [Call("all_reduce", size) for size in sizes]
    choice = st.sampled_from(["RING", "TREE", None])
    lines = [replace(call, algorithm=data.draw(choice)) for call in logged(calls)]
    first = data.draw(st.integers(0, len(calls) - 1))
    last = data.draw(st.integers(first + 1, len(calls)))
    once = sum(sizes[at : at + last - first] == sizes[first:last] for at in range(len(sizes))) == 1
    joined = calls_in(merged(trace(calls[first:last]), log(lines)).ranks[0])
    for call, line in zip(joined, lines[first:last], strict=True):
        found = (call.algorithm, call.seq, call.channels)
        assert found == ((line.algorithm, line.seq, line.channels) if once else (None, None, None))


tokens = st.lists(st.integers(WILD, 2), max_size=40)


@given(st.lists(st.integers(WILD, 2), min_size=1, max_size=6), tokens, st.integers(1, 20))
def test_the_places_of_a_run_are_those_of_a_comparison_at_every_place(
    pattern: list[int], text: list[int], times: int
) -> None:
    text = text * times
    fits = [
        place
        for place in range(len(text) - len(pattern) + 1)
        if all(WILD in (a, b) or a == b for a, b in zip(pattern, text[place:], strict=False))
    ]
    assert find_run(np.array(pattern, np.int64), np.array(text, np.int64)) == tuple(fits[:2])


@pytest.mark.slow
def test_a_million_calls_that_are_all_alike_take_no_time() -> None:
    text = np.zeros(1_000_000, np.int64)
    assert find_run(text[:10_000], text) == (0, 1)
    assert find_run(np.append(text[:10_000], 1), text) == ()
