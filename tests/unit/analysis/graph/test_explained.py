"""What a moment waited for: known programs, ranks that wait for each other, recordings that cannot hold all."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.graph.answers import Chain
from overlapscope.analysis.graph.explained import chain_at, chain_before, longest_moments
from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import chain as shown
from overlapscope.report.text.critical_path import longest_loss_text
from overlapscope.timeline.columns import COMM, OPERATION, HostSpans, Syncs, concat, make, take
from overlapscope.timeline.run import RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.support.cpu_runs.cpu_steps import Call, Op, cpu_run
from tests.support.graph_programs import Launch, Poll, Record, Sync, Wait, Work, simulate
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
US = 1_000
LATE = [Launch(0, MS), Sync(), Work(5 * MS), Launch(0, 2 * MS, name="slow"), Record("ready", 0), Wait("ready", 1),
        Launch(1, 0, COMM, "nccl", "sum"), Record("done", 1), Wait("done", 0), Launch(0, MS, name="after")]  # fmt: skip
EARLY = [Launch(0, MS), Sync(), Work(MS), *LATE[3:]]
TWO = {0: EARLY, 1: LATE}


def two_ranks() -> Run:
    return simulate(TWO, {"sum": 500 * US}).run


def kinds(found: Chain) -> list[tuple[int, str, str | None]]:
    return [(each.rank, each.kind, each.what) for each in found.chain]


def test_a_wait_leads_to_the_rank_that_came_last_and_through_its_host_to_the_kernel_it_had_waited_for() -> None:
    found = chain_at(two_ranks(), 0, 5 * MS)
    assert (found.rank, found.moment_ns, found.doing, found.explains.name) == (
        0, 5 * MS, "exposed communication", "after"
    )  # fmt: skip
    assert found.reason == "no earlier call or work of rank 1 was recorded"
    assert not found.is_cut
    passed = kinds(found)
    for expected in [
        (0, "transfer", "nccl"), (1, "arrive", "nccl"), (1, "compute", "slow"), (1, "launch", "cudaLaunchKernel"),
        (1, "host", "cudaLaunchKernel"), (1, "sync", "gemm"), (1, "compute", "gemm"),
    ]:  # fmt: skip
        assert expected in passed
        passed = passed[passed.index(expected) :]
    host = next(each for each in found.chain if each.kind == "host")
    assert 5 * MS <= host.longest_ns <= 5.1 * MS
    for later, earlier in zip(found.chain, found.chain[1:], strict=False):
        assert later.start_ns == earlier.end_ns
    text = shown.render(found)
    assert "Rank 0 at 5.000 ms: exposed communication, until compute after begins at" in text
    assert "late rank: began all_reduce (nccl) last" in text


def test_a_collective_is_named_by_its_operation_where_the_call_around_it_has_no_name_of_one() -> None:
    """So do critical paths."""
    run = two_ranks()

    def made_by(call: str, each: RankTimeline) -> RankTimeline:
        of = np.where(each.spans.kind == COMM, len(each.names), each.spans.host_op).astype(np.int32)
        return replace(each, names=(*each.names, call), spans=replace(each.spans, host_op=of))

    for call, said in (("record_param_comms", "all_reduce"), ("sum up", "sum up")):
        called = replace(run, ranks={rank: made_by(call, each) for rank, each in run.ranks.items()})
        assert f"transfer of {said} (nccl)" in shown.render(chain_at(called, 0, 5 * MS))


def test_a_span_is_explained_as_the_moment_that_it_ended() -> None:
    at = chain_at(two_ranks(), 0, 5 * MS)
    before = chain_before(two_ranks(), 0, at.explains.span)
    assert (before.chain, before.explains) == (at.chain, at.explains)
    cut = chain_before(two_ranks(), 0, at.explains.span, most=2)
    assert (cut.chain, cut.is_cut) == (at.chain[:2], True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [(lambda: chain_at(two_ranks(), 0, 60_000 * MS), "outside what was recorded of rank 0"),
     (lambda: chain_at(two_ranks(), 7, 0), "no times of rank 7 were recorded; there are those of 0, 1"),
     (lambda: chain_before(two_ranks(), 1, 99), "rank 1 has the spans 0 to")],
)  # fmt: skip
def test_what_was_not_recorded_is_refused_in_one_line(asked: object, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        asked()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_slack_is_how_much_later_a_span_could_begin_without_a_later_end() -> None:
    """A short kernel on a stream of its own may begin up to the end of the long one; the long one may not wait."""
    short, long = Launch(1, 2 * MS), Launch(0, 9 * MS)
    run = simulate({0: [short, long, Sync()]}).run
    spans = run.ranks[0].spans
    lasts = (spans.end_ns - spans.start_ns).tolist()
    may_wait, may_not = (chain_before(run, 0, lasts.index(each.ns)) for each in (short, long))
    row = lasts.index(short.ns)
    assert may_wait.slack_ns == int(spans.end_ns.max() - spans.end_ns[row])
    assert may_not.slack_ns == 0
    assert f"{may_wait.slack_ns / MS:.3f} ms; had it begun so much later" in shown.render(may_wait)
    assert "none; had it begun later, the recording would have ended later" in shown.render(may_not)


def without_host(run: Run) -> Run:
    """Return a run of which devices alone were recorded."""
    bare = {
        rank: replace(
            each, host=make(type(each.host), 0), syncs=make(Syncs, 0),
            recordings=replace(each.recordings, host_events=each.recordings.host_events & False),
        )
        for rank, each in run.ranks.items()
    }  # fmt: skip
    return replace(run, ranks=bare)


def test_without_host_events_the_device_alone_is_explained() -> None:
    found = chain_at(without_host(two_ranks()), 1, 6 * MS)
    assert found.ranks == [1]
    assert found.slack_ns is None
    assert found.reason == "what the host did was not recorded"
    assert "host" not in {each.kind for each in found.chain}
    assert "The rest is not known: what the host did was not recorded." in shown.render(found)


def test_without_host_events_communication_on_another_stream_is_told_from_nothing() -> None:
    program = [Launch(0, MS), Launch(1, 0, COMM, "nccl", "sum"), Work(6 * MS), Launch(0, MS, name="after")]
    run = without_host(simulate({0: program, 1: program}, {"sum": 2 * MS}).run)
    spans = run.ranks[0].spans
    after = int(spans.start_ns.argmax())
    first, call = (np.flatnonzero(spans.kind == kind)[0] for kind in (0, COMM))
    found = chain_at(run, 0, int(spans.start_ns[after] - spans.start_ns.min()) - US)
    # The latest first: nothing ran since the call had ended, before that it did.
    idle, beside = found.chain[:2]
    zero = int(spans.start_ns.min())
    assert (idle.kind, beside.kind) == ("lane", "comm")
    assert (idle.start_ns, idle.end_ns) == (spans.end_ns[call] - zero, spans.start_ns[after] - zero)
    assert (beside.start_ns, beside.end_ns) == (
        max(spans.end_ns[first], spans.start_ns[call]) - zero, spans.end_ns[call] - zero,
    )  # fmt: skip
    assert "communication" in shown.render(found)


def test_a_host_that_may_have_waited_unseen_ends_what_is_explained() -> None:
    """Fewer than three polls of a kind cannot be told from chance."""
    program = [Launch(0, 5 * MS), Poll(), Launch(0, 5 * MS), Poll(), Work(4 * MS), Launch(0, 5 * MS)]
    found = chain_at(simulate({0: program}).run, 0, 15 * MS)
    assert found.reason == "the host waited in ways that were not recorded"
    assert [each.kind for each in found.chain] == ["launch", "host"]


def test_the_longest_loss_of_a_step_says_what_it_waited_for() -> None:
    loss = analyze(two_ranks()).critical_path.longest_loss
    assert loss
    assert loss.rank == 1
    assert loss.end_ns - loss.start_ns == pytest.approx(5 * MS, abs=0.1 * MS)
    text = longest_loss_text(loss)
    assert "5.004 ms without compute or copies on rank 1; in that time it waited for" in text
    assert "rank 1  host: until cudaLaunchKernel (order)" in text
    assert "before the last links" not in text
    cut = replace(loss, chain=replace(loss.chain, chain=loss.chain.chain[:1], is_cut=True))
    rest_ns = cut.chain.chain[-1].start_ns - loss.start_ns
    *_, last = longest_loss_text(cut).splitlines()
    assert last.startswith(f"  The {rest_ns / MS:.3f} ms before the last links: overlapscope explain RUN --at 1:")
    assert last.endswith(" --links 1000")


def test_of_a_longer_loss_whose_cause_began_before_the_recording_is_said_that_it_is_left_out() -> None:
    """Rank 1 begins to be recorded 20 ms after rank 0, which waits for it."""
    program = [*LATE[3:], Sync(), Work(8 * MS), Launch(0, MS)]
    run = simulate({0: program, 1: [Work(20 * MS), *program]}, {"sum": 500 * US}).run
    loss = analyze(run).critical_path.longest_loss
    assert loss
    assert loss.end_ns - loss.start_ns == pytest.approx(8 * MS, abs=0.1 * MS)
    assert loss.left_out_ns == pytest.approx(20.5 * MS, abs=0.1 * MS)
    found = chain_at(run, 0, 10 * MS)
    assert found.reason
    assert found.reason.startswith("no earlier call or work of rank 1 was recorded, so 17.996 ms of")
    assert f"The rest is not known: {found.reason}." in shown.render(found)
    left_out = f"  One of {loss.left_out_ns / MS:.3f} ms is left out: it waited for what began before the recording."
    assert longest_loss_text(loss).splitlines()[-1] == left_out
    whole = analyze(two_ranks()).critical_path.longest_loss
    assert whole
    assert "left out" not in longest_loss_text(whole)


@pytest.mark.parametrize(("begins_ms", "words"), [(2, "in aten::addmm, before its launch"), (5, "until aten::addmm")])
def test_what_most_of_a_loss_lay_inside_of_is_told_from_what_followed_it(begins_ms: float, words: str) -> None:
    """The host launches nothing for 8 ms, and is in the operation that launches next for 6 of them, or 3."""
    run = simulate({0: [Launch(0, MS), Work(8 * MS), Launch(0, MS)]}).run
    timeline, host = run.ranks[0], run.ranks[0].host
    operation = make(
        HostSpans, 1, kind=OPERATION, name=len(timeline.names), lane=int(host.lane[-1]), recording=0, correlation=-1,
        start_ns=host.start_ns[-1:] - round((8 - begins_ms) * MS), end_ns=host.end_ns[-1:] + US,
    )  # fmt: skip
    rows = concat([host, operation])
    of_launch = np.array([-1, len(timeline.names)], np.int32)
    timeline = replace(
        timeline, names=(*timeline.names, "aten::addmm"), host=take(rows, np.lexsort((-rows.end_ns, rows.start_ns))),
        spans=replace(timeline.spans, host_op=of_launch),
    )  # fmt: skip
    loss = analyze(replace(run, ranks={0: timeline})).critical_path.longest_loss
    assert loss
    assert f"host: {words} (order)" in longest_loss_text(loss)


def test_work_that_shares_a_row_leaves_room_for_what_it_had_waited_for() -> None:
    """Thirty kernels follow each other after a call: they are one row, and the call is another."""
    call = [Record("ready", 0), Wait("ready", 1), Launch(1, 0, COMM, "nccl", "sum"), Record("done", 1), Wait("done", 0)]
    run = simulate({0: [Launch(0, MS), *call, *[Launch(0, 50 * US) for _ in range(30)]]}, {"sum": 9 * MS}).run
    last = int(run.ranks[0].spans.start_ns.argmax())
    found = chain_before(run, 0, last, most=3)
    rows = shown.stretches(found.chain)
    assert [row.words.split()[0] for row in rows] == ["29", "event:", "communication"]
    assert (rows[0].links, found.is_cut) == (len(found.chain) - 2, True)
    assert "Earlier links: --links 6" in shown.render(found)
    whole = chain_before(run, 0, last, most=60)
    assert found.chain == whole.chain[: len(found.chain)]


def loading(timeline: RankTimeline, begin_ns: int, end_ns: int) -> RankTimeline:
    """Return a rank whose thread fetched a batch then."""
    noted = rank_timeline(
        names=timeline.names,
        annotations=[{"start_ns": begin_ns, "end_ns": end_ns, "lane": int(timeline.host.lane[0]), "name": "load"}],
    )
    return replace(timeline, names=noted.names, annotations=noted.annotations)


def test_the_pause_of_a_loss_is_named_though_calls_before_the_loss_took_longer() -> None:
    """The host calls for 24 ms while the device works for 32, then loads for 20: of these the device waits for 12. So
    the chain of the loss in `analyze` says."""
    program = [Launch(0, 30 * MS), *[Work(12 * MS), Launch(0, MS)] * 2, Work(20 * MS)]
    run = simulate({0: [*program, *[Launch(0, MS)] * 3]}).run
    begun = int(run.ranks[0].spans.start_ns[0])
    run = replace(run, ranks={0: loading(run.ranks[0], begun + 25 * MS, begun + 43 * MS)})
    loss = analyze(run).critical_path.longest_loss
    assert loss
    assert loss.end_ns - loss.start_ns == pytest.approx(12 * MS, abs=0.1 * MS)
    found = chain_at(run, 0, (loss.start_ns + loss.end_ns) // 2)
    assert found.chain == loss.chain.chain
    assert "host: in load, before cudaLaunchKernel" in shown.render(found)
    elsewhere = simulate({0: [*program, Launch(1, MS)]}).run
    elsewhere = replace(elsewhere, ranks={0: loading(elsewhere.ranks[0], begun + 25 * MS, begun + 43 * MS)})
    whole = chain_before(elsewhere, 0, int(elsewhere.ranks[0].spans.start_ns.argmax()))
    assert "calls until cudaLaunchKernel, longest pause 20.000 ms in load, before cudaLaunchKernel" in shown.render(
        whole
    )


@pytest.mark.parametrize(("works_ms", "told"), [(9, "before"), (7, "in the launch call")])
def test_a_pause_inside_of_a_launch_call_is_told_from_one_before_it(works_ms: int, told: str) -> None:
    """One launch takes 8 ms."""
    run = simulate({0: [Launch(0, MS), Work(works_ms * MS), Launch(0, MS, takes_ns=8 * MS), Launch(1, MS)]}).run
    (host,) = [each for each in chain_before(run, 0, 2).chain if each.kind == "host"]
    assert host.in_call == (None if told == "before" else "cudaLaunchKernel")
    assert shown.link_words(host).endswith(f", longest pause {max(works_ms, 8)}.000 ms {told} cudaLaunchKernel")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hot_experts_moe3", "paused_host_tp2", "starved_tp2"])
def test_the_longest_loss_is_followed_back_to_where_it_began(name: str) -> None:
    """A host that computes in many small pieces takes more links than are usually shown."""
    loss = analyze(read_inputs([ROOT / "tests" / "truth" / "recordings" / name])).critical_path.longest_loss
    assert loss
    assert loss.chain.chain[-1].start_ns <= loss.start_ns < loss.chain.chain[-2].start_ns
    assert "before the last links" not in longest_loss_text(loss)


def test_the_verb_prints_chains_as_well_as_pages(capsys: pytest.CaptureFixture[str]) -> None:
    baseline = str(ROOT / "traces" / "baseline")
    assert main(["explain", baseline, "--at", "1:368"]) == 0
    printed = capsys.readouterr().out
    assert "late rank: began gloo:all_reduce last" in printed
    assert "recorded  launch of gloo:all_reduce" in printed
    assert main(["explain", baseline, "--at", "1:368", "--links", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], len(found["chain"]), found["is_cut"]) == ("overlapscope.chain/1", 3, True)
    assert main(["explain", baseline, "--span", f"1:{found['explains']['span']}", "--links", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chain"] == found["chain"]
    for words in (
        ["--at", "one"],
        ["--at", "1:99999999"],
        ["--span", "1:9999999"],
        ["--at", "9:1"],
        ["--links", "0", "--at", "1:1"],
    ):
        assert main(["explain", baseline, *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["explain", baseline, "--json"]) == 0
    (longest, *_) = json.loads(capsys.readouterr().out)["moments"]
    assert main(["explain", baseline]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    commands = [line[line.index("overlapscope explain ") :].split()[1:] for line in listed]
    assert len(commands) == 5
    assert commands[0][-1] == f"{longest['rank']}:{(longest['start_ns'] + longest['end_ns']) / 2e6:.3f}"
    for command in commands:
        assert main(command) == 0, "each can be typed as it is"
        assert "exposed communication, until" in capsys.readouterr().out
    assert main(["explain", "no_such_page"]) == 2
    assert "no file or folder has this name" in capsys.readouterr().err


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["explain", "traces/baseline", "--at", "1:368", "--links", "12"]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in Path("docs/explain.md").read_text(encoding="utf-8")


def test_a_recording_that_was_sampled_is_explained_up_to_its_first_gap() -> None:
    found = chain_at(read_inputs([shared_file("kineto/sampled_pair")]), 0, 400 * MS)
    assert len(found.chain) == 1
    assert found.chain[0].unexplained_ns > 50 * MS
    assert found.reason
    assert "not recorded" in found.reason


def test_what_a_cpu_computed_is_named_by_its_operation() -> None:
    """Rank 1 comes 300 us later than rank 0, for a product, and adds for 100 us then."""
    run = cpu_run(
        lambda step, rank: [
            Op("aten::mm", 0, 400 + 300 * rank), Op("aten::add", 402 + 300 * rank, 502 + 300 * rank),
            Call(start=503 + 300 * rank, end=850), Op("aten::fill_", 860, 900),
        ]
    )  # fmt: skip
    loss = analyze(run).critical_path.longest_loss
    assert loss
    named = ["aten::add", "aten::mm"]
    assert [each.what for each in loss.chain.chain if each.kind == "compute"][:2] == named
    assert "pieces of work on its stream or thread, the longest aten::mm" in longest_loss_text(loss)
    at_ns = (loss.start_ns + loss.end_ns) // 2
    assert [each.what for each in chain_at(run, 0, at_ns).chain if each.kind == "compute"][:2] == named


def test_what_lies_between_two_recorded_parts_is_no_loss() -> None:
    """Every second step is a part of its own, and the others are none: each loss can be explained."""
    run = cpu_run(
        lambda step, rank: (
            []
            if step % 2
            else [Op("aten::mm", 0, 400 + 100 * rank), Call(start=501, end=700), Op("aten::fill_", 750, 900)]
        )
    )
    parts = {rank: _in_parts(timeline) for rank, timeline in run.ranks.items()}
    moments = longest_moments(replace(run, ranks=parts))
    assert [each.end_ns - each.start_ns for each in moments] == [350_000] * 3
    for each in moments:
        assert chain_at(replace(run, ranks=parts), each.rank, (each.start_ns + each.end_ns) // 2).chain


def test_a_call_that_no_compute_follows_is_a_loss_of_which_only_the_call_can_be_said() -> None:
    """By hand: the sum begins as rank 1 comes to it, and lasts 5 ms; nothing follows on either rank."""
    last = [Record("ready", 0), Wait("ready", 1), Launch(1, 0, COMM, "nccl", "sum")]
    run = simulate({0: [Launch(0, MS), *last], 1: [Launch(0, 3 * MS), *last]}, {"sum": 5 * MS}).run
    (longest, *others) = longest_moments(run)
    assert (longest.rank, longest.in_call, longest.end_ns - longest.start_ns) == (
        0, "all_reduce", pytest.approx(7 * MS, rel=0.01),
    )  # fmt: skip
    assert others == [], "rank 1 loses the same time"
    said = shown.moments_text([longest], "RUN")
    assert "in all_reduce until" in said
    assert "--at" not in said
    with pytest.raises(UsageError, match=r"is in all_reduce until \d+\.\d+ ms, and no compute follows"):
        chain_at(run, 0, (longest.start_ns + longest.end_ns) // 2)


def _in_parts(timeline: RankTimeline) -> RankTimeline:
    """Return a rank of which each step with spans was recorded apart."""
    spans, steps = timeline.spans, timeline.steps
    step = np.searchsorted(steps.start_ns, spans.start_ns, side="right") - 1
    number, part = np.unique(step, return_inverse=True)
    row = take(timeline.recordings, np.zeros(number.size, np.int64))
    recordings = replace(row, start_ns=steps.start_ns[number], end_ns=steps.end_ns[number])
    return replace(timeline, spans=replace(spans, recording=part.ravel()), recordings=recordings)
