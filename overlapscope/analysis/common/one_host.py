"""Find whether ranks are on one host: as sources name their hosts, else by the devices that they use."""

from collections.abc import Collection, Mapping
from typing import Final

from overlapscope.timeline.columns import DEVICE
from overlapscope.timeline.run import RankTimeline, Run

MOST_OF_HOST: Final = 8
"""Devices of a host at most, by which ranks are on several where no trace says their hosts. A choice: of usual ones."""


def are_on_one_host(run: Run, hosts: Mapping[str, Collection[int]], members: Collection[int]) -> bool:
    """Return whether these ranks are known to be on one host; False for none.

    `hosts` is the result of `ranks_of_hosts`. Where it has all members, it decides; members of two of its hosts are on
    several in any case. Else each recorded member, of two or more, must use a device of its own. In a whole job that is
    recorded it may be any; elsewhere ranks must be numbered host by host as their devices are, so that rank minus
    number is one, the first rank of the host, with no multiple of `MOST_OF_HOST` between that and a member; of half as
    many, where no number shows that hosts have more devices.
    """
    asked = set(members)
    named = [asked.intersection(ranks) for ranks in hosts.values() if not asked.isdisjoint(ranks)]
    if len(named) > 1:
        return False
    if named == [asked]:
        return True
    recorded = asked & run.ranks.keys()
    devices = {rank: number for rank in recorded if (number := device_of(run.ranks[rank])) is not None}
    if len(recorded) < 2 or len(set(devices.values())) < len(recorded):
        return False
    if len(recorded) == run.world_size:
        return True
    if not all(map(str.isdecimal, devices.values())):
        return False
    first = {rank - int(number) for rank, number in devices.items()}
    half = MOST_OF_HOST // 2
    most = half if max(map(int, devices.values())) < half else MOST_OF_HOST
    return len(first) == 1 and len({rank // most for rank in (*asked, *first)}) == 1


def device_of(timeline: RankTimeline) -> str | None:
    """Return the number of the device that a rank uses, as the source writes it; None where it uses none, or several:
    these say nothing."""
    lanes = timeline.lanes
    found = {timeline.names[code] for code in lanes.process[lanes.kind == DEVICE].tolist() if code >= 0}
    return found.pop() if len(found) == 1 else None
