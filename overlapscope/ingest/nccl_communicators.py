"""Processes and the communicators they tell of, as a log's lines bring them; pointers are used again.

A communicator is known in a process by its address. An address names the communicator that was initialised there last;
after `Destroy` or `Abort` it names none. Calls on an address that no line introduced make a communicator of their own:
the log was begun late, or without the subsystem INIT.
"""

from array import array
from collections import Counter

import msgspec

from overlapscope.ingest.nccl_prefix import Writer

NO_NUMBER = -1


class Told(msgspec.Struct):
    """What a thread's lines tell of the communicator it initialises, or of one that is not clear."""

    connections: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Numbers of connections in the log's table of them; repeated as the log repeats them."""
    paths: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    """Pattern, channel, member and next member, one after the other."""
    rings: "list[tuple[int, array[int]]]" = []
    """Channel, and its members in order."""
    costs: list[tuple[str, str, str, float, float]] = []
    """Operation, algorithm, protocol, latency in microseconds, bandwidth in GB/s."""
    channels: tuple[int, int, int] | None = None
    """For collectives, for point-to-point, for NVLS; NO_NUMBER where not told."""
    network: str | None = None
    seen: set[bytes] = set()
    """Lines on rings and trees that were taken: some logs repeat them."""

    def add(self, other: "Told") -> None:
        """Take over what the other holds."""
        self.connections.extend(other.connections)
        self.paths.extend(other.paths)
        self.rings += other.rings
        self.costs += other.costs
        self.channels = other.channels or self.channels
        self.network = other.network or self.network


class Communicator(msgspec.Struct, eq=False):
    """A communicator as one of its members sees it."""

    process: "Process"
    pointer: int
    size: int
    member: int
    device: int
    order: int
    """Place among all that the log tells of."""
    bus: str | None = None
    comm_id: str | None = None
    parent: "Communicator | None" = None
    split: str | None = None
    """Which split of the parent it comes from, as far as the log tells."""
    introduced: bool = True
    """Whether a line of its initialisation was seen."""
    complete: bool = False
    nodes: int = NO_NUMBER
    init_seconds: float | None = None
    told: Told = msgspec.field(default_factory=Told)
    name: str = ""


class Process(msgspec.Struct, eq=False):
    """One process of the job."""

    host: str
    number: int
    labels: Counter[int] = msgspec.field(default_factory=Counter)
    """Ranks that a launcher's labels on its lines tell."""
    library: str | None = None
    network: str | None = None
    cards: dict[tuple[str, int], str] = {}
    """Network card by family (`IB`, `Socket`) and number."""
    by_pointer: dict[int, Communicator] = {}
    late: "list[tuple[int, array[int]]]" = []
    """Device, and connections that were made after initialisation."""


class Thread(msgspec.Struct, eq=False):
    """One thread of a process: initialisation is told line by line in one thread."""

    process: Process
    device: int
    told: Told = msgspec.field(default_factory=Told)
    open: Communicator | None = None
    """The communicator whose initialisation has begun and not ended."""
    last: Communicator | None = None
    """The communicator whose initialisation ended last."""
    columns: list[tuple[str, str]] = []
    """Algorithm and protocol of each column of the table of costs that is being printed."""
    algorithms: list[str] = []


class Communicators:
    """All processes and communicators of a log."""

    __slots__ = ("all", "processes", "threads")

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int], Process] = {}
        self.threads: dict[tuple[str, int, int], Thread] = {}
        self.all: list[Communicator] = []

    def process(self, host: str, number: int) -> Process:
        """Give the process, a new one where it was not seen before."""
        key = (host, number)
        if key not in self.processes:
            self.processes[key] = Process(host=host, number=number)
        return self.processes[key]

    def thread(self, writer: Writer) -> Thread:
        """Give the thread that wrote a line, with the device that is current now."""
        key = (writer.host, writer.process, writer.thread)
        found = self.threads.get(key)
        if found is None:
            process = self.process(writer.host, writer.process)
            found = self.threads[key] = Thread(process=process, device=writer.device)
        found.device = writer.device
        return found

    def add(self, made: Communicator) -> Communicator:
        """Add a communicator: its address names it from here."""
        self.all.append(made)
        made.process.by_pointer[made.pointer] = made
        return made

    def of_call(self, process: Process, pointer: int, *, size: int, member: int, device: int) -> Communicator:
        """Give the communicator that a call on this address uses; one of another size is another communicator."""
        found = process.by_pointer.get(pointer)
        if found is None or found.size != size:
            made = Communicator(
                process=process, pointer=pointer, size=size, member=member, device=device, order=len(self.all)
            )
            made.introduced = False
            found = self.add(made)
        if found.member == NO_NUMBER:
            found.member = member
        return found
