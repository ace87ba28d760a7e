"""Formulas of collectives against schedules that are run: data is moved piece by piece, steps and bytes are counted."""

from collections import Counter
from collections.abc import Callable, Iterable
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.whatif.cost.formulas import (
    ALGORITHMS,
    INTER,
    INTRA,
    LinkCost,
    Stages,
    binomial,
    bruck,
    double_binary_tree,
    hierarchical,
    in_network,
    recursive_halving_doubling,
    ring,
    time_ns,
)

Message = tuple[int, int, object, frozenset[int]]
"""Sender, receiver, which piece, whose contributions it holds."""


class Machine:
    """Ranks that hold pieces; a step sends messages at once and merges what arrives."""

    def __init__(self, ranks: int, pieces: Iterable[object], holders: Callable[[int, object], bool]) -> None:
        self.held = [{piece: frozenset((rank,)) for piece in pieces if holders(rank, piece)} for rank in range(ranks)]
        self.steps = 0
        self.sent: Counter[int] = Counter()
        self.reduced: Counter[int] = Counter()

    def step(self, moves: Iterable[tuple[int, int, object]]) -> None:
        moving = [(a, b, piece, self.held[a][piece]) for a, b, piece in moves]
        if not moving:
            return
        for sender, receiver, piece, content in moving:
            self.sent[sender] += 1
            mine = self.held[receiver].get(piece, frozenset())
            self.reduced[receiver] += bool(mine - content)
            self.held[receiver][piece] = mine | content
        self.steps += 1


def check(stages: Stages, machine: Machine, piece_bytes: float, *, reduces: bool = False) -> None:
    assert sum(each.steps for each in stages) == machine.steps
    assert sum(each.bytes for each in stages) == pytest.approx(max(machine.sent.values(), default=0) * piece_bytes)
    if reduces:
        got = sum(each.reduced_bytes for each in stages)
        assert got == pytest.approx(max(machine.reduced.values(), default=0) * piece_bytes)


def everywhere(machine: Machine, pieces: Iterable[object], ranks: int) -> None:
    for rank in range(ranks):
        for piece in pieces:
            assert machine.held[rank][piece] == frozenset(range(ranks))


RANKS = st.integers(2, 17)


def ring_scatter(machine: Machine, members: list[int], pieces: list[object]) -> None:
    n = len(members)
    for step in range(n - 1):
        machine.step((members[r], members[(r + 1) % n], pieces[(r - step - 1) % n]) for r in range(n))


def ring_gather(machine: Machine, members: list[int], pieces: list[object]) -> None:
    n = len(members)
    for step in range(n - 1):
        machine.step((members[r], members[(r + 1) % n], pieces[(r - step) % n]) for r in range(n))


@given(n=RANKS)
def test_ring(n: int) -> None:
    members, pieces = list(range(n)), list(range(n))
    machine = Machine(n, pieces, lambda _, __: True)
    ring_scatter(machine, members, pieces)
    for rank in range(n):
        assert machine.held[rank][rank] == frozenset(range(n))
    check(ring("reduce_scatter", n, n), machine, 1, reduces=True)
    ring_gather(machine, members, pieces)
    everywhere(machine, pieces, n)
    check(ring("all_reduce", n, n), machine, 1, reduces=True)
    machine = Machine(n, pieces, lambda rank, piece: rank == piece)
    ring_gather(machine, members, pieces)
    assert all(set(each) == set(pieces) for each in machine.held)
    check(ring("all_gather", n, n), machine, 1)


@given(n=RANKS)
def test_pairwise_exchange(n: int) -> None:
    blocks = [(a, b) for a in range(n) for b in range(n)]
    machine = Machine(n, blocks, lambda rank, block: block[0] == rank)  # type: ignore[index]
    for distance in range(1, n):
        machine.step((r, (r + distance) % n, (r, (r + distance) % n)) for r in range(n))
    for rank in range(n):
        assert {(a, rank) for a in range(n)} <= set(machine.held[rank])
    check(ring("all_to_all", n, n), machine, 1)


@given(n=RANKS)
def test_a_chain_broadcasts_in_pieces(n: int) -> None:
    pieces = list(range(20 * n))
    machine = Machine(n, pieces, lambda rank, _: rank == 0)
    for time in range(len(pieces) + n - 2):
        machine.step((r, r + 1, time - r) for r in range(n - 1) if 0 <= time - r < len(pieces))
    assert all(set(each) == set(pieces) for each in machine.held)
    (stage,) = ring("broadcast", n, len(pieces))
    assert max(machine.sent.values()) == stage.bytes
    # The first piece takes the latency; every further one the time of one piece on a link.
    assert machine.steps == stage.steps + len(pieces) - 1


def tree(n: int) -> dict[int, int]:
    """The parent of each rank but the root in NCCL's binary tree: the lowest bit of a rank tells its height."""
    parents = {}
    for rank in range(1, n):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parents[rank] = up if up < n else rank ^ bit
    return parents


def trees(n: int) -> list[dict[int, int]]:
    first = tree(n)
    if n % 2 == 0:  # the second is the first, mirrored
        return [first, {n - 1 - child: n - 1 - parent for child, parent in first.items()}]
    return [first, {(child + 1) % n: (parent + 1) % n for child, parent in first.items()}]  # or shifted by one


@given(n=RANKS)
def test_double_binary_tree(n: int) -> None:
    pieces = [(half, number) for half in range(2) for number in range(2)]
    machine = Machine(n, pieces, lambda _, __: True)
    deepest = 0
    for half, parents in enumerate(trees(n)):
        depth: dict[int, int] = {}
        for rank in range(n):
            at, hops = rank, 0
            while at in parents:
                at, hops = parents[at], hops + 1
            depth[rank] = hops
        deepest = max(deepest, *depth.values())
        sent_up = sorted(parents, key=lambda each, at=depth: -at[each])
        for child in sent_up:
            machine.step((child, parents[child], (half, number)) for number in range(2))
        for child in sent_up[::-1]:
            machine.step((parents[child], child, (half, number)) for number in range(2))
    everywhere(machine, pieces, n)
    up, down = double_binary_tree("all_reduce", n, len(pieces))
    assert up.steps == down.steps == deepest == ceil(log2(n))
    # With two ranks there is nothing to share; else no rank sends more than the formula says.
    assert max(machine.sent.values()) <= up.bytes + down.bytes
    if n > 4:
        assert max(machine.sent.values()) == up.bytes + down.bytes


@given(power=st.integers(1, 4))
def test_recursive_halving_doubling(power: int) -> None:
    n = 1 << power
    pieces = list(range(n))
    machine = Machine(n, pieces, lambda _, __: True)
    _halve(machine, list(range(n)), pieces)
    check(recursive_halving_doubling("reduce_scatter", n, n), machine, 1, reduces=True)
    _double(machine, list(range(n)), pieces)
    everywhere(machine, pieces, n)
    check(recursive_halving_doubling("all_reduce", n, n), machine, 1, reduces=True)
    machine = Machine(n, pieces, lambda rank, piece: rank == piece)
    _double(machine, list(range(n)), pieces)
    assert all(set(each) == set(pieces) for each in machine.held)
    check(recursive_halving_doubling("all_gather", n, n), machine, 1)


def _halve(machine: Machine, members: list[int], pieces: list[int]) -> None:
    distance = len(members) // 2
    while distance:
        moves = []
        for place, rank in enumerate(members):
            other = place ^ distance
            mine = [piece for piece in pieces if piece // (2 * distance) == place // (2 * distance)]
            moves += [(rank, members[other], piece) for piece in mine if (piece & distance) == (other & distance)]
        machine.step(moves)
        distance //= 2


def _double(machine: Machine, members: list[int], pieces: list[int]) -> None:
    distance = 1
    while distance < len(members):
        machine.step(
            (rank, members[place ^ distance], piece)
            for place, rank in enumerate(members)
            for piece in pieces
            if piece // distance == place // distance
        )
        distance *= 2


@given(n=st.integers(3, 15).filter(lambda each: each & (each - 1)))
def test_halving_of_an_odd_number_of_ranks(n: int) -> None:
    inner = 1 << (n.bit_length() - 1)
    extra = n - inner
    pieces = list(range(inner))
    machine = Machine(n, pieces, lambda _, __: True)
    machine.step((2 * pair, 2 * pair + 1, piece) for pair in range(extra) for piece in pieces)
    members = [2 * pair + 1 for pair in range(extra)] + list(range(2 * extra, n))
    _halve(machine, members, pieces)
    _double(machine, members, pieces)
    machine.step((2 * pair + 1, 2 * pair, piece) for pair in range(extra) for piece in pieces)
    everywhere(machine, pieces, n)
    stages = recursive_halving_doubling("all_reduce", n, inner)
    assert sum(each.steps for each in stages) == machine.steps
    # The rank that gives sends first, the one that takes sends last: what the busiest of each stage sends adds up.
    assert sum(each.bytes for each in stages[1:]) == max(machine.sent.values())
    assert stages[0].bytes == inner


@given(n=RANKS)
def test_bruck(n: int) -> None:
    machine = Machine(n, range(n), lambda rank, piece: rank == piece)
    held = 1
    while held < n:
        count = min(held, n - held)
        machine.step((r, (r - held) % n, (r + each) % n) for r in range(n) for each in range(count))
        held += count
    assert all(len(each) == n for each in machine.held)
    check(bruck("all_gather", n, n), machine, 1)

    blocks = [(a, b) for a in range(n) for b in range(n)]
    machine = Machine(n, blocks, lambda rank, block: block[0] == rank)  # type: ignore[index]
    where = {block: block[0] for block in blocks}
    bit = 1
    while bit < n:
        moving = [block for block in blocks if (block[1] - block[0]) % n & bit]
        machine.step((where[block], (where[block] + bit) % n, block) for block in moving)
        for block in moving:
            where[block] = (where[block] + bit) % n
        bit *= 2
    assert all(where[block] == block[1] for block in blocks)
    check(bruck("all_to_all", n, n), machine, 1)


@given(n=RANKS)
def test_binomial_broadcast(n: int) -> None:
    machine = Machine(n, ["all"], lambda rank, _: rank == 0)
    reached = 1
    while reached < n:
        machine.step((r, r + reached, "all") for r in range(min(reached, n - reached)))
        reached *= 2
    assert all(machine.held)
    check(binomial("broadcast", n, 1), machine, 1)


@given(local=st.integers(2, 6), nodes=st.integers(2, 6))
def test_torus_and_two_levels(local: int, nodes: int) -> None:
    n = local * nodes
    pieces = [(a, b) for a in range(local) for b in range(nodes)]
    machine = Machine(n, pieces, lambda _, __: True)
    taken: dict[str, tuple[int, int]] = {}

    def run(level: str, phase: Callable[[Machine, int], None]) -> None:
        before = machine.steps
        sent = Counter(machine.sent)
        rows = range(nodes) if level == INTRA else range(local)
        machines = [Machine(0, [], lambda _, __: False) for _ in rows]
        for each, row in zip(machines, rows, strict=True):  # rows work at once: each has steps of its own
            each.held, each.sent = machine.held, machine.sent
            phase(each, row)
        machine.steps = before + machines[0].steps
        most = max((machine.sent - sent).values())
        steps, count = taken.get(level, (0, 0))
        taken[level] = (steps + machines[0].steps, count + most)

    def around_a_node(each: Machine, node: int, ahead: int) -> None:
        for step in range(local - 1):
            each.step(
                (node * local + r, node * local + (r + 1) % local, ((r - step - ahead) % local, b))
                for r in range(local)
                for b in range(nodes)
            )

    def reduce_between(each: Machine, a: int) -> None:
        members, own = [b * local + a for b in range(nodes)], [(a, b) for b in range(nodes)]
        ring_scatter(each, members, own)
        ring_gather(each, members, own)

    run(INTRA, lambda each, node: around_a_node(each, node, 1))
    run(INTER, reduce_between)
    run(INTRA, lambda each, node: around_a_node(each, node, 0))
    everywhere(machine, pieces, n)
    stages = hierarchical((local, nodes), n)
    for level in (INTRA, INTER):
        those = [each for each in stages if each.level == level]
        steps, count = taken[level]
        assert sum(each.steps for each in those) == steps
        assert sum(each.bytes for each in those) == pytest.approx(count)


@given(n=RANKS)
def test_the_switch_sends_and_gets_everything_once(n: int) -> None:
    for op, sent, received in (
        ("all_reduce", n, n), ("all_gather", 1, n), ("reduce_scatter", n, 1), ("broadcast", n, n),
    ):  # fmt: skip
        (stage,) = in_network(op, n, n)
        assert (stage.steps, stage.bytes) == (2, max(sent, received))


@given(n=st.integers(2, 64), size=st.floats(1, 1e9), gbs=st.floats(1, 500), latency=st.floats(0, 1e5))
def test_the_price_of_the_ring_is_the_textbooks(n: int, size: float, gbs: float, latency: float) -> None:
    links = {INTRA: LinkCost(latency_ns=latency, gbs=gbs)}
    expected = 2 * (n - 1) * latency + 2 * (n - 1) / n * size / gbs
    assert time_ns(ring("all_reduce", n, size), links) == pytest.approx(expected)


def test_the_price_of_two_levels_is_the_sum_of_both() -> None:
    links = {INTRA: LinkCost(latency_ns=0, gbs=200), INTER: LinkCost(latency_ns=0, gbs=10)}
    inside, between = 2 * 7 / 8 * 8e6 / 200, 2 * 3 / 4 * 1e6 / 10
    assert time_ns(hierarchical((8, 4), 8e6), links) == pytest.approx(inside + between)


def test_adding_up_costs_what_it_is_said_to() -> None:
    links = {INTRA: LinkCost(latency_ns=0, gbs=1e9, reduce_ns_per_byte=0.5)}
    assert time_ns(ring("all_reduce", 4, 1000), links) == pytest.approx(0.5 * 750, abs=1e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values())
def test_an_operation_without_a_schedule_is_refused(algorithm: Callable[[str, int, float], Stages]) -> None:
    with pytest.raises(ValueError, match="no known schedule"):
        algorithm("scan", 4, 100)


@pytest.mark.parametrize("algorithm", [ring, double_binary_tree, recursive_halving_doubling, in_network])
def test_one_rank_pays_nothing(algorithm: Callable[[str, int, float], Stages]) -> None:
    assert time_ns(algorithm("all_reduce", 1, 1e9), {INTRA: LinkCost(latency_ns=1e3, gbs=10)}) == 0
