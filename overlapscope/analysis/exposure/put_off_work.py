"""Find what a late rank computed longer only because it had put it off: its host idled earlier in the step.

On a device compute goes on while calls wait on another stream. Where a rank idles early in a step, the others are ahead
of it at the next meetings of the step, too: it still has to do what they have done by then, and it does it while they
wait. Since they last met it computed longer; in the step it did not.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.activities import OF_LATE_RANK, Activities, communicating
from overlapscope.analysis.exposure.own_parts import OwnParts
from overlapscope.analysis.exposure.peer_activity import PeerQuery, peer_activity
from overlapscope.analysis.exposure.peer_waits import PeerWaits
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import EMPTY, Activity, BusyTime, Intervals, difference

COMPUTED, IDLED = (OF_LATE_RANK.index(each) for each in ("peer_compute", "peer_host"))
NOT_LAUNCHED: Final = "host_not_ready"
ASKED: Final = ("recorded", "computed", "communicated", "copied")
"""What is asked of both ranks."""


def without_put_off_work(
    longer: Mapping[int, Ints], waits: Mapping[int, PeerWaits], coverage: Mapping[int, Coverage],
    parts: Mapping[int, OwnParts], did: Mapping[int, Activities], clocks: Clocks,
) -> dict[int, Ints]:  # fmt: skip
    """Return what the late rank did `longer` in each window of each rank's `waits`, with put-off work as idle time.

    `longer` is as `longer_than_waiting` returns it, with a column for each window, in ns. From when two ranks met
    before the first call of a step until they last met, the late one put off what it computed less than the waiting
    one. That is no more than what it idled longer there, less what it waited in calls: had it not idled, it would have
    waited longer. Beside communication it idles where its next compute was not launched yet. Nothing is moved where the
    two did not meet before the step.
    """
    rows = {rank: _asked(its, longer[rank]) for rank, its in waits.items()}
    rows = {rank: asked for rank, asked in rows.items() if asked.size}
    queries = {rank: _since_step(waits[rank], asked) for rank, asked in rows.items()}

    def when(rank: int, name: str) -> Activity:
        cover, by_graph = coverage[rank], parts[rank].by_graph or {}
        if name == "recorded":
            return _recorded(cover)
        if name == "communicated" and NOT_LAUNCHED in by_graph:
            launched = difference(cover.comm, by_graph[NOT_LAUNCHED])
            return communicating(Coverage(launched, cover.compute, cover.copy, cover.first_ns))
        return did[rank][name]

    found = dict(longer)
    theirs = peer_activity(queries, {name: partial(when, name=name) for name in ASKED}, clocks)
    for rank, query in queries.items():
        own = {name: when(rank, name).within(*query.windows) for name in ASKED}
        put_off = _put_off(own, theirs[rank])
        asked, found[rank] = rows[rank], longer[rank].copy()
        moved = np.minimum(longer[rank][COMPUTED, asked], put_off)
        found[rank][COMPUTED, asked] -= moved
        found[rank][IDLED, asked] += moved
    return found


def _asked(waits: PeerWaits, longer: Ints) -> Ints:
    """Return the windows before which the ranks had met in their step, and in which the late one computed longer."""
    since = (waits.step_met != NONE) & (waits.step_met < waits.query.windows.starts)
    return np.flatnonzero(since & (longer[COMPUTED] > 0))


def _since_step(waits: PeerWaits, asked: Ints) -> PeerQuery:
    windows = Intervals(waits.step_met[asked], waits.query.windows.starts[asked])
    return PeerQuery(windows=windows, others=waits.query.others[asked])


def _put_off(own: Mapping[str, Ints], theirs: Mapping[str, Ints]) -> Ints:
    """Return what a late rank has put off to compute, where the waiting one and it did these: no less than 0, in ns."""
    idled, behind = _idled(theirs) - _idled(own), own["computed"] - theirs["computed"]
    put_off: Ints = np.maximum(np.minimum(idled, behind) - theirs["communicated"], 0)
    return put_off


def _idled(did: Mapping[str, Ints]) -> Ints:
    return did["recorded"] - did["computed"] - did["communicated"] - did["copied"]


def _recorded(cover: Coverage) -> BusyTime:
    """Return from its first span to its last one, when it is known what a rank did."""
    every = [each for each in (cover.comm, cover.compute, cover.copy) if each.starts.size]
    if not every:
        return BusyTime(EMPTY)
    begin, end = min(each.starts[0] for each in every), max(each.ends[-1] for each in every)
    return BusyTime(Intervals(np.array([begin]), np.array([end])))
