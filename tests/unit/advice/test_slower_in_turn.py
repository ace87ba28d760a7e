"""Ranks that compute longer in turn, one in each step: what is said of them, and what of one that always does."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice import rule_input
from overlapscope.advice.advise import by_rules
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.slower_in_turn import (
    UNSEEN,
    SlowerInTurn,
    _always,
    _evened_ns,
    _longer_ns,
    _OfStep,
    slower_in_turn,
)
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation
from overlapscope.analysis.stragglers.step_kernels import StepKernels, had_more_work, longer_family
from overlapscope.timeline.columns import COMM, COMPUTE, NONE
from overlapscope.timeline.run import Group, Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
RANKS, STEP_NS, KERNELS, USUAL_NS, SENT_NS = 3, 57 * MS, 4, 10 * MS, 5 * MS
IN_TURN = (0, 2, 1, 2, 0, 1)
ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor>"


def job(
    slow_in: Sequence[int], *, more: int = 0, longer: float = 1.25, larger: int = 1, sent_ns: int = SENT_NS,
    ranks: int = RANKS, later: int = 0, longer_kernels: int = KERNELS, marked: bool = True, group_size: int = 0,
    met: Sequence[int] = (), cut: int = 0,
) -> Run:  # fmt: skip
    """Return a job whose ranks compute a few kernels, then meet in an all-reduce of `sent_ns`; in each step one of them
    takes longer, with `more` kernels, or kernels of so many times as many blocks; of KERNELS so many take longer. The
    last rank records so many steps `later`. Without marks an optimizer ends each step; of the ranks' group, of
    `group_size`, the others are not recorded. In steps that `met` names the call begins on all at once. The recording
    ends within the last step where `cut`, so many ns after it began."""
    work: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
    sent: dict[int, list[dict[str, int]]] = {rank: [] for rank in range(ranks)}
    for step, slow in enumerate(slow_in):
        begin, arrived = step * STEP_NS, []
        for rank, own in work.items():
            number, factor, blocks = (KERNELS + more, longer, 128 * larger) if rank == slow else (KERNELS, 1.0, 128)
            lasts = [
                round(USUAL_NS * (factor if at < longer_kernels or at >= KERNELS else 1.0)) for at in range(number)
            ]
            starts = (begin + np.cumsum([0, *lasts])).tolist()
            own += [
                {"kind": COMPUTE, "start_ns": start, "end_ns": end, "step": step, "launch_ns": start, "blocks": blocks,
                 "name": "gemm" if at < longer_kernels else "product"}
                for at, (start, end) in enumerate(pairwise(starts))
            ]  # fmt: skip
            arrived.append(starts[-1])
        for rank, calls in sent.items():
            begun = min(arrived) if step in met else arrived[rank]
            times = {"start_ns": begun, "end_ns": max(arrived) + sent_ns, "launch_ns": begun}
            calls.append({"kind": COMM, "step": step, "seq": step, **times})
            update = {"start_ns": times["end_ns"], "end_ns": times["end_ns"] + MS, "launch_ns": times["end_ns"]}
            work[rank] += [] if marked else [{"kind": COMPUTE, "name": ADAM, "blocks": 1, **update}]
    group_size = group_size or ranks
    call = {"op": "all_reduce", "group": "0", "dtype": "float32", "bytes": 1 << 20, "group_size": group_size}
    unmarked = {} if marked else {"step": None}
    steps = [{"step": at, "start_ns": at * STEP_NS, "end_ns": (at + 1) * STEP_NS} for at in range(len(slow_in))]

    return Run(
        world_size=group_size,
        ranks={
            rank: rank_timeline(
                rank,
                calls=[{**call, **each, **unmarked} for each in sent[rank]],
                work=[{**each, **unmarked} for each in own],
                steps=steps[later if rank == ranks - 1 else 0 :] if marked else [],
                recordings=[{"start_ns": 0, "end_ns": (len(slow_in) - bool(cut)) * STEP_NS + cut}],
            )
            for rank, own in work.items()
        },
        groups=(Group(name="0", size=group_size, ranks=tuple(range(group_size))),),
    )


def named(run: Run, name: str) -> Recommendation | None:
    together = match_and_align(run)
    return {each.id: each for each in by_rules(run, analyze(run, together), together)}.get(name)


def late(run: Run) -> Recommendation | None:
    return named(run, "late_rank")


def test_ranks_that_do_the_same_slower_in_turn_are_named_by_step_with_a_bound() -> None:
    found = late(job(IN_TURN))
    assert found is not None
    assert "several ranks in turn, each of which does the same work slower" in found.title
    assert "(ranks 0, 2, 1, 2, 0, 1 in steps 0, 1, 2, 3, 4, 5)" in found.title
    assert found.gain_high_ns == pytest.approx(0.25 * KERNELS * USUAL_NS)
    assert "batches" not in found.apply["look"], "it is the same work"
    assert "PERFORMANCE,CLOCK,POWER" in found.apply["nvidia"]


@pytest.mark.parametrize(
    "run", [job(IN_TURN, more=1, longer=1.0), job(IN_TURN, larger=2)], ids=["more kernels", "larger kernels"]
)
def test_ranks_that_have_more_work_in_turn_are_not_called_slower(run: Run) -> None:
    found = late(run)
    assert found is not None
    assert "each of which computes longer than its peers then (ranks 0, 2" in found.title
    assert "batches" in found.apply["look"]


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (
            KERNELS,
            "Find why devices are slower in turn: one rank does the same work slower than its peers in each step",
        ),
        (3, "Find why ranks compute longer in turn: one rank computes longer than its peers in each step"),
        (1, "Even out batches: one rank computes longer than its peers in each step"),
    ],
)
def test_a_device_is_slower_where_kernels_of_all_kinds_are_and_has_more_work_where_few_are(of: int, says: str) -> None:
    """Attention takes longer on longer documents, on grids of the same size; products do not."""
    found = named(job(IN_TURN, longer=1.2, longer_kernels=of, sent_ns=11 * MS), "uneven_steps")
    assert found is not None
    assert found.title.startswith(says)
    # Batches that are evened out leave each of three ranks a third of it.
    share = 2 / 3 if says.startswith("Even out") else 1
    assert found.gain_high_ns == pytest.approx(share * 0.2 * of * USUAL_NS, rel=0.01)
    said = found.title.endswith(f"; even batches save at most {2 / 3 * 0.2 * of * USUAL_NS / MS:.3g} ms")
    assert said is says.startswith("Find why ranks")


def test_what_peers_compute_longer_beside_their_waits_counts_for_the_bound() -> None:
    """The late rank computes 10 ms longer; its peers' compute is slowed by 4 ms, while they wait for it."""
    of = {
        0: _OfStep(STEP_NS, 50 * MS, 0),
        1: _OfStep(STEP_NS, 40 * MS, 0, 4 * MS),
        2: _OfStep(STEP_NS, 40 * MS, 0, 4 * MS),
    }
    assert _longer_ns(of, 0) == 14 * MS
    assert _evened_ns(of, 0, waits=False) == pytest.approx(14 * MS * 2 / 3)


def test_where_steps_are_not_marked_cycles_of_the_optimizer_stand_for_them_with_a_bound_of_the_recording() -> None:
    found = late(job(IN_TURN, larger=2, marked=False))
    assert found is not None
    assert "(ranks 0, 2, 1, 2, 0, 1 in steps 0, 1, 2, 3, 4, 5, by the optimizer's kernels: steps" in found.title
    assert found.title.endswith("; even out batches")
    assert "cap the tokens" in found.apply["torch"]
    assert (found.gain_high_ns, found.per) == (pytest.approx(6 * 2 / 3 * 0.25 * KERNELS * USUAL_NS), "recording")
    without = job(IN_TURN, larger=2, marked=False)
    ranks = {
        rank: replace(each, names=tuple("elementwise" if name == ADAM else name for name in each.names))
        for rank, each in without.ranks.items()
    }
    other = late(replace(without, ranks=ranks))
    assert other is not None
    assert "kernels" not in other.title


def test_cycles_of_the_optimizer_are_looked_for_once_and_of_a_limited_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Run] = []
    monkeypatch.setattr(rule_input, "optimizer_cycles", lambda run, _: asked.append(run) or {})
    assert late(job(IN_TURN, marked=False)) is not None
    assert len(asked) == 1, "late_rank and uneven_steps both need them"
    monkeypatch.setattr(rule_input, "MOST_COMPARED", RANKS - 1)
    late(job(IN_TURN, marked=False))
    assert len(asked) == 1


def test_what_ranks_compute_longer_in_turn_is_no_other_loss_where_members_of_their_group_were_not_recorded() -> None:
    """In two steps all come to the call at once, and wait for one that was not recorded."""
    run = job(IN_TURN, larger=2, marked=False, group_size=8, longer=1.35, sent_ns=MS // 2, met=(1, 4))
    together = match_and_align(run)
    analysis = analyze(run, together)
    first, second = by_rules(run, analysis, together)[:2]
    longer_ns, exposed_ns = 6 * 2 / 3 * 0.35 * KERNELS * USUAL_NS, analysis.headline.exposed_comm_ns
    assert (first.id, first.gain_high_ns, second.id) == ("late_rank", longer_ns, "exposed_communication")
    assert exposed_ns is not None
    assert second.loss_ns == exposed_ns - longer_ns + (analysis.headline.idle_ns or 0)
    words = f"{second.loss_ns / MS:.3g} ms"
    besides = f"A further {words} of a 340 ms recording are exposed communication besides known waiting"
    assert second.title.startswith(besides)
    assert f"{words} of it: " in second.title


def test_many_steps_are_counted() -> None:
    found = late(job(IN_TURN * 2))
    assert found is not None
    assert "(ranks 0, 1, 2, in 12 of 12 steps)" in found.title


def test_steps_that_one_of_four_ranks_did_not_record_count_too() -> None:
    found = late(job(IN_TURN[:3], ranks=4, later=1))
    assert found is not None
    assert "(ranks 0, 2, 1 in steps 0, 1, 2)" in found.title


def test_two_steps_show_no_turns_of_devices_that_do_the_same_slower() -> None:
    found = late(job(IN_TURN[:2]))
    assert found is None or found.gain_high_ns is None


@pytest.mark.parametrize("cut", [0, MS], ids=["whole", "the second in part"])
def test_two_steps_show_that_now_one_rank_has_more_work_and_then_another(cut: int) -> None:
    found = late(job(IN_TURN[:2], larger=2, cut=cut))
    assert found is not None
    in_part = "; step 1 was recorded in part" if cut else ""
    assert found.title.endswith(f"(ranks 0, 2 in steps 0, 1{in_part}); even out batches")
    assert found.gain_high_ns == pytest.approx(2 / 3 * 0.25 * KERNELS * USUAL_NS)
    assert [*found.apply] == ["look", "torch"], "batches, not clocks"


@pytest.mark.parametrize(
    "run",
    [
        job((0,), larger=2), job((0, 0), larger=2), job((0, 2), larger=2, met=(0, 1)), job((0, 2), more=1, longer=1.0),
        job((0, 2), longer_kernels=1, longer=2.0),
    ],
    ids=["one step", "one rank", "it waits as long", "a kernel more", "one long kernel"],
)  # fmt: skip
def test_two_steps_show_nothing_without_more_work_of_two_ranks_that_the_others_wait_for(run: Run) -> None:
    together = match_and_align(run)
    assert slower_in_turn(RuleInput.of(run, analyze(run, together), together)) is None


def test_of_many_ranks_those_that_compute_longest_are_compared_with_some_others() -> None:
    found = late(job((0, 11), larger=2, ranks=12))
    assert found is not None
    assert found.title.endswith("(ranks 0, 11 in steps 0, 1); even out batches")
    every = late(job(range(9), larger=2, ranks=12))
    assert every is not None
    assert "even out batches" not in every.title, "too many are slow to be read"


def test_grids_that_are_hardly_larger_do_not_explain_a_step_that_is_much_longer() -> None:
    def kernels(times_ns: int, blocks: int) -> StepKernels:
        return StepKernels(counts={"gemm": 8}, times_ns={"gemm": times_ns}, blocks=blocks, longest_ns=times_ns // 8)

    ran = {0: {3: kernels(800, 100)}, 1: {3: kernels(800, 100)}, 2: {3: kernels(1000, 104)}}
    assert not had_more_work(ran, 3, 2), "its device may have been slower once"
    assert had_more_work(ran | {2: {3: kernels(1000, 120)}}, 3, 2)


def test_the_family_of_kernels_is_named_that_ranks_run_longer_while_all_others_are_alike() -> None:
    def kernels(attention_ms: int, product_ms: int) -> StepKernels:
        times = {"flash_fwd": attention_ms * MS, "gemm": product_ms * MS}
        return StepKernels(counts={"flash_fwd": 8, "gemm": 8}, times_ns=times, blocks=1, longest_ns=MS)

    ran = {0: {5: kernels(150, 370), 6: kernels(60, 376)}, 1: {5: kernels(50, 380), 6: kernels(130, 368)}}
    ran[2] = {5: kernels(40, 380), 6: kernels(50, 380)}
    found = longer_family(ran, {5: 0, 6: 1})
    assert found is not None
    assert (found.family, found.ns) == ("attention", (40 * MS, 150 * MS))
    assert found.others_ns == (368 * MS, 380 * MS)
    shown = SlowerInTurn(
        rank_of={5: 0, 6: 1}, steps=2, same_work=False, longer_in=found, marked=True, in_part=(), at_most_ns=0,
        evened_ns=0,
    )  # fmt: skip
    which = "attention takes 40 ms to 150 ms a step, depending on the rank, all other kernels 368 ms to 380 ms"
    assert shown.which_work == f"; {which}"
    ran[1][6] = kernels(130, 450)
    assert longer_family(ran, {5: 0, 6: 1}) is None, "products take longer, too"


@pytest.mark.parametrize(
    ("larger", "title", "look"),
    [
        (2, "Even out batches: one rank computes longer than its peers in each step, now this one, now that", "torch"),
        (1, "Find why devices are slower in turn: one rank does the same work slower than its peers in", "nvidia"),
    ],
)
def test_where_transfers_take_most_uneven_steps_stand_alone(larger: int, title: str, look: str) -> None:
    run = job(IN_TURN, longer=1.05, larger=larger, sent_ns=13 * MS)
    assert late(run) is None
    found = named(run, "uneven_steps")
    assert found is not None
    assert found.title.startswith(title)
    assert "(ranks 0, 2, 1, 2, 0, 1 in steps 0, 1, 2, 3, 4, 5)" in found.title
    share = 2 / 3 if look == "torch" else 1
    assert (found.gain_high_ns, found.per) == (pytest.approx(share * 0.05 * KERNELS * USUAL_NS), "step")
    assert look in found.apply
    assert UNSEEN not in found.assumed
    of_more = named(replace(run, world_size=8), "uneven_steps")
    assert of_more is not None
    assert UNSEEN in of_more.assumed


def test_where_grids_are_not_known_neither_batches_nor_devices_are_blamed() -> None:
    run = job(IN_TURN, longer=1.05, sent_ns=13 * MS)
    ranks = {
        rank: replace(each, spans=replace(each.spans, blocks=np.full_like(each.spans.blocks, NONE)))
        for rank, each in run.ranks.items()
    }
    found = named(replace(run, ranks=ranks), "uneven_steps")
    assert found is not None
    assert found.title.startswith("Find why ranks compute longer in turn: one rank computes longer than its peers in")
    assert {"torch", "nvidia"} <= found.apply.keys()


@pytest.mark.parametrize("known", [(0,), (0, 1)], ids=["none", "one of two"])
def test_where_it_is_not_known_what_a_peer_ran_in_a_step_that_it_recorded_neither_is_it_whether_all_ran_the_same(
    known: Sequence[int],
) -> None:
    run = job((0, 1, 0, 1, 0, 1))
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    whole = slower_in_turn(given)
    assert whole is not None
    assert whole.same_work is True
    found = slower_in_turn(replace(given, windows={rank: given.windows[rank] for rank in known}))
    assert found is not None
    assert found.same_work is None


def test_beside_waiting_that_is_the_largest_loss_uneven_steps_are_not_said_twice() -> None:
    assert named(job(IN_TURN), "uneven_steps") is None


def test_a_rank_that_computes_longer_in_most_steps_has_another_role() -> None:
    def steps(*computed_ms: tuple[int, ...]) -> dict[int, dict[int, _OfStep]]:
        return {
            step: {rank: _OfStep(STEP_NS, ns * MS, 0) for rank, ns in enumerate(own)}
            for step, own in enumerate(computed_ms)
        }

    last_stage = steps((29, 29, 29, 43, 42), (29, 29, 29, 42, 43), (29, 29, 29, 43, 42))
    in_turn = steps((29, 29, 29, 43, 29), (29, 29, 29, 29, 43), (29, 29, 29, 43, 29))
    assert [_always(rank, last_stage) for rank in (0, 3, 4)] == [False, True, True]
    assert [_always(rank, in_turn) for rank in (0, 3, 4)] == [False, False, False]


def test_a_rank_that_was_late_in_one_call_of_two_steps_is_not_called_late() -> None:
    found = late(job((1, -1), sent_ns=2 * MS))
    assert found is not None
    assert (
        "10 ms of the 10 ms by which rank 1 came last are in one call, 50 ms after step 0 began: it was late once"
        in (found.title)
    )
    assert "what the host of rank 1 did before that call" in found.apply["look"]
    assert found.evidence["one_call"]["step"] == 0
    for run in (job((1, 1), sent_ns=2 * MS), job((1, -1, -1, -1), sent_ns=2 * MS)):
        other = late(run)
        assert other is None or "late once" not in other.title
