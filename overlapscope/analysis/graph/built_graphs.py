"""The dependency graphs of a run as one value that a command hands on, so that none is built twice."""

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.model import Graph
from overlapscope.timeline.run import RankTimeline, Run

if TYPE_CHECKING:
    from overlapscope.analysis.graph.building.build import RankNodes


class BuiltGraphs:
    """The graphs of one run: each is built when it is first asked for, and kept.

    Nodes and edges of a rank are kept until the graph of several ranks takes them over. Threads may share it: one
    builds while the others wait.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._graphs: dict[tuple[tuple[int, ...], int], Graph] = {}
        self._unjoined: dict[tuple[int, int], RankNodes] = {}
        self._lock = RLock()

    @property
    def keeps_ranks(self) -> bool:
        """Return whether what is built for a rank is kept. Reads no table."""
        from overlapscope.analysis.graph.building.build import graph_too_large  # noqa: PLC0415 - a recording without host events needs no graph

        return graph_too_large(self._run) is None

    def of_rank(self, timeline: RankTimeline, recording: int) -> Graph:
        """Return the graph of one recording of a rank; its times are the rank's own. May raise HostEventsError."""
        from overlapscope.analysis.graph.building.build import alone, rank_nodes  # noqa: PLC0415 - as above

        key = ((timeline.rank,), recording)
        with self._lock:
            if key in self._graphs:
                return self._graphs[key]
            own = rank_nodes(timeline, recording)
            graph = alone(own)
            if len(self._run.ranks) == 1:
                self._graphs[key] = graph
            elif self.keeps_ranks:
                self._unjoined[timeline.rank, recording] = own
            return graph

    def of_ranks(self, ranks: Sequence[int], cross_rank: CrossRank, recording: int) -> Graph:
        """Return the graph of these ranks joined at their collectives, on the aligned clock (`run_graph`)."""
        from overlapscope.analysis.graph.building.build import run_graph  # noqa: PLC0415 - as above

        key = (tuple(ranks), recording)
        with self._lock:
            if key not in self._graphs:
                run = replace(self._run, ranks={rank: self._run.ranks[rank] for rank in ranks})
                self._graphs[key] = run_graph(run, cross_rank, recording, self._unjoined)
            return self._graphs[key]
