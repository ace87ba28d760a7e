"""Assign one cause to every idle nanosecond of a rank: what the span that ended the idle time had waited for."""

from typing import Annotated, Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common import cause_table
from overlapscope.analysis.graph.building.host_calls import CALL_TAKES_NS, SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import Mark, marked_times
from overlapscope.analysis.graph.building.host_waits import POLL_WITHIN_NS
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    EDGE_KINDS,
    FIRST_OF_LANE,
    HAND_OVER,
    HOST_EDGES,
    HOST_STRETCH,
    IN_GRAPH,
    LAUNCH,
    NO_GAP,
    NOT_LAUNCHED,
    OWN_CALL,
    POLL,
    SYNC,
    UNEXPLAINED,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.read_backs import read_backs
from overlapscope.analysis.graph.walk import launched_before, unrecorded_until_ns
from overlapscope.timeline.columns import (
    COMM,
    COPY,
    NONE,
    Columns,
    Flags,
    Ints,
    Small,
    concat,
    make,
    take,
)
from overlapscope.timeline.intervals import Intervals, complement, union
from overlapscope.timeline.rows import is_one_of, largest_by, sort_order, sum_by
from overlapscope.timeline.run import RankTimeline

IDLE_CAUSES: Final = tuple(name for name in cause_table.IDLE_CAUSES if name != cause_table.WAITED_FOR_CORE)
"""Names of the causes that a graph knows; their table says what each is."""
LAUNCH_BOUND, BLOCKED_HOST, DRAINED, LAUNCH_LATENCY, DEVICE_WAIT, GRAPH_GAP, START_OF_RECORDING, UNKNOWN = range(8)
BLOCKERS: Final = ("none", "call", "poll", "data_loading", "garbage_collection")
NO_BLOCKER, BY_CALL, BY_POLL, DATA_LOADING, GARBAGE = range(5)
STRETCHES: Final = ("none", "rate", "pause", "long_pause")
"""Host stretches below 0.2 ms (the rate of launches), below 3 ms, and longer."""
NO_STRETCH, RATE, PAUSE, LONG_PAUSE = range(4)
DRAINED_WITHIN_NS: Final = 100_000
"""A call had emptied the device if what it waited for ended at most so long before the idle time began."""
LONG_PAUSE_NS: Final = 3_000_000
MOST_LATENCY_NS: Final = 20_000
"""A launch takes 4 to 10 us to reach an idle device. A choice: what takes far longer has another reason than that the
device was idle."""
READ_WITHIN_NS: Final = 50_000
"""A host that reads a result comes to the copy so soon after it launched what computes it. A choice: Python and torch
take 10 to 20 us for it; what takes longer is other work."""
_OF_SPANS: Final = np.full(len(EDGE_KINDS), DEVICE_WAIT, np.int8)
_OF_SPANS[LAUNCH] = LAUNCH_LATENCY
_OF_GAP: Final = np.full(7, DEVICE_WAIT, np.int8)
_OF_GAP[FIRST_OF_LANE], _OF_GAP[IN_GRAPH] = START_OF_RECORDING, GRAPH_GAP
_OF_GAP[[NOT_LAUNCHED, UNEXPLAINED]] = UNKNOWN


class IdlePieces(Columns, frozen=True, kw_only=True):
    """Disjoint pieces that cover the idle time exactly, each with one cause; times as in the graph."""

    start_ns: Ints
    end_ns: Ints
    cause: Annotated[Small, IDLE_CAUSES]
    blocker: Annotated[Small, BLOCKERS]
    """What blocked the host, or had emptied the device."""
    call: Ints
    """The call that blocked or emptied (position in the rank's calls); NONE without one."""
    stretch: Annotated[Small, STRETCHES]
    """Of `launch_bound` and `drained`: how long the host took between two calls, or in one."""
    span: Ints
    """The span that ended the idle time (position in the rank's spans)."""


def idle_pieces(graph: Graph, part: RankPart, timeline: RankTimeline, binding: Ints) -> IdlePieces:
    """Return the causes of all idle time between the first start and the last end of a rank's spans.

    `binding` holds the edge that bound each node (`binding_edges`): the one that arrived last, without ties.
    """
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    if not start.size:
        return make(IdlePieces, 0)
    gaps = complement(union((start, end)), int(start.min()), int(end.max()))
    span = np.searchsorted(start, gaps.ends, side="left")  # by start: the first that starts there
    # On one clock positions are by start; aligned clocks that drift keep that order.
    walk = _Walk(graph, part, gaps, span, binding)
    pieces = walk.with_drained(_before_read_backs(walk.pieces(), graph, part, timeline))
    pieces = _marked(pieces, graph, part, timeline)
    return take(pieces, sort_order(pieces.start_ns, pieces.end_ns))


class _Walk:
    """Walks back from the spans that end idle gaps, all gaps at once."""

    def __init__(self, graph: Graph, part: RankPart, gaps: Intervals, span: Ints, binding: Ints) -> None:
        self.graph, self.part, self.gaps, self.span = graph, part, gaps, span
        self.binding = binding
        self.found: list[IdlePieces] = []
        self.cursor = gaps.ends.copy()
        """Where the part of each gap begins that has a cause; from its end back."""
        self.emptied = np.full(span.size, NONE, np.int64)
        """For each gap the call that had emptied the device."""
        self.by_poll = np.zeros(span.size, np.bool_)
        self.waited_ns = np.zeros(span.size, np.int64)
        """How long that call, or the silence before it, had lasted beyond what a call takes."""

    def pieces(self) -> IdlePieces:
        nodes, edges = self.graph.nodes, self.graph.edges
        node = self.part.starts().start + self.span
        every = np.arange(node.size)
        unrecorded = self.gaps.ends <= unrecorded_until_ns(self.graph, self.part)
        self._take(every[unrecorded], self.gaps.starts[unrecorded], START_OF_RECORDING)
        early = launched_before(self.part)[self.span]
        opaque = nodes.gap[node] != NO_GAP
        own = np.where(opaque, nodes.own_ns[node], 0)
        why = np.where(early, START_OF_RECORDING, _OF_GAP[nodes.gap[node]])
        self._take(every[opaque], (self.gaps.ends - own)[opaque], why[opaque])
        edge = self.binding[node]
        begins = edge < 0
        self._take(every[begins], self.gaps.starts[begins], np.where(early, START_OF_RECORDING, UNKNOWN)[begins])
        kind = edges.kind[edge]
        launched, carried = ~begins & (kind == LAUNCH), ~begins & (kind == OWN_CALL)
        waits = ~begins & ~launched & ~carried
        of_host = waits & is_one_of(kind, (HOST_STRETCH, HAND_OVER, SYNC))  # between operations of a CPU run
        self._take(
            every[of_host],
            self.gaps.starts[of_host],
            LAUNCH_BOUND,
            stretch=_stretch((self.cursor - self.gaps.starts)[of_host]),
        )
        self._take(every[waits & ~of_host], self.gaps.starts[waits & ~of_host], DEVICE_WAIT)
        before = edges.before[edge]
        self._take(every[launched], nodes.time_ns[before[launched]], LAUNCH_LATENCY)
        self._take(
            every[carried], nodes.time_ns[before[carried]], BLOCKED_HOST, BY_CALL, self._call_of(before[carried])
        )
        asking = np.flatnonzero((launched | carried) & ~unrecorded)
        self._along_host(asking, before[asking])
        again = np.ones(every.size, np.bool_)
        again[np.unique(self.emptied, return_index=True)[1]] = False
        self.emptied[again] = NONE  # what one call took is counted once, from the first gap after it on
        pieces = concat(self.found)
        return take(pieces, sort_order(pieces.start_ns, pieces.end_ns))

    def with_drained(self, pieces: IdlePieces) -> IdlePieces:
        """Charge launch-bound time after a call that had emptied the device to it: at most the lead that it took; and
        the latency of the first launch after it, which is overlapped where the host runs ahead.

        A long pause of the host that takes longer than that lead is none of it: it is lost, wait or not. A launch
        after a pause that takes longer would have its latency, wait or not.
        """
        gap = np.searchsorted(self.gaps.ends, pieces.end_ns, side="left")
        lasted, bound = pieces.end_ns - pieces.start_ns, pieces.cause == LAUNCH_BOUND
        lead_ns = self._leads_ns(gap[bound], lasted[bound], pieces.stretch[bound] == LONG_PAUSE)
        after = self._gap_of_wait(lead_ns)[gap]
        charged = (self.emptied != NONE)[after]
        bound &= charged
        outlasts = bound & (lasted > lead_ns[after])
        latency = (pieces.cause == LAUNCH_LATENCY) & (lasted <= MOST_LATENCY_NS) & charged & (after == gap)
        latency &= ~np.isin(gap, gap[outlasts & (pieces.stretch > RATE)])
        taken = np.where(bound & ~(outlasts & (pieces.stretch == LONG_PAUSE)), lasted, 0)
        before = np.cumsum(taken) - taken
        first = np.searchsorted(after, after, side="left")
        saved = np.clip(lead_ns[after] - (before - before[first]), 0, taken)
        saved = np.where(latency, lasted, saved)
        cut = pieces.start_ns + saved
        some, rest = saved > 0, cut < pieces.end_ns
        drained = replace(
            take(pieces, some), end_ns=cut[some], cause=np.full(int(some.sum()), DRAINED, np.int8),
            call=self.emptied[after[some]],
            blocker=np.where(self.by_poll[after[some]], BY_POLL, BY_CALL).astype(np.int8),
        )  # fmt: skip
        return concat([drained, replace(take(pieces, rest), start_ns=cut[rest])])

    def _leads_ns(self, gap: Ints, lasted_ns: Ints, long: Flags) -> Ints:
        """Return for each gap in which a wait ended how much of its lead the host had lost then: what that wait took,
        or what is left of what synchronisations of the same name had taken, if that is more. 0 for other gaps.

        Launch-bound pieces, by `gap`, use it up; so does a kernel with as long a lead, as the host leads again. A wait
        of another name would have taken the lead that those before it had not; a copy that blocks stays a copy. Waits
        with nothing but copies between them, as `.cpu()` of several tensors makes them, are one, whatever their names.
        """
        leads_ns, waits = np.zeros(self.span.size, np.int64), np.flatnonzero(self.emptied != NONE)
        if not waits.size:
            return leads_ns
        of_wait = np.searchsorted(waits, gap, side="right") - 1
        there = of_wait >= 0
        used_ns = sum_by(of_wait[there], lasted_ns[there], waits.size)
        pause_ns = largest_by(of_wait[there & long], lasted_ns[there & long], waits.size)
        span, launched_ns = self._launch_leads()
        of_wait = np.searchsorted(self.span[waits], span, side="right") - 1
        regained_ns = largest_by(of_wait[of_wait >= 0], launched_ns[of_wait >= 0], waits.size)
        call = self.emptied[waits]
        alone = ~(self.by_poll[waits] | np.isin(call, self.part.launched_by))
        names = np.where(alone, self.part.call_name[call], np.int32(-1)).tolist()
        worked = np.append(0, np.cumsum(self.part.span_kind != COPY))
        in_a_row = np.append(False, np.diff(worked[self.span[waits]]) == 0)
        left_ns, last = 0, -1
        columns = (waits, self.waited_ns[waits], used_ns, pause_ns, regained_ns, in_a_row)
        for name, wait, waited, used, paused, regained, joined in zip(
            names, *(each.tolist() for each in columns), strict=True
        ):
            lead = max(waited, left_ns) if joined or name == last >= 0 else waited
            leads_ns[wait] = lead
            left_ns, last = 0 if max(regained, paused) >= lead else max(lead - used, 0), name
        return leads_ns

    def _launch_leads(self) -> tuple[Ints, Ints]:
        """Return the spans that were launched and need no peers, and how long before their start that was."""
        part, time = self.part, self.graph.nodes.time_ns
        launched = np.flatnonzero((part.launched_by >= 0) & (part.span_kind != COMM))
        return launched, time[part.starts()][launched] - time[part.begins()][part.launched_by[launched]]

    def _gap_of_wait(self, lead_ns: Ints) -> Ints:
        """Return for each gap the one in which the wait ended that took the host's lead, as much as `lead_ns` says; the
        gap itself without one.

        Until a kernel was launched that long before it began, or the host waits again, gaps follow from it.
        """
        every, waits = np.arange(self.span.size), np.flatnonzero(self.emptied != NONE)
        if not waits.size:
            return every
        launched, launch_lead_ns = self._launch_leads()
        at = np.searchsorted(self.span[waits], launched, side="right") - 1
        full = launched[(at >= 0) & (launch_lead_ns >= lead_ns[waits[at]])]
        wait = np.searchsorted(waits, every, side="right") - 1
        next_full = np.append(full, self.part.spans)[np.searchsorted(full, self.span[waits[wait]], side="left")]
        return np.where((wait >= 0) & (self.span <= next_full), waits[wait], every)

    def _along_host(self, gap: Ints, node: Ints) -> None:
        """Follow the host's chain back through each gap, one edge a round, until a wait or the gap's begin."""
        nodes, edges, part = self.graph.nodes, self.graph.edges, self.part
        blocks = part.blocks
        while gap.size:
            edge = self.binding[node]
            root = edge < 0
            self._take(gap[root], self.gaps.starts[gap[root]], START_OF_RECORDING)
            gap, node, edge = gap[~root], node[~root], edge[~root]
            kind, before, call = edges.kind[edge], edges.before[edge], self._call_of(node)
            since = nodes.time_ns[before]
            # What a host does with what it had polled for is work of its own.
            read = (kind == POLL) & (nodes.time_ns[node] - since > POLL_WITHIN_NS)
            self._take(
                gap[read], (since + POLL_WITHIN_NS)[read], LAUNCH_BOUND,
                stretch=_stretch((nodes.time_ns[node] - since - POLL_WITHIN_NS)[read]),
            )  # fmt: skip
            waited = (kind == SYNC) | (kind == POLL)
            held = waited | (kind == ALLOCATE) | (kind == OWN_CALL) | ((kind == CALL) & blocks[call])
            stretches = ~held & is_one_of(kind, HOST_EDGES)
            self._take(
                gap, since, np.where(held, BLOCKED_HOST, np.where(stretches, LAUNCH_BOUND, _OF_SPANS[kind])),
                np.where(held, np.where(kind == POLL, BY_POLL, BY_CALL), NO_BLOCKER),
                np.where(held, call, np.int64(NONE)),
                np.where(stretches, _stretch(nodes.time_ns[node] - since), NO_STRETCH),
            )  # fmt: skip
            emptied = waited & (since >= self.gaps.starts[gap] - DRAINED_WITHIN_NS)
            self.emptied[gap[emptied]] = call[emptied]
            self.by_poll[gap[emptied]] = kind[emptied] == POLL
            self.waited_ns[gap[emptied]] = self._waited(call, kind == POLL)[emptied]
            # A span without length may lie inside a gap: what the host waited for began in it.
            on = since > self.gaps.starts[gap] - np.where(waited, 0, DRAINED_WITHIN_NS)
            gap, node = gap[on], before[on].astype(np.int64)

    def _waited(self, call: Ints, polls: Flags) -> Ints:
        """Return how long a call waited; for a poll, how long its thread had been silent before it."""
        time, part = self.graph.nodes.time_ns, self.part
        begin, end = time[part.begins()], time[part.returns()]
        silent = begin[call] - end[np.maximum(call - 1, 0)]
        return np.where(polls, silent, np.maximum(end[call] - begin[call] - CALL_TAKES_NS, 0))

    def _call_of(self, node: Ints) -> Ints:
        return (node - self.part.first) % max(self.part.calls, 1)

    def _take(
        self, gap: Ints, since_ns: Ints, cause: Small | Ints | int, blocker: Ints | int = NO_BLOCKER,
        call: Ints | int = NONE, stretch: Ints | int = NO_STRETCH,
    ) -> None:  # fmt: skip
        """Assign a cause to the part of gaps from a moment on that has none yet."""
        begin = np.clip(since_ns, self.gaps.starts[gap], self.cursor[gap])
        some = begin < self.cursor[gap]
        columns = {"cause": cause, "blocker": blocker, "call": call, "stretch": stretch}
        chosen = {name: each[some] if isinstance(each, np.ndarray) else each for name, each in columns.items()}
        self.found.append(
            make(IdlePieces, int(some.sum()), start_ns=begin[some], end_ns=self.cursor[gap][some],
                 span=self.span[gap[some]], **chosen)
        )  # fmt: skip
        self.cursor[gap] = begin


def _before_read_backs(pieces: IdlePieces, graph: Graph, part: RankPart, timeline: RankTimeline) -> IdlePieces:
    """Charge the time until copies that the host waits for at once are launched, where it is short, and their latency
    to that wait: they are made for it alone."""
    found = read_backs(graph, part, timeline)
    wait = np.full(part.spans, NONE, np.int64)
    wait[found.span] = found.wait
    lasted = pieces.end_ns - pieces.start_ns
    launching = (pieces.cause == LAUNCH_LATENCY) & (lasted <= MOST_LATENCY_NS)
    launching |= (pieces.cause == LAUNCH_BOUND) & (lasted <= READ_WITHIN_NS)
    charged = launching & (wait[pieces.span] != NONE)
    return replace(
        pieces,
        cause=np.where(charged, DRAINED, pieces.cause).astype(np.int8),
        blocker=np.where(charged, BY_CALL, pieces.blocker).astype(np.int8),
        call=np.where(charged, wait[pieces.span], pieces.call),
    )


def _stretch(taken_ns: Ints) -> Ints:
    return np.where(taken_ns < SILENCE_NS, RATE, np.where(taken_ns < LONG_PAUSE_NS, PAUSE, LONG_PAUSE))


def _marked(pieces: IdlePieces, graph: Graph, part: RankPart, timeline: RankTimeline) -> IdlePieces:
    """Turn host time under data loading or garbage collection into `blocked_host`."""
    if timeline.has_device and not part.calls:  # no idle time is the host's
        return pieces
    shift = int(graph.nodes.time_ns[part.starts()][0]) - int(timeline.spans.start_ns[part.span_row[0]])
    marks_of: tuple[tuple[int, Mark], ...] = ((DATA_LOADING, "data_loading"), (GARBAGE, "garbage_collection"))
    for blocker, mark in marks_of:
        marks = marked_times(graph, timeline, mark)
        if marks is None:
            continue
        marked = union((marks.start_ns + shift, marks.end_ns + shift))
        pieces = _cut(pieces, np.sort(np.concatenate(marked)))
        # Before the first call, too, the recording shows what the host did.
        of_host = is_one_of(pieces.cause, (LAUNCH_BOUND, DRAINED)) | (
            (pieces.cause == START_OF_RECORDING)
            & (part.launched_by[pieces.span] >= 0)
            & (pieces.end_ns > unrecorded_until_ns(graph, part))
        )
        inside = _covered(marked, pieces) & of_host
        pieces = replace(
            pieces,
            cause=np.where(inside, BLOCKED_HOST, pieces.cause).astype(np.int8),
            blocker=np.where(inside, blocker, pieces.blocker).astype(np.int8),
            call=np.where(inside, NONE, pieces.call),
            stretch=np.where(inside, NO_STRETCH, pieces.stretch).astype(np.int8),
        )
    return pieces


def _covered(marked: Intervals, pieces: IdlePieces) -> Flags:
    at = np.searchsorted(marked.starts, pieces.start_ns, side="right") - 1
    return np.asarray((at >= 0) & (marked.ends[np.maximum(at, 0)] >= pieces.end_ns), np.bool_)


def _cut(pieces: IdlePieces, at_ns: Ints) -> IdlePieces:
    """Cut pieces at moments (ascending)."""
    first = np.searchsorted(at_ns, pieces.start_ns, side="right")
    counts = np.searchsorted(at_ns, pieces.end_ns, side="left") - first
    rows = np.repeat(np.arange(counts.size), counts + 1)
    number = np.arange(rows.size) - np.repeat(np.cumsum(counts + 1) - counts - 1, counts + 1)
    inner = np.append(at_ns, 0)
    begin = np.where(number == 0, pieces.start_ns[rows], inner[np.minimum(first[rows] + number - 1, at_ns.size)])
    end = np.where(number == counts[rows], pieces.end_ns[rows], inner[np.minimum(first[rows] + number, at_ns.size)])
    return replace(take(pieces, rows), start_ns=begin, end_ns=end)
