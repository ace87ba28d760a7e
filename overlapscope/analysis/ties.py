"""Which ranks' clocks are tied: by calls that they make together, and by the host that they share.

Nothing is known of how two clocks compare that no chain of calls and hosts ties together.
"""

from collections.abc import Iterable, Mapping, Sequence


def connected(sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Give the ranks that sets of them tie together, directly or over others."""
    ties: dict[int, set[int]] = {}
    for ranks in dict.fromkeys(tuple(each) for each in sets):
        joined: set[int] = set(ranks).union(*(ties[rank] for rank in ranks if rank in ties))
        ties |= dict.fromkeys(joined, joined)
    return [sorted(members) for members in {id(each): each for each in ties.values()}.values()]


def tied(calls: Iterable[Sequence[int]], hosts: Mapping[int, str]) -> dict[int, int]:
    """Give, for each rank of the calls (sets of ranks) or of a known host, the lowest of those that it is tied to."""
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(host, []).append(rank)
    return {rank: members[0] for members in connected([*calls, *of_host.values()]) for rank in members}
