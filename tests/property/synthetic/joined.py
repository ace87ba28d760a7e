"""All that a stage's ranks saw as one table: columns that they share, and a row of times each."""

import msgspec
import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job, Ranks
from tests.property.synthetic.record import Call, Record

EPOCH_NS = 1_700_000_000_000_000_000
BEGIN_NS = 10_000_000_000
"""The job's start after the epoch; more than any clock is off."""
Ints = npt.NDArray[np.int64]
STREAMS = {"compute": 7, "dp": 20, "gather": 24, "tp": 28, "ep": 32, "mp": 36, "world": 40,
           "receive-1": 44, "send+1": 48, "receive+1": 52, "send-1": 56}  # fmt: skip
DESCRIPTIONS = {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP", "ep": "EXPERT_MODEL_PARALLEL_GROUP",
                "pp": "PIPELINE_MODEL_PARALLEL_GROUP", "mp": "MODEL_PARALLEL_GROUP", "world": "default_pg"}  # fmt: skip
KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


class NamedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as torch would name it."""

    name: str
    dimension: str
    ranks: tuple[int, ...]

    @property
    def description(self) -> str:
        """What the framework calls it."""
        return DESCRIPTIONS[self.dimension]


def named_groups(job: Job) -> list[NamedGroup]:
    """Return all groups of a job with more than one member, the whole world first."""
    found = [NamedGroup(name="0", dimension="world", ranks=tuple(range(job.layout.world)))]
    for dimension in ("tp", "dp", "ep", "pp", "mp"):
        groups = job.layout.groups(dimension)
        if groups.shape[1] > 1:
            found += [
                NamedGroup(name=str(len(found) + at), dimension=dimension, ranks=tuple(members))
                for at, members in enumerate(groups.tolist())
            ]
    return found


class Joined:
    """One stage's record as a table of spans in the order of launching."""

    def __init__(self, record: Record) -> None:
        pieces = record.pieces
        counts = np.array([piece.start.shape[1] for piece in pieces], np.int64)
        self.ranks: Ranks = record.ranks
        self.names = sorted({name for piece in pieces for name in (*piece.names, *piece.ops, *(KERNELS.values()))})
        place = {name: at for at, name in enumerate(self.names)}
        self.piece: Ints = np.repeat(np.arange(len(pieces)), counts)
        self.kind: Ints = np.repeat([piece.kind for piece in pieces], counts)
        self.stream: Ints = np.repeat([STREAMS[piece.lane] for piece in pieces], counts)
        self.thread: Ints = np.repeat([piece.thread for piece in pieces], counts)
        self.graph = np.repeat([piece.graph for piece in pieces], counts)
        called = [[KERNELS.get(name, name) for name in piece.names] for piece in pieces]
        self.name: Ints = np.array([place[name] for names in called for name in names], np.int64)
        self.op: Ints = np.array([place[name] for piece in pieces for name in piece.ops], np.int64)
        own = np.where(self.graph & (np.diff(self.piece, prepend=-1) == 0), 0, 1)
        self.correlation: Ints = 1000 + np.cumsum(own)
        """The number of the launch: graphs have one for all."""
        self.calls: list[Call] = [piece.call for piece in pieces if piece.call is not None]
        number = np.cumsum([piece.call is not None for piece in pieces]) - 1
        self.call: Ints = np.repeat(
            [at if p.call is not None else -1 for p, at in zip(pieces, number, strict=True)], counts
        )
        self.launch, self.returned, self.start, self.end, self.blocks = (
            np.concatenate([getattr(piece, name) for piece in pieces], axis=1)
            for name in ("launch", "returned", "start", "end", "blocks")
        )
        self.present = np.concatenate(
            [np.ones(piece.start.shape, np.bool_) if piece.present is None else piece.present for piece in pieces],
            axis=1,
        )
        self.transfer = np.array([piece.transfer for piece in pieces if piece.transfer is not None])
        """What each call takes once all have come: [call, rank]."""


class Clock:
    """What a rank's clock shows at a true time."""

    def __init__(self, job: Job, rank: int) -> None:
        offsets, drifts = job.clocks()
        self._offset, self._drift = offsets[rank], drifts[rank]

    def shows(self, true_ns: npt.NDArray[np.float64]) -> Ints:
        """Return nanoseconds since the epoch."""
        return EPOCH_NS + BEGIN_NS + np.rint(true_ns * (1 + self._drift) + self._offset).astype(np.int64)
