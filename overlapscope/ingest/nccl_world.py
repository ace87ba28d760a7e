"""Names and ranks: which members of a log's communicators belong together, and who is which rank of the world.

A communicator has the same name in every file that tells of it, so that what they tell joins: its id since NCCL 2.16;
for a split, the parent's name, the number of the split and its color; before, its size. What one process has several
of is numbered in the order of initialisation. Two processes that claim the same place in one communicator show that
its name stands for several: each then gets a name of its own.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from overlapscope.ingest.nccl_communicators import NO_NUMBER, Communicator, Process
from overlapscope.timeline.listed import listed

MAX_LISTED: Final = 3
_MAX_NAME: Final = 200
"""Names of splits of splits hold their parents'; of a longer one the end is replaced by what stands for it."""
Worker = tuple[Process, int]


def worker_of(communicator: Communicator) -> Worker:
    """Give the process and the device that a member is."""
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
    """Whether these cannot be members of one communicator."""
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
    """Give the ranks by the launcher's labels; none unless each process has one of its own."""
    ranks: dict[Worker, int] = {}
    for worker in workers:
        if len(worker[0].labels) == 1:
            ranks[worker] = next(iter(worker[0].labels))
    distinct = len(set(ranks.values()))
    return ranks if distinct == len(workers) and len({process for process, _ in workers}) == distinct else {}
