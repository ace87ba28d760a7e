"""What the text says of ranks compared: stragglers, unmatched calls and why, clock offsets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.compare.compare import compare
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS
from overlapscope.analysis.result import Analysis, waited_for
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.waiting import cross_rank_sentences
from overlapscope.report.text import analysis as text
from overlapscope.report.text import compare as compare_text
from overlapscope.report.text import cross_rank as across_ranks
from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import shared_file
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.property.synthetic.fleets import on_hosts
from tests.unit.analysis.stragglers.test_host_cause import with_operations
from tests.unit.analysis.stragglers.test_stragglers import CULPRIT, MS, RANKS, STEPS, job


def changed_stragglers(base: MeasuredRun, *candidates: MeasuredRun) -> list[Finding]:
    return [each for each in compare([base], candidates).findings if each.id.startswith("straggler_")]


def shown_lines(analysis: Analysis) -> list[str]:
    return across_ranks.lines(analysis, all_rows=False).splitlines()


def with_skew(analysis: Analysis, **changes: Any) -> Analysis:
    return replace(analysis, skew=replace(analysis.skew, **changes))


def with_spans(run: Run, rank: int, keep: Callable[[Ints], Any] = lambda kind: kind >= 0, **columns: Any) -> Run:
    spans = replace(run.ranks[rank].spans, **columns)
    kept = keep(spans.kind)
    spans = replace(spans, **{name: getattr(spans, name)[kept] for name in spans.__struct_fields__})
    return replace(run, ranks={**run.ranks, rank: replace(run.ranks[rank], spans=spans)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uneven", "pairs", "words"),
    [
        (0, 0, ""),
        (8, 0, " The wait times above leave out 8 calls whose members send different sizes."),
        (0, 3, " The wait times above are of collectives alone."),
        (
            1,
            3,
            " The wait times above are of collectives alone. They leave out 1 call whose members send different sizes.",
        ),
    ],
)
def test_what_the_wait_times_leave_out_is_said(uneven: int, pairs: int, words: str) -> None:
    skew = replace(analyze(job(fault="host")).skew, uneven=uneven, pairs=pairs)
    (line,) = across_ranks.matched_text(skew)
    assert line.endswith(f"matched across ranks.{words}")
    without = " ".join(across_ranks.matched_text(replace(skew, ranks=[])))
    assert "wait times" not in without, "there are none"


@pytest.mark.parametrize(
    ("wait", "blame", "late", "table"),
    [
        pytest.param(0.004, 0.0005, 0, False, id="next to nothing"),
        pytest.param(0.006, 0.0005, 0, True, id="long waits"),
        pytest.param(0.004, 0.0015, 0, True, id="long delays"),
        pytest.param(0.004, 0.0005, 1, True, id="a late arrival"),
    ],
)
def test_where_nobody_was_late_a_sentence_says_so_instead_of_a_table(
    wait: float, blame: float, late: int, *, table: bool
) -> None:
    analysis = analyze(job(fault="host"))
    window_ns = max(each.whole.window_ns or 0 for each in analysis.ranks)
    ranks = [
        replace(each, wait_ns=round(wait * window_ns), blame_ns=round(blame * window_ns), times_last=late)
        for each in analysis.skew.ranks
    ]
    said = across_ranks.lines(with_skew(analysis, stragglers=[], ranks=ranks), all_rows=False)
    assert said.startswith("wait time, whole recording" if table else "No rank was late at any matched call; rank")
    everything = across_ranks.lines(with_skew(analysis, stragglers=[], ranks=ranks), all_rows=True)
    assert everything.startswith("wait time, whole recording")


def test_of_ranks_that_wait_in_turn_nothing_is_said_of_chance() -> None:
    analysis = analyze(job(fault="host"))
    most = max(analysis.skew.ranks, key=lambda each: each.blame_ns).rank
    (other, *_) = (each.rank for each in analysis.skew.ranks if each.rank != most)
    blame = {most: 900, other: 100}
    in_turn = with_skew(analysis, stragglers=[], in_turn=[most])
    assert waited_for(blame, in_turn) == f"mostly for rank {most}, which waits for the others in turn"
    (said,) = (each for each in cross_rank_sentences(in_turn) if each.startswith("No straggler"))
    assert said == f"No straggler: rank {most} and the others wait for each other in turn."
    always = with_skew(analysis, stragglers=[])
    assert waited_for(blame, always) == f"mostly for rank {most}, in each of {STEPS} steps"
    often = [replace(each, times_last=1) for each in always.skew.ranks]
    by_chance = with_skew(analysis, stragglers=[], ranks=often)
    assert "by chance" in waited_for(blame, by_chance), "others came last, too"
    usual = always.ranks[most]
    odd = replace(usual, steps=[replace(usual.steps[0], causes={"peer_host": 10**9}), *usual.steps[1:]])
    once = replace(always, ranks=[odd if each.rank == most else each for each in always.ranks])
    assert "by chance" in waited_for(blame, once), "in one step it waits itself"
    few = [replace(each, steps=each.steps[:2]) for each in always.ranks]
    assert "by chance" in waited_for(blame, replace(always, ranks=few))
    assert any("more than chance explains" in each for each in cross_rank_sentences(by_chance))


@pytest.mark.parametrize(("share", "said"), [(0.0, False), (0.05, False), (0.5, True)])
def test_waiting_after_the_last_rank_came_is_said_where_it_is_much(share: float, *, said: bool) -> None:
    analysis = analyze(job(fault="host"))
    ranks = [replace(each, late_end_ns=round(share * each.wait_ns)) for each in analysis.skew.ranks]
    ended_ms = sum(each.late_end_ns for each in ranks) / 1e6
    lines = shown_lines(with_skew(analysis, ranks=ranks))
    assert any(line.startswith(f"Of the waiting, {ended_ms:,.3f} ms over all ranks") for line in lines) is said
    assert any(line.startswith("Of the waiting") for line in lines) is said


def test_the_rank_that_others_waited_longest_for_comes_first_whoever_led_most() -> None:
    run = job(fault="host")
    analysis = analyze(run)
    expected = dict.fromkeys(run.ranks, 0.0)
    for split in match_and_align(run).splits:
        for at in range(split.block.calls):
            if split.lead_ns[at] > LEADS_COUNT_NS:
                lasted = split.block.end_ns[:, at] - split.block.start_ns[:, at]
                expected[split.block.ranks[split.last[at]]] += int((lasted - split.transfer_ns[at]).sum()) / (RANKS - 1)
    assert {each.rank: each.mean_waited_for_ns for each in analysis.skew.ranks} == pytest.approx(expected, abs=2)
    apart = [
        replace(each, blame_ns=1_000 if each.rank == CULPRIT else 2 * MS,
                mean_waited_for_ns=4 * MS if each.rank == CULPRIT else 3 * MS)
        for each in analysis.skew.ranks
    ]  # fmt: skip
    head, first, *others = shown_lines(with_skew(analysis, ranks=apart))
    assert [each.strip() for each in head.split("  ") if each][-3:] == [
        "others waited for it ms", "its lead ms", "late arrivals",
    ]  # fmt: skip
    assert first.startswith(f"rank {CULPRIT} ")
    assert first.split()[-3:-1] == ["4.000", "0.001"]
    said = "Others waited: the mean of these, at calls to which it came last; its lead: over the second-latest."
    assert said in others
    longer = [replace(each, blame_ns=5 * MS) if each.rank == CULPRIT else each for each in apart]
    explained = shown_lines(with_skew(analysis, ranks=longer))
    assert f"{said} Waits are without transfer, and may be shorter than leads." in " ".join(explained)
    older = [replace(each, mean_waited_for_ns=None) for each in apart]
    assert not shown_lines(with_skew(analysis, ranks=older))[1].startswith(f"rank {CULPRIT} "), "by leads"


def test_where_ranks_were_exposed_to_little_of_their_waiting_that_is_said() -> None:
    analysis = analyze(job(fault="host"))
    waited_ns = sum(each.wait_ns for each in analysis.skew.ranks)
    for share, said in ((0.4, True), (0.6, False)):
        exposed_ns = round(share * waited_ns / RANKS)
        causes = {"peer_host": exposed_ns, "tail": waited_ns}
        ranks = [replace(each, whole=replace(each.whole, causes=causes)) for each in analysis.ranks]
        shown = shown_lines(replace(analysis, ranks=ranks))
        some = f"Of {waited_ns / 1e6:,.3f} ms waited over all ranks, {RANKS * exposed_ns / 1e6:,.3f} ms were exposed: "
        assert any(line.startswith(some) for line in shown) is said
        assert any("waited over all ranks" in line for line in shown) is said


@pytest.mark.parametrize(
    ("op", "own", "straggles", "said"),
    [
        pytest.param("recv", 0.4, False, True, id="less than half"),
        pytest.param("recv", 0.6, False, False, id="more than half"),
        pytest.param("all_reduce", 0.4, False, False, id="no messages between stages"),
        pytest.param("recv", 0.4, True, False, id="of a straggler its own delay is said"),
    ],
)
def test_of_a_stage_that_came_last_it_is_said_what_of_its_delays_is_its_own_and_what_the_rest_may_be(
    op: str, own: float, *, straggles: bool, said: bool
) -> None:
    analysis = analyze(job(fault="host"))
    (straggler,) = analysis.skew.stragglers
    analysis = with_skew(analysis, stragglers=[replace(straggler, rank=0)] if straggles else [])
    rows = [replace(each, op=op, dimension="pipeline") for each in analysis.collectives]
    ranks = [
        replace(each, blame_ns=10 * MS, delayed_ns=round(own * 10 * MS)) if each.rank == 0
        else replace(each, blame_ns=0, delayed_ns=0)
        for each in analysis.skew.ranks
    ]  # fmt: skip
    drained = replace(with_skew(analysis, ranks=ranks), collectives=rows)
    sentence = (
        "Of the 10.000 ms that rank 0 leads by, 4.000 are its own delay: the rest is a lead that lasts over several "
        "calls, or it had waited for others longer itself, as the first stages of a pipeline do while it drains."
    )
    assert (sentence in " ".join(shown_lines(drained))) is said
    assert (sentence in cross_rank_sentences(drained)) is said


@pytest.mark.parametrize(("times", "said"), [(1, False), (3, True)])
def test_waits_of_calls_in_flight_at_once_are_said_to_be_counted_each(times: int, *, said: bool) -> None:
    analysis = analyze(job(fault="host"))
    communicated = {each.rank: each.whole.exposed_comm_ns or 0 for each in analysis.ranks}
    ranks = [replace(each, wait_ns=times * communicated[each.rank]) for each in analysis.skew.ranks]
    lines = shown_lines(with_skew(analysis, ranks=ranks))
    assert any(line.startswith("Calls in flight at once are counted each") for line in lines) is said


@pytest.mark.parametrize(
    ("once_ms", "has_device", "said"), [(40, False, True), (80, False, False), (None, False, False), (40, True, False)]
)
def test_a_lead_that_lasts_over_several_calls_is_said_counted_once_of_hosts_that_compute(
    once_ms: int | None, *, has_device: bool, said: bool
) -> None:
    analysis = analyze(job(fault="host"))
    analysis = replace(analysis, run=replace(analysis.run, has_device=has_device))
    once_ns = None if once_ms is None else once_ms * 1_000_000
    first, second = (replace(each, blame_ns=50_000_000, delayed_ns=once_ns) for each in analysis.skew.ranks[:2])
    lines = shown_lines(with_skew(analysis, ranks=[first, replace(second, delayed_ns=None if once_ns is None else 0)]))
    assert (
        f"A lead that lasts over several calls counts at each. Counted once, rank {first.rank} delayed others by "
        "40.000 ms." in lines
    ) is said


@pytest.mark.parametrize(("times", "said"), [(3, True), (1, False)])
def test_on_devices_a_lead_that_lasts_is_said_counted_once_of_stragglers(times: int, *, said: bool) -> None:
    analysis = analyze(job(fault="host"))
    analysis = replace(analysis, run=replace(analysis.run, has_device=True))
    (straggler,) = analysis.skew.stragglers
    ranks = [
        replace(each, blame_ns=times * straggler.blame_ns) if each.rank == straggler.rank else each
        for each in analysis.skew.ranks
    ]
    text = " ".join(shown_lines(with_skew(analysis, ranks=ranks)))
    assert (
        f"Counted once, rank {straggler.rank} delayed others by {straggler.blame_ns / 1e6:,.3f} ms." in text
    ) is said


def test_a_straggler_is_named_with_its_time_its_cause_and_a_page() -> None:
    lines = shown_lines(analyze(job(fault="host")))
    (line,) = [each for each in lines if each.startswith(f"Rank {CULPRIT} is a straggler: it delayed the others by ")]
    blame_ms = float(line.split(" by ")[1].split(" ms")[0])
    assert STEPS * 15 <= blame_ms <= STEPS * 35
    assert "at most" not in line
    assert "through ranks" not in line, "the table holds all of it"
    assert "idle" in line
    assert "GPU" not in line, "it may have none"
    assert "What to do: overlapscope explain straggler" in lines


@pytest.mark.parametrize(
    ("off_core_ns", "on_core_ns", "words"),
    [
        (0, 0, "it was idle"), (MS, 0, "it neither ran nor waited for a core"),
        (-MS, MS, "it ran, but started nothing"),
    ],
)  # fmt: skip
def test_a_host_that_stalls_was_idle_or_off_its_core_or_ran_by_the_systems_account(
    off_core_ns: int, on_core_ns: int, words: str
) -> None:
    account = {"off_core_more_ns": off_core_ns, "on_core_more_ns": on_core_ns}
    analysis = analyze(job(fault="host"))
    held = [replace(each, evidence={**each.evidence, **account}) for each in analysis.skew.stragglers]
    assert any(f"cause: host stall ({words}" in line for line in shown_lines(with_skew(analysis, stragglers=held)))


def test_a_straggler_is_named_with_its_host_where_there_are_several() -> None:
    run = job(fault="host")
    for hosts, said in ((("a", "b"), f"Rank {CULPRIT} (host b) is a straggler"), (("b", "b"), f"Rank {CULPRIT} is a")):
        named = {
            rank: replace(each, recorded={**each.recorded, "settings": {"host": hosts[rank == CULPRIT]}})
            for rank, each in run.ranks.items()
        }
        analysis = analyze(replace(run, ranks=named))
        assert [each.host for each in analysis.skew.stragglers] == ["b" if "a" in hosts else None]
        assert any(line.startswith(said) for line in shown_lines(analysis))


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"late_steps": 3, "steps": 4}, ", in at least 3 of 4 steps in which any rank was late"),
        ({"late_steps": 4, "steps": 4}, ""),
        ({}, ""),
    ],
)
def test_in_how_many_steps_a_rank_was_late_is_said_where_it_is_not_in_all(evidence: dict[str, int], said: str) -> None:
    analysis = analyze(job(fault="host"))
    (held,) = analysis.skew.stragglers
    assert held.evidence["late_steps"] == held.evidence["steps"] == STEPS
    kept = {name: each for name, each in held.evidence.items() if name not in ("late_steps", "steps")}
    changed = with_skew(analysis, stragglers=[replace(held, evidence={**kept, **evidence})])
    (line,) = [each for each in shown_lines(changed) if each.startswith(f"Rank {CULPRIT} is a straggler")]
    assert f" ms{said};" in line


def test_of_a_delay_it_is_said_how_much_was_exposed_where_that_is_less() -> None:
    analysis = analyze(job(fault="host"))
    (held,) = analysis.skew.stragglers
    lines = shown_lines(with_skew(analysis, stragglers=[replace(held, blame_ns=2 * held.blame_ns)]))
    (line,) = [each for each in lines if each.startswith(f"Rank {CULPRIT} is a straggler")]
    exposed_ms = float(line.split("at most ")[1].split(" ms of it exposed on a rank")[0])
    assert held.blame_ns / MS / 2 <= exposed_ms <= 1.8 * held.blame_ns / MS


def test_with_a_rank_missing_the_delay_is_that_of_recorded_ranks() -> None:
    run = job(fault="host")
    part = replace(run, ranks={rank: each for rank, each in run.ranks.items() if rank != 0})
    assert any(
        f"Rank {CULPRIT} is a straggler: it delayed the other recorded ranks by " in each
        for each in shown_lines(analyze(part))
    )


def test_where_the_removal_gains_more_than_leads_that_count_once_only_that_is_said() -> None:
    analysis = analyze(job(fault="host"))
    (held,) = analysis.skew.stragglers
    more_ns = 2 * held.blame_ns
    gains = replace(held, removal_ns=more_ns, removal_low_ns=more_ns, removal_high_ns=more_ns, late_with=[])
    (line,) = [each for each in shown_lines(with_skew(analysis, stragglers=[gains])) if " is a straggler: " in each]
    gain = f"without its excess the recording would be {more_ns / MS:,.3f} ms shorter"
    assert line.startswith(f"Rank {CULPRIT} is a straggler: {gain}; cause: ")


def test_of_ranks_that_are_late_together_the_one_that_delayed_most_is_named_first() -> None:
    analysis = analyze(job(fault="host"))
    (held,) = analysis.skew.stragglers
    first, second = (rank for rank in range(RANKS) if rank != CULPRIT and rank < 3)
    blame_ns = {first: 3 * MS, CULPRIT: 2 * MS, second: MS}
    ranks = [replace(each, blame_ns=blame_ns.get(each.rank, 0)) for each in analysis.skew.ranks]
    more_ns = 2 * held.blame_ns
    gains = replace(
        held, removal_ns=more_ns, removal_low_ns=more_ns, removal_high_ns=more_ns, late_with=[first, second]
    )
    shown = shown_lines(with_skew(analysis, stragglers=[gains], ranks=ranks))
    (line,) = [each for each in shown if " are late together: " in each]
    gain = f"without their excess the recording would be {more_ns / MS:,.3f} ms shorter"
    named = f"Ranks {first}, {CULPRIT}, {second} are late together: {gain}; cause for rank {CULPRIT}: "
    assert line.startswith(named)
    both = [gains, replace(gains, rank=second, late_with=[first, CULPRIT])]
    (line,) = [each for each in shown_lines(with_skew(analysis, stragglers=both, ranks=ranks)) if gain in each]
    assert line.startswith(named)
    assert f"; cause for rank {second}: " in line, "one sentence for all of them"


def test_blame_that_the_table_does_not_contain_is_shown_apart() -> None:
    analysis = analyze(job(fault="host"))
    (held,) = analysis.skew.stragglers
    more = replace(held, blame_ns=held.blame_ns + 70 * MS)
    line = next(
        each for each in shown_lines(with_skew(analysis, stragglers=[more])) if each.startswith(f"Rank {CULPRIT}")
    )
    listed = next(each.blame_ns for each in analysis.skew.ranks if each.rank == CULPRIT)
    assert f"{(held.blame_ns + 70 * MS - listed) / 1e6:,.3f} ms of it through ranks that waited for it" in line


def test_calls_that_are_not_paired_are_counted_with_the_reason() -> None:
    lines = shown_lines(analyze(overlapscope.load(shared_file("kineto/sampled_pair")).run))
    at = lines.index("0 collectives matched across ranks, 20 calls unmatched.")
    assert "the recording is sampled" in lines[at + 1]


def test_a_long_reason_is_wrapped_and_only_the_end_of_a_very_long_one_is_left_out() -> None:
    analysis = analyze(job())
    reason = " ".join(["calls"] * 70)  # 419 characters
    found = with_skew(analysis, reasons=[reason])
    at = next(at for at, line in enumerate(shown_lines(found)) if line.startswith("  calls"))
    told = shown_lines(found)[at : at + 4]
    assert " ".join(" ".join(told).split()) == reason
    assert max(map(len, told)) <= 120
    longer = "\n".join(shown_lines(with_skew(analysis, reasons=[f"{reason} {reason}"])))
    assert longer.count("calls ") < 90
    assert "...: --all" in longer


def test_one_rank_alone_has_nothing_to_say_of_others() -> None:
    run = job()
    assert shown_lines(analyze(replace(run, ranks={0: run.ranks[0]}))) == []


def test_delays_without_a_late_arrival_are_explained() -> None:
    analysis = analyze(job())
    for blame_ns, times_last, residual_ns, said in (
        (60_000, 0, 0, ["An arrival is late from more than 0.050 ms on; leads also include smaller ones."]),
        (60_000, 1, 0, []),
        (50_000, 0, 0, []),
        (100_000, 0, 30_000, ["An arrival is late from more than 0.090 ms on; leads also include smaller ones."]),
    ):
        ranks = [
            replace(each, blame_ns=blame_ns, times_last=times_last) if each.rank == 1 else replace(each, blame_ns=0)
            for each in analysis.skew.ranks
        ]
        lines = shown_lines(with_skew(analysis, ranks=ranks, residual_ns=residual_ns))
        assert [each for each in lines if each.startswith("An arrival is late")] == said


def test_a_clock_is_named_where_people_would_stumble_over_it() -> None:
    analysis = analyze(job())
    assert not any(each.startswith("Clock offsets") for each in shown_lines(analysis))
    far = with_skew(analysis, clock_offset_ns={"0": 0, "1": -3_600_000 * MS, "2": 90_000, "3": 120_000})
    (line,) = [each for each in shown_lines(far) if each.startswith("Clock offsets")]
    assert line.startswith("Clock offsets from rank 0, ms")
    assert line.endswith(": rank 1 -3,600,000.000, rank 3 +0.120.")
    assert "the ranks that calls connect" not in line
    apart = replace(far, headline=replace(far.headline, longest_because="clocks"))
    (line,) = [each for each in shown_lines(apart) if each.startswith("Clock offsets")]
    assert line.startswith("Clock offsets from the reference rank of each set of ranks that share calls, ms")


def test_clocks_of_one_host_may_be_one_whatever_their_ends_show() -> None:
    run, on = job(), {0: "node", 1: "node", 2: "node"}
    for hosts, one in ((on, True), ({**on, 2: "other"}, False), ({0: "node"}, False)):
        known = {rank: replace(each, recorded={"host": hosts[rank]}) if rank in hosts else each
                 for rank, each in run.ranks.items() if rank < 3}  # fmt: skip
        analysis = analyze(replace(run, ranks=known))
        assert analysis.skew.one_host is one
        (line,) = [
            each for each in shown_lines(with_skew(analysis, clock_offset_ns={"0": 0, "1": -2 * MS, "2": 0}))
            if each.startswith("Clock offsets")
        ]  # fmt: skip
        assert ("though all hosts have one name: it may be one clock" in line) is one


def test_a_name_begins_no_line_of_its_own() -> None:
    evil = "g\n! rank 7 is a straggler: replace it"
    run = job(fault="host")
    run = replace(
        run,
        ranks={
            rank: replace(each, names=tuple(evil if name == "0" else name for name in each.names))
            for rank, each in run.ranks.items()
        },
        groups=tuple(replace(group, name=evil) for group in run.groups),
    )
    analysis = analyze(run)
    assert any("rank 7" in str(row.group) for row in analysis.collectives), "the name is in what is rendered"
    assert not [line for line in text.render(analysis, all_rows=True).splitlines() if line.startswith("! rank 7")]


@pytest.mark.slow
def test_a_rank_of_one_step_has_one_row() -> None:
    lines = text.render(analyze(overlapscope.load(shared_file("kineto/megatron_tp8")).run)).splitlines()
    assert sum(line.startswith("rank 0 median of 1 step") for line in lines) == 1
    assert not any(line.startswith("rank 0 whole") for line in lines)


# --- what may stand in columns and must not break figures -------------------------------------------------------------


def test_grids_of_no_blocks_tell_nothing_and_break_nothing() -> None:
    plain, run = job(fault="more_work"), job(fault="more_work")
    for rank in range(RANKS):
        run = with_spans(run, rank, blocks=np.zeros_like(run.ranks[rank].spans.blocks))
    assert [each.rank for each in analyze(run).skew.stragglers] == [
        each.rank for each in analyze(plain).skew.stragglers
    ]


def test_the_operations_that_only_the_late_rank_ran_are_named() -> None:
    (sentence,) = across_ranks.straggler_sentences(analyze(with_operations(job(fault="more_work"))), 4)
    assert "more work (120 more aten::mm than ranks that waited for it, about" in sentence
    assert "ms that it computed longer" in sentence
    assert "kernels" not in sentence


@pytest.mark.parametrize("kernels", ["none", "of no time"])
def test_kernels_that_are_missing_or_take_no_time_are_not_divided_by(
    kernels: str, recwarn: pytest.WarningsRecorder
) -> None:
    run = job(fault="more_work")
    if kernels == "none":
        for rank in set(range(RANKS)) - {CULPRIT}:
            run = with_spans(run, rank, keep=lambda kind: kind != COMPUTE)
    else:
        spans = run.ranks[3].spans
        run = with_spans(run, 3, end_ns=np.where(spans.kind == COMPUTE, spans.start_ns, spans.end_ns))
    for each in analyze(run).skew.stragglers:
        json.dumps(each.evidence, allow_nan=False)
    assert not recwarn.list


def test_a_stored_rank_whose_calls_end_before_they_start_is_left_out(tmp_path: Path) -> None:
    run = job()
    calls = run.ranks[1].collectives
    wrong = replace(calls, end_ns=np.where(np.arange(calls.end_ns.size) == 3, calls.start_ns - MS, calls.end_ns))
    broken = replace(run, ranks={**run.ranks, 1: replace(run.ranks[1], collectives=wrong)})
    save_run(broken, tmp_path / "run", version="1")
    read = load_run(tmp_path / "run")
    assert sorted(read.ranks) == [0, 2, 3]
    assert any("1 of 20 rows end before they start" in each for source in read.sources for each in source.warnings)


# --- stragglers of two sides ------------------------------------------------------------------------------------------


def measured(fault: str | None, seed: int = 0) -> MeasuredRun:
    return measure_run(job(seed, fault=fault))


def test_a_comparison_names_a_rank_that_becomes_a_straggler() -> None:
    sound, slow = measured(None), measured("slower_compute")
    (found,) = changed_stragglers(sound, slow)
    assert (found.id, found.severity) == (f"straggler_appeared:rank{CULPRIT}", "warning")
    assert "the same work took it longer than its peers" in found.title
    assert found.title in compare_text.render(compare([sound], [slow]))
    (gone,) = changed_stragglers(slow, sound)
    assert (gone.id, gone.severity) == (f"straggler_vanished:rank{CULPRIT}", "info")


@pytest.mark.slow
def test_the_same_straggler_on_both_sides_and_one_of_few_runs_is_no_news() -> None:
    slow = measured("slower_compute")
    assert not changed_stragglers(slow, slow)
    assert not changed_stragglers(measured(None), slow, measured(None, 1), measured(None, 2))


def test_steps_that_only_ranks_without_a_counterpart_have_are_not_compared() -> None:
    run = job()
    cut = {
        rank: replace(each, recordings=replace(each.recordings, end_ns=each.recordings.start_ns + 1))
        if rank < 2
        else each
        for rank, each in run.ranks.items()
    }
    few = replace(run, ranks={rank: run.ranks[rank] for rank in (0, 1)})
    comparison = compare([measure_run(replace(run, ranks=cut))], [measure_run(few)])
    assert comparison.ranks == [0, 1]
    assert comparison.window == "recording"
    assert NONE not in comparison.ranks


def test_whole_recordings_of_more_than_two_ranks_are_shown_with_all_rows_alone() -> None:
    two, three = (analyze(run_of(simulate(Job(layout=Layout(dp=dp))))) for dp in (2, 3))
    assert "\nrank 1 whole" in text.render(two)
    assert "\nrank 1 median of 6 steps" in text.render(three)
    assert "whole  " not in text.render(three)
    assert "\nrank 1 whole" in text.render(three, all_rows=True)


def test_the_table_of_ranks_names_their_hosts_where_there_are_several() -> None:
    run = run_of(simulate(Job(layout=Layout(dp=4, ranks_per_host=2))))
    apart, together = (analyze(on_hosts(run, hosts, gpus=2)) for hosts in (["north", "south"], ["north", "north"]))
    assert [each.host for each in apart.ranks] == ["north", "north", "south", "south"]
    said = text.render(apart)
    assert "\nrank 1 (north) median of 6 steps" in said
    assert "\nrank 2 (south) median" in said
    assert "rank 2 (south)" in [row[0] for row in sheet_of(apart).tables[0].rows]
    assert {each.host for each in together.ranks} == {None}
    assert "north" not in text.render(together)
