"""Groups compared with each other: pipelines of two stages, links within a host and across, and who is in a group."""

from overlapscope.analysis.checks.links.slow_link import slow_links
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.timeline.columns import NONE
from tests.support.overlapping_calls import Met, job
from tests.unit.analysis.checks.pipelines.schedules import pipeline, said
from tests.unit.analysis.cross_rank.matching import test_matching

MS = 1_000_000


def test_of_two_stages_half_of_what_is_sent_is_taken_for_activations() -> None:
    # Eight microbatches; a forward takes 10 ms on stage 0 and 11 on stage 1, a backward twice that. Stage 0 is busy for
    # 8 * 30 = 240 ms of 10 + 8 * 33 + 20 + 1 = 295, in the bubble for 55. 1F1B with eight activations needs 240 / 8 =
    # 30, which would leave an excess of 25 (8 %); but what was sent may be four activations and four gradients, of two
    # chunks a stage, which need 240 / 4 = 60.
    assert said(pipeline([10, 11], 8)) == []
    (finding,) = said(pipeline([5, 20], 16))
    assert finding.evidence["activations"] == 8
    assert "16 activations, or 8 of interleaved chunks, a stage" in finding.title
    (finding,) = said(pipeline([5, 5, 20], 16))
    assert finding.evidence["activations"] == 16


def between(quick: set[tuple[int, int]], slow: set[tuple[int, int]]) -> list[str]:
    """Return the slow links of a job whose pairs of ranks reduce the same: in 1 ms if quick, in 4 if slow."""
    pairs = sorted(quick | slow)
    calls: dict[int, list[Met]] = {rank: [] for rank in range(4)}
    for k in range(10):
        for at, pair in enumerate(pairs):
            start = 100 * k + 10 * at
            for rank in pair:
                calls[rank].append(Met(start=start, end=start + (1 if pair in quick else 4), group=str(at)))
    run = job(calls, {str(at): pair for at, pair in enumerate(pairs)}, lasts=1000)
    return [each.id for each in slow_links(run, match_and_align(run).splits)]


def test_where_most_groups_are_slow_the_others_are_rather_quick() -> None:
    # Four pairs across two hosts take longer than the two within: no link is slow.
    assert between({(0, 1), (2, 3)}, {(0, 2), (0, 3), (1, 2), (1, 3)}) == []
    assert between({(0, 1), (2, 3), (0, 3), (1, 2)}, {(0, 2), (1, 3)}) == ["slow_link"]
    # Three of five, but all that rank 0 has, and nobody else's are slow.
    assert between({(1, 3), (2, 3)}, {(0, 1), (0, 2), (0, 3)}) == ["slow_link:rank0"]


def numbered(ranks: int, *, size: int, apart_ms: int = 4, world_size: int | None = None) -> CrossRank:
    """Return the matching of numbered calls of one group name, those of every second pair of ranks later."""
    calls = {
        rank: [
            test_matching.Call(op="all_reduce", start=(10 * k + rank // 2 * apart_ms) * MS, size=size, seq=k)
            for k in range(20)
        ]
        for rank in range(ranks)
    }
    return match_and_align(test_matching.job(calls, world_size=world_size or ranks))


def test_numbers_pair_no_calls_where_a_name_may_stand_for_several_groups() -> None:
    unknown = numbered(4, size=NONE)
    assert (unknown.matched, unknown.matching.unmatched) == (0, 80)
    assert "may be several groups of the same name" in unknown.matching.reasons[0]
    assert unknown.clocks.offset_ns == {}
    assert numbered(2, size=NONE, world_size=4).matched == 0  # of two groups of two, one rank each may be recorded
    assert numbered(2, size=NONE).matched == 20  # of a pair there is but one group
    assert numbered(4, size=4).matched == 20
    assert numbered(4, size=2).matched == 0
