"""Compute when gradients become ready, from a model as pieces of its backward pass with their operation counts.

Times that were not measured come from operation counts: a matrix of n weights takes 2 n operations a token forward and
4 n backward (Kaplan et al., arXiv 2001.08361, section 2.1); attention over T tokens 4 T d a layer forward, half of it
where it is causal, and 2.5 times that backward where it is recomputed (Dao et al., FlashAttention, arXiv 2205.14135).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.whatif.workload.workload import Gradients

OPTIMIZER_TOUCHES: Final[Mapping[str, int]] = {"sgd": 3, "sgd_momentum": 5, "adam": 7, "adamw": 7}
"""How many numbers an optimizer step reads or writes for each parameter: parameter, gradient, optimizer states."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter, or work without one, in registration order; backward goes through the pieces in reverse."""

    name: str
    elements: int = 0
    """0 where it has no parameter of its own."""
    dtype: str = "float32"
    operations: float = 0.0
    """Operations of its backward pass; only the share of the total matters."""
    shape: tuple[int, ...] = ()
    tied_to: str = ""
    """The piece whose parameter it shares: that gradient is ready when backward has passed both."""

    @property
    def bytes(self) -> int:
        """Size of its gradient in bytes."""
        return self.elements * ITEM_BYTES[self.dtype]


def transformer(
    *,
    layers: int,
    hidden: int,
    vocabulary: int,
    sequence: int,
    feed_forward: int | None = None,
    tied_embedding: bool = True,
    learned_positions: bool = True,
    bias: bool = False,
    causal: bool = True,
    dtype: str = "float32",
) -> list[Piece]:
    """Return the pieces of a decoder: GPT-2's layers (pre-norm, one matrix for q, k and v, two-matrix feed-forward)."""
    wide = feed_forward if feed_forward is not None else 4 * hidden
    attention = 2.5 * 4 * sequence * hidden * (0.5 if causal else 1.0)

    def matrix(name: str, rows: int, columns: int) -> list[Piece]:
        weight = _parameter(f"{name}.weight", (rows, columns), dtype, operations=4.0 * rows * columns)
        return [weight, *([_parameter(f"{name}.bias", (rows,), dtype)] if bias else [])]

    def norm(name: str) -> list[Piece]:
        parts = ("weight", "bias") if bias else ("weight",)
        return [_parameter(f"{name}.{part}", (hidden,), dtype) for part in parts]

    pieces = [_parameter("embedding.weight", (vocabulary, hidden), dtype)]
    if learned_positions:
        pieces.append(_parameter("positions.weight", (sequence, hidden), dtype))
    for layer in range(layers):
        at = f"layers.{layer}"
        pieces += norm(f"{at}.norm1")
        pieces += matrix(f"{at}.qkv", 3 * hidden, hidden)
        pieces.append(Piece(name=f"{at}.attention", operations=attention))
        pieces += matrix(f"{at}.out", hidden, hidden)
        pieces += norm(f"{at}.norm2")
        pieces += matrix(f"{at}.up", wide, hidden)
        pieces += matrix(f"{at}.down", hidden, wide)
    pieces += norm("norm")
    operations = 4.0 * vocabulary * hidden
    if tied_embedding:
        pieces.append(Piece(name="head", operations=operations, tied_to="embedding.weight"))
    else:
        pieces.append(_parameter("head.weight", (vocabulary, hidden), dtype, operations=operations))
    return pieces


def _parameter(name: str, shape: tuple[int, ...], dtype: str, operations: float = 0.0) -> Piece:
    return Piece(name=name, elements=prod(shape), dtype=dtype, operations=operations, shape=shape)


def piece(name: str, shape: Sequence[int], dtype: str, operations: float | None, tied_to: str) -> Piece:
    """Return the piece of a described parameter; without `operations`, those of a matrix used once for each token."""
    numbers = prod(shape)
    own = 0 if tied_to else numbers
    return Piece(
        name=name,
        elements=own,
        dtype=dtype,
        operations=4.0 * numbers if operations is None else operations,
        shape=tuple(shape),
        tied_to=tied_to,
    )


def head_of(pieces: Sequence[Piece]) -> int | None:
    """Return the index of the model's head: the last piece with operations, where backward begins; None without one."""
    heavy = [place for place, each in enumerate(pieces) if each.operations]
    return heavy[-1] if len(heavy) > 1 else None


def gradients_of(
    pieces: Sequence[Piece], forward_ns: float, backward_ns: float, *, head_scale: float = 1.0
) -> Gradients:
    """Return the gradients in the order of readiness; times are the pieces' shares of the operations of backward.

    `head_scale` multiplies the operations of the head, to vary its share.
    """
    operations = np.array([each.operations for each in pieces], np.float64)
    head = head_of(pieces)
    if head is not None:
        operations[head] *= head_scale
    done = np.cumsum(operations[::-1])[::-1]
    ready = forward_ns + backward_ns * (done / done[0] if done[0] else np.linspace(1, 0, done.size))
    last = {each.name: time for each, time in zip(pieces, ready.tolist(), strict=True)}
    for each, time in zip(pieces, ready.tolist(), strict=True):
        if each.tied_to:
            last[each.tied_to] = max(last[each.tied_to], time)
    own = [place for place, each in enumerate(pieces) if each.elements]
    order = sorted(range(len(own)), key=lambda number: (last[pieces[own[number]].name], -number))
    chosen = [pieces[own[number]] for number in order]
    return Gradients(
        names=tuple(each.name for each in chosen),
        sizes_bytes=np.array([each.bytes for each in chosen], np.int64),
        kinds=tuple(("gpu", each.dtype) for each in chosen),
        ready_ns=np.array([last[each.name] for each in chosen]),
        registered=np.array(order, np.int64),
        shapes=tuple(each.shape for each in chosen),
    )


def head_share(pieces: Sequence[Piece]) -> float | None:
    """Return the head's share of the operations of backward; None without a head."""
    total = sum(each.operations for each in pieces)
    head = head_of(pieces)
    return pieces[head].operations / total if head is not None and total else None


def optimizer_bytes(pieces: Sequence[Piece], name: str) -> int:
    """Return the bytes that one optimizer step reads and writes."""
    return OPTIMIZER_TOUCHES[name] * sum(each.bytes for each in pieces)
