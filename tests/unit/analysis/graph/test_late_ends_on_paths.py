"""What lies after a call's end on another rank is no transfer, on paths and in chains, where ranks share a clock."""

from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.report.text.chain import link_words
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import US, Call, Op, cpu_run


def run(late_us: int, host: str | None = "here") -> Run:
    """Return two ranks whose call, of 200 us, ends so much later on rank 1, which ends the step."""
    made = cpu_run(
        lambda _, rank: [
            Op("aten::mm", 100, 300),
            Call(start=300, end=500 + late_us * rank),
            Op("aten::mul_", 510 + late_us * rank, 700 + late_us * rank),
        ]
    )
    settings = {} if host is None else {"settings": {"host": host}}
    return replace(made, ranks={rank: replace(each, recorded=settings) for rank, each in made.ranks.items()})


def test_the_time_since_another_members_end_is_a_part_of_its_own() -> None:
    path = analyze(run(100)).critical_path.steps[2]
    assert (path.parts["transfer"], path.parts["late_end"]) == (200 * US, 100 * US)
    assert sum(path.parts.values()) == path.length_ns


def test_without_a_common_clock_nobody_knows_which_end_was_late() -> None:
    assert all("late_end" not in path.parts for path in analyze(run(100, host=None)).critical_path.steps)


def test_text_and_chain_say_so() -> None:
    found = analyze(run(100)).critical_path
    assert "late ends of calls 10.0 %" in critical_path_text(found)
    assert found.longest_loss is not None
    links = [each for each in found.longest_loss.chain.chain if each.kind == "transfer"]
    assert link_words(links[0]).endswith(", 0.100 ms of it after the call had ended on another rank")


def test_of_some_ranks_alone_only_their_calls_are_asked() -> None:
    job = run(100)
    together = match_and_align(job)
    assert together.ended_late_ns(job)[1].tolist() == [100 * US] * 6
    some = replace(job, ranks={1: job.ranks[1]})
    assert {rank: late.tolist() for rank, late in together.ended_late_ns(some).items()} == {1: [100 * US] * 6}
