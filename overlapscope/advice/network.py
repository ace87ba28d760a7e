"""Rules from findings on links: sockets although there is InfiniBand, no GPUDirect, a slow link. And a question about
the network beside what is exposed across hosts, where nothing names a link."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final

from msgspec.structs import replace

from overlapscope.advice.calls.savings import saved_without_ns
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, ms, recommended
from overlapscope.analysis.common.cause_table import NOTABLE
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import host_of_ranks, ranks_of_hosts
from overlapscope.analysis.common.one_host import are_on_one_host, device_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.result import Recommendation

LOG: Final = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH on a short job, then: overlapscope analyze nccl.log"

MUCH: Final = 0.1
"""Least share of a step in which calls across hosts transfer, exposed, to ask how fast their links are. A choice."""
ASKED_OF: Final = (
    "exposed_communication", "sixteen_bit_gradients", "sixteen_bit_exchange", "sharded_optimizer", "expert_parallel",
)  # fmt: skip
"""Recommendations on calls that may go across hosts; the question is asked of the first that was found."""
NAMES_LINKS: Final = ("slow_link", "nccl_socket", "nccl_no_gpu_direct", "low_bandwidth")
"""Beginnings of ids of findings that name what is wrong with a link: then nothing is asked."""
ASK: Final = (
    "# {words}: is that what the network cards can do?\n"
    "all_reduce_perf -b 64M -e 1G -f 2  # nccl-tests on these hosts, one process a device; the rate of a card: ibstat\n"
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET  # which cards it uses: NCCL_IB_HCA, NCCL_SOCKET_IFNAME"
)


def use_infiniband(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where hosts with InfiniBand or RoCE cards communicate over sockets."""
    found = _first(given, "nccl_socket")
    if found is None:
        return None
    hosts = found.evidence["hosts"]
    return recommended(
        given,
        id="use_infiniband",
        title=f"Let NCCL use the InfiniBand or RoCE cards of {', '.join(map(str, hosts[:3]))}: it fell back to sockets",
        apply={
            "nccl_variables": "unset NCCL_IB_DISABLE NCCL_NET; export NCCL_IB_HCA=mlx5  # the prefix of your cards\n"
            "# NCCL_SOCKET_IFNAME only chooses the interface for bootstrap, and may stay",
            "container": "docker run --device=/dev/infiniband --ulimit memlock=-1 --cap-add=IPC_LOCK ...",
        },
        evidence=dict(found.evidence),
        measured=["the network that NCCL chose, and the cards that it listed, from its log"],
        assumed=["the gain: a log has no times"],
        verify=f"{LOG} shows NET/IB, and nccl_socket is gone",
    )


def use_gpu_direct(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where network cards use host memory although they could read device memory."""
    found = _first(given, "nccl_no_gpu_direct:")
    if found is None or found.severity != "warning":
        return None
    some, network = found.evidence["connections"], found.evidence["network_connections"]
    return recommended(
        given,
        id="use_gpu_direct",
        title=f"Let network cards read device memory (GPUDirect RDMA): {some} of {network} connections go "
        "through host memory",
        apply={
            "driver": "lsmod | grep nvidia_peermem || sudo modprobe nvidia-peermem  # or dma-buf (kernel 5.12)",
            "nccl_variables": "export NCCL_NET_GDR_LEVEL=PHB  # LOC, PIX, PXB, PHB, SYS: largest distance",
        },
        evidence=dict(found.evidence),
        measured=["connections without GPUDirect, from NCCL's log"],
        assumed=["the gain: a log has no times"],
        verify=f"{LOG} shows GDRDMA, and nccl_no_gpu_direct is gone",
    )


def repair_link(given: RuleInput) -> Recommendation | None:
    """Return the recommendation to look at a slow link; the finding names the ranks."""
    found = _first(given, "slow_link")
    if found is None:
        return None
    slow = given.cause_ns("slow_transfer")
    since = found.evidence.get("since_step") is not None
    return recommended(
        given,
        id="repair_link",
        title=f"Look at the link itself: {found.title}",
        verdict="look",
        at_most_ns=slow if since and given.is_worth(slow) else None,
        apply={"host": "nvidia-smi nvlink --errorcounters; ibstat; ethtool -S IFACE | grep -i err  # on both ends"},
        evidence=dict(found.evidence),
        measured=["transfers of the same size over this link and over others, or before and after"],
        assumed=[] if since else ["the gain: the possible bandwidth of the link was not measured"],
        verify="all_reduce_perf -b 64M -e 64M between these ranks' hosts, then: overlapscope compare RUN NEW_RUN",
    )


def asking_for_network(found: Sequence[Recommendation], given: RuleInput) -> list[Recommendation]:
    """Return recommendations; one of `ASKED_OF` asks how fast the network is, where calls of NCCL across hosts transfer
    for `MUCH` of a step beside nothing, and no finding names a link."""
    ids = {each.id for each in found}
    asked = next((name for name in ASKED_OF if name in ids), None)
    named = any(each.id.startswith(NAMES_LINKS) for each in given.analysis.findings)
    backend = str(given.run.fingerprint.get("backend") or "nccl")
    if asked is None or named or "nccl" not in backend or not given.run_has_device:
        return list(found)
    across, inside = _by_hosts(given)
    exposed_ns = saved_without_ns(given, across)
    if exposed_ns < MUCH * given.step_ns or not exposed_ns:
        return list(found)
    fast, slow = _busbw_gbs(inside), _busbw_gbs(across)
    unsplit_ns = given.exposed_ns(row for row in across if row.estimate == "upper_bound")
    waiting = ", waiting included," * (unsplit_ns >= max(NOTABLE * given.exposed_ns(across), 1))
    words = f"calls across hosts take {ms(exposed_ns)}{waiting} of a {given.per} beside which nothing is computed"
    words += "" if slow is None else f", at {slow:.3g} GB/s on the bus"
    words += "" if slow is None or fast is None else f" (within a host {fast:.3g})"
    ask = ASK.format(words=words)
    return [replace(each, apply={**each.apply, "network": ask}) if each.id == asked else each for each in found]


def _by_hosts(given: RuleInput) -> tuple[list[CollectiveRow], list[CollectiveRow]]:
    """Return the rows of calls whose ranks are known to be on several hosts, and on one; of calls that name no group,
    neither."""
    run, hosts, rows = given.run, ranks_of_hosts(given.run), given.analysis.collectives
    members = {group.name: group.ranks for group in run.groups if group.ranks}
    devices = {rank: number for rank, each in run.ranks.items() if (number := device_of(each)) is not None}
    named = host_of_ranks(run)
    several = {name for name, ranks in members.items() if _are_on_several_hosts(named, devices, ranks)}
    one = {name for name, ranks in members.items() if name not in several and are_on_one_host(run, hosts, ranks)}
    return [row for row in rows if row.group in several], [row for row in rows if row.group in one]


def _are_on_several_hosts(named: Mapping[int, str], devices: Mapping[int, str], ranks: Collection[int]) -> bool:
    """Return whether ranks are known to be on several hosts: two that sources name, or two recorded ranks that use the
    device of the same number, which NCCL allows on no host. Where all ranks of the job do, each may see its own alone.

    `named` holds the hosts, and `devices` the numbers of devices, of those ranks of which they are known.
    """
    if len({named[rank] for rank in ranks if rank in named}) > 1:
        return True
    own = [devices[rank] for rank in ranks if rank in devices]
    return len(set(own)) < len(own) and len(set(devices.values())) > 1


def _busbw_gbs(rows: Sequence[CollectiveRow]) -> float | None:
    """Return the median bus bandwidth of large calls whose waiting is known; None where there are none."""
    matched = [row for row in rows if row.estimate == "matched" and (row.bytes or 0) >= LARGE_BYTES]
    known = [row.busbw_gbs for row in matched if row.busbw_gbs]
    return median(known) if known else None


def _first(given: RuleInput, kind: str) -> Finding | None:
    return next((each for each in given.analysis.findings if each.id.startswith(kind)), None)
