"""Track the processes and communicators of a log, name the communicators, and find the rank of each process.

A communicator is known in a process by its address. An address refers to the communicator that was initialised there
last; after `Destroy` or `Abort` it refers to none, and it may be reused. Calls on an address that no line introduced
get a communicator of their own: the log was begun late, or without the subsystem INIT.

A communicator gets the same name in every file that mentions it, so that the files join: its id since NCCL 2.16; for a
split, the parent's name, the number of the split and its color; before 2.16, its size. Several of a process are
numbered in the order of initialisation. Two processes that claim the same rank in one communicator show that its name
stands for several: each then gets a name of its own.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from overlapscope.display import list_some
from overlapscope.ingest.formats.nccl_log.line_prefix import Writer

NO_NUMBER = -1
MAX_LISTED: Final = 3
_MAX_NAME: Final = 200
"""Longest name. Names of nested splits contain their parents' names; a digest replaces the end of a longer one."""


class InitDetails(msgspec.Struct):
    """What a thread's lines report about the communicator it initialises, or about one that is not determined yet."""

    connections: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Numbers of connections in the log's table of them, repeated as the log repeats them."""
    paths: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Pattern, channel, member and next member, one after the other."""
    rings: "list[tuple[int, array[int]]]" = []
    """Channel, and its members in order."""
    costs: list[tuple[str, str, str, float, float]] = []
    """Operation, algorithm, protocol, latency in microseconds, bandwidth in GB/s."""
    channels: tuple[int, int, int] | None = None
    """Channels for collectives, for point-to-point, for NVLS; NO_NUMBER where not reported."""
    network: str | None = None
    seen: set[bytes] = set()
    """Lines on rings and trees that were read: some logs repeat them."""

    def add(self, other: "InitDetails") -> None:
        """Append the contents of `other`."""
        self.connections.extend(other.connections)
        self.paths.extend(other.paths)
        self.rings += other.rings
        self.costs += other.costs
        self.channels = other.channels or self.channels
        self.network = other.network or self.network


class LoggedCommunicator(msgspec.Struct, eq=False):
    """A communicator as one of its members sees it."""

    process: "LoggedProcess"
    pointer: int
    size: int
    member: int
    device: int
    order: int
    """Position among all communicators of the log."""
    bus: str | None = None
    comm_id: str | None = None
    parent: "LoggedCommunicator | None" = None
    split: str | None = None
    """Which split of the parent it is, as far as the log states it."""
    introduced: bool = True
    """Whether a line of its initialisation was seen."""
    complete: bool = False
    nodes: int = NO_NUMBER
    init_seconds: float | None = None
    details: InitDetails = msgspec.field(default_factory=InitDetails)
    name: str = ""


class LoggedProcess(msgspec.Struct, eq=False):
    """One process of the job."""

    host: str
    number: int
    labels: Counter[int] = msgspec.field(default_factory=Counter)
    """Ranks in the launcher's labels on its lines, with their number of lines."""
    library: str | None = None
    network: str | None = None
    cards: dict[tuple[str, int], str] = {}
    """Name of each network card, by family (`IB`, `Socket`) and number."""
    by_pointer: dict[int, LoggedCommunicator] = {}
    late: "list[tuple[int, array[int]]]" = []
    """Device, and connections that were made after initialisation."""


Worker = tuple[LoggedProcess, int]


class LoggedThread(msgspec.Struct, eq=False):
    """One thread of a process: the lines of an initialisation are all written by one thread."""

    process: LoggedProcess
    device: int
    details: InitDetails = msgspec.field(default_factory=InitDetails)
    open: LoggedCommunicator | None = None
    """Communicator whose initialisation has begun and not ended."""
    last: LoggedCommunicator | None = None
    """Communicator whose initialisation ended last."""
    columns: list[tuple[str, str]] = []
    """Algorithm and protocol of each column of the cost table that is being printed."""
    algorithms: list[str] = []


class LoggedCommunicators:
    """All processes and communicators of a log."""

    __slots__ = ("all", "processes", "threads")

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int], LoggedProcess] = {}
        self.threads: dict[tuple[str, int, int], LoggedThread] = {}
        self.all: list[LoggedCommunicator] = []

    def process(self, host: str, number: int) -> LoggedProcess:
        """Return the process; a new one where it was not seen before."""
        key = (host, number)
        if key not in self.processes:
            self.processes[key] = LoggedProcess(host=host, number=number)
        return self.processes[key]

    def thread(self, writer: Writer) -> LoggedThread:
        """Return the thread that wrote a line, and set its current device."""
        key = (writer.host, writer.process, writer.thread)
        found = self.threads.get(key)
        if found is None:
            process = self.process(writer.host, writer.process)
            found = self.threads[key] = LoggedThread(process=process, device=writer.device)
        found.device = writer.device
        return found

    def add(self, made: LoggedCommunicator) -> LoggedCommunicator:
        """Add a communicator; from now on its address refers to it."""
        self.all.append(made)
        made.process.by_pointer[made.pointer] = made
        return made

    def of_call(
        self, process: LoggedProcess, pointer: int, *, size: int, member: int, device: int
    ) -> LoggedCommunicator:
        """Return the communicator of a call on this address; where the size differs, it is another communicator."""
        found = process.by_pointer.get(pointer)
        if found is None or found.size != size:
            made = LoggedCommunicator(
                process=process, pointer=pointer, size=size, member=member, device=device, order=len(self.all)
            )
            made.introduced = False
            found = self.add(made)
        if found.member == NO_NUMBER:
            found.member = member
        return found


def worker_of(communicator: LoggedCommunicator) -> Worker:
    """Return the process and the device of a member."""
    return (communicator.process, communicator.device)


def name_communicators(communicators: Sequence[LoggedCommunicator]) -> list[str]:
    """Name all communicators and return notes about the names."""
    seen: Counter[tuple[Worker, str]] = Counter()
    for each in communicators:
        stem = _stem(each)
        seen[worker_of(each), stem] += 1
        nth = seen[worker_of(each), stem]
        each.name = stem if nth == 1 else f"{stem} #{nth}"
    named: dict[str, list[LoggedCommunicator]] = defaultdict(list)
    for each in communicators:
        named[each.name].append(each)
    torn = sorted(name for name, members in named.items() if _collide(members))
    for name in torn:
        for each in named[name]:
            each.name = f"{name} of {each.process.host}:{each.process.number} device {each.device}"
    if not torn:
        return []
    few = list_some(torn, MAX_LISTED)
    return [f"several communicators look alike in this log ({few}): which of their members belong together is unknown"]


def _stem(communicator: LoggedCommunicator) -> str:
    size = f"{communicator.size} rank{'s' if communicator.size > 1 else ''}"
    if communicator.comm_id is not None:
        return communicator.comm_id
    if communicator.split is not None:
        parent = _short(communicator.parent.name) if communicator.parent is not None else "?"
        return f"{parent} {communicator.split} ({size})"
    return size


def _short(name: str) -> str:
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME]}~{hashlib.blake2b(name.encode('utf-8'), digest_size=8).hexdigest()}"


def _collide(members: Sequence[LoggedCommunicator]) -> bool:
    """Return whether these cannot all be members of one communicator."""
    places = [each.member for each in members if each.member != NO_NUMBER]
    return len(set(places)) < len(places) or len({each.size for each in members}) > 1


class WorldRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of the processes in the world."""

    size: int | None
    ranks: dict[Worker, int]
    """Empty where they cannot be determined."""
    notes: tuple[str, ...]


def find_world(communicators: Sequence[LoggedCommunicator]) -> WorldRanks:
    """Return the world ranks of all processes that have a communicator.

    The world is the largest communicator, if all processes are in it. If there are several such, they must number the
    processes alike, or the launcher's labels must agree with one, or one must not be a split of another. Where there is
    none, the labels give the ranks if they differ between all processes.
    """
    workers = {worker_of(each) for each in communicators}
    of_name: dict[str, dict[Worker, int]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    splits = {each.name for each in communicators if each.parent is not None}
    for each in communicators:
        if each.member != NO_NUMBER:
            of_name[each.name][worker_of(each)] = each.member
            sizes[each.name] = each.size
    labels = _labels(workers)
    covering = [name for name, members in of_name.items() if len(members) == len(workers)]
    most = max((each.size for each in communicators), default=0)  # including those known from calls only
    largest = [name for name in covering if sizes[name] == most]
    if largest:
        first = of_name[largest[0]]
        agreeing = [name for name in largest if of_name[name] == labels]
        roots = [name for name in largest if name not in splits]
        if all(of_name[name] == first for name in largest) or agreeing or len(roots) == 1:
            name = (agreeing or (roots if len(roots) == 1 else largest))[0]
            note = "the launcher's labels number the processes differently from NCCL; ranks are NCCL's"
            odd = bool(labels) and of_name[name] != labels
            return WorldRanks(size=sizes[name], ranks=of_name[name], notes=(note,) if odd else ())
    if labels:
        return WorldRanks(size=None, ranks=labels, notes=("ranks are those of the launcher's labels",))
    note = (
        "the ranks of its processes cannot be determined: no communicator contains them all; a log of several jobs, "
        "or of a restarted one, has to be cut to one job"
    )
    return WorldRanks(size=None, ranks={}, notes=(note,) if workers else ())


def _labels(workers: set[Worker]) -> dict[Worker, int]:
    """Return the ranks from the launcher's labels; empty unless each process has a rank of its own."""
    ranks: dict[Worker, int] = {}
    for worker in workers:
        if len(worker[0].labels) == 1:
            ranks[worker] = next(iter(worker[0].labels))
    distinct = len(set(ranks.values()))
    return ranks if distinct == len(workers) and len({process for process, _ in workers}) == distinct else {}
