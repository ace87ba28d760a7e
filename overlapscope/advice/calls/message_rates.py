"""How long calls transfer at most, as messages between the same devices show how fast their links are."""

from typing import Final

import numpy as np

from overlapscope.advice.calls.call_rates import bytes_on_bus, sized_calls
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.common.one_host import are_on_one_host
from overlapscope.analysis.exposure.longer_than_like import LATENCY_NS, LATENCY_OF_MEMBER_NS
from overlapscope.analysis.exposure.message_links import MessageLinks
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline

TIMES_A_MESSAGE: Final = 4
"""A collective takes at most so many times as long for a byte on a link as a message does. A choice: behind one PCIe
bridge all pairs share what a single one has, and NCCL's protocols differ by less."""


def at_most_by_messages_ns(given: RuleInput, timeline: RankTimeline) -> Ints:
    """Return how long each large call of a rank transfers at most; NONE where messages do not show it.

    They show it where they tie all members of its group, by the slowest of their pairs, and these are on one host:
    what is sent to another one ends in a buffer, before it has come.
    """
    calls = timeline.collectives
    found = np.full(calls.op.size, NONE)
    rows = sized_calls(timeline, given.windows[timeline.rank], LARGE_BYTES)
    links = given.message_links if rows.size else {}
    hosts = ranks_of_hosts(given.run) if links else {}
    for code in values_in(calls.group[rows]).tolist() if links else ():
        members = next((each.ranks for each in given.run.groups if each.name == timeline.name(code)), None) or ()
        rate, own = _slowest(links, frozenset(members)), rows[calls.group[rows] == code]
        if rate and are_on_one_host(given.run, hosts, members):
            latency_ns = max(LATENCY_NS, LATENCY_OF_MEMBER_NS * len(members))
            found[own] = np.ceil(TIMES_A_MESSAGE * bytes_on_bus(timeline, own) / rate + latency_ns).astype(np.int64)
    return found


def _slowest(links: MessageLinks, members: frozenset[int]) -> float | None:
    """Return the lowest rate between these ranks; None where links do not tie them all to each other."""
    own = {pair: rate for pair, rate in links.items() if pair <= members}
    tied = next(iter(own), frozenset[int]())
    while more := [pair for pair in own if pair & tied and pair - tied]:
        tied = tied.union(*more)
    return min(own.values()) if own and tied == members else None
