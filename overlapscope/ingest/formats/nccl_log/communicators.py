"""Processes and the communicators they tell of, as a log's lines bring them; pointers are used again.

A communicator is known in a process by its address. An address names the communicator that was initialised there last;
after `Destroy` or `Abort` it names none. Calls on an address that no line introduced make a communicator of their own:
the log was begun late, or without the subsystem INIT.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from overlapscope.display import listed
from overlapscope.ingest.formats.nccl_log.line_prefix import Writer

NO_NUMBER = -1
MAX_LISTED: Final = 3
_MAX_NAME: Final = 200
"""Names of splits of splits hold their parents'; of a longer one the end is replaced by what stands for it."""


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


Worker = tuple[Process, int]


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
        """Return the process, a new one where it was not seen before."""
        key = (host, number)
        if key not in self.processes:
            self.processes[key] = Process(host=host, number=number)
        return self.processes[key]

    def thread(self, writer: Writer) -> Thread:
        """Return the thread that wrote a line, with the device that is current now."""
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
        """Return the communicator that a call on this address uses; one of another size is another communicator."""
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


def worker_of(communicator: Communicator) -> Worker:
    """Return the process and the device that a member is."""
    return (communicator.process, communicator.device)


def name_communicators(communicators: Sequence[Communicator]) -> list[str]:
    """Name all communicators; give what is to be said about it."""
    seen: Counter[tuple[Worker, str]] = Counter()
    for each in communicators:
        stem = _stem(each)
        seen[worker_of(each), stem] += 1
        nth = seen[worker_of(each), stem]
        each.name = stem if nth == 1 else f"{stem} #{nth}"
    named: dict[str, list[Communicator]] = defaultdict(list)
    for each in communicators:
        named[each.name].append(each)
    torn = sorted(name for name, members in named.items() if _collide(members))
    for name in torn:
        for each in named[name]:
            each.name = f"{name} of {each.process.host}:{each.process.number} device {each.device}"
    if not torn:
        return []
    few = listed(torn, MAX_LISTED)
    return [
        f"several communicators look alike in this log ({few}): which of their members belong together is not known"
    ]


def _stem(communicator: Communicator) -> str:
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


def _collide(members: Sequence[Communicator]) -> bool:
    """Return whether these cannot be members of one communicator."""
    places = [each.member for each in members if each.member != NO_NUMBER]
    return len(set(places)) < len(places) or len({each.size for each in members}) > 1


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Who is which rank."""

    size: int | None
    ranks: dict[Worker, int]
    """Empty where it cannot be known."""
    notes: tuple[str, ...]


def find_world(communicators: Sequence[Communicator]) -> World:
    """Tell the ranks of all processes that have a communicator.

    The world is the largest communicator, if all of them are in it; of several, those must number them alike, or the
    launcher's labels agree with one, or one is not a split of another. Where there is none, the labels tell the ranks
    if they differ from process to process.
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
    most = max((each.size for each in communicators), default=0)  # also those that only calls tell of
    largest = [name for name in covering if sizes[name] == most]
    if largest:
        first = of_name[largest[0]]
        agreeing = [name for name in largest if of_name[name] == labels]
        roots = [name for name in largest if name not in splits]
        if all(of_name[name] == first for name in largest) or agreeing or len(roots) == 1:
            name = (agreeing or (roots if len(roots) == 1 else largest))[0]
            note = "the launcher's labels number the processes otherwise than NCCL does; ranks are NCCL's"
            odd = bool(labels) and of_name[name] != labels
            return World(size=sizes[name], ranks=of_name[name], notes=(note,) if odd else ())
    if labels:
        return World(size=None, ranks=labels, notes=("ranks are those of the launcher's labels",))
    note = (
        "which ranks its processes are cannot be told: no communicator holds them all; a log of several jobs, or of "
        "one that was restarted, has to be cut to one"
    )
    return World(size=None, ranks={}, notes=(note,) if workers else ())


def _labels(workers: set[Worker]) -> dict[Worker, int]:
    """Return the ranks by the launcher's labels; none unless each process has one of its own."""
    ranks: dict[Worker, int] = {}
    for worker in workers:
        if len(worker[0].labels) == 1:
            ranks[worker] = next(iter(worker[0].labels))
    distinct = len(set(ranks.values()))
    return ranks if distinct == len(workers) and len({process for process, _ in workers}) == distinct else {}
