"""Compare many runs (`overlapscope.fleet/1`): worst first, the trend of each job, hosts that straggle beyond chance.

A run accuses a host when one of the host's ranks is a straggler of the run. If all hosts of a run were equal, each
would be accused with the same probability, so the number of runs that accuse a host is a sum of independent events with
known probabilities (a Poisson binomial), whose tail is computed exactly. Runs with one host, and runs that accuse
nobody or everybody, say nothing about hosts and are left out.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import comb
from statistics import fmean
from typing import Annotated, Final, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

SCHEMA: Literal["overlapscope.fleet/1"] = "overlapscope.fleet/1"
HOST_CHANCE: Final = 0.05
"""Probability that any host of a fleet of equal hosts is reported, at most (family-wise, by Holm)."""
TREND_CHANCE: Final = 0.05
"""The same for trends of a fleet without any."""
SECOND_CHANCE: Final = 0.05
"""Probability below which a reported host is told apart from its ranks' role, or called new."""
MIN_TREND_RUNS: Final = 5
"""With fewer runs no order of them is unlikely enough."""
MAX_TREND_RUNS: Final = 500
"""A trend is over this many of a job's last runs."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
Reals = npt.NDArray[np.float64]
T = TypeVar("T", bound=Hashable)


class FleetStraggler(msgspec.Struct, kw_only=True, frozen=True):
    """A straggler of one run."""

    rank: int
    host: str | None
    held_by: str
    """The cause, as in `overlapscope.analysis/1`."""
    step_ns: int | None
    """Its blame over the recording, divided by the recorded steps; null without steps."""


class FleetRun(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one run of a fleet."""

    name: str
    """Path below the folder."""
    job: str
    """The path without numbers and dates."""
    started_ns: int | None
    """When its recording began, in ns since 1970; null where its clock does not say."""
    world_size: int | None
    ranks: Count
    """Recorded ranks."""
    steps: Count
    """Complete steps behind the figures; 0 where the whole recording is."""
    step_ns: int | None
    """Median over steps of the job: the headline of the run."""
    exposed_ns: int | None
    """Median over steps of the exposed communication, mean over ranks: the headline of the run."""
    exposed_fraction: float | None
    """Exposed communication over time, sums over ranks and complete steps (else over whole recordings)."""
    exposed_gpu_hours_a_day: float | None
    """exposed_fraction x ranks of the job x 24: the GPU-hours that a day of this run exposes. Null for CPU runs."""
    idle_gpu_hours_a_day: float | None = None
    """The same of idle time."""
    tokens_per_s: float | None = None
    """Of the whole job; null where no tokens are known."""
    hosts: dict[str, list[int]]
    """Recorded ranks of each known host."""
    stragglers: list[FleetStraggler]
    damaged_hosts: list[int] = []
    """Ranks whose host events were recorded and cannot be read: ranks that are late because of a host are not known."""


class Trend(msgspec.Struct, kw_only=True, frozen=True):
    """How a figure changed from run to run of a job."""

    first_ns: int
    last_ns: int
    run_ns: float
    """Growth from one run to the next: the median slope of all pairs of runs (Theil and Sen)."""
    p: Chance
    """Probability of an order this steady in either direction, if the order of the runs did not matter."""
    verdict: Literal["growing", "falling", "none"]
    """By p, corrected for the number of trends in the fleet."""


class JobTrend(msgspec.Struct, kw_only=True, frozen=True):
    """The runs of one job at one world size, in order."""

    job: str
    world_size: int | None
    runs: list[str]
    ordered_by: Literal["time", "name"]
    """By name where the clock of a run does not say when it began."""
    exposed: Trend | None
    """Null with fewer than five runs that know the figure."""
    step: Trend | None


class StragglingHost(msgspec.Struct, kw_only=True, frozen=True):
    """A host whose ranks are stragglers in more runs than chance allows."""

    host: str
    runs: Count
    """Runs with this host that say something about hosts."""
    accused: Count
    """Of these, runs in which one of its ranks is a straggler."""
    expected: float
    """Runs that would accuse it, were it equal to the other hosts of its runs."""
    p: Chance
    """Probability of at least `accused` runs, were it equal to the others."""
    p_corrected: Chance
    """p, corrected for the number of hosts (Holm)."""
    ranks_p: Chance
    """The same probability if only ranks mattered: each run compared with those of its job in which another host had
    the same ranks. 1 where no other host had them."""
    apart_from_ranks: bool
    """False where it may be the role of its ranks instead of the host."""
    step_ns: int | None
    """Blame of its ranks in a step, mean over the runs that accuse it."""
    held_by: dict[str, Count]
    """Runs by cause."""
    ranks: list[int]
    """Ranks that were stragglers on it."""
    accusing: list[str]
    """Names of all runs that accuse it, in order of time where known."""
    new: bool | None
    """True if its accusations began only lately, beyond chance; false if it was accused in the earlier half of its
    runs; null where neither can be told."""
    since_ns: int | None
    """When the first run that accuses it began, if it is new."""


class Hosts(msgspec.Struct, kw_only=True, frozen=True):
    """The straggling hosts, and how much could be judged."""

    chance: Chance = HOST_CHANCE
    """Probability that any host of equal ones is reported, at most."""
    known_runs: Count
    """Runs with two or more known hosts."""
    telling_runs: Count
    """Of these, runs that accuse some of their hosts and not all."""
    tested: Count
    """Hosts of these runs."""
    straggling: list[StragglingHost]
    """The least likely one first."""


class Fleet(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.fleet/1`. Missing is null."""

    schema_: Literal["overlapscope.fleet/1"] = SCHEMA
    runs: list[FleetRun]
    """Worst first: by exposed GPU-hours a day, runs without them by exposed time of a step."""
    jobs: list[JobTrend]
    """Jobs with two or more runs at one world size; those that grow first."""
    hosts: Hosts
    left_out: list[str]
    """Why runs could not be read, one sentence each."""
    copies: list[str] = msgspec.field(default_factory=list)
    """Names of runs that are copies of others: hosts and trends count a run once."""


def fleet(runs: Sequence[FleetRun], left_out: Sequence[str] = ()) -> Fleet:
    """Compare the runs of a fleet."""
    once = without_copies(runs)
    kept = {each.name for each in once}
    return Fleet(
        runs=sorted(runs, key=_worst_first),
        jobs=job_trends(runs),
        hosts=straggling_hosts(once),
        left_out=list(left_out),
        copies=[each.name for each in runs if each.name not in kept],
    )


def without_copies(runs: Iterable[FleetRun]) -> list[FleetRun]:
    """Return the runs without those that began in the same nanosecond as an earlier one, with the same figures."""
    found: dict[Hashable, FleetRun] = {}
    for run in runs:
        hosts = tuple((host, *ranks) for host, ranks in run.hosts.items())
        same = (run.started_ns, run.world_size, hosts, run.step_ns, run.exposed_ns)
        found.setdefault(run.name if run.started_ns is None else same, run)
    return list(found.values())


def _worst_first(run: FleetRun) -> tuple[float, float, str]:
    return (-(run.exposed_gpu_hours_a_day or 0), -(run.exposed_ns or 0), run.name)


def job_trends(runs: Sequence[FleetRun]) -> list[JobTrend]:
    """Return the trends of jobs with two or more runs of one world size, growing ones first, then by name."""
    series: dict[tuple[str, int | None], list[FleetRun]] = defaultdict(list)
    for run in runs:
        series[run.job, run.world_size].append(run)
    found = []
    for (job, world_size), every in series.items():
        theirs = without_copies(every)
        if len(theirs) < 2:
            continue
        ordered, by = in_order(theirs)
        exposed, step = (trend([getattr(run, name) for run in ordered]) for name in ("exposed_ns", "step_ns"))
        names = [run.name for run in ordered]
        found.append(JobTrend(job=job, world_size=world_size, runs=names, ordered_by=by, exposed=exposed, step=step))
    judged = _judged(found)
    grows = {"growing": 0, "none": 1, "falling": 1}
    return sorted(
        judged,
        key=lambda each: (
            min(grows[its.verdict] if its else 1 for its in (each.exposed, each.step)), each.job, each.world_size or 0,
        ),
    )  # fmt: skip


def in_order(runs: Sequence[FleetRun]) -> tuple[list[FleetRun], Literal["time", "name"]]:
    """Return runs by the time at which they began; by name, numbers in it by value, where that is not known of all."""
    if all(run.started_ns is not None for run in runs):
        return sorted(runs, key=lambda run: (run.started_ns or 0, run.name)), "time"
    return sorted(runs, key=lambda run: _natural(run.name)), "name"


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which `run-9` comes before `run-10`."""
    parts = re.split("([0-9]+)", name)
    return [(int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts)]


def trend(values: Sequence[int | None]) -> Trend | None:
    """Return the trend of values in order, without a verdict; None where fewer than MIN_TREND_RUNS are known.

    The test is Mann's (Econometrica 13, 1945) on Kendall's number of rising pairs, exact; pairs of equal values count
    as neither, which only raises p.
    """
    known = np.array([value for value in values if value is not None][-MAX_TREND_RUNS:], np.float64)
    if known.size < MIN_TREND_RUNS:
        return None
    earlier, later = np.triu_indices(known.size, 1)
    differences = known[later] - known[earlier]
    rising, falling = int((differences > 0).sum()), int((differences < 0).sum())
    p = min(1.0, 2 * pairs_tail(known.size, max(rising, falling)))
    slope = float(np.median(differences / (later - earlier)))
    return Trend(first_ns=int(known[0]), last_ns=int(known[-1]), run_ns=slope, p=p, verdict="none")


@lru_cache(maxsize=64)
def _tails(number: int) -> Reals:
    """Return for each count of rising pairs the probability of at least as many among `number` values in any order."""
    chances = np.ones(1)
    for place in range(2, number + 1):
        # A new last value rises over 0 to place - 1 of the earlier ones, each as likely.
        padded = np.concatenate([np.cumsum(chances), np.full(place - 1, chances.sum())])
        chances = (padded - np.concatenate([np.zeros(place), padded[:-place]])) / place
        # As many rise as fall: small ones at the upper end would be differences of large ones.
        half = chances.size // 2
        chances[chances.size - half :] = chances[:half][::-1]
    return np.cumsum(chances[::-1])[::-1]


def pairs_tail(number: int, rising: int) -> float:
    """Return the probability that of `number` different values in random order at least `rising` pairs rise."""
    return float(min(1.0, _tails(number)[rising]))


def _judged(jobs: Sequence[JobTrend]) -> list[JobTrend]:
    found = {(at, name): its for at, job in enumerate(jobs) for name in ("exposed", "step")
             if (its := getattr(job, name)) is not None}  # fmt: skip
    corrected = holm({key: its.p for key, its in found.items()})
    verdicts: dict[int, dict[str, Trend]] = defaultdict(dict)
    for (at, name), its in found.items():
        if corrected[at, name] <= TREND_CHANCE and its.run_ns:
            verdicts[at][name] = replace(its, verdict="growing" if its.run_ns > 0 else "falling")
    return [replace(job, **verdicts[at]) for at, job in enumerate(jobs)]


def holm(chances: Mapping[T, float]) -> dict[T, float]:
    """Return probabilities corrected for their number, by Holm (Scandinavian Journal of Statistics 6, 1979)."""
    corrected: dict[T, float] = {}
    least = 0.0
    for done, key in enumerate(sorted(chances, key=lambda key: chances[key])):
        least = max(least, min(1.0, (len(chances) - done) * chances[key]))
        corrected[key] = least
    return corrected


class _Seen(msgspec.Struct, frozen=True):
    """A host in one run that says something about hosts."""

    chance: float
    accused: bool


def straggling_hosts(runs: Sequence[FleetRun]) -> Hosts:
    """Return the hosts that are accused in more runs than chance allows."""
    known = [run for run in runs if len(run.hosts) > 1]
    seen: dict[str, list[_Seen]] = defaultdict(list)
    telling = 0
    for run in known:
        accused = accused_hosts(run)
        if not 0 < len(accused) < len(run.hosts):
            continue
        telling += 1
        late = {each.rank for each in run.stragglers if each.host in accused}
        sizes = {host: len(ranks) for host, ranks in run.hosts.items()}
        for host, chance in accusation_chances(sizes, len(accused), len(late)).items():
            seen[host].append(_Seen(chance, host in accused))
    chances = {host: tail([each.chance for each in theirs], sum(each.accused for each in theirs))
               for host, theirs in seen.items()}  # fmt: skip
    corrected = holm(chances)
    straggling = [_described(host, seen[host], known, chances[host], corrected[host])
                  for host in chances if corrected[host] <= HOST_CHANCE]  # fmt: skip
    return Hosts(
        known_runs=len(known),
        telling_runs=telling,
        tested=len(seen),
        straggling=sorted(straggling, key=lambda each: (each.p, each.host)),
    )


def accused_hosts(run: FleetRun) -> set[str]:
    """Return the known hosts of the run's stragglers."""
    return {each.host for each in run.stragglers if each.host is not None} & run.hosts.keys()


def accusation_chances(ranks: Mapping[str, int], accused: int, stragglers: int) -> dict[str, float]:
    """Return for each host of a run the probability that it is among the `accused` ones, were all ranks equal.

    `stragglers` is the number of its straggling ranks. Where hosts have equally many ranks, the probability is
    accused / hosts, however many ranks of a host straggle together. Else it is a bound: the highest of that, and of
    what any number of ranks from `accused` to `stragglers`, drawn at random, would accuse if they are on `accused`
    hosts. More drawn ones make large hosts likelier, and ranks that straggle together count as one.
    """
    sizes = tuple(sorted(ranks.values()))
    least = accused / len(ranks)
    if sizes[0] == sizes[-1]:
        return dict.fromkeys(ranks, least)
    of_size = {each: max(least, *drawn_chances(sizes, each, accused, stragglers)) for each in set(sizes)}
    return {host: of_size[number] for host, number in ranks.items()}


@lru_cache(maxsize=4096)
def drawn_chances(sizes: tuple[int, ...], own: int, accused: int, stragglers: int) -> list[float]:
    """Return the probability that a host with `own` ranks has one of the drawn, given that `accused` hosts have.

    One for each number of drawn ranks from `accused` to `stragglers`, all ways to draw being equally likely. `sizes`
    are the ranks of all hosts of the run, in order.
    """
    others = list(sizes)
    others.remove(own)
    # ways[hosts, drawn]: ways to draw so many ranks from so many of the other hosts; Python's integers, exact.
    ways = np.zeros((accused + 1, stragglers + 1), object)
    ways[0, 0] = 1
    for number in others:
        before = ways.copy()
        for drawn in range(1, min(number, stragglers) + 1):
            ways[1:, drawn:] += comb(number, drawn) * before[:-1, : stragglers + 1 - drawn]
    found = []
    for total in range(accused, stragglers + 1):
        most = min(own, total)
        with_own = sum(comb(own, drawn) * int(ways[accused - 1, total - drawn]) for drawn in range(1, most + 1))
        every = with_own + int(ways[accused, total])
        found.append(with_own / every if every else 1.0)
    return found


def tail(chances: Sequence[float], at_least: int) -> float:
    """Return the probability that at least so many of independent events with these chances happen."""
    if at_least <= 0:
        return 1.0
    # Of the number of events so far, the last entry stands for all numbers that are enough.
    state = np.zeros(at_least + 1)
    state[0] = 1.0
    for chance in chances:
        moved = state[:-1] * chance
        state[:-1] -= moved
        state[1:] += moved
    return float(min(1.0, state[-1]))


def _described(
    host: str, seen: Sequence[_Seen], known: Sequence[FleetRun], p: float, p_corrected: float
) -> StragglingHost:
    ordered, by = in_order([run for run in known if host in run.hosts])
    accusing = [run.name for run in ordered if host in accused_hosts(run)]
    own = {run.name: [each for each in run.stragglers if each.host == host] for run in ordered}
    costs = [sum(each.step_ns or 0 for each in own[name]) for name in accusing if any(s.step_ns for s in own[name])]
    ranks_p = same_ranks_chance(host, known)
    first = next(at for at, run in enumerate(ordered) if run.name == accusing[0])
    new = by == "time" and began_lately(len(ordered), len(ordered) - first, len(accusing)) <= SECOND_CHANCE
    known_before = by == "time" and first < len(ordered) / 2
    return StragglingHost(
        host=host,
        runs=len(seen),
        accused=sum(each.accused for each in seen),
        expected=sum(each.chance for each in seen),
        p=p,
        p_corrected=p_corrected,
        ranks_p=ranks_p,
        apart_from_ranks=ranks_p <= SECOND_CHANCE,
        step_ns=round(fmean(costs)) if costs else None,
        held_by=dict(
            Counter(cause for name in accusing for cause in {each.held_by for each in own[name]}).most_common()
        ),
        ranks=sorted({each.rank for name in accusing for each in own[name]}),
        accusing=accusing,
        new=True if new else False if known_before else None,
        since_ns=ordered[first].started_ns if new else None,
    )


def began_lately(runs: int, last: int, accused: int) -> float:
    """Return the probability that all of `accused` runs are among the `last` of the runs, were their order random."""
    return comb(last, accused) / comb(runs, accused)


def same_ranks_chance(host: str, runs: Sequence[FleetRun]) -> float:
    """Return the probability that a host is accused as often as it is, if only the ranks that it has mattered.

    Compared are runs of one job and world size in which some host had just these ranks: which of them accuse that host
    would not depend on which host it is, so that the number for this host is hypergeometric, summed over such sets of
    ranks.
    """
    places: dict[Hashable, list[tuple[bool, bool]]] = defaultdict(list)
    for run in runs:
        accused = accused_hosts(run)
        for name, ranks in run.hosts.items():
            places[run.job, run.world_size, tuple(ranks)].append((name == host, name in accused))
    chances, count = np.ones(1), 0
    for cases in places.values():
        own = sum(mine for mine, _ in cases)
        if own:
            count += sum(mine and late for mine, late in cases)
            chances = np.convolve(chances, _hypergeometric(len(cases), sum(late for _, late in cases), own))
    return float(min(1.0, chances[count:].sum()))


def _hypergeometric(number: int, marked: int, drawn: int) -> Reals:
    """Return the probabilities of 0 to `drawn` marked ones among so many drawn of a number."""
    ways = [comb(marked, hit) * comb(number - marked, drawn - hit) for hit in range(drawn + 1)]
    return np.array([each / comb(number, drawn) for each in ways])
