"""What calls take longer than the shortest of their like, where not all members of a group were recorded."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice, by_rules
from overlapscope.advice.losses.largest_loss import longer_beside_launches_ns
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.longer_than_like import (
    LATENCY_NS,
    LATENCY_OF_MEMBER_NS,
    LEAST_BYTES,
    LIKE_CALLS,
    OF_LARGER,
    shortest_of_like,
)
from overlapscope.analysis.job_step.longer_calls import USUAL_LONGER_NS
from overlapscope.report.text import analysis as text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import rank_timeline

US = 1_000
MS = 1_000_000
EIGHT = Group(name="0", size=8, ranks=tuple(range(8)))
KNOWN = {"op": "all_reduce", "group": "0", "dtype": "float32", "bytes": 1 << 20}
UNSIZED = {"op": "all_reduce"}


def steps_of(
    lasted_us: Sequence[Sequence[int]], kind: dict[str, Any], *, compute_us: Sequence[int] = (), idle_us: int = 0
) -> RankTimeline:
    """Return a rank whose steps make these calls, one after the other, each followed by compute on its stream; each
    step ends with idle time."""
    calls, work, steps, at = [], [], [], 0
    for step, own in enumerate(lasted_us):
        begin, each_us = at, (compute_us[step] if compute_us else 100) // len(own)
        for lasted in own:
            calls.append(
                {**kind, "step": step, "start_ns": at, "end_ns": at + lasted * US, "launch_ns": begin, "lane": 0}
            )
            at += lasted * US
            work.append({"name": "gemm", "step": step, "start_ns": at, "end_ns": at + each_us * US, "launch_ns": begin})
            at += each_us * US
        at += idle_us * US
        steps.append({"step": step, "start_ns": begin, "end_ns": at})
    return rank_timeline(0, calls=calls, work=work, steps=steps)


def found(timeline: RankTimeline, world_size: int = 8) -> dict[str, Any]:
    run = Run(world_size=world_size, ranks={0: timeline}, groups=(EIGHT,))
    return {each.id.split(":")[0]: each for each in analyze(run).findings if "long" in each.id}


def test_what_calls_of_one_group_and_size_take_longer_than_the_second_shortest_is_a_bound_of_waiting() -> None:
    said = found(steps_of([[10, 60, 12, 110, 12, 14]], KNOWN))["longer_than_like"]
    # The first one lies before the step's compute. The second shortest takes 12 us: 48 and 98 us
    # are more; 14 us are within what transfers vary by.
    assert said.evidence["longer_ns"] == (48 + 98) * US
    assert said.evidence["share_of_exposed"] == pytest.approx(146 / 208)
    assert (said.evidence["calls_compared"], said.evidence["calls_longer"]) == (6, 2)
    assert "at least 70.2 % of exposed communication (0.146 ms a step)" in said.title
    assert "waiting for ranks that were not recorded, or other traffic on the link" in said.title


def test_what_calls_of_a_step_that_is_cut_short_take_longer_is_said_of_that_step() -> None:
    """The last of four steps lacks its idle time; of its calls five take 60 us instead of 12."""
    waits = [[12] * 6] * 3 + [[12, *[60] * 5]]
    said = found(steps_of(waits, KNOWN, compute_us=[600] * 4, idle_us=1_000))
    assert "longer_than_like" not in said, "in whole steps none is longer"
    cut = said["longer_in_cut_step"]
    assert cut.id == "longer_in_cut_step:step3"
    assert (cut.evidence["longer_ns"], cut.evidence["others_longer_ns"]) == (5 * 48 * US, 0)
    assert cut.evidence["share_of_exposed"] == pytest.approx(240 / 300)
    assert cut.evidence["calls_longer"] == 5
    assert cut.title.startswith("calls of step 3 take at least 0.240 ms longer than the shortest of their like, 80.0 %")
    assert "waiting for ranks that were not recorded, or other traffic on the link" in cut.title
    assert not found(steps_of([[12] * 6] * 4, KNOWN, compute_us=[600] * 4, idle_us=1_000))
    assert "longer_in_cut_step" not in found(steps_of(waits[::-1], KNOWN, compute_us=[600] * 4, idle_us=1_000)), "whole"


def test_of_a_thousandth_of_a_step_nothing_is_said() -> None:
    """One call of five waits 50 us, beside compute of 10 or of 100 ms."""
    waits = [[10, 60, 12, 12, 12, 12]]
    assert found(steps_of(waits, KNOWN, compute_us=(10_000,)))
    assert not found(steps_of(waits, KNOWN, compute_us=(100_000,)))


def test_of_fewer_calls_or_of_other_groups_nothing_is_said() -> None:
    assert not found(steps_of([[10, 60, 12, 110]], KNOWN))
    assert not found(steps_of([[10, 60, 12, 110, 12]], UNSIZED)), "one step, and nobody knows of which groups and sizes"
    assert not found(steps_of([[10, 60, 12, 110, 12]], {**KNOWN, "op": "broadcast"})), "its root does not wait"


def test_what_lies_beside_compute_is_not_counted() -> None:
    rows = [{**KNOWN, "step": 0, "launch_ns": 0, "start_ns": at * 200 * US, "end_ns": (at * 200 + lasted) * US}
            for at, lasted in enumerate([10, 60, 12, 110, 12, 14])]  # fmt: skip
    step = {"step": 0, "start_ns": 0, "end_ns": 2_000 * US}
    beside = {**step, "name": "gemm", "launch_ns": 0}
    assert not found(rank_timeline(0, calls=rows, work=[beside], steps=[step]))


def test_calls_without_a_size_are_compared_place_by_place_in_steps_that_compute_alike() -> None:
    waits = [[10, 500], [11, 900], [60, 500]]
    said = found(steps_of(waits, UNSIZED))["longer_than_like"]
    assert said.evidence["longer_ns"] == round((400 + 50) * US / 3), "not 490 us: the second call may be larger"
    assert not found(steps_of(waits[:2], UNSIZED)), "two steps are few"
    assert not found(steps_of([*waits[:2], [60, 500, 10]], UNSIZED)), "another number of calls is another place"
    assert not found(steps_of(waits, UNSIZED, compute_us=(100, 100, 140))), "a step that computes more may send more"


@pytest.mark.parametrize("op", ["reduce", "broadcast"])
def test_calls_to_or_from_one_rank_are_compared_place_by_place_in_steps_that_move_as_much(op: str) -> None:
    """The first of each step may have another root, and leave early: it says nothing of the second."""
    kind = {**KNOWN, "op": op}
    timeline = steps_of([(50, 300), (50, 200), (50, 500), (50, 200)], kind, compute_us=(400, 400, 400, 800))
    lasted = timeline.collectives.end_ns - timeline.collectives.start_ns
    needs = shortest_of_like(timeline, lasted, {(0, step): 400 * MS * (1 + step) for step in range(4)})
    assert (needs // US).tolist() == [50, 200] * 4
    unknown = replace(timeline.collectives, bytes=timeline.collectives.bytes * 0 + NONE)
    needs = shortest_of_like(replace(timeline, collectives=unknown), lasted, {(0, step): MS for step in range(4)})
    assert (needs == NONE).all(), "without sizes they may move more"
    said = found(timeline)["longer_than_like"]
    assert said.evidence["longer_ns"] == (100 + 0 + 300 + 0) * US / 4


def test_a_call_needs_little_more_than_a_larger_one_took() -> None:
    larger = [{**KNOWN, "bytes": 2 << 20} for _ in range(LIKE_CALLS)]
    rows = [KNOWN, *larger, {**KNOWN, "bytes": 4 << 20}]
    calls = [{**each, "start_ns": at * 10**6, "end_ns": at * 10**6 + US * (100 + at)} for at, each in enumerate(rows)]
    timeline = rank_timeline(0, calls=calls)
    lasted = timeline.collectives.end_ns - timeline.collectives.start_ns
    needs = shortest_of_like(timeline, lasted, {})
    assert needs[0] == OF_LARGER * 101 * US, "itself included the second shortest"
    assert needs[1] == 102 * US, "of its own size"
    assert needs[-1] == NONE
    uneven = rank_timeline(0, calls=[{**each, "op": "all_to_all"} for each in calls])
    assert shortest_of_like(uneven, lasted, {})[0] == NONE, "the others may have sent more"


def test_a_large_call_on_a_device_needs_little_longer_a_byte_than_a_larger_one_took_and_a_latency() -> None:
    larger = [{**KNOWN, "bytes": 32 << 20} for _ in range(LIKE_CALLS)]
    rows = [{**KNOWN, "bytes": 16 << 20}, {**KNOWN, "bytes": LEAST_BYTES - 1}, *larger]
    calls = [
        {**each, "group_size": 8, "start_ns": at * 10**8, "end_ns": at * 10**8 + 8 * MS} for at, each in enumerate(rows)
    ]
    timeline = rank_timeline(0, calls=calls)
    lasted = timeline.collectives.end_ns - timeline.collectives.start_ns
    needs = shortest_of_like(timeline, lasted, {})
    assert needs[0] == OF_LARGER * 4 * MS + LATENCY_NS, "half as many bytes"
    assert needs[1] == OF_LARGER * 8 * MS, "small calls do not reach the rate of large ones"
    host = replace(timeline, has_device=False)
    assert shortest_of_like(host, lasted, {})[0] == OF_LARGER * 8 * MS
    many = replace(timeline, collectives=replace(timeline.collectives, group_size=timeline.collectives.group_size * 10))
    assert shortest_of_like(many, lasted, {})[0] == OF_LARGER * 4 * MS + 80 * LATENCY_OF_MEMBER_NS, "a long ring"


def test_what_a_call_takes_longer_beside_other_calls_of_its_rank_may_be_their_traffic() -> None:
    """The second call takes 60 us instead of 12, some of them beside another one of the same rank."""
    calls = steps_of([[10, 60, 12, 110, 12, 14]], KNOWN).collectives
    times = [
        {"start_ns": int(begin), "end_ns": int(end)} for begin, end in zip(calls.start_ns, calls.end_ns, strict=True)
    ]
    rows = [{**KNOWN, **each, "step": 0, "launch_ns": 0} for each in times]
    work = [{"name": "gemm", "step": 0, "start_ns": each["end_ns"], "end_ns": each["end_ns"] + US} for each in times]
    step = {"step": 0, "start_ns": 0, "end_ns": 1_000 * US}

    def longer_ns(beside_us: int) -> int:
        beside = {"start_ns": times[1]["start_ns"], "end_ns": times[1]["start_ns"] + beside_us * US, "lane": 2}
        other = {**KNOWN, "op": "reduce_scatter", "group": "1", "step": 0, "launch_ns": 0, **beside}
        said = found(rank_timeline(0, calls=[*rows, other], work=work, steps=[step]))
        return int(said["longer_than_like"].evidence["longer_ns"])

    assert longer_ns(1) - longer_ns(40) == 39 * US
    assert longer_ns(1) - longer_ns(50) == (60 - 12 - 1) * US, "10 us are left of 60: no longer than its like"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=30))
def test_what_calls_of_known_groups_need_at_most_is_as_by_looking_at_each_pair(
    calls: list[tuple[int, int, int]],
) -> None:
    rows = [
        {**KNOWN, "group": str(group), "bytes": size << 10, "start_ns": at * 1000, "end_ns": at * 1000 + lasted}
        for at, (group, size, lasted) in enumerate(calls)
    ]
    timeline = rank_timeline(0, calls=rows)
    lasted_ns = timeline.collectives.end_ns - timeline.collectives.start_ns
    expected = []
    for group, size, _ in calls:
        same = sorted(each[2] for each in calls if each[:2] == (group, size))
        at_least = sorted(each[2] for each in calls if each[0] == group and each[1] >= size)
        bounds = [same[1]] if len(same) >= LIKE_CALLS else []
        bounds += [round(OF_LARGER * at_least[1])] if len(at_least) >= LIKE_CALLS else []
        expected.append(min(bounds, default=NONE))
    assert shortest_of_like(timeline, lasted_ns, {}).tolist() == expected


def test_calls_that_could_be_split_and_runs_without_a_device_say_nothing() -> None:
    pair = Group(name="0", size=2, ranks=(0, 1))
    timeline = steps_of([[10, 60, 12, 110, 12, 14]], KNOWN)
    both = Run(world_size=2, ranks={0: timeline, 1: replace(timeline, rank=1)}, groups=(pair,))
    assert not any(each.id == "longer_than_like" for each in analyze(both).findings)
    assert not found(replace(timeline, has_device=False))


def test_a_single_call_that_is_much_of_the_loss_is_named() -> None:
    said = found(steps_of([[10, 12, 12, 14, 12, 900]], KNOWN))
    (one,) = (each for kind, each in said.items() if kind == "one_long_call")
    assert one.severity == "warning"
    assert one.title.startswith(
        "one all_reduce of 1 MiB of rank 0, 0.140 ms after the first span of the recording, takes 0.900 ms"
    )
    assert "its 5 like 0.012 ms in the median" in one.title
    assert "count on it once in each" in one.title
    assert one.evidence["exposed_longer_ns"] == 888 * US
    assert "one_long_call" not in found(steps_of([[10, 450, 12, 14, 12, 450]], KNOWN)), "two events"


def test_a_single_call_is_no_part_of_what_calls_take_longer_in_a_usual_step() -> None:
    """By hand: of three steps whose calls need 12 us, one call takes 900 us in the second, and one 62 in each. The last
    one lacks the first call of a next one, for which its compute would wait: it is no whole step."""
    usual = [12, 62, 12, 14, 12, 12]
    said = found(steps_of([usual, [12, 62, 12, 14, 12, 900], usual], KNOWN))
    assert said["one_long_call"].evidence["exposed_longer_ns"] == 888 * US
    evidence = said["longer_than_like"].evidence
    assert evidence["longer_ns"] == round((2 * 50 + 888) * US / 2)
    assert evidence["usual_longer_ns"] == 50 * US
    alone = found(steps_of([[10, 62, 12, 14, 12, 900]], KNOWN))["longer_than_like"].evidence
    assert alone["usual_longer_ns"] == alone["longer_ns"] == 938 * US, "of the only step it is a part"


TINY = {"op": "all_reduce", "dtype": "float32", "bytes": 4, "group_size": 8}


def nameless(lasted_us: Sequence[int], rank: int = 0) -> RankTimeline:
    """Return a rank that broadcasts, computes, and then makes such calls of a group without a name."""
    before = {"op": "broadcast", "bytes": 4, "start_ns": 0, "end_ns": US, "lane": 0, "launch_ns": 0, "step": 0}
    timeline = steps_of([lasted_us], TINY)
    calls = timeline.collectives
    times = zip(calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True)
    rows = [{**TINY, "start_ns": 10 * US + begin, "end_ns": 10 * US + end, "lane": 0, "launch_ns": 0, "step": 0}
            for begin, end in times]  # fmt: skip
    work = [{"name": "gemm", "step": 0, "start_ns": each["end_ns"], "end_ns": each["end_ns"] + 100 * US, "launch_ns": 0}
            for each in rows]  # fmt: skip
    work.insert(0, {"name": "gemm", "step": 0, "start_ns": US, "end_ns": 10 * US, "launch_ns": 0})
    step = {"step": 0, "start_ns": 0, "end_ns": work[-1]["end_ns"]}
    return rank_timeline(rank, calls=[before, *rows], work=work, steps=[step])


@pytest.mark.parametrize(
    ("lasted_us", "kind", "needs_us"),
    [
        ([20, 30, 25, 20_000, 30], TINY, 25 + LATENCY_NS // US),
        ([20, 30, 20_000, 30], TINY, None),
        ([20, 30, 25, 20_000, 30], {**TINY, "bytes": 2 << 20}, None),
        ([20, 30, 25, 20_000, 30], {**TINY, "group_size": None}, None),
    ],
    ids=["tiny", "four calls", "large ones may be on other links", "of unknown members"],
)
def test_tiny_calls_of_groups_without_names_need_what_those_of_as_many_members_take_and_a_latency(
    lasted_us: Sequence[int], kind: dict[str, Any], needs_us: int | None
) -> None:
    rows = [{**kind, "start_ns": at * 10**8, "end_ns": at * 10**8 + us * US} for at, us in enumerate(lasted_us)]
    timeline = rank_timeline(0, calls=[{key: each for key, each in row.items() if each is not None} for row in rows])
    lasted = timeline.collectives.end_ns - timeline.collectives.start_ns
    expected = NONE if needs_us is None else needs_us * US
    assert set(shortest_of_like(timeline, lasted, {}).tolist()) == {expected}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs_us", "set_up"),
    [
        ([50_000, 30, 25, 30, 30, 30], True),
        ([20_000, 30, 25, 30, 30, 30], False),
        ([30, 50_000, 25, 30, 30, 30], False),
        ([5_000, 30, 25, 30, 30, 30], False),
    ],
    ids=["as long on both", "one came late", "not the first of its like", "for less than 10 ms"],
)
def test_the_first_of_its_like_that_lasts_as_long_on_all_recorded_ranks_may_set_up_its_communicator(
    theirs_us: Sequence[int], set_up: bool
) -> None:
    mine_us = [50_000, 30, 25, 30, 30, 30] if theirs_us[0] == 20_000 else theirs_us
    ranks = {0: nameless(mine_us), 1: nameless(theirs_us, 1)}
    run = Run(world_size=8, ranks=ranks)
    (one,) = (each for each in analyze(run).findings if each.id.startswith("one_long_call"))
    assert one.evidence["may_set_up"] is set_up
    assert (
        "so perhaps the set-up of a communicator; else one of the ranks that were not recorded" in one.title
    ) is set_up
    assert "of 4 B" in one.title
    assert "its 5 like 0.030 ms in the median" in one.title
    advice = {each.id: each.title for each in analyze_with_advice(run).recommendations}
    assert f"6 a step of 4 B, one of {max(mine_us) // 1000} ms" in advice["exposed_communication"]


@pytest.mark.parametrize(("other", "first"), [("1", True), ("0", False)])
def test_the_first_call_of_a_group_in_a_recording_may_be_long_as_ranks_begin_to_record_apart(
    other: str, first: bool
) -> None:
    """The long call is the second of its rank: the one before it is of another group, or of the same."""
    timeline = steps_of([[10, 900, 12, 12, 14, 12]], KNOWN)
    codes = timeline.collectives.group.copy()
    codes[0] = len(timeline.names) if other == "1" else codes[0]
    timeline = replace(
        timeline, names=(*timeline.names, "1"), collectives=replace(timeline.collectives, group=codes)
    )  # fmt: skip
    one = found(timeline)["one_long_call"]
    assert (one.severity, one.evidence["is_first"]) == (("info", True) if first else ("warning", False))
    assert ("it is the first of its group in the recording, so ranks may just have begun to record apart; else one of"
            in one.title) is first  # fmt: skip
    assert "was late once" in one.title


def test_where_the_size_of_the_job_is_not_known_several_recorded_ranks_may_be_all_of_it() -> None:
    timeline = steps_of([[10, 60, 12, 110, 12, 14]], KNOWN)
    unknown = Run(world_size=None, ranks={0: timeline, 1: replace(timeline, rank=1)}, groups=(EIGHT,))
    (said,) = (each.title for each in analyze(unknown).findings if each.id == "longer_than_like")
    assert "waiting for other ranks" in said
    assert "waiting for ranks that were not recorded" in found(timeline)["longer_than_like"].title


def test_the_text_says_it_below_the_causes_and_advice_asks_for_all_ranks() -> None:
    run = Run(world_size=8, ranks={0: steps_of([[10, 60, 12, 110, 12, 14]], KNOWN)}, groups=(EIGHT,))
    analysis = analyze_with_advice(run)
    shown = text.render(analysis)
    assert (
        shown.index("why exposed")
        < shown.index("At least 70.2 % of exposed communication")
        < shown.index("What to do:")
    )
    assert shown.count("shortest of") == 1 + sum("shortest of" in each.title for each in analysis.recommendations)
    assert "overlapscope explain longer_than_like" in shown
    (advice,) = (each for each in analysis.recommendations if each.id == "exposed_communication")
    assert "calls take at least 0.146 ms longer than the shortest of their like" in advice.title
    assert advice.apply["look"].startswith("# at least 0.146 ms is what calls take longer than their like: waiting")
    assert "record all ranks" in advice.apply["look"]
    assert "waiting for other ranks included" in advice.title
    assert not advice.assumed


@pytest.mark.parametrize(("longer_us", "told"), [(5, False), (40, True)])
def test_a_little_time_that_calls_take_longer_is_not_told_with_the_advice(longer_us: int, *, told: bool) -> None:
    """Of 208 us that a usual step exposes."""
    run = Run(world_size=8, ranks={0: steps_of([[10, 60, 12, 110, 12, 14]], KNOWN)}, groups=(EIGHT,))
    analysis = analyze(run)
    (found,) = (each for each in analysis.findings if each.id == "longer_than_like")
    less = replace(found, evidence=found.evidence | {USUAL_LONGER_NS: longer_us * US})
    advised = by_rules(run, replace(analysis, findings=[less]), match_and_align(run))
    (advice,) = (each for each in advised if each.id == "exposed_communication")
    assert ("shortest of their like" in advice.title) is told


@pytest.mark.parametrize(("launches_us", "largest"), [(50, True), (100, False)])
def test_where_launches_cost_more_than_what_is_left_communication_is_not_the_largest_loss(
    launches_us: int, largest: bool
) -> None:
    run = Run(world_size=8, ranks={0: steps_of([[10, 60, 12, 110, 12, 14]], KNOWN)}, groups=(EIGHT,))
    analysis = analyze(run)
    launches = {"launch_bound": launches_us * US - 5 * US, "launch_latency": 5 * US}
    head = replace(analysis.headline, idle_ns=launches_us * US, idle_causes=launches)
    known = replace(analysis, headline=head)
    # 208 us are exposed, 146 of them longer than their like: 62 are left.
    assert longer_beside_launches_ns(known, 208 * US) == (0 if largest else 146 * US)
    (advice,) = (each for each in by_rules(run, known, match_and_align(run)) if each.id == "exposed_communication")
    assert advice.title.startswith("Largest loss: ") is largest


def test_of_some_ranks_of_a_group_waits_are_between_these_and_nothing_sounds_like_a_contradiction() -> None:
    ranks = {rank: replace(steps_of([[10, 60, 12, 110, 12, 14]] * 3, KNOWN), rank=rank) for rank in (0, 1)}
    shown = text.render(analyze(Run(world_size=8, ranks=ranks, groups=(EIGHT,))), all_rows=True)
    assert "recorded ranks, whole recording  waited ms  others waited while it was last ms  its lead ms" in shown
    assert "Members that were not recorded may have come later." in " ".join(shown.split())
    assert "18 collectives matched among the recorded ranks; other members of their groups are missing." in shown
    assert (
        "No critical path: 6 of the 8 ranks of its groups were not recorded, so no path across ranks is known." in shown
    )
    shown = text.render(analyze(Run(world_size=16, ranks=ranks, groups=(EIGHT,))))
    assert "No critical path: 14 of the 16 ranks were not recorded, so no path across ranks is known." in shown
    pair = Group(name="0", size=2, ranks=(0, 1))
    whole = text.render(analyze(Run(world_size=2, ranks=ranks, groups=(pair,))), all_rows=True)
    assert "wait time, whole recording  waited ms  of collective time" in whole
    assert "18 collectives matched across ranks." in whole
