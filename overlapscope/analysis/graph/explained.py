"""Explain a moment or a span of a run: what it waited for, as one value that text and pages show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import NO_CAUSES
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.graph.answers import (
    HIDDEN_WAITS,
    REFUSED,
    UNKNOWN,
    Chain,
    Doing,
    ExplainedSpan,
    Link,
    LongestLoss,
    ranks_of_graph,
)
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.build import graph_too_large, run_graph
from overlapscope.analysis.graph.chains import BEGIN, MOST_LINKS, chain_of_span, span_of_moment
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.analysis.graph.scenarios import slack_ns
from overlapscope.analysis.graph.self_test import self_test
from overlapscope.analysis.graph.walk import whole_path
from overlapscope.display import list_some
from overlapscope.errors import UsageError
from overlapscope.timeline.columns import COMM, COMPUTE, SPAN_KINDS, or_none, size
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import RankTimeline, Run


def chain_at(run: Run, rank: int, after_ns: int, *, most: int = MOST_LINKS) -> Chain:
    """Explain a moment, in nanoseconds after the first span of the run. Raises UsageError outside the recording."""
    known, cross_rank = _known_ranks(run, rank), match_and_align(run)
    origin_ns = _origin_ns(run, cross_rank)
    moment = origin_ns + after_ns
    ranks, reason = _ranks(run, cross_rank, rank)
    for recording in range(size(known.recordings)):
        graph = _graph(run, cross_rank, ranks, recording)
        row = span_of_moment(graph, rank, moment) if _within(graph, rank, moment) else None
        if row is not None:
            return _tested(run, graph, rank, row, moment, origin_ns, reason, most)
    first, last = cross_rank.clocks.aligned_ns(
        rank, np.array([known.spans.start_ns.min(), known.spans.end_ns.max()])
    ).tolist()
    if first <= moment < last:
        raise UsageError(
            f"{after_ns / 1e6:.3f} ms lies between two recorded parts of rank {rank}: nothing recorded followed"
        )
    raise UsageError(
        f"{after_ns / 1e6:.3f} ms is outside what was recorded of rank {rank}, "
        f"{(first - origin_ns) / 1e6:.3f} to {(last - origin_ns) / 1e6:.3f} ms"
    )


def chain_before(run: Run, rank: int, row: int, *, most: int = MOST_LINKS) -> Chain:
    """Explain when a span (row in the table of its rank) began. Raises UsageError where there is no such span."""
    known, cross_rank = _known_ranks(run, rank), match_and_align(run)
    if not 0 <= row < known.num_spans:
        raise UsageError(f"rank {rank} has the spans 0 to {known.num_spans - 1}, not {row}")
    ranks, reason = _ranks(run, cross_rank, rank)
    graph = _graph(run, cross_rank, ranks, int(known.spans.recording[row]))
    moment = int(cross_rank.clocks.aligned_ns(rank, known.spans.start_ns[row : row + 1])[0])
    return _tested(run, graph, rank, row, moment, _origin_ns(run, cross_rank), reason, most)


def _known_ranks(run: Run, rank: int) -> RankTimeline:
    timed = {each: timeline for each, timeline in run.ranks.items() if timeline.num_spans}
    if rank not in timed:
        has = list_some(sorted(timed), 16)
        raise UsageError(f"no times of rank {rank} were recorded; {f'there are those of {has}' if has else 'of none'}")
    return timed[rank].at_hand()


def _origin_ns(run: Run, cross_rank: CrossRank) -> int:
    firsts = [
        cross_rank.clocks.aligned_ns(rank, np.array([each.spans.start_ns.min()]))
        for rank, each in run.ranks.items()
        if each.num_spans
    ]
    return min(int(each[0]) for each in firsts)


def _ranks(run: Run, cross_rank: CrossRank, rank: int) -> tuple[Sequence[int], str | None]:
    """Return the ranks of the graph that explains a rank, and what that cannot hold."""
    ranks, reason = ranks_of_graph(run, cross_rank)
    reason = reason or graph_too_large(run)
    if reason is None and rank in ranks:
        return ranks, None
    return [rank], reason or f"no matched collective connects rank {rank} with the others"


def _graph(run: Run, cross_rank: CrossRank, ranks: Sequence[int], recording: int) -> Graph:
    chosen = msgspec.structs.replace(run, ranks={rank: run.ranks[rank] for rank in ranks})
    graph = run_graph(chosen, cross_rank, recording)
    if len(ranks) > 1:
        return graph
    # Alone, a rank's graph is on its own clock.
    aligned = cross_rank.clocks.aligned_ns(ranks[0], graph.nodes.time_ns)
    return msgspec.structs.replace(graph, nodes=msgspec.structs.replace(graph.nodes, time_ns=aligned))


def _within(graph: Graph, rank: int, moment_ns: int) -> bool:
    part = next(each for each in graph.ranks if each.rank == rank)
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    return bool(start.size and start.min() <= moment_ns < end.max())


def _tested(
    run: Run, graph: Graph, rank: int, row: int, moment: int, origin_ns: int, reason: str | None, most: int
) -> Chain:
    """Explain a span; if a test of the graph fails, or it cannot hold all, the chain ends where that may begin."""
    failed = _failed(graph)
    if reason != NO_CAUSES["no_host_events"]:
        reason = " and ".join(REFUSED[each] for each in failed) or reason
    chain = explained(run.ranks, graph, rank, row, moment, origin_ns, most)
    if reason is None:
        return msgspec.structs.replace(chain, slack_ns=_slack_ns(graph, rank, row))
    known = _known_part(chain.chain, failed)
    return msgspec.structs.replace(chain, chain=known, is_cut=chain.is_cut and len(known) == most, reason=reason)


def explained(
    ranks: Mapping[int, RankTimeline], graph: Graph, rank: int, row: int, moment: int, origin_ns: int,
    most: int = MOST_LINKS, since_ns: int = BEGIN,
) -> Chain:  # fmt: skip
    """Return what a span (row in the table of its rank) waited for, asked at a moment on the graph's clock.

    `since_ns` as for `chain_of_span`.
    """
    links = chain_of_span(graph, ranks, rank, row, most=most + 1, since_ns=since_ns)
    is_cut, links = len(links) > most, links[:most]
    timeline = ranks[rank]
    spans = timeline.spans
    part = next(each for each in graph.ranks if each.rank == rank)
    at = int(np.flatnonzero(part.span_row == row)[0])
    return Chain(
        rank=rank,
        origin_ns=origin_ns,
        moment_ns=moment - origin_ns,
        doing=_doing(graph, rank, moment),
        explains=ExplainedSpan(
            span=row,
            kind=SPAN_KINDS[spans.kind[row]],
            name=timeline.name(int(spans.name[row])),
            op=timeline.name(int(spans.host_op[row])),
            start_ns=int(graph.nodes.time_ns[part.starts()][at]) - origin_ns,
            end_ns=int(graph.nodes.time_ns[part.ends()][at]) - origin_ns,
        ),
        chain=[
            msgspec.structs.replace(each, start_ns=each.start_ns - origin_ns, end_ns=each.end_ns - origin_ns)
            for each in links
        ],
        is_cut=is_cut,
        ranks=[each.rank for each in graph.ranks],
    )


def _slack_ns(graph: Graph, rank: int, row: int) -> int | None:
    """Return how much later a span could have begun without delaying the end of the recording."""
    whole = whole_bounds(graph)
    assert whole is not None
    part = next(each for each in graph.ranks if each.rank == rank)
    node = part.starts().start + int(np.flatnonzero(part.span_row == row)[0])
    return or_none(int(slack_ns(graph, whole.end)[node]))


def _failed(graph: Graph) -> tuple[str, ...]:
    """Return the tests that a graph fails and that chains rest on."""
    whole, path = whole_bounds(graph), whole_path(graph)
    assert whole is not None
    assert path is not None
    failed = self_test(graph, path, [whole]).failed
    return tuple(each for each in failed if each in (UNKNOWN, HIDDEN_WAITS))


_HOST: Final = ("host", "alloc")
MOST_OF_RANK: Final = 5
MOST_ASKED: Final = 40
"""Stretches, the longest first, of which the first that the recording explains is taken."""


def _known_part(links: Sequence[Link], failed: Sequence[str]) -> list[Link]:
    """Return the links up to the first that may hold what was not recorded."""
    for at, each in enumerate(links):
        if (HIDDEN_WAITS in failed and each.kind in _HOST) or each.unexplained_ns:
            return list(links[: at + 1])
    return list(links)


def _doing(graph: Graph, rank: int, moment_ns: int) -> Doing:
    part = next(each for each in graph.ranks if each.rank == rank)
    runs = (graph.nodes.time_ns[part.starts()] <= moment_ns) & (graph.nodes.time_ns[part.ends()] > moment_ns)
    kinds = set(part.span_kind[runs].tolist())
    if not kinds:
        return "idle"
    return "computing" if COMPUTE in kinds else "exposed communication" if COMM in kinds else "copying"


# --- the longest loss of a step ---------------------------------------------------------------------------------------


def longest_loss(
    graph: Graph, ranks: Mapping[int, RankTimeline], step: int | None, start_ns: int, end_ns: int
) -> LongestLoss | None:
    """Return the longest stretch of a window in which a rank neither computed nor copied; None if there is none.

    Stretches that begin before what they waited for was recorded are passed over where there are others.
    """
    lost = [each for part in graph.ranks for each in _lost(graph, part, start_ns, end_ns)]
    origin_ns = min(int(graph.nodes.time_ns[part.starts()].min()) for part in graph.ranks if part.spans)
    first = None
    for start, end, rank, row in sorted(lost, key=lambda each: (each[0] - each[1], each[0]))[:MOST_ASKED]:
        chain = explained(ranks, graph, rank, row, start, origin_ns, since_ns=start)
        loss = LongestLoss(step=step, rank=rank, start_ns=start - origin_ns, end_ns=end - origin_ns, chain=chain)
        if chain.is_cut or (chain.chain and chain.chain[-1].start_ns <= loss.start_ns):
            return loss
        first = first or loss
    return first


def _lost(graph: Graph, part: RankPart, start_ns: int, end_ns: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield start, end, rank and the row of the span that follows, of the longest gaps between compute and copies."""
    works = np.flatnonzero(part.span_kind != COMM)
    starts, ends = graph.nodes.time_ns[part.starts()][works], graph.nodes.time_ns[part.ends()][works]
    busy = union((starts, ends))
    gap_start, gap_end = np.maximum(busy.ends[:-1], start_ns), np.minimum(busy.starts[1:], end_ns)
    length = gap_end - gap_start
    for at in np.argsort(-length, kind="stable")[:MOST_OF_RANK].tolist():
        if length[at] > 0:
            follows = works[int(np.flatnonzero(starts == busy.starts[at + 1])[0])]
            yield int(gap_start[at]), int(gap_end[at]), part.rank, int(part.span_row[follows])
