"""What a change of durations is worth, asked of the dependency graph of a recording: one replay for each question."""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.bounds import job_bounds
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.job_replay import JobReplay, Limits, MakeChange, job_replay
from overlapscope.analysis.graph.removal import late_in_step, late_together, needed, programs_of, removal
from overlapscope.analysis.graph.scenarios import Change, capped_pauses, without_communication
from overlapscope.analysis.graph.walk import PARTS, edge_parts
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMM, Floats
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.replay.graph import CallShape
from overlapscope.whatif.result import Bounds, Scenario
from overlapscope.whatif.run_replay.transfers import (
    CallTimes,
    computing_share,
    moving,
    relieved,
    retimed,
    transfer_times,
)

EXPOSED_MATTERS: Final = 0.01
"""Less exposed communication, as a share of the step, needs no explanation."""
LEFT_MATTERS: Final = 0.5
"""Nothing much is gained where it is less than this share of what is exposed."""
OF_TRANSFERS: Final = frozenset({"transfer", "communication"})
"""Parts of a critical path that would be gone if transfers took no time."""
IN_PATH: Final = 0.05
"""Other parts of it are named from this share on."""
IN_STEPS: Final = 0.5
LEAST_STEPS: Final = 3
"""A straggler is late in this share of so many steps, or more."""
PAUSE_CAP_MS: Final = 3.0
"""Host pauses longer than this are capped in a scenario: an operation that launches takes far less."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes under a change, relative to what it took."""

    share: float
    others: Mapping[str, tuple[float, ...]]
    """The same under other assumptions, by name."""
    exposed_ns: float

    @property
    def below(self) -> float:
        """How far the 90 % interval that the assumptions leave reaches below the share.

        Independent assumptions add up as squares; of the values of one the lowest counts.
        """
        return hypot(*(max(self.share - min(found), 0.0) for found in self.others.values()))

    @property
    def above(self) -> float:
        """How far that interval reaches above the share."""
        return hypot(*(max(max(found) - self.share, 0.0) for found in self.others.values()))


class RunReplay(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A recording whose dependency graph may answer."""

    job: JobReplay
    ranks: Mapping[int, RankTimeline]
    limits: Limits
    unchanged: Answer
    """The step as recorded."""
    bare: float
    """The steps as recorded, without the times that no rule explains."""

    @property
    def step_ns(self) -> float:
        """The median step."""
        return float(np.median(self.job.steps_ns))

    @property
    def path_shares(self) -> dict[str, float]:
        """Return which share of the recorded critical path of these steps each part of it is, the largest first."""
        each_run = [edge_parts(each.graph, each.path, each.start_ns).sum(axis=0) for each in self.job.runs]
        parts = np.sum(each_run, axis=0)
        shares = dict(zip(PARTS, (parts / self.job.recorded_ns).tolist(), strict=True))
        return dict(sorted(shares.items(), key=lambda each: -each[1]))

    @property
    def communicates(self) -> bool:
        """Whether any communication was recorded."""
        return any(bool((part.span_kind == COMM).any()) for graph in self.job.graphs for part in graph.ranks)

    def moving(self, rank: int) -> Intervals:
        """Return when a rank's collectives moved data, on its own clock."""
        return moving(self.job, rank)

    def transfer_times(self) -> list[tuple[CallShape, Floats]]:
        """Return the recorded times in ns of the calls of each shape."""
        return transfer_times(self.job, self.ranks)

    def bounds(self, step_ns: float, slowdown: float) -> Bounds:
        """Return the bounds of a step that took `step_ns`.

        Without communication no compute is slowed by transfers beside it, which make it take `slowdown` times as long;
        and no step is shorter than what the busiest stream computes in it.
        """
        found, alone = self.limits, relieved(self.ranks, without_communication, slowdown)
        no_comm = max(min(self.job.share(alone), found.no_comm), computing_share(self.job, alone))
        return Bounds(
            no_comm_ns=round(step_ns * no_comm),
            perfect_overlap_ns=round(step_ns * max(found.perfect_overlap, no_comm)),
            no_overlap_ns=round(step_ns * found.no_overlap),
        )

    def of_transfers(
        self, took: CallTimes, others: Mapping[str, Sequence[CallTimes]], *, least_transfer: float, slowdown: float
    ) -> Answer:
        """Return what other transfer times are worth; `others` are those under other assumptions, by name.

        `least_transfer` is the smallest share of a recorded transfer that is transfer time. `slowdown` is how many
        times as long compute takes beside a transfer: it may run faster, or slower, as transfers change.
        """
        change = retimed(self.ranks, took)
        found = {name: [retimed(self.ranks, each) for each in times] for name, times in others.items()}
        if least_transfer < 1:
            found["transfer_time"] = [retimed(self.ranks, took, transfer_share=least_transfer)]
        if slowdown > 1:
            found["interference"] = [relieved(self.ranks, change, slowdown)]
        return self._answer(change, found)

    def of_pauses(self, cap_ms: float = PAUSE_CAP_MS) -> Answer:
        """Return what it is worth that no host pause is longer than a cap."""
        return self._answer(lambda graph: capped_pauses(graph, round(cap_ms * 1e6)), {})

    def late_with(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that are late together with a rank, and the rank, ascending; none where one of them is late
        in less than half of the steps: who is slow now and then is no straggler."""
        programs, recordings = programs_of(self.ranks), self.job.replayed
        late = late_together(recordings[0].graph, programs)
        if rank not in late:
            return (rank,)
        found = removal(recordings, list(late), programs) if len(late) > 1 else None
        kept = found and needed(recordings, found, programs).ranks
        ranks = kept if kept and rank in kept else (rank,)
        return ranks if all(share >= IN_STEPS for share in self._late_in(ranks)) else ()

    def _late_in(self, ranks: Sequence[int]) -> list[float]:
        """Return in which share of the steps each rank is among the late ones, by what it does alone; nothing of fewer
        than LEAST_STEPS, and where not all ranks ran the same program, of which some wait less."""
        if len(set(programs_of(self.ranks).values())) > 1:
            return []
        late = [late_in_step(each, window) for each in self.job.graphs for window in job_bounds(each, self.ranks)]
        return [sum(rank in each for each in late) / len(late) for rank in ranks] if len(late) >= LEAST_STEPS else []

    def without_excess(self, late: Sequence[int]) -> Answer | None:
        """Return what it is worth that ranks work as fast as their peers; None where no other did the same work."""
        found = removal(self.job.replayed, late, programs_of(self.ranks))
        if found is None:
            return None
        middle, *ends = (1 - gain / found.aligned_ns for gain in (found.gain_ns, found.high_ns, found.low_ns))
        # How much of it is exposed is not asked: every peer leaves another step.
        return Answer(share=middle, others={"which_peer": (*ends,)}, exposed_ns=self.unchanged.exposed_ns * middle)

    def error_bar(self) -> float | None:
        """Return half of the 90 % interval of a prediction, from alike steps that predict each other; None without."""
        return self.job.swap.interval if self.job.swap is not None else None

    def _answer(self, change: MakeChange, others: Mapping[str, Sequence[MakeChange]]) -> Answer:
        found = {name: tuple(self.job.share(each) for each in made) for name, made in others.items()}
        found["unexplained_waits"] = (self.job.share(change, keep_opaque=False) / self.bare,)
        return Answer(share=self.job.share(change), others=found, exposed_ns=self.job.exposed_ns(change))


def run_replay(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs | None = None) -> RunReplay | str:
    """Return the replay of a recording, or the reason why its graph may not answer."""
    found = job_replay(run, cross_rank, graphs)
    if isinstance(found, str):
        return found
    return RunReplay(
        job=found, ranks=run.ranks, limits=found.limits(without_communication),
        unchanged=Answer(share=1.0, others={}, exposed_ns=found.exposed_ns(Change.none)),
        bare=found.share(Change.none, keep_opaque=False),
    )  # fmt: skip


def not_beyond(row: Scenario, bounds: Bounds, base: Scenario) -> Scenario:
    """Return a scenario that changes communication, which cannot gain more than the step without communication."""
    if row.predicted_step_ns >= bounds.no_comm_ns:
        return row
    gain = 1 - bounds.no_comm_ns / base.predicted_step_ns
    return msgspec.structs.replace(
        row, predicted_step_ns=bounds.no_comm_ns, high_ns=max(row.high_ns, bounds.no_comm_ns), gain=gain,
        gain_low=min(row.gain_low, gain),
    )  # fmt: skip


def only_shorter(row: Scenario) -> Scenario:
    """Return a scenario that only removes time, such as pauses or a part of transfers: its gain is 0 or more, or what
    is predicted where that is less. A real second run may be slower, so only the gain is clamped, not the step."""
    return msgspec.structs.replace(row, gain_low=min(max(row.gain_low, 0.0), row.gain))


def nothing_to_gain(base: Scenario, bounds: Bounds, path: Mapping[str, float]) -> list[str]:
    """Return the reason why no setting of communication can help, where much of it is exposed and none would be gained;
    else nothing. `path` has the share of each part of the critical path."""
    left = base.predicted_step_ns - bounds.no_comm_ns
    if base.exposed_comm_ns < EXPOSED_MATTERS * base.predicted_step_ns or left > LEFT_MATTERS * base.exposed_comm_ns:
        return []
    exposed, gained = base.exposed_comm_ns / 1e6, max(left, 0) / 1e6
    others = {name: share for name, share in path.items() if name not in OF_TRANSFERS and share >= IN_PATH}
    listed = ", ".join(f"{name.replace('_', ' ')} {percent_text(share)}" for name, share in others.items())
    return [
        f"of {exposed:.3f} ms exposed communication only {gained:.3f} ms would be gained if transfers took no time: "
        f"meanwhile other work goes on, which decides how long a step takes (critical path: {listed}; hosts "
        "would call collectives for as long)"
    ]
