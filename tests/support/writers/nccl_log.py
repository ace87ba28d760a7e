"""Write NCCL's log lines as each version writes them, from the format strings of their sources."""

import msgspec


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a constructed job; `wrapper` is the prefix that a launcher puts before its lines."""

    rank: int
    host: str = "node-0.cluster.local"
    pid: int = 0
    tid: int = 0
    device: int = 0
    wrapper: str = ""
    stamp: str = ""

    @property
    def number(self) -> int:
        return self.pid or 4000 + self.rank

    def line(self, body: str) -> str:
        """Return an INFO line."""
        tid = self.tid or self.number + 1000
        return f"{self.wrapper}{self.stamp}{self.host}:{self.number}:{tid} [{self.device}] NCCL INFO {body}"

    def warn(self, body: str, *, place: str = "transport/net_ib.cc:123", stamp: str = "", function: str = "") -> str:
        """Return a WARN line, and the empty line before it."""
        where = f"{place} ({function})" if function else place
        prefix = f"{self.wrapper}{stamp}{self.host}:{self.number}:{self.number} [{self.device}] {where}"
        return f"\n{prefix} NCCL WARN {body}"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Line formats of one version."""

    name: str
    state: str
    """Format of a communicator's state, with comm, rank, nranks, dev, bus, id."""
    begins: bool = True
    """Whether it writes `Init START`."""
    connection: str = "Channel {channel:02d}/0 : {sender}[{sender}] -> {receiver}[{receiver}]"
    tree: str = "{down}/-1/-1->{rank}->{up}"
    choice: str = ""
    whole: bool = False
    """Whether a choice counts the whole buffer."""
    call_end: str = ""


_SPLIT_ID = "comm {comm} rank {rank} nranks {nranks} cudaDev {dev}"
NAMED = "{op}: {bytes} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..23}}"
VERSIONS = (
    Version(
        name="NCCL version 2.4.8+cuda10.0",
        state=f"{_SPLIT_ID} nvmlDev {{dev}}",
        begins=False,
        connection="Ring {channel:02d} : {sender}[{sender}] -> {receiver}[{receiver}]",
        tree="{up}->{rank}->{down}/-1/-1",
    ),
    Version(
        name="NCCL version 2.6.4+cuda10.2",
        state=f"{_SPLIT_ID} busId {{bus}}",
        begins=False,
        connection="Ring {channel:02d} : {sender}[1000{sender}] -> {receiver}[1000{receiver}]",
        tree="{down}/-1/-1->{rank}->{up}|{up}->{rank}->{down}/-1/-1",
    ),
    Version(
        name="NCCL version 2.7.8+cuda11.0",
        state=f"{_SPLIT_ID} busId {{bus}}",
        begins=False,
        connection="Channel {channel:02d} : {sender}[1000{sender}] -> {receiver}[1000{receiver}]",
        tree="{down}/-1/-1->{rank}->{up}",
    ),
    Version(name="NCCL version 2.14.3+cuda11.7", state=f"{_SPLIT_ID} busId {{bus}}", begins=False),
    Version(
        name="NCCL version 2.18.3+cuda12.1",
        state=f"{_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}}",
    ),
    Version(
        name="NCCL version 2.21.5+cuda12.4",
        state=f"ncclCommInitRank {_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}}",
        choice="{bytes} Bytes -> Algo 1 proto 2 time 367.200012",
        whole=True,
    ),
    Version(
        name="NCCL version 2.23.4+cuda12.6",
        state=f"ncclCommInitRankConfig {_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}}",
        choice="{op}: {bytes} Bytes -> Algo 1 proto 2 time 367.200012",
        whole=True,
    ),
    Version(
        name="NCCL version 2.24.3+cuda12.6",
        state=f"ncclCommInitRank {_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}}",
        choice=NAMED,
    ),
    Version(
        name="NCCL version 2.29.2+cuda13.0",
        state=f"[Rank {{rank}}] ncclCommInitRank {_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}}",
        choice=NAMED,
    ),
    Version(
        name="RCCL version : 2.22.3-HEAD:7d8d67c",
        state=f"ncclCommInitRank {_SPLIT_ID} nvmlDev {{dev}} busId {{bus}} commId {{id}} "
        "localSize 280 used 4096 bytes on core 3",
        connection="Channel {channel:02d}/0 : {sender}[{sender}] -> {receiver}[{receiver}]",
        choice=NAMED,
        call_end=" task {task} globalrank {rank}",
    ),
)


def call(
    op: str, seq: int, count: int, *, comm: str, nranks: int, dtype: int = 7, red: int = 0, root: int = 0, end: str = ""
) -> str:
    """Return the text of a call."""
    return (
        f"{op}: opCount {seq:x} sendbuff 0x7f5b6dec9900 recvbuff (nil) count {count} datatype {dtype} op {red} "
        f"root {root} comm {comm} [nranks={nranks}] stream 0x5581e0{end}"
    )


def choice(
    op: str, size: int, *, algorithm: str = "RING", protocol: str = "SIMPLE", low: int = 0, high: int = 23
) -> str:
    """Return the text of a choice as 2.24 and later write it."""
    return f"{op}: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{{low}..{high}}}"


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator of a constructed job."""

    id: str = "0x43cd2ca05a3d557"
    pointers: dict[int, str] = {}

    def pointer(self, member: int) -> str:
        """Return the communicator's address in a member's process."""
        return self.pointers.get(member, f"0x55a7a3{member:04x}00")


def initialised(version: Version, process: Process, member: int, nranks: int, comm: Communicator) -> list[str]:
    """Return the lines of a member's initialisation: a ring and a tree of all members in order, over two channels."""
    known = {
        "comm": comm.pointer(member), "rank": member, "nranks": nranks, "dev": process.device,
        "bus": f"{0x10 + process.device:x}1c0", "id": comm.id,
    }  # fmt: skip
    state = version.state.format(**known)
    lines = [process.line(f"{state} - Init START")] if version.begins else []
    if member == 0:
        ring = " ".join(f"{each:3d}" for each in range(nranks))
        lines += [process.line(f"Channel {channel:02d}/02 : {ring}") for channel in range(2)]
    up, down = member - 1, member + 1 if member + 1 < nranks else -1
    tree = version.tree.format(up=up, rank=member, down=down)
    trees = process.line("Trees " + " ".join(f"[{channel}] {tree}" for channel in range(2)))
    following = (member + 1) % nranks
    connections = [
        process.line(version.connection.format(channel=channel, sender=member, receiver=following) + " via P2P/IPC")
        for channel in range(2)
    ]
    lines += [*connections, trees] if "->{rank}->{down}/" in version.tree[:20] else [trees, *connections]
    lines.append(process.line("Connected all rings"))
    lines.append(process.line("2 coll channels, 2 p2p channels, 2 p2p channels per peer"))
    lines.append(process.line(f"{state} - Init COMPLETE"))
    return lines
