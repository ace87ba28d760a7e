"""Findings from NCCL logs: slow paths, mixed versions, different calls, warnings and timeouts."""

import re
from collections import defaultdict
from typing import Any, Final

import numpy as np

from overlapscope.analysis.checks.call_mismatch import call_order
from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.facts import INFO, NO, TIMEOUT, WARNING, Facts
from overlapscope.timeline.run import Run

FORMAT: Final = "nccl-log"
MAX_LISTED: Final = 10
_REMOTE_DMA: Final = re.compile(r"NET/.*(?:(?<![a-z])IB|RoCE|UCX|RDMA)", re.I)
"""The lookbehind excludes `Libfabric`, which also contains "ib"."""
_OTHER_FABRIC: Final = re.compile(r"NET/.*(?:Libfabric|OFI|EFA|PSM)", re.I)
_LISTED_CARDS: Final = "NET/IB : Using ["


def nccl_findings(run: Run) -> list[Finding]:
    """Return the findings from a run's NCCL logs; empty without such a log."""
    sources = {source.path for source in run.sources if source.format == FORMAT}
    if not sources:
        return []
    return [
        *messages(run.facts, sources),
        *call_order(run),
        *without_gpu_direct(run.facts),
        *socket_beside_infiniband(run.facts),
        *shared_memory(run.facts),
        *mixed_versions(run.facts),
    ]


def without_gpu_direct(facts: Facts) -> list[Finding]:
    """Find network connections that go through host memory although the network cards support GPUDirect RDMA."""
    table = facts.connections
    transports = [facts.name(code) or "" for code in table.transport.tolist()]
    network = np.array([each.startswith("NET/") for each in transports], np.bool_)
    through_host = network & (table.gpu_direct == NO)
    found = []
    for pattern, severity in ((_REMOTE_DMA, "warning"), (_OTHER_FABRIC, "info")):
        rows = np.flatnonzero(through_host & np.array([bool(pattern.match(each)) for each in transports], np.bool_))
        if rows.size:
            names = sorted({transports[row] for row in rows.tolist()})
            found.append(
                Finding(
                    id=f"nccl_no_gpu_direct:{names[0]}",
                    severity="warning" if severity == "warning" else "info",
                    title=f"{rows.size} of {int(network.sum())} network connections over {', '.join(names)} go through "
                    "host memory instead of GPUDirect RDMA: is the peer-memory (or dma-buf) driver loaded, and is the "
                    "card near the device?",
                    evidence={
                        "connections": int(rows.size),
                        "network_connections": int(network.sum()),
                        "transports": names,
                        "cards": _listed(facts, table.nic[rows]),
                        "communicators": _listed(facts, table.communicator[rows]),
                    },
                    known_from="log",
                )
            )
    return found


def shared_memory(facts: Facts) -> list[Finding]:
    """Find devices of one host that communicate through shared host memory instead of peer-to-peer."""
    table = facts.connections
    transports = [facts.name(code) or "" for code in table.transport.tolist()]
    through = [row for row, each in enumerate(transports) if each.startswith("SHM") or "shared memory" in each]
    if not through:
        return []
    direct = sum(each.startswith("P2P") for each in transports)
    pairs = sorted({(int(table.sender[row]), int(table.receiver[row])) for row in through})
    return [
        Finding(
            id="nccl_shared_memory",
            severity="warning" if direct else "info",
            title=f"{len(pairs)} pairs of devices of one host communicate through host memory instead of directly (P2P)"
            + (f"; {direct} other connections are direct: is a link between them down?" if direct else ""),
            evidence={
                "connections": len(through),
                "direct_connections": direct,
                "pairs": [list(pair) for pair in pairs[:MAX_LISTED]],
                "communicators": _listed(facts, table.communicator[through]),
            },
            known_from="log",
        )
    ]


def socket_beside_infiniband(facts: Facts) -> list[Finding]:
    """Find hosts that use sockets although InfiniBand or RoCE cards are listed there."""
    messages_, members = facts.messages, facts.members
    cards: dict[str, str] = {}
    for host, kind, text in zip(messages_.host.tolist(), messages_.kind.tolist(), messages_.text.tolist(), strict=True):
        line = facts.name(text) or ""
        if kind == INFO and line.startswith(_LISTED_CARDS):
            cards.setdefault(facts.name(host) or "?", line)
    chosen = {
        facts.name(host) or "?"
        for host, network in zip(members.host.tolist(), members.network.tolist(), strict=True)
        if facts.name(network) == "Socket"
    }
    hosts = sorted(chosen & cards.keys())
    if not hosts:
        return []
    return [
        Finding(
            id="nccl_socket",
            severity="warning",
            title=f"{len(hosts)} host{'s' if len(hosts) > 1 else ''} communicate over sockets although InfiniBand or "
            "RoCE cards are listed there: see NCCL_NET, NCCL_IB_DISABLE and the network plugin",
            evidence={"hosts": hosts[:MAX_LISTED], "cards": cards[hosts[0]]},
            known_from="log",
        )
    ]


def mixed_versions(facts: Facts) -> list[Finding]:
    """Find processes of one job that use different versions of the library."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for library, host in zip(facts.members.library.tolist(), facts.members.host.tolist(), strict=True):
        if library >= 0:
            hosts[facts.names[library]].add(facts.name(host) or "?")
    if len(hosts) < 2:
        return []
    return [
        Finding(
            id="nccl_mixed_versions",
            severity="warning",
            title=f"the processes use different library versions: {', '.join(sorted(hosts))}",
            evidence={version: sorted(where)[:MAX_LISTED] for version, where in sorted(hosts.items())},
            known_from="log",
        )
    ]


def messages(facts: Facts, sources: set[str]) -> list[Finding]:
    """Return findings for the warnings and timeouts in the logs, grouped by text."""
    table = facts.messages
    said: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in range(size(table)):
        if facts.name(int(table.source[row])) in sources and table.kind[row] in (WARNING, TIMEOUT):
            said[int(table.kind[row]), facts.name(int(table.text[row])) or ""].append(row)
    found = []
    for kind, what in ((TIMEOUT, "timeout"), (WARNING, "warning")):
        texts = {text: rows for (each, text), rows in said.items() if each == kind}
        if texts:
            first = min(rows[0] for rows in texts.values())
            number = sum(map(len, texts.values()))
            text = facts.name(int(table.text[first])) or ""
            listed: list[dict[str, Any]] = [
                {
                    "text": text,
                    "times": len(rows),
                    "rank": _known(table.rank[rows[0]]),
                    "line": _known(table.line[rows[0]]),
                }
                for text, rows in list(texts.items())[:MAX_LISTED]
            ]
            found.append(
                Finding(
                    id=f"nccl_{what}s",
                    severity="warning",
                    title=f"the NCCL log holds {number} {what}{'s' if number > 1 else ''}; the first: {text[:200]}",
                    evidence={what + "s": number, "different": len(texts), "first": listed},
                    known_from="log",
                )
            )
    return found


def _known(number: Any) -> int | None:
    return None if number == NONE else int(number)


def _listed(facts: Facts, codes: Any) -> list[str]:
    return sorted({facts.names[code] for code in np.unique(codes).tolist() if code >= 0})[:MAX_LISTED]
