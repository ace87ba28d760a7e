"""Rules from findings on links: sockets although there is InfiniBand, no GPUDirect, a slow link."""

from typing import Final

from overlapscope.advice.rule_input import RuleInput, recommended
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.result import Recommendation

LOG: Final = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH on a short job, then: overlapscope analyze nccl.log"


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


def _first(given: RuleInput, kind: str) -> Finding | None:
    return next((each for each in given.analysis.findings if each.id.startswith(kind)), None)
