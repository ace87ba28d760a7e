"""Explain a moment or a span of a run: what it waited for, as one value that text and pages show."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import NO_CAUSES, WITHOUT_HOST
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, first_span_ns, match_and_align
from overlapscope.analysis.graph.answers import (
    HIDDEN_WAITS,
    REFUSED,
    UNKNOWN,
    Chain,
    Doing,
    ExplainedSpan,
    Link,
    LongestLoss,
    Moment,
    ranks_of_graph,
)
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.build import graph_too_large
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.chains import (
    BEGIN,
    MOST_LINKS,
    MOST_READ,
    PlacedLink,
    links_back,
    placed_chain,
    row_of_link,
    span_of_moment,
)
from overlapscope.analysis.graph.gains import shortening_gains, whole_slack
from overlapscope.analysis.graph.model import OWN_NS, Graph, RankPart, once_a_graph
from overlapscope.analysis.graph.named_operations import with_operations
from overlapscope.analysis.graph.self_test import self_test
from overlapscope.display import list_some
from overlapscope.errors import HostEventsError, UsageError
from overlapscope.ingest.build.kernel_names import RECORD_PARAM_COMMS
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, SPAN_KINDS, HostSpans, Ints, make, or_none, size
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.operations import UNNAMED
from overlapscope.timeline.python_stack import stack_of_launch
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline, Run

MOST_OF_RANK: Final = 5
WORKING: Final = ("computing", "copying")
"""What a rank does at a moment that lies in work, of `Chain.doing`."""


def chain_at(run: Run, rank: int, after_ns: int, *, most: int = MOST_LINKS) -> Chain:
    """Explain a moment, in nanoseconds after the first span of the run. Raises UsageError outside the recording.

    `most` is the largest number of rows (`row_of_link`).
    """
    return RunChains(run).at(rank, after_ns, most=most)


def chain_before(run: Run, rank: int, row: int, *, most: int = MOST_LINKS) -> Chain:
    """Explain when a span (row in the table of its rank) began, as `chain_at`. Raises UsageError where there is no such
    span."""
    return RunChains(run).before(rank, row, most=most)


MOST_ALONE: Final = 2
"""Graphs of single ranks that are kept, of runs whose ranks have no graph in common."""


class RunChains:
    """The chains of one run: clocks, origin and graphs are found once and kept, for a page that asks repeatedly."""

    def __init__(self, run: Run, cross_rank: CrossRank | None = None, graphs: BuiltGraphs | None = None) -> None:
        self._run, self._cross_rank = run, cross_rank or match_and_align(run)
        self.graphs = graphs or BuiltGraphs(run)
        self._alone: OrderedDict[tuple[int, int], Graph] = OrderedDict()
        self._lock = Lock()

    @cached_property
    def origin_ns(self) -> int:
        """When the first span of any rank began, on the aligned clock."""
        return first_span_ns(self._run, self._cross_rank.clocks)

    @cached_property
    def _late_ns(self) -> Mapping[int, Ints]:
        return self._cross_rank.ended_late_ns(self._run)

    def at(self, rank: int, after_ns: int, *, most: int = MOST_LINKS) -> Chain:
        """Explain a moment, as `chain_at`."""
        known = _known_ranks(self._run, rank)
        moment = self.origin_ns + after_ns
        for recording in range(size(known.recordings)):
            graph = self.graph(rank, recording)
            row = span_of_moment(graph, rank, moment) if _within(graph, rank, moment) else None
            if row is not None:
                found = self._tested(graph, rank, row, moment, most, of_span=False)
                own_ns = 2 * moment - int(self._cross_rank.clocks.aligned_ns(rank, np.array([moment]))[0])
                return msgspec.structs.replace(found, python=_python_stack(known, row, own_ns))
        ends = np.array([known.spans.start_ns.min(), known.spans.end_ns.max()])
        first, last = self._cross_rank.clocks.aligned_ns(rank, ends).tolist()
        own_ns = int(self._cross_rank.clocks.own_ns(rank, np.array([moment]))[0])
        running = np.flatnonzero((known.spans.start_ns <= own_ns) & (known.spans.end_ns > own_ns))
        if running.size:
            call = int(running[known.spans.end_ns[running].argmax()])
            (end,) = self._cross_rank.clocks.aligned_ns(rank, known.spans.end_ns[call : call + 1]).tolist()
            raise UsageError(
                f"{after_ns / 1e6:.3f} ms: rank {rank} is in {_call_name(known, call)} until "
                f"{(end - self.origin_ns) / 1e6:.3f} ms, and no compute follows in the recording that could wait for it"
            )
        if first <= moment < last:
            raise UsageError(
                f"{after_ns / 1e6:.3f} ms lies between two recorded parts of rank {rank}: nothing recorded followed"
            )
        raise UsageError(
            f"{after_ns / 1e6:.3f} ms is outside what was recorded of rank {rank}, "
            f"{(first - self.origin_ns) / 1e6:.3f} to {(last - self.origin_ns) / 1e6:.3f} ms"
        )

    def before(self, rank: int, row: int, *, most: int = MOST_LINKS) -> Chain:
        """Explain when a span began, as `chain_before`."""
        known = _known_ranks(self._run, rank)
        if not 0 <= row < known.num_spans:
            raise UsageError(f"rank {rank} has the spans 0 to {known.num_spans - 1}, not {row}")
        graph = self.graph(rank, int(known.spans.recording[row]))
        moment = int(self._cross_rank.clocks.aligned_ns(rank, known.spans.start_ns[row : row + 1])[0])
        found = self._tested(graph, rank, row, moment, most, of_span=True)
        return msgspec.structs.replace(found, python=_python_stack(known, row))

    def interval(self, found: Chain, *, of_span: bool) -> tuple[int, int]:
        """Return begin and end (ns from the run's start) of the time that a chain explains.

        It is the exposed or idle time around the moment; of a span the time since its stream or thread was last busy.
        """
        spans = self._run.ranks[found.rank].spans
        graph = self.graph(found.rank, int(spans.recording[found.explains.span]))
        begin_ns, end_ns = _interval(
            graph, found.rank, found.explains.span, found.moment_ns + found.origin_ns, of_span=of_span
        )
        return begin_ns - found.origin_ns, end_ns - found.origin_ns

    def placed(self, found: Chain, *, of_span: bool, explains_since_ns: int = BEGIN) -> tuple[PlacedLink, ...]:
        """Return the links of a chain with their nodes, as `placed_chain`."""
        row = found.explains.span
        graph = self.graph(found.rank, int(self._run.ranks[found.rank].spans.recording[row]))
        since_ns = _since_ns(graph, found.rank, row, found.moment_ns + found.origin_ns, of_span=of_span)
        return placed_chain(
            graph, self._run.ranks, found.rank, row, most=len(found.chain), since_ns=since_ns,
            explains_since_ns=explains_since_ns,
        )  # fmt: skip

    def gains(self, found: Chain, links: Sequence[int], *, of_span: bool) -> list[int | None]:
        """Return for each step of a chain how much earlier the recording would have ended without it, in ns.

        `links` are the numbers of links of the steps, the latest first. None where the graph may not say, and for ranks
        on CPUs: their threads slow each other, which no graph holds.
        """
        graph = self.graph(found.rank, int(self._run.ranks[found.rank].spans.recording[found.explains.span]))
        on_devices = all(part.on_device for part in graph.ranks)
        if self._refused(graph, found.rank) is not None or _failed(graph) or not on_devices:
            return [None] * len(links)
        rest = iter(self.placed(found, of_span=of_span))
        steps = [[each.edges for each in islice(rest, number)] for number in links]
        return shortening_gains(graph, [np.concatenate([*each, np.empty(0, np.int64)]) for each in steps])

    def graph(self, rank: int, recording: int) -> Graph:
        """Return the graph that explains a rank, on the aligned clock; it is built when it is first asked for."""
        ranks, _ = self._ranks(rank)
        if len(ranks) > 1:
            graph = self.graphs.of_ranks(ranks, self._cross_rank, recording)
            if all(self._run.ranks[each].host_error is None for each in ranks):
                return graph
            vars(self).pop("_connected", None)  # it was built without host events that proved unreadable
            if len(self._ranks(rank)[0]) > 1:
                return graph
        with self._lock:
            key = rank, recording
            if key not in self._alone:
                self._alone[key] = self._aligned(self._of_rank(self._run.ranks[rank].at_hand(), recording), rank)
            self._alone.move_to_end(key)
            while len(self._alone) > MOST_ALONE:
                self._alone.popitem(last=False)
            return self._alone[key]

    def _of_rank(self, timeline: RankTimeline, recording: int) -> Graph:
        try:
            return self.graphs.of_rank(timeline, recording)
        except HostEventsError:  # as if none had been recorded
            vars(self).pop("_connected", None)  # says so
            without = msgspec.structs.replace(timeline, host=make(HostSpans, 0))
            return self.graphs.of_rank(without, recording)

    def _aligned(self, graph: Graph, rank: int) -> Graph:
        """Return the graph of one rank, which is on its own clock, on the aligned one."""
        time = self._cross_rank.clocks.aligned_ns(rank, graph.nodes.time_ns)
        if np.array_equal(time, graph.nodes.time_ns):
            return graph
        return msgspec.structs.replace(graph, nodes=msgspec.structs.replace(graph.nodes, time_ns=time))

    @cached_property
    def _connected(self) -> tuple[list[int], str | None]:
        ranks, reason = ranks_of_graph(self._run, self._cross_rank)
        return ranks, reason or graph_too_large(self._run)

    def _ranks(self, rank: int) -> tuple[Sequence[int], str | None]:
        """Return the ranks of the graph that explains a rank, and what that cannot hold."""
        ranks, reason = self._connected
        if reason is None and rank in ranks:
            return ranks, None
        return [rank], reason or f"no matched collective connects rank {rank} with the others"

    def _refused(self, graph: Graph, rank: int) -> str | None:
        """Return why a graph cannot hold all that a rank waited for: what it lacks, or the tests that it fails."""
        _, reason = self._ranks(rank)
        if reason in [NO_CAUSES[each] for each in WITHOUT_HOST]:
            return reason
        return " and ".join(REFUSED[each] for each in failed_tests(graph)) or reason

    def _tested(self, graph: Graph, rank: int, row: int, moment: int, most: int, *, of_span: bool) -> Chain:
        """Explain a span; if a test of the graph fails, or it cannot hold all, the chain ends where that may begin."""
        reason, failed = self._refused(graph, rank), failed_tests(graph)
        since_ns = _since_ns(graph, rank, row, moment, of_span=of_span)
        chain = explained(
            self._run.ranks, graph, rank, row, moment, self.origin_ns, most, since_ns, max(most, MOST_READ)
        )
        chain = with_operations(chain, graph, self._run.ranks)
        chain = with_late_ends(chain, self._run.ranks, self._late_ns)
        if reason is None:
            return msgspec.structs.replace(chain, slack_ns=_slack_ns(graph, rank, row))
        kept = _known_part(chain.chain, failed)
        is_cut = chain.is_cut and len(kept) == len(chain.chain)
        ranks, origin_ns = self._run.ranks, self.origin_ns
        known = [piece for each in kept for piece in _divided(each, graph, ranks, origin_ns)]
        return msgspec.structs.replace(chain, chain=known, is_cut=is_cut, reason=reason)


def longest_moments(run: Run, most: int = MOST_OF_RANK) -> list[Moment]:
    """Return the longest times without compute and copies, the longest first; of ranks that lose the same time, the one
    that loses most of it. What lies between two recorded parts is no loss."""
    cross_rank = match_and_align(run)
    found: list[Moment] = []
    for rank, timeline in run.ranks.items():
        if not timeline.num_spans:
            continue
        start, end = (cross_rank.clocks.aligned_ns(rank, each) for each in _without_work(timeline.at_hand()))
        longest = np.argsort(start - end, kind="stable")[: MOST_OF_RANK * len(run.ranks)]
        found += [Moment(rank, int(start[at]), int(end[at])) for at in longest.tolist()]
        for since, until, call in _last_calls(timeline):
            begun, ended = cross_rank.clocks.aligned_ns(rank, np.array([since, until])).tolist()
            found.append(Moment(rank, begun, ended, call))
    origin_ns = first_span_ns(run, cross_rank.clocks) if found else 0
    chosen: list[Moment] = []
    for each in sorted(found, key=lambda each: (each.start_ns - each.end_ns, each.start_ns, each.rank)):
        begun, ended = each.start_ns - origin_ns, each.end_ns - origin_ns
        if len(chosen) < most and all(ended <= one.start_ns or begun >= one.end_ns for one in chosen):
            chosen.append(each._replace(start_ns=begun, end_ns=ended))
    return chosen


def _without_work(timeline: RankTimeline) -> Intervals:
    """Return the times between compute and copies that follow each other in one recorded part, on a rank's clock."""
    spans = timeline.spans
    works = np.flatnonzero(spans.kind != COMM)
    works = works[np.argsort(spans.start_ns[works], kind="stable")]
    busy = union((spans.start_ns[works], spans.end_ns[works]))
    follows = np.searchsorted(spans.start_ns[works], busy.starts[1:])
    part = spans.recording[works]
    same = part[follows] == part[follows - 1]
    return Intervals(busy.ends[:-1][same], busy.starts[1:][same])


def _last_calls(timeline: RankTimeline) -> Iterator[tuple[int, int, str]]:
    """Yield for each recorded part, on a rank's clock, when its last compute or copy ended, when its communication did,
    and the name of the call that ended last, where that is later: then nothing follows that waited for it."""
    spans = timeline.spans
    for part in unique(spans.recording).tolist():
        works = (spans.recording == part) & (spans.kind != COMM)
        calls = np.flatnonzero((spans.recording == part) & (spans.kind == COMM))
        if not works.any() or not calls.size:
            continue
        last, since = int(calls[spans.end_ns[calls].argmax()]), int(spans.end_ns[works].max())
        if spans.end_ns[last] > since:
            yield since, int(spans.end_ns[last]), _call_name(timeline, last)


def _call_name(timeline: RankTimeline, row: int) -> str:
    """Return the operation of the call that a span is of; the span's own name where that is not known."""
    call = int(timeline.spans.collective[row])
    op = None if call == NONE else timeline.name(int(timeline.collectives.op[call]))
    return op or timeline.name(int(timeline.spans.name[row])) or "a call"


def _known_ranks(run: Run, rank: int) -> RankTimeline:
    timed = {each: timeline for each, timeline in run.ranks.items() if timeline.num_spans}
    if rank not in timed:
        has = list_some(sorted(timed), 16)
        raise UsageError(f"no times of rank {rank} were recorded; {f'there are those of {has}' if has else 'of none'}")
    return timed[rank].at_hand()


def _python_stack(timeline: RankTimeline, row: int, time_ns: int | None = None) -> list[str]:
    """Return the stack as `stack_of_launch`; empty where the host events cannot be read."""
    try:
        return stack_of_launch(timeline, row, time_ns)
    except HostEventsError:
        return []


def _within(graph: Graph, rank: int, moment_ns: int) -> bool:
    part = next(each for each in graph.ranks if each.rank == rank)
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    return bool(start.size and start.min() <= moment_ns < end.max())


def _interval(graph: Graph, rank: int, row: int, moment_ns: int, *, of_span: bool) -> tuple[int, int]:
    """Return begin and end, on the graph's clock, of the time that the chain of a span explains."""
    part = next(each for each in graph.ranks if each.rank == rank)
    start, end = (graph.nodes.time_ns[each] for each in (part.starts(), part.ends()))
    at = int(np.flatnonzero(part.span_row == row)[0])
    until = int(start[at])
    doing = _doing(graph, rank, moment_ns)
    if of_span:
        since = end[(part.span_lane == part.span_lane[at]) & (end <= until)]
    elif doing == "idle":
        since = end[end <= moment_ns]
    else:
        runs = (start <= moment_ns) & (end > moment_ns) & (part.span_kind == COMM)
        since = end[(part.span_kind != COMM) & (end <= moment_ns)]
        since = np.append(since, start[runs].min()) if runs.any() else since
    begin = int(since.max()) if since.size else min(moment_ns, until)
    return min(begin, until), until


def _since_ns(graph: Graph, rank: int, row: int, moment_ns: int, *, of_span: bool) -> int:
    """Return when the time began, on the graph's clock, in which a rank neither computed nor copied around a moment; of
    a span, and while it did, when the stream of the span was last busy."""
    if of_span or _doing(graph, rank, moment_ns) in WORKING:
        return _interval(graph, rank, row, moment_ns, of_span=True)[0]
    part = next(each for each in graph.ranks if each.rank == rank)
    ends = graph.nodes.time_ns[part.ends()][part.span_kind != COMM]
    return int(ends[ends <= moment_ns].max(initial=BEGIN))


def explained(
    ranks: Mapping[int, RankTimeline], graph: Graph, rank: int, row: int, moment: int, origin_ns: int,
    most: int = MOST_LINKS, since_ns: int = BEGIN, most_links: int = MOST_LINKS,
) -> Chain:  # fmt: skip
    """Return what a span (row in the table of its rank) waited for, asked at a moment on the graph's clock.

    The chain has at most so many rows (`row_of_link`) and links. `since_ns` as for `chain_of_span`.
    """
    links, is_cut = _first_rows(links_back(graph, ranks, rank, row, since_ns), most, most_links)
    timeline = ranks[rank]
    spans = timeline.spans
    part = next(each for each in graph.ranks if each.rank == rank)
    at = int(np.flatnonzero(part.span_row == row)[0])
    start_ns = int(graph.nodes.time_ns[part.starts()][at])
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
            start_ns=start_ns - origin_ns,
            end_ns=int(graph.nodes.time_ns[part.ends()][at]) - origin_ns,
        ),
        chain=[_after(origin_ns, each) for each in links],
        is_cut=is_cut,
        ranks=[each.rank for each in graph.ranks],
        reason=None if is_cut else _why_it_begins(links, graph, rank, start_ns, since_ns),
    )


def _after(origin_ns: int, link: Link) -> Link:
    """Return a link whose times are after a moment."""
    return msgspec.structs.replace(
        link, start_ns=link.start_ns - origin_ns, end_ns=link.end_ns - origin_ns,
        longest_start_ns=link.longest_start_ns - origin_ns if link.longest_ns else 0,
    )  # fmt: skip


def _first_rows(links: Iterator[PlacedLink], most: int, most_links: int) -> tuple[list[Link], bool]:
    """Return the links of the first rows, and whether more follow."""
    found: list[Link] = []
    key, rows = row_of_link(), set[tuple[int, int]]()
    for each in links:
        rows.add(key(each.link))
        if len(rows) > most or len(found) == most_links:
            return found, True
        found.append(each.link)
    return found, False


def _why_it_begins(links: Sequence[Link], graph: Graph, rank: int, explained_ns: int, since_ns: int) -> str:
    """Return why a chain has no earlier links; with the part of the loss, since `since_ns`, that they would explain."""
    first_ns, on = (links[-1].start_ns, links[-1].rank) if links else (explained_ns, rank)
    part = next((each for each in graph.ranks if each.rank == on), None)
    nodes = slice(0) if part is None else slice(part.first, part.first + part.nodes)
    why = f"no earlier call or work of rank {on} was recorded"
    if (graph.nodes.time_ns[nodes] < first_ns).any():
        why = "what came before was not recorded"
    left_ns = first_ns - since_ns if since_ns != BEGIN else 0
    return f"{why}, so {left_ns / 1e6:.3f} ms of this time are not explained" if left_ns > OWN_NS else why


def with_late_ends(chain: Chain, ranks: Mapping[int, RankTimeline], late_ns: Mapping[int, Ints]) -> Chain:
    """Return a chain whose transfers say how much later they ended than on another rank (`CrossRank.ended_late_ns`),
    and whose calls are named by their operation where the recording names the call that made them, or carried them out,
    instead."""

    def told(each: Link) -> Link:
        timeline = ranks[each.rank] if each.span is not None else None
        row = NONE if timeline is None or each.span is None else int(timeline.spans.collective[each.span])
        if timeline is None or row == NONE:
            return each
        op = timeline.name(int(timeline.collectives.op[row]))
        is_named = op in (None, UNNAMED) or (each.what or "").endswith(op or "")
        is_named |= timeline.has_device and each.op not in (None, RECORD_PARAM_COMMS)
        late = int(late_ns[each.rank][row]) if each.kind == "transfer" else 0
        return msgspec.structs.replace(
            each, op=each.op if is_named else op, late_end_ns=min(late, max(each.end_ns - each.start_ns, 0))
        )

    return msgspec.structs.replace(chain, chain=[told(each) for each in chain.chain])


def _slack_ns(graph: Graph, rank: int, row: int) -> int | None:
    """Return how much later a span could have begun without delaying the end of the recording."""
    part = next(each for each in graph.ranks if each.rank == rank)
    node = part.starts().start + int(np.flatnonzero(part.span_row == row)[0])
    return or_none(int(whole_slack(graph)[node]))


def failed_tests(graph: Graph) -> tuple[str, ...]:
    """Return the tests that a graph fails and that chains rest on."""
    return tuple(each for each in _failed(graph) if each in (UNKNOWN, HIDDEN_WAITS))


@once_a_graph
def _failed(graph: Graph) -> tuple[str, ...]:
    whole = whole_bounds(graph)
    assert whole is not None
    return self_test(graph, [whole]).failed


_HOST: Final = ("host", "alloc")
NEXT_CALL_NS: Final = 10_000
"""A call that begins so soon after another one on a stream of communication follows it directly. A choice."""
MOST_ASKED: Final = 40
"""Stretches, the longest first, of which the first that the recording explains is taken."""


def _known_part(links: Sequence[Link], failed: Sequence[str]) -> list[Link]:
    """Return the links up to the first that may hold what was not recorded."""
    for at, each in enumerate(links):
        if (HIDDEN_WAITS in failed and each.kind in _HOST) or each.unexplained_ns:
            return list(links[: at + 1])
    return list(links)


def _divided(link: Link, graph: Graph, ranks: Mapping[int, RankTimeline], origin_ns: int) -> list[Link]:
    """Return the links, the latest first, of the time before a span without a recorded launch: where communication ran
    on another stream meanwhile, which the span may have waited for, and where nothing did."""
    if link.gap != "not_launched" or link.kind != "lane" or not link.unexplained_ns or link.span is None:
        return [link]
    part = next(each for each in graph.ranks if each.rank == link.rank)
    begin, end = link.start_ns + origin_ns, link.end_ns + origin_ns
    starts, ends = (graph.nodes.time_ns[nodes] for nodes in (part.starts(), part.ends()))
    inside = np.flatnonzero((part.span_kind == COMM) & (starts < end) & (ends > begin))
    if not inside.size:
        return [link]
    starts, ends = np.maximum(starts[inside], begin), np.minimum(ends[inside], end)
    # Calls that follow each other closely are one stretch.
    busy = union((starts, np.minimum(ends + NEXT_CALL_NS, end)))
    timeline = ranks[link.rank]
    pieces, at, left = [], end, link.unexplained_ns
    for first, last in zip(busy.starts[::-1].tolist(), busy.ends[::-1].tolist(), strict=True):
        own = np.flatnonzero((starts >= first) & (ends <= last))
        until = int(ends[own].max())
        row = int(part.span_row[inside[own[np.argmax(ends[own] - starts[own])]]])
        name = timeline.name(int(timeline.spans.name[row]))
        pieces += [(until, at, link), (first, until, msgspec.structs.replace(link, kind="comm", what=name, span=row))]
        at = first
    found = []
    for start, stop, each in [*pieces, (begin, at, link)]:
        if stop > start:
            unknown = min(left, stop - start)
            left -= unknown
            found.append(msgspec.structs.replace(each, start_ns=start - origin_ns, end_ns=stop - origin_ns,
                                                 unexplained_ns=unknown))  # fmt: skip
    return found


def _doing(graph: Graph, rank: int, moment_ns: int) -> Doing:
    part = next(each for each in graph.ranks if each.rank == rank)
    runs = (graph.nodes.time_ns[part.starts()] <= moment_ns) & (graph.nodes.time_ns[part.ends()] > moment_ns)
    kinds = set(part.span_kind[runs].tolist())
    if not kinds:
        return "idle"
    return "computing" if COMPUTE in kinds else "exposed communication" if COMM in kinds else "copying"


# --- the longest loss of a step ---------------------------------------------------------------------------------------

LINKS_OF_LOSS: Final = 500
"""Links in which the longest loss is followed back to where it began, where the usual ones do not reach that far."""


def longest_loss(
    graph: Graph, ranks: Mapping[int, RankTimeline], step: int | None, windows: Mapping[int, tuple[int, int]]
) -> LongestLoss | None:
    """Return the longest stretch of a rank's window in which it neither computed nor copied; None if there is none.

    Stretches that begin before what they waited for was recorded are left out where there are others.
    """
    lost = [each for part in graph.ranks if part.rank in windows for each in _lost(graph, part, *windows[part.rank])]
    origin_ns = min(int(graph.nodes.time_ns[part.starts()].min()) for part in graph.ranks if part.spans)
    first = None
    for start, end, rank, row in sorted(lost, key=lambda each: (each[0] - each[1], each[0]))[:MOST_ASKED]:
        chain = explained(ranks, graph, rank, row, start, origin_ns, since_ns=start)
        if chain.is_cut and chain.chain[-1].start_ns > start - origin_ns:
            longer = explained(
                ranks, graph, rank, row, start, origin_ns, LINKS_OF_LOSS, since_ns=start, most_links=LINKS_OF_LOSS
            )
            chain = _back_to(longer, start - origin_ns)
        loss = LongestLoss(step=step, rank=rank, start_ns=start - origin_ns, end_ns=end - origin_ns, chain=chain)
        first = first or loss
        if chain.is_cut or (chain.chain and chain.chain[-1].start_ns <= loss.start_ns):
            left_out_ns = first.end_ns - first.start_ns if first is not loss else 0
            first = msgspec.structs.replace(loss, left_out_ns=left_out_ns)
            break
    if first is None:
        return None
    return msgspec.structs.replace(first, chain=with_operations(first.chain, graph, ranks))


def _back_to(chain: Chain, start_ns: int) -> Chain:
    """Return a chain cut behind the link that reaches back to `start_ns`; as it is where none does."""
    kept = next((at + 1 for at, each in enumerate(chain.chain) if each.start_ns <= start_ns), len(chain.chain))
    if kept == len(chain.chain):
        return chain
    return msgspec.structs.replace(chain, chain=chain.chain[:kept], is_cut=True, reason=None)


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
