"""The identity of a run as plain keys and values: the job, its software, its settings, and how it was recorded."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from overlapscope.analysis.common.wording import short
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.hosts import NO_NAMES, host_of
from overlapscope.timeline.run import Run

Sort = Literal["job", "software", "setting", "recording"]
JOB: Final = ("world_size", "device")
"""If one of these differs, the two sides are not the same job."""
SETTINGS: Final = ("dtype", "parallelism", "parameters")
DDP, ENVIRONMENT, RECORDING = "ddp.", "environment.", "recording."
"""Prefixes of the other keys; keys without one are software."""


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """A key whose value differs between runs; runs that did not record it are left out."""

    key: str
    sort: Sort
    """`job`: not the same job. `setting`: may have been changed on purpose."""
    base: list[str]
    """Distinct values of the base's runs."""
    candidate: list[str]


def identity(run: Run) -> dict[str, str]:
    """Return the recorded identity of a run, by key; nothing in it names a machine or a process."""
    known: dict[str, object] = dict(run.fingerprint)
    known |= {"world_size": run.world_size, "dtype": _dtype(run), "parallelism": _parallelism(run)}
    if run.ranks:
        first = run.ranks[min(run.ranks)]
        recorded = first.recorded
        known["parameters"] = _parameters(run)
        known[f"{RECORDING}basis"] = first.basis
        known[f"{RECORDING}mode"] = recorded.get("mode")
        settings = recorded.get("settings")
        environment = settings.get("environment") if isinstance(settings, dict) else None
        for prefix, values in ((DDP, recorded.get("ddp")), (ENVIRONMENT, environment)):
            known |= {f"{prefix}{key}": value for key, value in _plain(values).items()}
    return {key: short(str(value)) for key, value in sorted(known.items()) if value is not None}


def differences(base: Sequence[Mapping[str, str]], candidate: Sequence[Mapping[str, str]]) -> list[Difference]:
    """Return the keys recorded on both sides that differ between any two runs; keys of the job come first."""
    found = []
    for key in sorted({key for each in (*base, *candidate) for key in each}):
        ours, theirs = _values(base, key), _values(candidate, key)
        if ours and theirs and len({*ours, *theirs}) > 1:
            found.append(Difference(key=key, sort=sort_of(key), base=ours, candidate=theirs))
    order = ("job", "recording", "setting", "software")
    return sorted(found, key=lambda each: (order.index(each.sort), each.key))


def sort_of(key: str) -> Sort:
    """Return the sort of difference that a key makes."""
    if key in JOB:
        return "job"
    if key.startswith(RECORDING):
        return "recording"
    return "setting" if key in SETTINGS or key.startswith((DDP, ENVIRONMENT)) else "software"


def _values(runs: Iterable[Mapping[str, str]], key: str) -> list[str]:
    return sorted({each[key] for each in runs if key in each})


def _plain(values: Any) -> dict[str, object]:
    """Return the recorded settings that are a single value or a list of integers."""
    if not isinstance(values, dict):
        return {}
    plain = {key: value for key, value in values.items() if isinstance(value, (str, int, float))}
    lists = {key: value for key, value in values.items() if isinstance(value, list)}
    return plain | {key: value for key, value in lists.items() if all(isinstance(each, int) for each in value)}


def _dtype(run: Run) -> str | None:
    """Return the data type with the most communicated bytes."""
    moved: defaultdict[str, float] = defaultdict(float)
    for timeline in run.ranks.values():
        calls = timeline.collectives
        some = (calls.dtype >= 0) & (calls.bytes != NONE)
        sums = np.zeros(len(timeline.names), np.float64)
        np.add.at(sums, calls.dtype[some], calls.bytes[some])
        for code in np.flatnonzero(sums).tolist():
            moved[timeline.names[code]] += float(sums[code])
    return max(sorted(moved), key=lambda name: moved[name]) if moved else None


def _parallelism(run: Run) -> str | None:
    """Return the sizes of the groups with a known dimension, as text."""
    sizes: set[tuple[str, int]] = set()
    for timeline in run.ranks.values():
        calls = timeline.collectives
        some = (calls.dimension >= 0) & (calls.group_size != NONE)
        pairs = np.unique(np.stack([calls.dimension[some].astype(np.int64), calls.group_size[some]], axis=1), axis=0)
        sizes |= {(timeline.names[code], members) for code, members in pairs.tolist()}
    return ", ".join(f"{dimension} {members}" for dimension, members in sorted(sizes)) or None


def _parameters(run: Run) -> int | None:
    """Return the number of gradient elements of one step on the lowest rank; None where they were not recorded."""
    gradients = run.ranks[min(run.ranks)].gradients
    if not gradients.step.size:
        return None
    return int(gradients.elements[gradients.step == gradients.step.min()].sum())


def fewest_ranks(run: Run) -> int:
    """Return how many ranks the job has at least: numbers up to the largest of a recorded rank or a group's member, and
    sizes of groups, those of calls that name no group, too."""
    members = [max(group.ranks) + 1 for group in run.groups if group.ranks]
    of_calls = [int(each.collectives.group_size.max(initial=0)) for each in run.ranks.values()]
    return max([*members, *(group.size or 0 for group in run.groups), *of_calls, max(run.ranks, default=-1) + 1])


def host_of_ranks(run: Run) -> dict[int, str]:
    """Return the host of each rank where the hosts of several are known; empty where only one is."""
    by_host = ranks_of_hosts(run)
    return {rank: name for name, ranks in by_host.items() for rank in ranks} if len(by_host) > 1 else {}


def ranks_of_hosts(run: Run) -> dict[str, list[int]]:
    """Return the recorded ranks of each host, by name; ranks whose host no source states are left out.

    Capture records the host, torch profiler traces may name it, and NCCL's logs do.
    """
    found: dict[int, str] = {}
    members, names = run.facts.members, run.facts.names
    for rank, code in zip(members.rank.tolist(), members.host.tolist(), strict=True):
        if rank != NONE and code >= 0:
            found[rank] = names[code]
    for rank, timeline in run.ranks.items():
        host = host_of(timeline)
        if host is not None:
            found[rank] = host
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(run.ranks.keys() & found.keys()):
        if found[rank] not in NO_NAMES:
            hosts[found[rank]].append(rank)
    return dict(sorted(hosts.items()))
